"""Measured costs: measured once, kept on disk, and of the size that the runtime sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from time import perf_counter, thread_time

import numpy as np
import pytest
from modules import module_of

from taskflow.kernels import NumpyKernels, default_kernels, kernels_on
from taskflow.machine import host, load_machine, transfer_seconds
from taskflow.operators.cost_key import cost_key
from taskflow.operators.embedding import Embedding
from taskflow.operators.linear import Linear
from taskflow.operators.operator import REGISTRY, Spec, iteration_space
from taskflow.optimizer.cost.measured import before_measuring, nothing_new
from taskflow.optimizer.cost.measured import bench as cost_bench
from taskflow.optimizer.cost.measured.bench import Surroundings, measure
from taskflow.optimizer.cost.measured.cache_state import OTHERS, TYPICAL, CacheEvictor, CacheState
from taskflow.optimizer.cost.measured.identity import digest, identity
from taskflow.optimizer.cost.measured.model import SIZES, MeasuredCosts
from taskflow.optimizer.cost.measured.store import CostStore, Measurement
from taskflow.regions import Rect
from taskflow.rules import SGD, Adam
from taskflow.tasks.task import Kind

F32 = np.dtype(np.float32)
LINEAR, SPECS = Linear(48), (Spec((32, 64), F32),)


def quick(folder: Path, **options: object) -> MeasuredCosts:
    return MeasuredCosts(host(2), folder=folder, seconds=0.001, **options)  # type: ignore[arg-type]


def test_equal_keys_are_measured_once(tmp_path: Path) -> None:
    costs = quick(tmp_path)
    upper, lower_half = Rect((0, 0, 0), (16, 48, 64)), Rect((16, 0, 0), (32, 48, 64))
    first = costs.compute_seconds(LINEAR, SPECS, upper, False)
    assert costs.measured == 1 and first > 0
    assert costs.compute_seconds(LINEAR, SPECS, lower_half, False) == first
    assert cost_key(LINEAR, SPECS, upper, False) == cost_key(LINEAR, SPECS, lower_half, False)
    assert costs.measured == 1
    costs.compute_seconds(LINEAR, SPECS, upper, True)
    costs.compute_seconds(LINEAR, SPECS, upper, True, gradients=(False,))
    assert costs.measured == 3
    assert len(costs.measurements) == 3


def test_the_disk_remembers(tmp_path: Path) -> None:
    costs = quick(tmp_path)
    space = iteration_space(LINEAR, SPECS)
    seconds = [costs.compute_seconds(LINEAR, SPECS, space, b) for b in (False, True)]
    seconds.append(costs.memory_seconds(Kind.UPDATE, 100_000, 0, rule=Adam()))
    again = quick(tmp_path)
    assert [again.compute_seconds(LINEAR, SPECS, space, b) for b in (False, True)] == seconds[:2]
    assert again.memory_seconds(Kind.UPDATE, 100_000, 0, rule=Adam()) == seconds[2]
    assert again.measured == 0
    assert again.measurements == costs.measurements
    (file,) = tmp_path.iterdir()  # nothing temporary is left
    content = json.loads(file.read_text())
    assert content["identity"] == identity(default_kernels())
    for entry in again.measurements.values():
        assert entry.seconds > 0 and entry.spread >= 0 and entry.repeats >= 5
    assert again.spread == sorted(e.spread for e in again.measurements.values())[len(again.measurements) // 2]


def test_other_kernels_have_other_files(tmp_path: Path) -> None:
    mine = identity(NumpyKernels())
    assert set(mine) == {
        "processor", "python", "numpy", "blas", "blas_core", "blas_threads", "kernels", "kernel_threads", "taskflow"
    }  # fmt: skip
    assert all(mine.values())
    assert mine["numpy"] == np.__version__
    for key in mine:
        assert digest({**mine, key: "other"}) != digest(mine)
    space = iteration_space(LINEAR, SPECS)
    quick(tmp_path, kernels=NumpyKernels()).compute_seconds(LINEAR, SPECS, space, False)
    store = CostStore(tmp_path, {**mine, "kernels": "other"})
    assert store.entries == {} and len(CostStore(tmp_path, mine).entries) == 1


class OnTwoThreads(NumpyKernels):
    __slots__ = ()
    threads = 2


def test_kernels_on_several_threads_have_costs_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor time of the thread that calls them is not what they take."""
    monkeypatch.setattr(module_of(identity), "_blas", lambda: {"name": "b", "core": "c", "threads": "1"})
    one, two = quick(tmp_path, kernels=NumpyKernels()), quick(tmp_path, kernels=OnTwoThreads())
    assert (one._clock, two._clock) == (thread_time, perf_counter)
    one.memory_seconds(Kind.FILL, 1 << 10, 0)
    two.memory_seconds(Kind.FILL, 1 << 10, 0)
    assert one.measured == two.measured and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("text", [
    "", "{", "[]", "null", '{"format": "taskflow-costs"}', "\x00\xff",
    '{"format": "taskflow-costs", "version": 2, "identity": {"a": "b"}, "entries": {}}',
    '{"format": "taskflow-costs", "version": 1, "identity": {"a": "c"}, "entries": {"k": [1, 0, 5]}}',
    '{"format": "taskflow-costs", "version": 1, "identity": {"a": "b"}, "entries": {"k": [1, 0]}}',
    '{"format": "taskflow-costs", "version": 1, "identity": {"a": "b"}, "entries": {"k": [NaN, 0, 5]}}',
    '{"format": "taskflow-costs", "version": 1, "identity": {"a": "b"}, "entries": {"k": [-1, 0, 5]}}',
    '{"format": "taskflow-costs", "version": 1, "identity": {"a": "b"}, "entries": {"k": "x"}}',
    '{"format": "taskflow-costs", "version": 1, "identity": {"a": "b"}, "entries": 3}',
])  # fmt: skip
def test_a_broken_file_holds_nothing(text: str, tmp_path: Path) -> None:
    store = CostStore(tmp_path, {"a": "b"})
    assert store.path is not None
    store.path.write_bytes(text.encode("latin-1"))
    broken = CostStore(tmp_path, {"a": "b"})
    assert broken.entries == {}
    value = Measurement(1e-3, 0.1, 7)
    broken.put("k", value)
    assert CostStore(tmp_path, {"a": "b"}).entries == {"k": value}


