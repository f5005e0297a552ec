"""What several tests of searches need."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

for room in ("algorithms", "evaluate"):  # whose tests lend what they compare by, whichever are run
    sys.path.insert(0, str(Path(__file__).parent / room))


@pytest.fixture
def nothing_else_collects() -> Iterator[None]:
    """Without garbage collections: Python forgets an interrupt that comes while what other packages (Hypothesis) do at each of
    them runs, or what is called when graphs of earlier tests die in one."""
    others = gc.callbacks[:]
    gc.callbacks.clear()
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.callbacks.extend(others)


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are measured as on a machine where no other program takes a core. Tests of what one disturbs say so themselves."""
    monkeypatch.setattr("taskflow.optimizer.cost.measured.bench.interruptions", lambda: 0)
