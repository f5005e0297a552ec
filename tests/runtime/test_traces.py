"""Traces: what they hold is what ran, on one axis, in the format that viewers open; and what they cost when they are off."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import pytest
from fast_and_slow import fast_among
from language_model import CONFIG, feeds, model
from programs.start import rows
from starting import needs_mpi
from trace_format import verify_events

import taskflow
from taskflow.mapper import DataParallel
from taskflow.rules import SGD
from taskflow.runtime.executor import Executor
from taskflow.runtime.profiler import tracer as trace_module
from taskflow.runtime.profiler.clock_offsets import Offset, on_first_clock
from taskflow.runtime.profiler.events import COVERING
from taskflow.runtime.profiler.predicted import shown_from
from taskflow.runtime.profiler.recording import microseconds, read_trace, write_trace
from taskflow.runtime.profiler.tracer import TraceError
from taskflow.tasks.simulate import Span, Timeline, roofline, simulate
from taskflow.tasks.task import Kind


def executor(mapper: str = "data", processors: int = 3) -> Executor:
    graph, machine = model("float64", CONFIG), taskflow.host(processors)
    strategy, chosen = taskflow.choose(mapper, graph, machine)
    return Executor(graph, strategy, SGD(0.1), machine=machine, mapper=chosen)


def spans(content: dict[str, Any], *categories: str) -> list[dict[str, Any]]:
    return [e for e in content["traceEvents"] if e["ph"] == "X" and e["cat"] in categories]


def ns(microseconds: float) -> int:
    """The nanoseconds that a time of the file stands for, whether its reader rounds or cuts off."""
    found = round(microseconds * 1000.0)
    assert int(microseconds * 1000.0) == found
    return found


def covered(content: dict[str, Any]) -> None:
    """Each rank's tracks cover the time from its first traced step to the end of its last, without gap or overlap, and so the
    sum of its spans is the run's time: exactly, to the nanosecond."""
    assert {e["pid"] for e in spans(content, "step")} == set(range(1, content["otherData"]["ranks"] + 1))
    for pid in {e["pid"] for e in spans(content, "step")}:
        found = [(ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])) for e in spans(content, *COVERING) if e["pid"] == pid]
        mine = sorted(found)
        steps = sorted((ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])) for e in spans(content, "step") if e["pid"] == pid)
        assert all(before[1] == after[0] for before, after in pairwise(mine))
        assert sum(end - begin for begin, end in mine) == steps[-1][1] - steps[0][0]
        assert mine[0][0] == steps[0][0] and mine[-1][1] == steps[-1][1]
    seconds = content["otherData"]["step_seconds"]
    for number, whole in zip(content["otherData"]["steps"], seconds):
        ends = [(ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])) for e in spans(content, "step") if e["args"]["step"] == number]
        assert max(end for _, end in ends) - min(begin for begin, _ in ends) == round(whole * 1e9)