def test_two_processes_keep_each_others_entries(tmp_path: Path) -> None:
    one, two = CostStore(tmp_path, {"a": "b"}), CostStore(tmp_path, {"a": "b"})
    one.put("x", Measurement(1.0, 0.0, 5))
    two.put("y", Measurement(2.0, 0.0, 5))
    assert set(CostStore(tmp_path, {"a": "b"}).entries) == {"x", "y"}
    assert two.get("x") == Measurement(1.0, 0.0, 5)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = CostStore(tmp_path / "file" / "below", {"a": "b"})
    store.put("x", Measurement(1.0, 0.0, 5))
    assert store.get("x") is not None
    CostStore(None, {}).put("x", Measurement(1.0, 0.0, 5))


class Clock:
    """A clock that the measured action moves."""

    def __init__(self, times: list[float]) -> None:
        self.now, self.times, self.runs = 0.0, times, 0

    def __call__(self) -> float:
        return self.now

    def action(self) -> None:
        self.now += self.times[self.runs % len(self.times)]
        self.runs += 1


def test_median_and_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*times: float, seconds: float = 1.0) -> tuple[Measurement, int]:
        clock = Clock(list(times))
        monkeypatch.setattr(cost_bench, "perf_counter", clock)
        monkeypatch.setattr(cost_bench, "interruptions", lambda: 0)
        return measure(clock.action, seconds), clock.runs

    steady, runs = measured(0.1)
    assert (steady.seconds, steady.spread) == (pytest.approx(0.1), pytest.approx(0, abs=1e-9))
    assert runs == steady.repeats + 2 and 10 <= steady.repeats <= 11  # one to warm up, one to see whether it is short
    slow, _ = measured(3.0)
    assert slow.repeats == 5
    fast, _ = measured(1e-6)
    assert fast.repeats == 200
    busy, _ = measured(0.1, 0.1, 0.2, 0.3, 0.3)
    assert busy.seconds == pytest.approx(0.2) and busy.spread == pytest.approx(1.0, rel=0.1)
    assert busy.repeats > 15  # so it went on, at most to four times the seconds
    once, _ = measured(5.0, *[0.1] * 1000)
    assert once.seconds == pytest.approx(0.1)  # the first run, which warms up, does not count


