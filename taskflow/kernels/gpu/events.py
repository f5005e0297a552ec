"""Moment: a CUDA event that tells "not yet" from "never", since after a fault on the GPU an event never completes."""

from __future__ import annotations

from typing import Any

READY, NOT_READY = 0, 600  # cudaSuccess and cudaErrorNotReady


class Moment:
    """CuPy event, recorded on a stream. Streams accept it like CuPy's own events, because they only read ``ptr``."""

    __slots__ = ("_event", "_runtime")

    def __init__(self, runtime: Any, event: Any) -> None:
        self._runtime, self._event = runtime, event

    @property
    def ptr(self) -> int:
        """Handle of CUDA's."""
        return int(self._event.ptr)

    @property
    def done(self) -> bool:
        """True if the event has completed. Raises CuPy's own error if the GPU has failed. (CuPy's ``Event.done`` is then false
        for ever, and whoever polls it would wait until the watchdog ends the job, without learning the cause.)"""
        status = int(self._runtime.eventQuery(self._event.ptr))
        if status not in (READY, NOT_READY):
            self.synchronize()  # raises it
        return status == READY

    def synchronize(self) -> None:
        """Wait for the event. Raises CuPy's own error if the GPU has failed."""
        self._event.synchronize()
