"""What several tests of searches need."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def nothing_else_collects() -> Iterator[None]:
    """Without what other packages (Hypothesis) do at each garbage collection: Python forgets an interrupt that comes just then."""
    others = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks.extend(others)
