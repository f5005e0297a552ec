"""Guard: lets callers veto on-demand measurement, which takes a moment for each task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Of a thread, not of the process as `working.note` is: a bound that may not measure must not keep another thread's search from it.
_ASK: ContextVar[Callable[[], object] | None] = ContextVar("before a measurement", default=None)


class NotMeasured(TimeoutError):
    """Error for a cost that is not known and may not be measured now."""


@contextmanager
def before_measuring(ask: Callable[[], object]) -> Iterator[None]:
    """Call ``ask`` before a task is measured in this thread, within the block; an exception that it raises prevents the
    measurement."""
    token = _ASK.set(ask)
    try:
        yield
    finally:
        _ASK.reset(token)


def may_measure() -> None:
    """Ask for permission; a cost model calls it before it measures."""
    if (ask := _ASK.get()) is not None:
        ask()


def nothing_new() -> None:
    """Forbid every measurement, for where only known costs count: always raises NotMeasured."""
    raise NotMeasured("measured costs: this task has not been measured")
