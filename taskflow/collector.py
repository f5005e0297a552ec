"""The garbage collector, held off while a step is compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """No search for unreachable cycles meanwhile: compiling makes millions of small objects, all of which stay and none of
    which are in cycles, and the searches would take as long as the compiling."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
