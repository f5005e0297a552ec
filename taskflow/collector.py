"""Garbage collection, paused while a step is compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the search for unreachable cycles. Compiling makes millions of small objects that all stay and form no cycles; the
    searches would take as long as the compiling."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
