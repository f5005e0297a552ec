"""Metrics of a training run: perplexity, hits among the first k, and throughput as the median over recent steps."""

from __future__ import annotations

from collections import deque
from math import exp, inf, isnan, nan
from statistics import median
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def perplexity(mean_cross_entropy: float) -> float:
    """Return exp of a mean cross-entropy in nats a token; inf on overflow, NaN for NaN."""
    try:
        return exp(mean_cross_entropy)
    except OverflowError:
        return inf


def hits(scores: Array, labels: Array, k: int) -> int:
    """Return the number of rows of ``scores`` (N, classes) that have the right class of ``labels`` (N) among their ``k``
    highest. Of equal scores the class with the lower number ranks higher. Rows whose label is negative are never hits."""
    rows = np.flatnonzero(labels >= 0)
    chosen = labels[rows]
    right = scores[rows, chosen][:, None]
    before = (scores[rows] > right).sum(axis=1)
    before += ((scores[rows] == right) & (np.arange(scores.shape[1]) < chosen[:, None])).sum(axis=1)
    # A score that is not a number is never right: comparisons with it are all false.
    return int(((before < k) & ~np.isnan(right[:, 0])).sum())


class Throughput:
    """Items (tokens, images) a second as the median over the last ``window`` steps, so that one slow step does not show."""

    __slots__ = ("_rates", "_seconds")

    def __init__(self, window: int = 50) -> None:
        if window < 1:
            raise ValueError(f"Throughput: window must be at least 1 step, got {window}")
        self._rates: deque[float] = deque(maxlen=window)
        self._seconds: deque[float] = deque(maxlen=window)

    def add(self, items: int, seconds: float) -> None:
        """Count one step of ``items`` items that took ``seconds``; a step too short for the clock (0) is left out."""
        if items < 0 or seconds < 0 or isnan(seconds):
            raise ValueError(f"Throughput.add: items and seconds must be 0 or more, got {items} and {seconds}")
        if seconds > 0:
            self._rates.append(items / seconds)
            self._seconds.append(seconds)

    @property
    def per_second(self) -> float:
        """Return items a second; NaN before the first step."""
        return median(self._rates) if self._rates else nan

    @property
    def seconds_per_step(self) -> float:
        """Median over the same steps; NaN before the first."""
        return median(self._seconds) if self._seconds else nan
