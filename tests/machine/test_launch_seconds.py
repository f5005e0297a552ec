"""What a small kernel costs the program on a GPU: one of a row of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from taskflow.runtime.calibrate import machine


def test_a_launch_is_one_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that a kernel takes two milliseconds of, and a wait for all of them none."""
    added, waited = [0], [0]

    class Counted(np.ndarray[Any, Any]):
        def __array_ufunc__(self, function: Any, method: str, *given: Any, **kwargs: Any) -> Any:
            added[0] += 1
            return self

    def timed(action: Any, seconds: float) -> float:
        before = added[0]
        action()
        return 2e-3 * (added[0] - before)

    monkeypatch.setattr(machine, "typical", timed)
    device = SimpleNamespace(synchronize=lambda: waited.__setitem__(0, waited[0] + 1))
    assert machine._launch(device, np.zeros(16, np.float32).view(Counted)) == pytest.approx(2e-3)
    assert added[0] > 10 and waited[0] == 1, "a row, which is waited for once"
