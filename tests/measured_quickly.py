"""Measurements without running anything, for tests of those who ask for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskflow.optimizer.cost.measured import model as cost_measured
from taskflow.optimizer.cost.measured.bench import Surroundings
from taskflow.optimizer.cost.measured.store import Measurement


class Stopwatch:
    """Stands for `cost_bench.measure`: a task takes as long as the arrays say that it finds near. Counts; ``at`` is called with the
    number of each measurement before it is made."""

    def __init__(self, at: Callable[[int], object] = lambda number: None) -> None:
        self.count, self.at = 0, at

    def __call__(self, action: Callable[[], object], seconds: float, around: Surroundings, *rest: Any, **more: Any) -> Measurement:
        if not around.idle:  # else the same task, measured again with old arrays
            self.count += 1
            self.at(self.count)
        return Measurement(1e-5 + 1e-8 * sum(array.size for array in around.fresh), 0.0, 5)


def watch(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Stopwatch:
    """Measured costs as a `Stopwatch` has them, kept in ``folder``, on one core, which is never slow: nobody keeps company."""
    found = Stopwatch()
    monkeypatch.setattr(cost_measured, "measure", found)
    monkeypatch.setattr(cost_measured.SpeedProbe, "slow", lambda self: False)
    monkeypatch.setenv("TASKFLOW_CACHE", str(folder))
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    return found
