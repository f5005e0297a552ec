"""The report's value says what the simulator, the strategy and the memory planner say."""

from __future__ import annotations

import json

import numpy as np
import pytest
from report_cases import judge_of, report_of

import taskflow
from taskflow.machine.machine_file import parse, unparse
from taskflow.mapper import MAPPERS, choose
from taskflow.optimizer.evaluate import everything, shown_step
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.memory.peak import memory_profile, memory_use
from taskflow.report.page import pack, unpack
from taskflow.report.spans import CATEGORIES, MESSAGES, spans_at, spans_of
from taskflow.report.split import PARTS, device_split, link_use
from taskflow.tasks.simulate import message_resources
from taskflow.tasks.task import Compute, Kind, Task

CASES = [("RNNTC", "expert", 4), ("AlexNet", "expert", 3), ("NMT", "random", 4), ("LeNet", "data", 2), ("MLP", "model", 4)]


def rows_of(task: Task) -> int:
    """A collective has a row for each message from neighbour to neighbour."""
    return len(task.processors) if task.kind is Kind.COLLECTIVE else 1


@pytest.mark.parametrize("model,mapper,devices", CASES)
def test_totals_are_the_simulators(model: str, mapper: str, devices: int) -> None:
    evaluator, report = report_of(model, mapper, devices)
    tasks, timeline = evaluator.lowered(), evaluator.timeline()
    value, rows = report.value, report.columns
    assert value["plan"]["seconds"] == timeline.makespan == evaluator.seconds
    assert value["plan"]["transfer_bytes"] == tasks.transfer_bytes
    assert value["plan"]["tasks"] == len(tasks)
    assert rows["count"].sum() == sum(rows_of(task) for task in tasks)
    assert sum(value["plan"]["bytes"].values()) == tasks.transfer_bytes
    message = np.isin(rows["category"], MESSAGES)
    assert rows["nbytes"][message].sum() == tasks.transfer_bytes
    assert abs(rows["end"].max() * value["tick_seconds"] - timeline.makespan) <= value["tick_seconds"]
    spent = sum(span.end - span.start for span in timeline.spans)
    assert np.isclose(sum(sum(o["seconds"]) for o in value["operators"]), spent, rtol=1e-9)
    assert sum(sum(o["tasks"]) for o in value["operators"]) == len(tasks)  # every task belongs to an operator
    assert sum(sum(o["bytes"]) for o in value["operators"]) == tasks.transfer_bytes


@pytest.mark.parametrize("model,mapper,devices", CASES)
def test_every_row_is_a_task(model: str, mapper: str, devices: int) -> None:
    evaluator, report = report_of(model, mapper, devices)
    rows, strategy = report.columns, evaluator.strategy
    starts = sorted(
        round(span.start / report.value["tick_seconds"])
        for task, span in zip(evaluator.lowered(), evaluator.timeline().spans) for _ in range(rows_of(task))
    )
    assert rows["start"].tolist() == starts
    pieces = {}
    for category, operator, piece, processor in zip(rows["category"], rows["operator"], rows["piece"], rows["processor"]):
        if category < 2:
            pieces[int(operator) - 1, int(piece)] = int(processor)
    for task in evaluator.lowered():
        if isinstance(task.work, Compute):
            node = task.work.node
            config = strategy[node.name]
            place = [rect for rect, _ in config.pieces(node)].index(task.work.piece)
            assert pieces[node.number, place] == task.processor == config.processors[place]
    for node, operator in zip(evaluator.graph, report.value["operators"]):
        assert operator["name"] == node.name and operator["processors"] == list(strategy[node.name].processors)
        assert [d[3] for d in operator["dims"]] == list(strategy[node.name].degrees)


@pytest.mark.parametrize("model,mapper,devices", CASES)
def test_the_critical_path_is_the_whole_step(model: str, mapper: str, devices: int) -> None:
    evaluator, report = report_of(model, mapper, devices)
    path = report.value["critical_path"]
    assert np.isclose(sum(path["seconds"]), evaluator.seconds, rtol=1e-9)
    assert np.isclose(sum(s[2] for s in path["stretches"]), evaluator.seconds, rtol=1e-9)
    assert sum(s[3] for s in path["stretches"]) == path["tasks"] == report.columns["critical"].sum()


@pytest.mark.parametrize("model,mapper,devices", CASES)
def test_memory_is_the_planners(model: str, mapper: str, devices: int) -> None:
    evaluator, report = report_of(model, mapper, devices)
    tasks, timeline = evaluator.lowered(), evaluator.timeline()
    profiles = memory_profile(tasks, timeline)
    assert tuple(p.use for p in profiles) == memory_use(tasks, timeline.begun(tasks))
    for profile in profiles:
        assert profile.nbytes.max() == profile.use.nbytes
        assert (np.diff(profile.seconds) >= 0).all() and profile.seconds[-1] <= timeline.makespan
    columns, place = report.columns, 0
    for value, profile, points in zip(report.value["memory"], profiles, columns["memory_points"].tolist()):
        assert value["peak_bytes"] == profile.use.nbytes == columns["memory_bytes"][place : place + points].max()
        place += points
    assert place == len(columns["memory_bytes"]) == len(columns["memory_time"])


