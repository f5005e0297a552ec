"""Ages: what a step leaves to the next lies longer than what the task before has just written, and is measured so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper import DataParallel
from taskflow.mapper.mapper import map_graph
from taskflow.models import build
from taskflow.operators.linear import Linear
from taskflow.operators.operator import Spec
from taskflow.optimizer.cost_age import FRESH, OLD, Aged, _ages, aged
from taskflow.optimizer.cost_bench import Surroundings, measure
from taskflow.optimizer.cost_measured import MeasuredCosts
from taskflow.optimizer.cost_store import Measurement
from taskflow.regions import Rect
from taskflow.rules import SGD
from taskflow.tasks.lower import lower

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
    found = aged(graph, machine, RULE)
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
        patch.setattr("taskflow.optimizer.cost_bench.perf_counter", now)
        measure(run, 1e-3, Surroundings(np.ones(1).view(Sweep), idle=0.02), now)
    assert len(waited) >= 5 and all(0.02 <= seconds < 0.021 for seconds in waited)


def test_a_cost_is_between_young_and_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def stopwatch(action: object, seconds: float, around: Surroundings, *rest: object) -> Measurement:
        seen.append(around.idle)
        return Measurement(3.0 if around.idle else 1.0, 0.1 if around.idle else 0.2, 5)

    monkeypatch.setattr("taskflow.optimizer.cost_measured.measure", stopwatch)
    linear, specs, piece = Linear(4), (Spec((8, 4), np.dtype(np.float32)),), Rect((0, 0, 0), (8, 4, 4))
    old = MeasuredCosts(host(1), folder=tmp_path, aged=Aged(0.25, 0.016))
    assert old.compute_seconds(linear, specs, piece, False) == pytest.approx(1.5) and seen == [0.0, 0.016]
    (kept,) = old.measurements.values()
    assert (kept.spread, kept.repeats) == (0.2, 10)
    young = MeasuredCosts(host(1), folder=tmp_path)
    assert young.compute_seconds(linear, specs, piece, False) == 1.0 and len(seen) == 3  # another measurement


def test_a_wrong_age_is_an_error() -> None:
    assert FRESH.share == 0
    for wrong in ((-0.1, 1.0), (1.1, 1.0), (0.5, -1.0)):
        with pytest.raises(ValueError, match="Aged: needs a share from 0 to 1"):
            Aged(*wrong)
