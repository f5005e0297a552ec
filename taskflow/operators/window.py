"""Window: how convolution and pooling slide along one dimension, and what a piece of their output sees of the input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Window:
    """Output o sees the input positions o stride - before + dilation j for j in range(kernel); those outside the input
    are padding."""

    kernel: int
    stride: int = 1
    before: int = 0
    after: int = 0
    dilation: int = 1

    def outputs(self, size: int) -> int:
        """How many outputs an input of ``size`` gives; zero or less if it is smaller than the window."""
        return (size + self.before + self.after - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    def sees(self, size: int, low: int, high: int) -> Seen:
        """What outputs low:high see of an input of ``size``."""
        return _sees(self, size, low, high)


@dataclass(frozen=True, slots=True)
class Seen:
    """Input positions low:high and kernel elements first:last that meet there, both as few as possible; and how many
    positions the windows of those elements reach beyond low:high, which are padding."""

    low: int
    high: int
    first: int
    last: int
    padding: Pair

    @property
    def empty(self) -> bool:
        """True if the outputs see nothing but padding."""
        return self.high <= self.low


@lru_cache(maxsize=1 << 16)
def _sees(window: Window, size: int, low: int, high: int) -> Seen:
    touched = []
    for j in range(window.kernel):
        offset = window.dilation * j - window.before
        # The outputs whose position o stride + offset lies in the input.
        first = max(low, -(offset // window.stride))
        last = min(high - 1, (size - 1 - offset) // window.stride)
        if first <= last:
            touched.append((j, first * window.stride + offset, last * window.stride + offset))
    if not touched:
        return Seen(0, 0, 0, 0, (0, 0))
    start, stop = min(a for _, a, _ in touched), max(b for _, _, b in touched) + 1
    one, end = touched[0][0], touched[-1][0] + 1
    reach = (
        low * window.stride - window.before + window.dilation * one,
        (high - 1) * window.stride - window.before + window.dilation * (end - 1) + 1,
    )
    return Seen(start, stop, one, end, (start - reach[0], reach[1] - stop))


def pair(name: str, key: str, value: int | Sequence[int], least: int) -> Pair:
    """``value`` for (height, width): one integer for both, or two. ValueError if one is below ``least``."""
    given = (value, value) if isinstance(value, int) else tuple(value)
    if len(given) != 2 or not all(isinstance(v, int) and v >= least for v in given):
        raise ValueError(f"{name}: {key} must be one or two integers of at least {least}, got {value!r}")
    return given[0], given[1]


def pads(name: str, value: int | Sequence[int | Sequence[int]]) -> tuple[Pair, Pair]:
    """``padding`` as ((top, bottom), (left, right)): one integer for all sides, one for each of (height, width), or a pair
    (before, after) for each."""
    sides = (value, value) if isinstance(value, int) else tuple(value)
    if len(sides) != 2:
        raise ValueError(f"{name}: padding must be an integer or one entry for each of height and width, got {value!r}")
    top, left = (pair(name, "padding", side, 0) for side in sides)
    return top, left