@pytest.mark.parametrize("model,mapper,devices", CASES)
def test_a_device_s_time_adds_up(model: str, mapper: str, devices: int) -> None:
    evaluator, _ = report_of(model, mapper, devices)
    spans, shown = spans_of(shown_step(evaluator)), everything(evaluator.machine)
    split = device_split(spans, shown)
    assert split.shape == (devices, len(PARTS)) and (split >= 0).all()
    assert np.allclose(split.sum(axis=1), evaluator.seconds, rtol=1e-9)
    usage = evaluator.usage()
    assert np.allclose(split[:, :3].sum(axis=1), usage.processor_seconds, rtol=1e-9, atol=1e-15)
    links = {n: use.seconds for n, use in link_use(spans, shown).items()}
    assert links.keys() == usage.link_seconds.keys()
    assert all(np.isclose(links[n], s, rtol=1e-9) for n, s in usage.link_seconds.items())


def test_the_split_of_a_step_made_by_hand() -> None:
    """Two devices: 0 computes 0-2 and sends 2-5; 1 computes 0-1, waits, computes 5-6; a weight message 6-8 to 0."""
    from taskflow.machine import load_machine
    from taskflow.report.spans import FORWARD, GRADIENTS, VALUES, Spans

    def column(*numbers: int) -> np.ndarray:
        return np.array(numbers, np.int64)

    starts, ends = np.array([0.0, 2.0, 0.0, 5.0, 6.0]), np.array([2.0, 5.0, 1.0, 6.0, 8.0])
    spans = Spans(
        column(FORWARD, VALUES, FORWARD, FORWARD, GRADIENTS), column(0, 1, 1, 1, 0), column(0, 0, 1, 1, 1), starts, ends,
        column(1, 1, 1, 1, 1), starts, column(0, 1, 2, 3, 4),
    )
    split = device_split(spans, everything(load_machine("k80", 2)))
    expected = {"compute": [2, 2], "wait for values": [0, 3], "wait for weights": [2, 0], "wait for others": [4, 3]}
    for part, (first, second) in expected.items():
        assert split[:, PARTS.index(part)].tolist() == [first, second], part


def test_a_message_is_on_its_way_from_its_first_link_on() -> None:
    """One that holds its sender 0-1, a link 1-2 and its receiver 3-4: both ends copy for a second, and 1 waits from 0 on."""
    from taskflow.report.spans import VALUES, Spans

    content = unparse(taskflow.host(2))
    content["nodes"][0]["links"][0]["occupies_endpoints"] = True
    machine = parse(content, "both")
    assert message_resources(0, 1, machine)[0] == 0 and message_resources(0, 1, machine)[-1] == 1
    one = np.array([VALUES], np.int64)
    spans = Spans(one, one * 0 + 1, one * 0, np.array([3.0]), np.array([4.0]), one, np.array([0.0]), one)
    split = {part: device_split(spans, everything(machine))[:, i].tolist() for i, part in enumerate(PARTS)}
    assert split["copy messages"] == [1.0, 1.0]
    assert split["wait for values"] == [0.0, 3.0] and split["wait for others"] == [3.0, 0.0]


@pytest.mark.parametrize("mapper", ["data", "expert", "random"])
def test_compiled_and_lowered_spans_agree(mapper: str) -> None:
    evaluator = judge_of("RNNTC", 4)
    evaluator.set(choose(mapper, evaluator.graph, evaluator.machine)[0])
    (one, _), other = spans_at(evaluator), spans_of(shown_step(evaluator))
    for name in ("processor", "source", "start", "end", "nbytes", "begun"):
        assert (getattr(one, name) == getattr(other, name)).all(), name
    assert (one.message == other.message).all()
    assert (np.minimum(one.category, 5) == np.minimum(other.category, 5)).all()
    assert one.makespan == evaluator.seconds


def test_categories_are_the_kinds() -> None:
    evaluator = judge_of("RNNTC", 4)
    evaluator.set(choose("data", evaluator.graph, evaluator.machine)[0])
    tasks = evaluator.lowered()
    spans = spans_of(shown_step(evaluator))
    names = {kind: {CATEGORIES[c] for c, t in zip(spans.category, spans.task) if tasks.tasks[t].kind is kind} for kind in Kind}
    assert names[Kind.COLLECTIVE] == {"weight gradients between devices"}
    assert names[Kind.FORWARD] == {"forward"} and names[Kind.BACKWARD] == {"backward"} and names[Kind.UPDATE] == {"update"}
    for task in tasks:
        category = CATEGORIES[spans.category[np.searchsorted(spans.task, task.number)]]
        if task.kind is Kind.COPY and task.name.startswith("weights "):
            assert category == "new weights between devices"
        assert task.kind.travels == category.endswith("between devices")


