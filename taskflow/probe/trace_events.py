"""Events of a trace, and the parts of a step that they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
GPU_CALLS = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True, slots=True)
class TimeOf:
    """Part of a step. ``kind``: forward, backward, gradients, weights, activations, stage, unit, update, loss or host; ``owner``:
    the module's path, or ""."""

    kind: str
    owner: str = ""

    @property
    def message(self) -> bool:
        """Whether it is a message."""
        return self.kind in ("gradients", "weights", "activations", "stage", "loss sum")


@dataclass(slots=True)
class TraceEvent:
    """An event of a trace, from ``begin`` to ``end`` in microseconds. ``thread``: of the host, or the stream of a GPU."""

    begin: float
    end: float
    name: str
    args: Mapping[str, Any]
    thread: object
    category: str


Slice = tuple[float, float, TimeOf]
