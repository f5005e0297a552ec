"""Graphs: a step's work on the GPU, captured once as a CUDA graph and then launched as a whole.

Launching a kernel from Python takes some microseconds, and a step has hundreds or thousands of kernels. Arrays that are
allocated during capture come from a pool that only captured steps use, so that nothing else ever lies where a replay writes.
Within the pool, memory is reused in the order of the stream, which is the order of every replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from taskflow.kernels.device import NotRecorded, Recorder
from taskflow.kernels.gpu.step_scalars import StepScalars


class CudaRecorder(Recorder):
    """Captures the stream of a `CupyDevice`."""

    __slots__ = ("_device", "_dials", "_pool")

    def __init__(self, device: Any) -> None:
        self._device = device
        self._dials = StepScalars(device)
        self._pool: Any = device.xp.cuda.MemoryPool()

    def record(self, actions: Sequence[Callable[[], object]]) -> Callable[[], None]:
        """See `Recorder`."""
        device, stream = self._device, self._device.compute
        before, number = len(device.found), 0
        with device.xp.cuda.using_allocator(self._pool.malloc):
            try:
                stream.begin_capture()
                device.dials = self._dials
                for action in actions:
                    action()
                    number += 1
            except Exception as error:
                with suppress(Exception):  # a capture that has failed says so again when it ends
                    stream.end_capture()
                del device.found[before:]
                raise NotRecorded(f"{type(error).__name__}: {' '.join(str(error).split())}", number) from error
            finally:
                device.dials = None
            try:
                graph = stream.end_capture()
            except Exception as error:
                del device.found[before:]
                raise NotRecorded(f"{type(error).__name__}: {' '.join(str(error).split())}") from error
        checks = device.found[before:]
        del device.found[before:]
        pool = self._pool  # lives as long as what writes to its memory

        def replay() -> None:
            assert pool is not None
            graph.launch(stream)
            device.found.extend(checks)

        return replay

    def set(self, lr: float, step: int, updates: int) -> None:
        """See `Recorder`."""
        self._dials.set(lr, step, updates)
