"""Moment: an event of CUDA that tells "not yet" from "never": after a fault on the GPU an event never comes to pass."""

from __future__ import annotations

from typing import Any

READY, NOT_READY = 0, 600  # cudaSuccess and cudaErrorNotReady


class Moment:
    """An event of CuPy, recorded on a stream. Streams take it as they take CuPy's own: they ask for ``ptr``."""

    __slots__ = ("_event", "_runtime")

    def __init__(self, runtime: Any, event: Any) -> None:
        self._runtime, self._event = runtime, event

    @property
    def ptr(self) -> int:
        """CUDA's handle."""
        return int(self._event.ptr)

    @property
    def done(self) -> bool:
        """True if it has come to pass. CuPy's own error if the GPU has failed before (its ``Event.done`` is false then, for ever,
        and whoever polls would wait until the watchdog ends the job, without the cause)."""
        status = int(self._runtime.eventQuery(self._event.ptr))
        if status not in (READY, NOT_READY):
            self.synchronize()  # raises it
        return status == READY

    def synchronize(self) -> None:
        """Return when it has come to pass; CuPy's own error if the GPU has failed."""
        self._event.synchronize()