def valid(content: dict[str, Any]) -> None:
    """By the published description of the format, and by what viewers ask beyond it."""
    verify_events(content)
    jsonschema = pytest.importorskip("jsonschema", reason="needs pip install jsonschema (extra test)")
    schema = json.loads((Path(__file__).parent / "trace_event.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(content)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Executor, list[float]]:
    """A trace of steps 3 to 5 of three virtual processors, and how long each step took, both of the processor's time."""
    path = tmp_path_factory.mktemp("traces") / "run.json"
    run, seconds = executor(), []
    run.trace(path, about={"note": "mine"}, clock=thread_time)
    for step in range(6):
        began = thread_time()
        run.train(feeds(step, CONFIG))
        seconds.append(thread_time() - began)
        assert path.exists() == (step >= 4)  # at once after the last step
    return read_trace(path), run, seconds


def test_a_trace_has_every_task_of_every_step(local: tuple[dict[str, Any], Executor, list[float]]) -> None:
    content, run, _ = local
    covered(content)
    graph = run.program("train").graph
    ran = Counter((e["args"]["step"], e["args"]["task"]) for e in spans(content, "compute"))
    assert ran == Counter((step, task.number) for step in (3, 4, 5) for task in graph.tasks)
    for event in spans(content, "compute"):
        task = graph.tasks[event["args"]["task"]]
        said = event["args"]
        assert (event["name"], said["kind"], said["bytes"], said["flops"]) == (task.name, task.kind.value, task.nbytes, task.flops)
        assert said["operator"] and said["phase"]
        assert ("piece" in said) == (task.kind in (Kind.FORWARD, Kind.BACKWARD))
    about = content["otherData"]
    assert about["steps"] == [3, 4, 5] and about["complete"] and about["note"] == "mine" and about["ranks"] == 1
    assert about["plan"] == {node.name: run.strategy[node.name].describe(node) for node in run.graph}


def test_tasks_of_a_pipeline_say_their_micro_batch_and_stage(tmp_path: Path) -> None:
    run = executor("p3 mb2")
    run.trace(path := tmp_path / "steps.json", range(1))
    run.train(feeds(0, CONFIG))
    pipeline, graph = run.strategy.pipeline, run.program("train").graph
    assert pipeline is not None
    wanted = {n: (one.micro_batch, one.stage) for one, first, last in graph.passes for n in range(first, last)}
    said = [e["args"] for e in spans(read_trace(path), "compute")]
    found = {one["task"]: (one["micro_batch"], one["stage"]) for one in said if "stage" in one}
    assert found == {one["task"]: wanted[one["task"]] for one in said if one["task"] in wanted}
    assert set(found.values()) == {(m, s) for m in range(3) for s in range(3)} and len(found) < len(said)


def test_steps_last_as_long_as_they_did(local: tuple[dict[str, Any], Executor, list[float]]) -> None:
    content, _, seconds = local
    pairs = list(zip(content["otherData"]["step_seconds"][:2], seconds[2:4]))  # the last one also wrote the file
    assert all(traced < whole for traced, whole in pairs)
    assert any(traced > 0.5 * whole for traced, whole in pairs)  # garbage may be collected in one of them


def test_the_prediction_is_the_simulators(local: tuple[dict[str, Any], Executor, list[float]]) -> None:
    content, run, _ = local
    graph = run.program("train").graph
    timeline = simulate(graph, run.machine, roofline(run.machine))
    assert content["otherData"]["predicted_step_seconds"] == timeline.makespan
    began = {e["args"]["step"]: ns(e["ts"]) for e in spans(content, "step")}
    starts = {step: start / 1000 for step, start in shown_from(began, timeline).items()}
    names = {e["pid"]: e["args"]["name"] for e in content["traceEvents"] if e["name"] == "process_name"}
    seen = set()
    for event in spans(content, "predicted"):
        task, step = event["args"]["task"], event["args"]["step"]
        span = timeline.spans[task]
        begun = [starts[step] + each * 1e6 for each in span.starts or (span.start,)]  # of each thing that it occupies
        assert min(abs(event["ts"] - each) for each in begun) < 2e-3
        assert event["dur"] == pytest.approx((timeline.spans[task].end - timeline.spans[task].start) * 1e6, abs=2e-3)
        assert names[event["pid"]].startswith("predicted ")
        seen.add((step, task))
    assert seen == {(step, task.number) for step in (3, 4, 5) for task in graph.tasks}


def test_a_trace_is_in_the_published_format(local: tuple[dict[str, Any], Executor, list[float]]) -> None:
    valid(local[0])


def arrows_bind(content: dict[str, Any]) -> None:
    """As Perfetto binds them: an arrow's end to the span of its track that has begun last when it comes."""
    events = sorted((e for e in content["traceEvents"] if e["ph"] in "Xsf"), key=lambda e: ns(e["ts"]))
    open_now: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["ph"] == "X":
            open_now[event["tid"]] = event
        else:
            span = open_now[event["tid"]]
            assert ns(span["ts"]) <= ns(event["ts"]) <= ns(span["ts"]) + ns(span["dur"])
            assert span["name"].startswith("send " if event["ph"] == "s" else "wait for ")
            count = len({e["args"]["task"] for e in content["traceEvents"] if e["ph"] == "X" and e["cat"] == "predicted"})
            step, task = divmod(int(event["id"], 16), count)
            assert (step + 1, task) == (span["args"]["step"], span["args"]["task"])


def test_a_prediction_begins_with_its_step_unless_the_one_before_is_not_over() -> None:
    timeline = Timeline((Span(0, 0.0, 0.0, 4e-6),), (0,))
    assert shown_from({3: 0, 4: 5000, 5: 7000, 6: 8000, 7: 90_000}, timeline) == {3: 0, 4: 5000, 5: 9000, 6: 13_000, 7: 90_000}


@pytest.mark.parametrize("nanoseconds", [0, 1, 999, 1001, 1_234_567, 987_654_321, 86_400 * 10**9 + 1, *range(4000, 4100)])
def test_times_survive_rounding_and_cutting_off(nanoseconds: int) -> None:
    assert ns(microseconds(nanoseconds)) == nanoseconds
    assert microseconds(nanoseconds) == pytest.approx(nanoseconds / 1000, rel=1e-15)


def traced_ranks(folder: Path, ranks: int, *arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    path = folder / "run.json.gz"
    (said,) = rows(ranks, "trace_everywhere.py", str(path), *arguments, limit=100, extra={"OMP_NUM_THREADS": "1"})
    assert path.read_bytes()[:2] == b"\x1f\x8b" and json.loads(gzip.decompress(path.read_bytes()))
    return read_trace(path), said


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize("mapper,skew,drift", fast_among(
    [("data", 0.0, 0.0), ("model", 1000.0, 0.0), ("model", -3.0, 0.2)], [("model", -3.0, 0.2)],
))
def test_ranks_are_merged_on_one_clock(tmp_path: Path, mapper: str, skew: float, drift: float) -> None:
    content, said = traced_ranks(tmp_path, 3, str(skew), str(drift), mapper)
    verify_events(content)
    covered(content)
    arrows_bind(content)
    clocks = content["otherData"]["clocks"]
    assert [c["rank"] for c in clocks] == [0, 1, 2] and clocks[0]["ahead_seconds"] == 0
    for clock in clocks:
        if not drift:
            assert clock["ahead_seconds"] == pytest.approx(skew * clock["rank"], abs=clock["error_seconds"] + 1e-6)
    # Every step of every rank, and every message with both its ends, sent before it arrived as far as the clocks can tell.
    assert Counter(e["args"]["step"] for e in spans(content, "step")) == {3: 3, 4: 3, 5: 3}
    sent = {e["id"]: e for e in content["traceEvents"] if e["ph"] == "s"}
    arrived = {e["id"]: e for e in content["traceEvents"] if e["ph"] == "f"}
    assert sent.keys() == arrived.keys() and len(sent) % 3 == 0 and sent
    error = 2e6 * max(c["error_seconds"] for c in clocks)
    for identity, end in arrived.items():
        assert end["ts"] - sent[identity]["ts"] > -error, identity
        assert sent[identity]["pid"] != end["pid"]
    # With rank 0's clock, steps of several ranks begin at about the same time, whatever the ranks' own clocks say.
    starts = [e["ts"] for e in spans(content, "step") if e["args"]["step"] == 4]
    assert max(starts) - min(starts) < 2.5e6  # a skew is 3 s and more
    tasks = {(e["args"]["step"], e["args"]["task"]) for e in spans(content, "compute", "receive")}
    assert len(tasks) == 3 * said["tasks"]


def test_offsets_are_interpolated_between_two_measurements() -> None:
    true = np.linspace(10.0, 20.0, 11)  # of rank 0's clock
    shown = 5.0 + true * 1.001
    first, last = Offset(5.0 + 10.01, 5.01, 1e-5), Offset(5.0 + 20.02, 5.02, 2e-5)
    assert on_first_clock(shown, first, last) == pytest.approx(true, abs=1e-9)
    # What may be nothing but the measurements' errors is not taken for drift: the better one counts.
    vague = Offset(25.02, 5.02, 2e-2)
    assert on_first_clock(shown, first, vague) == pytest.approx(shown - 5.01, abs=1e-12)


def test_a_run_that_ends_early_leaves_the_part_that_there_is(tmp_path: Path) -> None:
    run = executor()
    tracer = run.trace(tmp_path / "run.json", range(1, 9))
    for step in range(3):
        run.train(feeds(step, CONFIG))
    assert not list(tmp_path.iterdir())
    tracer.close()
    about = read_trace(tmp_path / "run.json")["otherData"]
    assert about["steps"] == [2, 3] and not about["complete"] and about["steps_asked_for"] == list(range(2, 10))
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = executor()
    monkeypatch.setattr(trace_module, "MOST_TASKS", 2 * len(run.program("train").graph) + 1)
    tracer = run.trace(tmp_path / "run.json", range(100))
    for step in range(4):
        run.train(feeds(step, CONFIG))
    assert tracer.written and read_trace(tmp_path / "run.json")["otherData"]["steps"] == [1, 2]


def test_tracing_changes_no_number_and_mappers_still_hear(tmp_path: Path) -> None:
    class Listener(DataParallel):
        heard: list[int]

        def report_profiling(self, profile: Any) -> None:
            self.heard.append(len(profile.tasks))

    plain = executor()
    graph, machine = model("float64", CONFIG), taskflow.host(3)
    listener = Listener()
    listener.heard = []
    run = Executor(graph, taskflow.map_graph(listener, graph, machine), SGD(0.1), machine=machine, mapper=listener)
    run.trace(tmp_path / "run.json", range(1, 3))
    losses = [(plain.train(feeds(step, CONFIG)), run.train(feeds(step, CONFIG))) for step in range(4)]
    assert all(a == b for a, b in losses)
    assert listener.heard == [len(run.program("train").plan.items)] * 4


def test_what_cannot_be_written_or_read_is_said(tmp_path: Path) -> None:
    run = executor()
    with pytest.raises(TraceError, match=r"cannot write trace .*nowhere"):
        run.trace(tmp_path / "nowhere" / "run.json")
    with pytest.raises(ValueError, match="at least one step"):
        run.trace(tmp_path / "run.json", range(3, 3))
    with pytest.raises(FileNotFoundError, match=r"trace file .*none\.json does not exist"):
        read_trace(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("{}")
    with pytest.raises(ValueError, match="not a trace of taskflow"):
        read_trace(tmp_path / "text.json")
    write_trace({"otherData": {"format": "taskflow-trace", "version": 1}}, tmp_path / "good.json.gz")
    whole = (tmp_path / "good.json.gz").read_bytes()
    (tmp_path / "half.json.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="not a trace"):
        read_trace(tmp_path / "half.json.gz")
    write_trace({"otherData": {"format": "taskflow-trace", "version": 7}}, tmp_path / "new.json")
    with pytest.raises(ValueError, match="version 7 of traces"):
        read_trace(tmp_path / "new.json")


GOOD = {"name": "a", "cat": "compute", "ph": "X", "ts": 1.0, "dur": 2.0, "pid": 1, "tid": 1, "args": {}}


@pytest.mark.parametrize("span", [{"ts": 3.0}, {"ts": 1.0, "dur": 1.0}, {"ts": 1.5, "dur": 1.5}, {"ts": 2.0, "tid": 2}])
def test_spans_that_nest_or_follow_are_allowed(span: dict[str, Any]) -> None:
    verify_events({"traceEvents": [GOOD, {**GOOD, **span}], "displayTimeUnit": "ms"})


@pytest.mark.parametrize("event,wrong", [
    ({**GOOD, "dur": -1}, "ends before it begins"),
    ({**GOOD, "ph": "Q"}, "ph is one of"),
    ({**GOOD, "pid": "one"}, "whole numbers"),
    ({**GOOD, "ts": None}, "numbers as ts"),
    ({k: v for k, v in GOOD.items() if k != "dur"}, "lacks dur"),
    ({"name": "m", "cat": "flow", "ph": "s", "id": "0x1", "ts": 1, "pid": 1, "tid": 1}, "flow 0x1 must have a start and an end"),
    ({"name": "m", "cat": "flow", "ph": "s", "id": "3.1", "ts": 1, "pid": 1, "tid": 1}, "hexadecimal number as id"),
    ({**GOOD, "ts": 2.0}, "overlaps a"),
    ({**GOOD, "ts": 2.999, "dur": 0.002}, "overlaps a"),
    ({**GOOD, "ts": -1.0}, "begins before the trace"),
    ({**GOOD, "pid": 2}, "thread 1 must belong to one process"),
    ({**GOOD, "pid": 0}, "process number from 1 on"),
    ({"name": "thread_label", "ph": "M", "pid": 1, "tid": 1, "args": {}}, "no metadata that viewers know"),
])
def test_events_that_viewers_would_not_understand_are_found(event: dict[str, Any], wrong: str) -> None:
    verify_events({"traceEvents": [GOOD], "displayTimeUnit": "ms"})
    with pytest.raises(ValueError, match=wrong):
        verify_events({"traceEvents": [GOOD, event], "displayTimeUnit": "ms"})
