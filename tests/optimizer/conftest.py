"""What several tests of searches need."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


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