def test_baselines_are_what_they_say() -> None:
    evaluator, report = report_of("RNNTC", "random", 4)
    rows = {row["name"]: row for row in report.value["baselines"]}
    assert set(rows) == {"data parallel", "model parallel", "expert"}
    for name, mapper in (("data parallel", "data"), ("model parallel", "model"), ("expert", "expert")):
        other = PythonEvaluator(evaluator.graph, evaluator.machine, evaluator.costs, evaluator.rule, evaluator.clip_norm)
        assert rows[name]["seconds"] == other.set(choose(mapper, evaluator.graph, evaluator.machine)[0])
        assert rows[name]["transfer_bytes"] == other.lowered().transfer_bytes
        assert np.isclose(sum(rows[name]["split"].values()), rows[name]["seconds"], rtol=1e-9)
    assert evaluator.strategy.name == "random"  # back at the plan
    _, own = report_of("RNNTC", "expert", 4)
    assert {row["name"] for row in own.value["baselines"]} == {"data parallel"}  # a plan is not beside itself
    assert own.value["same_as"] == ["model parallel"]


def test_forward_only_has_no_synchronisation() -> None:
    from taskflow.report import report_data

    evaluator = judge_of("MLP", 2)
    evaluator = PythonEvaluator(evaluator.graph, evaluator.machine, evaluator.costs, None, None)
    report = report_data(evaluator, choose("data", evaluator.graph, evaluator.machine)[0])
    assert report.value["rule"] is None
    assert set(report.columns["category"].tolist()) <= {0, 2, 5}


@pytest.mark.parametrize("most", [50, 400])
def test_thinning_keeps_totals(most: int) -> None:
    _, whole = report_of("NMT", "random", 4)
    _, thin = report_of("NMT", "random", 4, most_rows=most)
    a, b = whole.columns, thin.columns
    assert len(b["count"]) < len(a["count"]) and thin.value["joined_below_seconds"] > 0 == whole.value["joined_below_seconds"]
    for name in ("busy", "nbytes", "count", "critical"):
        assert a[name].sum() == b[name].sum(), name
    for category in range(len(CATEGORIES)):  # and by lane
        for processor in range(4):
            rows = [(c["category"] == category) & (c["processor"] == processor) for c in (a, b)]
            assert a["busy"][rows[0]].sum() == b["busy"][rows[1]].sum()
    assert (b["end"] - b["start"] >= b["busy"]).all()
    assert thin.value["plan"] == whole.value["plan"] and thin.value["operators"] == whole.value["operators"]


def test_the_value_is_json_and_packs() -> None:
    _, report = report_of("RNNTC", "expert", 4)
    assert json.loads(json.dumps(report.value)) == report.value
    value, columns = unpack(pack(report.value, report.columns))
    assert value == report.value
    assert list(columns) == list(report.columns)
    for name, column in columns.items():
        assert (column == report.columns[name]).all(), name


def test_columns_hold_large_numbers_and_refuse_what_they_cannot() -> None:
    columns = {"a": np.array([2**52, 0, 7, 2**31]), "rising": np.array([5, 5, 2**40]), "empty": np.array([], np.int64)}
    _, back = unpack(pack({}, columns))
    assert all((back[name] == columns[name]).all() for name in columns)
    for wrong in (-1, 2**53):
        with pytest.raises(ValueError, match="column x: numbers must be 0 to 2\\^53 - 1"):
            pack({}, {"x": np.array([wrong])})


def test_all_rule_mappers_have_a_report() -> None:
    for mapper in MAPPERS:
        _, report = report_of("LeNet", mapper, 3)
        assert report.value["plan"]["seconds"] > 0


@pytest.mark.parametrize("model,mapper,devices", CASES)
def test_messages_are_on_each_link_when_the_simulator_says(model: str, mapper: str, devices: int) -> None:
    evaluator, report = report_of(model, mapper, devices)
    tasks, spans, tick = evaluator.lowered(), evaluator.timeline().spans, report.value["tick_seconds"]
    rows, place = report.columns, 0
    each = [task for task in tasks for _ in range(rows_of(task))]
    by_start = sorted(each, key=lambda task: (round(spans[task.number].start / tick), task.number))
    for row, task in enumerate(by_start):
        assert rows["start"][row] == round(spans[task.number].start / tick)
        if task.kind is Kind.COPY:
            starts = spans[task.number].starts
            lags = rows["lag"][place : place + len(starts)]
            assert lags.tolist() == [round((spans[task.number].start - start) / tick) for start in starts]
            place += len(starts)
        if task.kind is Kind.COLLECTIVE:
            many = len(message_resources(rows["source"][row], rows["processor"][row], evaluator.machine))
            assert not rows["lag"][place : place + many].any()
            place += many
    assert place == len(rows["lag"])
