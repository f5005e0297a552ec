"""Windows: how convolution and pooling slide along one dimension, and what a piece of their output sees of the input. Also the
rules that the kinds of pooling share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

import numpy as np

from taskflow.operators.operator import NOTHING, Dim, Operator, Reads, Soap, Spec, takes
from taskflow.regions import Rect

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Window that slides along one dimension. Output o sees the input positions o stride - before + dilation j for j in
    range(kernel); those outside the input are padding. ``ceil``: a last window that begins in the input counts even if it
    reaches beyond the padding."""

    kernel: int
    stride: int = 1
    before: int = 0
    after: int = 0
    dilation: int = 1
    ceil: bool = False

    @property
    def reach(self) -> int:
        """Number of positions from the first to the last that an output sees, inclusive."""
        return self.dilation * (self.kernel - 1) + 1

    def outputs(self, size: int) -> int:
        """Return the number of outputs for an input of ``size``; zero or less if it is smaller than the window."""
        steps = size + self.before + self.after - self.reach
        if not self.ceil:
            return steps // self.stride + 1
        count = -(-steps // self.stride) + 1
        return count - ((count - 1) * self.stride >= size + self.before)

    def sees(self, size: int, low: int, high: int) -> Seen:
        """Return what outputs low:high see of an input of ``size``."""
        return _sees(self, size, low, high)


@dataclass(frozen=True, slots=True)
class Seen:
    """Input positions low:high and kernel elements first:last that meet there, both as few as possible. Also the number of
    positions by which the windows of those elements reach beyond low:high, which are padding."""

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
def _sees(window: SlidingWindow, size: int, low: int, high: int) -> Seen:
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
    """Return ``value`` for (height, width): one integer for both, or two. Raises ValueError if one is below ``least``."""
    given = (value, value) if isinstance(value, int) else tuple(value)
    if len(given) != 2 or not all(isinstance(v, int) and v >= least for v in given):
        raise ValueError(f"{name}: {key} must be one or two integers of at least {least}, got {value!r}")
    return given[0], given[1]


def pads(name: str, value: int | Sequence[int | Sequence[int]]) -> tuple[Pair, Pair]:
    """Return ``padding`` as ((top, bottom), (left, right)): given is one integer for all sides, one for each of (height,
    width), or a pair (before, after) for each."""
    sides = (value, value) if isinstance(value, int) else tuple(value)
    if len(sides) != 2:
        raise ValueError(f"{name}: padding must be an integer or one entry for each of height and width, got {value!r}")
    top, left = (pair(name, "padding", side, 0) for side in sides)
    return top, left


class Pool(Operator):
    """Base of operators on windows of an image: x (N, C, H, W) -> y (N, C, Ho, Wo). Cuts of h and w read halos."""

    __slots__ = ()

    kept = NOTHING

    @property
    @abstractmethod
    def windows(self) -> tuple[SlidingWindow, ...]:
        """Those of height and width."""

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes(self.kind, inputs, 1)
        (x,) = inputs
        if len(x.shape) != 4 or not x.differentiable:
            raise ValueError(f"{self.kind}: input must be a float tensor (N, C, H, W), got {x}")
        for window in self.windows:
            if 2 * window.before > window.kernel:
                raise ValueError(f"{self.kind}: padding must be at most half of the kernel {window.kernel}, got {window.before}")
        sizes = tuple(window.outputs(size) for window, size in zip(self.windows, x.shape[2:]))
        if min(sizes) < 1:
            kernel = tuple(window.kernel for window in self.windows)
            raise ValueError(f"{self.kind}: kernel {kernel} is larger than the input {x} with padding")
        return (Spec((*x.shape[:2], *sizes), x.dtype),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        sizes = zip("nchw", self.output(inputs)[0].shape)
        return tuple(Dim(name, size, Soap.SAMPLE if name == "n" else Soap.ATTRIBUTE) for name, size in sizes)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads((self.sees(inputs[0], piece)[0],))

    def sees(self, x: Spec, piece: Rect) -> tuple[Rect, tuple[Pair, Pair]]:
        """Return what a piece of the output sees of the input, and the padding around it."""
        lo, hi, padding = list(piece.lo), list(piece.hi), []
        for i, window in enumerate(self.windows, 2):
            seen = window.sees(x.shape[i], lo[i], hi[i])
            first = lo[i] * window.stride - window.before
            last = (hi[i] - 1) * window.stride - window.before + window.reach
            padding.append((seen.low - first, last - seen.high))  # of whole windows, unlike `Seen.padding`
            lo[i], hi[i] = seen.low, seen.high
        return Rect(tuple(lo), tuple(hi)), (padding[0], padding[1])


def pool_example(random: Random, dilated: bool) -> tuple[Sequence[SlidingWindow], Spec]:
    """Draw windows and an input for the property suite; every output sees something of it."""
    while True:
        ceil = random.random() < 0.4
        windows, sizes = [], []
        for _ in range(2):
            kernel, dilation = random.randint(1, 4), random.choice((1, 1, 2, 3)) if dilated else 1
            reach = dilation * (kernel - 1) + 1
            pad = random.randint(0, kernel // 2)
            windows.append(SlidingWindow(kernel, random.randint(1, 3), pad, pad, dilation, ceil))
            sizes.append(max(1, reach - 2 * pad) + random.randint(0, 6))
        counts = (window.outputs(size) for window, size in zip(windows, sizes))
        if not any(w.sees(s, o, o + 1).empty for w, s, count in zip(windows, sizes, counts) for o in range(count)):
            return windows, Spec((random.randint(1, 3), random.randint(1, 3), *sizes), np.dtype(np.float64))
