"""Measuring takes a moment for each task: what must not wait for it, or not past its time, asks to be asked before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Of a thread, not of the process as `working.note` is: a bound that may not measure must not keep another thread's search from it.
_ASK: ContextVar[Callable[[], object] | None] = ContextVar("before a measurement", default=None)


class NotMeasured(TimeoutError):
    """A cost is not known, and may not be measured now."""


@contextmanager
def before_measuring(ask: Callable[[], object]) -> Iterator[None]:
    """Within the block, of this thread, ``ask`` is called before a task is measured; what it raises is raised instead."""
    token = _ASK.set(ask)
    try:
        yield
    finally:
        _ASK.reset(token)


def may_measure() -> None:
    """Ask for leave; a cost model calls it before it measures."""
    if (ask := _ASK.get()) is not None:
        ask()


def nothing_new() -> None:
    """To be asked where only costs count that are known: always raises NotMeasured."""
    raise NotMeasured("measured costs: this task has not been measured")
