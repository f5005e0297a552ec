"""Between: what a step does between two tasks of a kind follows from graph and machine, and what is measured is measured so."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from taskflow.graph import OperatorGraph
from taskflow.machine import host, load_machine
from taskflow.mapper import DataParallel
from taskflow.mapper.mapper import map_graph
from taskflow.models import build
from taskflow.models.rnnlm import RNNLMConfig, rnnlm
from taskflow.operators.cost_key import cost_key
from taskflow.operators.linear import Linear
from taskflow.operators.operator import Spec
from taskflow.optimizer.cost.measured.bench import Surroundings, measure
from taskflow.optimizer.cost.measured.cache_state import (
    FRESH,
    OLD,
    TYPICAL,
    Age,
    CacheState,
    _ages,
    between,
    code_between,
)
from taskflow.optimizer.cost.measured.model import MeasuredCosts
from taskflow.optimizer.cost.measured.store import Measurement
from taskflow.regions import Rect
from taskflow.rules import SGD
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.task import Kind

RULE = SGD(lr=0.1, momentum=0.9)


def network() -> OperatorGraph:
    return build("MLP", batch=64)


def test_weights_are_as_old_as_a_step_and_what_was_just_written_is_not() -> None:
    machine, graph = host(1), network()
    tasks = lower(graph, map_graph(DataParallel(), graph, machine), RULE)
    ages, nbytes, step = _ages(tasks, machine)
    touched = sum(len(t.reads) + len(t.writes) for t in tasks.tasks if not t.kind.travels)
    assert len(ages) == len(nbytes) == touched and nbytes.min() > 0
    assert 0 <= ages.min() < OLD * step < ages.max() <= step
    # One device: each task begins when the one before ends, so what that wrote has just been used.
    assert (ages < 1e-9).sum() >= len(tasks.tasks) / 4
    found = between(graph, machine, RULE).age
    assert 0 < found.share < 1 and 0.001 <= found.seconds <= 0.032
    assert found.share == pytest.approx(float(nbytes[ages > OLD * step].sum() / nbytes.sum()), abs=1 / 32)


def test_a_task_waits_before_it_is_measured_old() -> None:
    clock, waited = [0.0], list[float]()

    def now() -> float:
        clock[0] += 1e-4
        return clock[0]

    class Sweep(np.ndarray):  # type: ignore[type-arg]
        def sum(self, *args: object, **options: object) -> object:  # type: ignore[override]
            waited.append(-clock[0])
            return 0.0

    def run() -> None:
        if waited:
            waited[-1] += clock[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taskflow.optimizer.cost.measured.bench.perf_counter", now)
        measure(run, 1e-3, Surroundings(np.ones(1).view(Sweep), idle=0.02), now)
    assert len(waited) >= 5 and all(0.02 <= seconds < 0.021 for seconds in waited)


def test_a_cost_is_between_young_and_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def stopwatch(action: object, seconds: float, around: Surroundings, *rest: object, least: int = 5) -> Measurement:
        seen.append(around.idle)
        return Measurement(3.0 if around.idle else 1.0, 0.1 if around.idle else 0.2, least)

    monkeypatch.setattr("taskflow.optimizer.cost.measured.model.measure", stopwatch)
    monkeypatch.setattr("taskflow.optimizer.cost.measured.noise.SpeedProbe.slow", lambda self: False)
    linear, specs, piece = Linear(4), (Spec((8, 4), np.dtype(np.float32)),), Rect((0, 0, 0), (8, 4, 4))
    old = MeasuredCosts(host(1), folder=tmp_path, between=CacheState(age=Age(0.25, 0.016)))
    assert old.compute_seconds(linear, specs, piece, False) == pytest.approx(1.5) and seen == [0.0, 0.016]
    (kept,) = old.measurements.values()
    assert (kept.spread, kept.repeats) == (0.2, 8)
    young = MeasuredCosts(host(1), folder=tmp_path)
    assert young.compute_seconds(linear, specs, piece, False) == 1.0 and len(seen) == 3  # another measurement


def test_the_reuse_distance_grows_with_the_network() -> None:
    small, large = (
        between(rnnlm(RNNLMConfig(batch=16, steps=4, vocabulary=1000, hidden=hidden), "float32"), host(1), RULE).nbytes
        for hidden in (64, 512)
    )
    assert small == 1 << 20 < large <= 64 << 20


def test_code_is_used_again_sooner_where_there_is_more_of_a_kind() -> None:
    graph = build("AlexNet", batch=4, image=127, classes=10)
    found = code_between(graph, 8 << 20)
    kinds = Counter(node.operator.kind for node in graph)
    assert set(found) == set(kinds) and kinds["relu"] > kinds["dropout"] == 2 > kinds["cross_entropy"] == 1
    assert found["cross_entropy"] == 8 << 20 and found["dropout"] == 4 << 20 > found["relu"] >= 1 << 20
    assert code_between(graph, 1 << 17) == dict.fromkeys(kinds, 0) | {k: 1 << 17 for k, n in kinds.items() if n == 1}


def test_a_step_is_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: list[object] = []

    def counted(*arguments: object) -> object:
        lowered.append(arguments)
        return lower(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("taskflow.optimizer.cost.measured.cache_state.lower", counted)
    found = between(network(), host(2), RULE)
    assert len(lowered) == 1 and found.age.share > 0 and found.code == code_between(network(), found.nbytes)
    assert between(network(), load_machine("p100", 2), RULE).age == FRESH  # on GPUs nothing is old


def test_costs_on_disk_keep_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that people have hold these texts. Who changes one must change it for all that was measured otherwise."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("taskflow.optimizer.cost.measured.model.measure", lambda *_, **__: Measurement(1.0, 0.0, 5))
    monkeypatch.setattr("taskflow.optimizer.cost.measured.contention.ContendingProcesses.beside", lambda self, make: nullcontext())
    linear, specs, piece = Linear(4), (Spec((8, 4), np.dtype(np.float32)),), Rect((0, 0, 0), (8, 4, 4))
    what = f"{cost_key(linear, specs, piece, False)!r} ()"
    full = CacheState(1 << 20, {"linear": 1 << 19, "relu": 1 << 20}, Age(0.375, 0.032))
    for costs, ends in (
        (MeasuredCosts(host(1), folder=tmp_path / "a"), ("beside 16777216", "beside 16777216")),
        (MeasuredCosts(host(1), folder=tmp_path / "b", between=full, company=3), (
            "after 524288 and other code beside 1048576 in company of 1 0.375 of it 0.032 s old",
            "beside 1048576 in company of 1 0.375 of it 0.032 s old",
        )),
    ):  # fmt: skip
        costs.compute_seconds(linear, specs, piece, False)
        costs.memory_seconds(Kind.MOVE, 256, 0)
        assert set(costs.measurements) == {f"{what} {ends[0]}", f"move 256 {ends[1]}", f"move 2048 {ends[1]}"}


def test_what_cannot_be_is_an_error() -> None:
    assert FRESH.share == 0 and CacheState(16 << 20, {}, FRESH) == TYPICAL
    for wrong in ((-0.1, 1.0), (1.1, 1.0), (0.5, -1.0)):
        with pytest.raises(ValueError, match="Age: needs a share from 0 to 1"):
            Age(*wrong)
    for nbytes in (0, 2, 1001, -4):
        with pytest.raises(ValueError, match=f"Between: nbytes .* got {nbytes}"):
            CacheState(nbytes)
    with pytest.raises(ValueError, match=r"after 0 to 1024 bytes \(nbytes\), got {'linear': 1028}"):
        CacheState(1024, {"linear": 1028, "relu": 4})
    assert str(CacheState(1 << 20, {"linear": 0, "relu": 4}, Age(0.5, 0.016))) == (
        "1 MiB in between, code of 1 of 2 kinds near, 0.5 of it 0.016 s old"
    )