def test_runs_in_which_others_had_the_core_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But where all were such runs, those of the fewest turns do; on another day it is doubtful."""
    turns = [0]
    monkeypatch.setattr(cost_bench, "interruptions", lambda: turns[0])

    def measured(*runs: tuple[float, int], tick: Callable[[], float] | None = None) -> Measurement:
        clock = Clock([seconds for seconds, _ in runs])
        monkeypatch.setattr(cost_bench, "perf_counter", clock)
        if tick is thread_time:
            monkeypatch.setattr(cost_bench, "thread_time", clock)

        def action() -> None:
            turns[0] += runs[clock.runs % len(runs)][1]
            clock.action()

        return measure(action, 0.2, clock=clock if tick else None)

    found = measured((0.001, 0), (0.017, 4), (0.018, 4), (0.021, 5), (0.009, 2))
    assert found.seconds == pytest.approx(0.001) and found.interruptions == 0 and not found.disturbed
    beset = measured((0.017, 4), (0.018, 4), (0.021, 5), (0.009, 2))
    assert beset.seconds == pytest.approx(0.009) and beset.interruptions == 2 and beset.disturbed
    assert not measured((0.5, 1), (0.51, 2)).disturbed  # a task so long that turns count little
    alone = measured((0.001, 0), (0.017, 4), (0.017, 4), tick=thread_time)  # processor time: all count
    assert alone.seconds == pytest.approx(0.017) and alone.interruptions == 0
    store = CostStore(tmp_path, {"a": "b"})
    store.put("calm", found)
    store.put("beset", beset)
    assert store.get("beset") == beset and not store.doubtful("beset")
    later = CostStore(tmp_path, {"a": "b"})
    assert later.doubtful("beset") and later.entries["beset"].interruptions == 2 and not later.doubtful("calm")
    later.put("beset", found)
    store.put("more", found)  # does not bring back what was beset
    assert not any(map(CostStore(tmp_path, {"a": "b"}).doubtful, ("calm", "beset", "more")))


def test_what_was_disturbed_is_measured_anew_where_that_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = count()

    def costs(calm: bool) -> MeasuredCosts:
        monkeypatch.setattr(cost_bench, "interruptions", (lambda: 0) if calm else (lambda: 100 * next(turns)))
        made = MeasuredCosts(host(1), folder=tmp_path, seconds=1e-3)
        made._clock, made._patience, made._yardstick = perf_counter, -1e9, None  # by the clock, not for long, on any core
        return made

    first = costs(calm=False)
    seconds = first.memory_seconds(Kind.SUM, 3000, 1000)
    assert first.measured == first.disturbed > 0
    second = costs(calm=True)
    with before_measuring(nothing_new):
        assert second.memory_seconds(Kind.SUM, 3000, 1000) == seconds and second.measured == 0
    second.memory_seconds(Kind.SUM, 3000, 1000)
    assert second.measured == first.measured and second.disturbed == 0
    third = costs(calm=True)
    third.memory_seconds(Kind.SUM, 3000, 1000)
    assert third.measured == 0


def test_what_runs_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other memory, then the same work on other arrays if it is short and what lies between two of its kind, then what the task
    before has written."""
    said: list[str] = []

    class Spy(np.ndarray):  # type: ignore[type-arg]
        def max(self, *args: object, **options: object) -> object:  # type: ignore[override]
            said.append("fresh")
            return 0.0

        def sum(self, *args: object, **options: object) -> object:  # type: ignore[override]
            said.append("sweep")
            return 0.0

    spy = np.ones(3).view(Spy)
    short, long = ["sweep", "twin", "fresh", "run"], ["sweep", "fresh", "run"]
    apart = ["sweep", "twin", "between", "fresh", "run"]

    def other() -> None:
        said.append("between")

    for seconds, between, wanted in ((1e-4, None, short), (1e-4, other, apart), (1.0, None, long), (1.0, other, long)):
        clock = Clock([seconds])
        said.clear()

        def run(clock: Clock = clock) -> None:
            said.append("run")
            clock.action()

        measure(run, 1e-3, Surroundings(spy, (spy,), lambda: said.append("twin"), between), clock)
        assert said[:2] == ["run", "run"] and said[2 : 2 + len(wanted)] == wanted
        assert said[2:] == wanted * ((len(said) - 2) // len(wanted))


def test_other_memory_and_other_code_come_between() -> None:
    kernels, said = kernels_on("cpu"), list[str]()

    class Spy(np.ndarray):  # type: ignore[type-arg]
        def sum(self, *args: object, **options: object) -> object:  # type: ignore[override]
            said.append(f"read {self.nbytes}")
            return 0.0

    interlude = CacheEvictor(kernels, CacheState(256, {"lstm": 128, "relu": 256, "tanh": 0}))
    interlude.__dict__["_sweep"] = np.ones(64, np.float32).view(Spy)  # where it would be found
    ran = Counter[str]()
    for kind, actions in interlude._actions.items():
        actions[:] = [partial(ran.update, [kind]) for _ in actions]

    def come(kind: str | None) -> None:
        around = interlude.around(kind, (), lambda: None)
        assert around.between is not None
        around.between()

    come("lstm")
    assert said == ["read 128"] and ran == dict.fromkeys(set(OTHERS) - {"lstm"}, 2)  # forward and backward
    ran.clear()
    come("relu")
    assert said[1:] == ["read 256"] and ran == dict.fromkeys(OTHERS, 2)
    for kind in ("tanh", "linear", None):
        assert interlude.around(kind, (), lambda: None).between is None
    for actions in CacheEvictor(kernels, TYPICAL)._actions.values():
        for action in actions:
            action()  # they are real ones


def test_code_that_other_tasks_come_between_is_measured_apart(tmp_path: Path) -> None:
    piece = Rect((0, 0, 0), (32, 48, 64))
    near, far = quick(tmp_path), quick(tmp_path, between=CacheState(code={"linear": 1 << 20, "relu": 1 << 22}))
    near.compute_seconds(LINEAR, SPECS, piece, False)
    far.compute_seconds(LINEAR, SPECS, piece, False)
    assert near.measured == far.measured == 1
    (key,) = [key for key in far.measurements if f"after {1 << 20}" in key]
    again = quick(tmp_path, between=CacheState(code={"linear": 1 << 20}))
    again.compute_seconds(LINEAR, SPECS, piece, False)
    assert again.measured == 0 and key in again.measurements


@pytest.mark.parametrize("kind", sorted(REGISTRY))
def test_every_operator_can_be_measured(kind: str, tmp_path: Path) -> None:
    costs = MeasuredCosts(host(1), NumpyKernels(), tmp_path, seconds=1e-4)
    for seed in range(2):
        example = REGISTRY[kind].example(Random(seed))
        operator, specs = example.operator, example.inputs
        for backward in (False, True):
            if not backward or any(s.differentiable for s in operator.output(specs)):
                assert 0 < costs.compute_seconds(operator, specs, iteration_space(operator, specs), backward) < 1


def test_integers_are_rows_of_the_table() -> None:
    """An embedding whose rows are all asked for, not one row again and again."""
    assert cost_bench.integers_below(Embedding(70, 3, F32), (Spec((4,), np.dtype(np.int64)),)) == 70
    assert cost_bench.integers_below(LINEAR, (Spec((4, 9), F32), Spec((4,), np.dtype(np.int64)))) == 9


def test_memory_tasks(tmp_path: Path) -> None:
    costs = quick(tmp_path)
    rule = SGD(0.1, momentum=0.9)
    for kind in (Kind.MOVE, Kind.SUM, Kind.FILL, Kind.NORM, Kind.UPDATE, Kind.CLIP):
        of = rule if kind is Kind.UPDATE else None
        small, large = (costs.memory_seconds(kind, n, 0, rule=of) for n in (1 << 10, 16 << 20))
        if kind is Kind.CLIP:
            assert 0 < small == large
        else:
            assert 0 < 2 * small < large  # of 16,384 times the bytes: this holds on the busiest machine
    known = costs.measured
    costs.memory_seconds(Kind.MOVE, (1 << 10) + 1, 0)
    assert costs.measured == known
    with pytest.raises(ValueError, match="needs the update rule"):
        costs.memory_seconds(Kind.UPDATE, 10, 0)
    with pytest.raises(ValueError, match="no call to measure"):
        costs.memory_seconds(Kind.CALL, 10, 0)


def test_between_measured_sizes_lies_a_line(tmp_path: Path) -> None:
    costs = quick(tmp_path)
    store = CostStore(tmp_path, dict(costs.identity))
    for i, size in enumerate(SIZES):
        store.put(f"move {size} beside {TYPICAL.nbytes}", Measurement(float(1 + i * i), 0.0, 5))
    costs = quick(tmp_path)
    seconds = [costs.memory_seconds(Kind.MOVE, n, 0) for n in (0, SIZES[0], (SIZES[0] + SIZES[1]) // 2, SIZES[1], SIZES[2])]
    assert seconds == [1, 1, 1.5, 2, 5]
    last = 1 + (len(SIZES) - 1) ** 2
    assert costs.memory_seconds(Kind.MOVE, SIZES[-1], 0) == last
    assert costs.memory_seconds(Kind.MOVE, 3 * SIZES[-1], 0) == 3 * last
    assert costs.measured == 0


def test_it_never_answers_for_another_device(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="machine k80 has k80; use analytic costs"):
        MeasuredCosts(load_machine("k80"), folder=tmp_path)
    costs = quick(tmp_path)
    assert costs.name.startswith("measured ") and costs.kernels.name in costs.name
    assert costs.transfer_seconds(0, 1, 1000) == transfer_seconds(host(2).route(0, 1), 1000)


PROGRAM = """
import sys
from itertools import count
from pathlib import Path
from statistics import median
from time import thread_time

from language_model import feeds, model, undivided
from taskflow.machine import host
from taskflow.models.rnnlm import RNNLMConfig
from taskflow.optimizer.cost.measured.model import MeasuredCosts
from taskflow.rules import SGD
from taskflow.runtime.executor import Executor
from taskflow.tasks.lower.lower import lower

config = RNNLMConfig(batch=16, steps=8, vocabulary=2000, hidden=96, steps_per_operator=4)
graph = model("float32", config)
costs = MeasuredCosts(host(1), folder=Path(sys.argv[1]), seconds=0.01)
tasks = lower(graph, undivided(graph), SGD(0.1))
predicted = sum(costs.seconds(task) for task in tasks)
executor = Executor(graph, undivided(graph), SGD(0.1))
steps = []
for i in range(10):
    began = thread_time()
    executor.train_measured(feeds(i, config))
    steps.append(thread_time() - began)
print(predicted, median(steps[2:]), costs.measured, len(tasks))
"""


def test_predictions_are_of_the_right_size(tmp_path: Path) -> None:
    """The tasks of a real step, each measured apart, add up to what the step takes in order of magnitude. (How exact
    predictions are is for a benchmark on a quiet machine.) One thread, and its processor time for both, so that others
    may use the machine meanwhile: threads that outnumber free cores wait for each other."""
    root = Path(__file__).parents[3]
    variables = {
        **os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")]),
    }  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], env=variables, capture_output=True, text=True, timeout=250, check=True
    )
    predicted, real, measured, tasks = map(float, ended.stdout.split())
    assert 0.1 < predicted / real < 10
    assert measured < tasks  # steps of one layer have equal keys
