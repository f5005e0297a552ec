"""A core that is slower than usually is noticed, and what was measured on it is measured again, while there is patience."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskflow.machine import host
from taskflow.optimizer.cost.measured import model as cost_measured
from taskflow.optimizer.cost.measured.cache_state import Age, CacheState
from taskflow.optimizer.cost.measured.guard import before_measuring
from taskflow.optimizer.cost.measured.model import MeasuredCosts
from taskflow.optimizer.cost.measured.noise import LIMIT, MEMORY, TIMES, SpeedProbe
from taskflow.optimizer.cost.measured.store import Measurement
from taskflow.tasks.task import Kind


def clock_of(durations: Iterator[float]) -> Callable[[], float]:
    """One that is asked at the beginning and at the end of each piece of work."""
    now, ends = 0.0, False

    def clock() -> float:
        nonlocal now, ends
        if ends:
            now += next(durations)
        ends = not ends
        return now

    return clock


def looks(*seconds: float) -> list[bool]:
    """What a yardstick says when its work takes so long at each look."""
    every = [1.0, *(s for each in seconds for s in [each] * TIMES)]  # the first one warms up
    yardstick = SpeedProbe(clock_of(iter(every)))
    return [yardstick.slow() for _ in seconds]


def test_slower_than_usually() -> None:
    assert looks(1.0, 1.0, LIMIT - 0.01, LIMIT + 0.01, 2.0, 1.0) == [False, False, False, True, True, False]


def test_what_lasts_is_usual() -> None:
    said = looks(*[1.0] * MEMORY, *[2.0] * MEMORY)
    assert not any(said[:MEMORY]) and all(said[MEMORY : MEMORY + MEMORY // 2]) and not any(said[-MEMORY // 2 + 1 :])
    assert looks(2.0, 2.0, 1.0, 2.0) == [False, False, False, False]


def test_one_interruption_is_no_slow_core() -> None:
    yardstick = SpeedProbe(clock_of(iter([1.0, *[1.0] * TIMES, *[9.0] * (TIMES - 1), 1.0])))
    assert not yardstick.slow() and not yardstick.slow()


class Measuring:
    """Costs whose looks at the core and measurements are given."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, slow: Callable[[], bool], age: Age) -> None:
        self.runs: list[float] = []
        patch.setattr(cost_measured, "measure", self._measure)
        patch.setattr(cost_measured, "REST_SECONDS", 1e-3)
        self.costs = MeasuredCosts(host(2), folder=folder, between=CacheState(1 << 20, {}, age))
        self.costs._yardstick = self  # type: ignore[assignment]
        self.slow = slow

    def _measure(self, action: object, seconds: float, around: object, *_: object, **__: object) -> Measurement:
        self.runs.append(around.idle)  # type: ignore[attr-defined]
        return Measurement(float(len(self.runs)), 0.0, 5)


def test_what_was_disturbed_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = iter([True, False, True, False, False])  # before; after the first measurement; not at all
    here = Measuring(tmp_path, monkeypatch, lambda: next(slow), Age(0.0, 0.0))
    assert here.costs.memory_seconds(Kind.FILL, 1 << 26, 0) == 2.0
    assert here.runs == [0.0, 0.0] and (here.costs.measured, here.costs.disturbed) == (1, 0)
    assert next(slow, None) is None
    assert here.costs.memory_seconds(Kind.FILL, 1 << 26, 0) == 2.0  # known, so nobody looks


def test_young_and_old_are_measured_on_an_undisturbed_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = iter([False, False, True, False, False, False])  # the old ones were disturbed: both again
    here = Measuring(tmp_path, monkeypatch, lambda: next(slow), Age(0.5, 0.01))
    assert here.costs.memory_seconds(Kind.FILL, 1 << 26, 0) == 3.5
    assert here.runs == [0.0, 0.01, 0.0, 0.01] and here.costs.disturbed == 0


def test_patience_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_measured, "PATIENCE_SECONDS", 0.02)
    looked = 0

    def always() -> bool:
        nonlocal looked
        looked += 1
        return True

    here = Measuring(tmp_path, monkeypatch, always, Age(0.5, 0.01))
    assert here.costs.memory_seconds(Kind.FILL, 1 << 26, 0) == 1.5
    assert (here.costs.measured, here.costs.disturbed) == (1, 1) and 2 <= looked < 30


def test_a_budget_that_is_spent_ends_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Measuring(tmp_path, monkeypatch, lambda: True, Age(0.0, 0.0))
    asked = iter([None, None, TimeoutError("spent")])

    def ask() -> None:
        if (error := next(asked)) is not None:
            raise error

    with before_measuring(ask), pytest.raises(TimeoutError, match="spent"):
        here.costs.memory_seconds(Kind.FILL, 1 << 26, 0)
    assert not here.runs and here.costs.measured == 0 and not here.costs.measurements
