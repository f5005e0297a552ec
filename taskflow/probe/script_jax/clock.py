"""Seconds of compiled functions on JAX's devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import jax

CHUNK_SECONDS = 0.004  # of calls that are timed together
LEAST_CHUNKS, MOST_CHUNKS = 3, 200


@dataclass(frozen=True)
class CompiledTime:
    """Seconds that a call took, and how far chunks differ (between quartiles, as a part of the median)."""

    seconds: float
    spread: float


def taken(action: Callable[[], Any], seconds: float, waits: bool = False) -> CompiledTime:
    """Return what a call of compiled code takes, of many that are begun without waiting for each, or with it (``waits``).
    ``seconds``: to spend."""
    jax.block_until_ready(action())
    began = perf_counter()
    jax.block_until_ready(action())
    once = max(1e-7, perf_counter() - began)
    chunk, found = max(1, min(200, round(CHUNK_SECONDS / once))), list[float]()
    until = perf_counter() + seconds
    while len(found) < LEAST_CHUNKS or (perf_counter() < until and len(found) < MOST_CHUNKS):
        began = perf_counter()
        result = [jax.block_until_ready(action()) if waits else action() for _ in range(chunk)]
        jax.block_until_ready(result)
        found.append((perf_counter() - began) / chunk)
    found.sort()
    middle = median(found)
    return CompiledTime(middle, (found[3 * len(found) // 4] - found[len(found) // 4]) / middle)
