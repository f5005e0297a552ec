"""Memory: use of each device's memory over the step, thinned for drawing with every peak kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskflow.machine import Machine
from taskflow.optimizer.memory import MemoryProfile

POINTS = 600  # of one device's curve


def memory_values(profiles: Sequence[MemoryProfile], machine: Machine) -> list[dict[str, Any]]:
    """Return for each device what it needs, by kind, and how much it has, in bytes."""
    return [
        {
            "weights": p.use.weights, "state": p.use.state, "buffers": p.use.buffers, "packed": p.use.packed,
            "holes": p.use.holes, "peak_bytes": p.use.nbytes, "limit_bytes": machine.processors[p.use.processor].memory_bytes,
        }
        for p in profiles
    ]


def memory_columns(profiles: Sequence[MemoryProfile], tick: float) -> dict[str, NDArray[np.int64]]:
    """Return the curves of all devices one after the other: times in ticks, bytes, and the number of points of each curve."""
    curves = [_thin(np.round(p.seconds / tick).astype(np.int64), p.nbytes) for p in profiles]
    return {
        "memory_points": np.array([len(t) for t, _ in curves], np.int64),
        "memory_time": np.concatenate([t for t, _ in curves]),
        "memory_bytes": np.concatenate([n for _, n in curves]),
    }


def _thin(times: NDArray[np.int64], nbytes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Points to draw; if there are more than `POINTS`, the highest of each part of the step."""
    if len(times) <= POINTS:
        return times, nbytes
    stretch = times * POINTS // (int(times[-1]) + 1)
    first = np.flatnonzero(np.diff(stretch, prepend=-1))
    return times[first], np.maximum.reduceat(nbytes, first)
