"""grid_sample: images at computed places between their pixels (PyTorch: torch.nn.functional.grid_sample of 4 dimensions)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from random import Random
from typing import Any

import numpy as np

from taskflow.operators.operator import INPUTS, Array, Call, Example, Operator, Reads, Spec, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect

MODES, PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


@register("grid_sample")
class GridSample(Operator):
    """x (N, C, H, W), grid (N, Ho, Wo, 2) -> y (N, C, Ho, Wo): y[n, :, i, j] is x[n] at the column grid[n, i, j, 0] and the row
    grid[n, i, j, 1]. -1 and 1 are the centres of the outermost pixels (``corners``), or their outer edges. Every dimension of y can
    be cut. Only the data tell which pixels a piece needs, so it reads whole images of its samples and channels."""

    mode: str = "bilinear"
    padding: str = "zeros"
    corners: bool = False
    kept = INPUTS

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("grid_sample", inputs, 2)
        if self.mode not in MODES or self.padding not in PADDINGS:
            raise ValueError(
                f"grid_sample: mode must be one of {', '.join(MODES)}, padding one of {', '.join(PADDINGS)}, got {self.mode!r} and "
                f"{self.padding!r}"
            )
        x, grid = inputs
        fits = len(x.shape) == len(grid.shape) == 4 and x.shape[0] == grid.shape[0] and grid.shape[3] == 2
        if not fits or not x.differentiable or grid.dtype != x.dtype:
            raise ValueError(f"grid_sample: inputs must be floats (N, C, H, W) and (N, Ho, Wo, 2) of one type, got {x} and {grid}")
        return (Spec((*x.shape[:2], *grid.shape[1:3]), x.dtype),)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        x = Rect((*piece.lo[:2], 0, 0), (*piece.hi[:2], *inputs[0].shape[2:]))
        return Reads((x, Rect((piece.lo[0], *piece.lo[2:], 0), (piece.hi[0], *piece.hi[2:], 2))))

    def forward(self, call: Call) -> None:
        (y,) = call.outputs
        samples, channels, *places = y.shape
        rows, corners = _rows(call, call.inputs[0]), self._corners(call)
        total = sum(_values(call, rows, corner) * corner.weight for corner in corners)
        y[...] = total.reshape(samples, prod(places), channels).swapaxes(1, 2).reshape(y.shape)

    def backward(self, call: Call) -> None:
        x, grid = call.inputs
        samples, channels, *size = x.shape
        dy, rows = _rows(call, call.grad), _rows(call, x)
        dx, dgrid = call.grad_inputs
        sums = call.kernels.xp.zeros((samples * prod(size), channels), x.dtype)
        slopes = call.kernels.xp.zeros((2, grid.size // 2), x.dtype)  # of columns and rows
        for corner in self._corners(call):
            if dx is not None:
                call.kernels.embedding_backward(corner.index, 0, dy * corner.weight, out=sums, accumulate=True)
            if dgrid is not None and self.mode != "nearest":
                slopes += corner.slopes * (_values(call, rows, corner) * dy).sum(axis=1)
        if dx is not None:
            dx.put(sums.reshape(samples, prod(size), channels).swapaxes(1, 2).reshape(x.shape))
        if dgrid is not None:
            dgrid.put(slopes.swapaxes(0, 1).reshape(grid.shape))

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return piece.volume * {"nearest": 0, "bilinear": 8, "bicubic": 32}[self.mode]  # products of pixels, added up

    def _corners(self, call: Call) -> Iterator[_Corner]:
        """The pixels that count at each place: the nearest, four around it, or 4 x 4."""
        xp, (x, grid) = call.kernels.xp, call.inputs
        height, width = x.shape[2:]
        columns, rows = (self._taps(xp, grid[..., i].reshape(-1), size) for i, size in enumerate((width, height)))
        sample = xp.arange(grid.size // 2) // prod(grid.shape[1:3])
        for row, tall, tall_slope in rows:
            for column, wide, wide_slope in columns:
                inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
                index = xp.where(inside, (sample * height + row) * width + column, -1).astype(np.int64)
                yield _Corner(index, (tall * wide)[:, None], xp.stack((tall * wide_slope, tall_slope * wide)))

    def _taps(self, xp: Any, at: Array, size: int) -> list[tuple[Array, Array, Array]]:
        """Rows (or columns) that count at each place, with their weights, and how much these grow with the grid's number."""
        place = (at + 1) * ((size - 1) / 2) if self.corners else ((at + 1) * size - 1) / 2
        rate = xp.full(at.shape, (size - 1) / 2 if self.corners else size / 2, at.dtype)
        if self.mode != "bicubic":
            place, rate = self._padded(xp, place, rate, size)
        if self.mode == "nearest":
            return [(xp.rint(place), xp.ones(at.shape, at.dtype), rate * 0)]
        first, taps = xp.floor(place), []
        for offset in (0, 1) if self.mode == "bilinear" else (-1, 0, 1, 2):
            side = 1 if offset < 1 else -1  # of the tap, from which the place is seen
            away = side * (place - (first + offset))
            weight, slope = (1 - away, -1.0) if self.mode == "bilinear" else _cubic(away, abs(offset - 0.5) < 1)
            tap = first + offset if self.mode == "bilinear" else self._padded(xp, first + offset, rate, size)[0]
            taps.append((tap, weight, side * slope * rate))
        return taps

    def _padded(self, xp: Any, place: Array, rate: Array, size: int) -> tuple[Array, Array]:
        """Places outside put where the padding takes them from, and the rate at which they move there."""
        if self.padding == "reflection":
            low, span = (0.0, size - 1) if self.corners else (-0.5, size)
            around = abs(place - low)
            turns = xp.floor(around / max(span, 1))
            rest, odd = around - turns * span, turns % 2 == 1
            rate = xp.where((place < low) != odd, -rate, rate) * (span > 0)
            place = xp.where(odd, span - rest, rest) + low if span else place * 0
        if self.padding != "zeros":
            rate = xp.where((place > 0) & (place < size - 1), rate, 0)
            return xp.minimum(xp.maximum(place, 0), size - 1), rate
        return xp.minimum(xp.maximum(place, -2), size + 1), rate  # as far outside as need be

    @classmethod
    def example(cls, random: Random) -> Example:
        n, c, rows, columns = (random.randint(1, 4) for _ in range(4))
        h, w = (random.randint(2, 5) for _ in range(2))  # of one pixel every place may be
        operator = cls(random.choice(MODES), random.choice(PADDINGS), random.random() < 0.5)
        double = np.dtype(np.float64)
        return Example(operator, (Spec((n, c, h, w), double), Spec((n, rows, columns, 2), double)))


@dataclass(frozen=True, slots=True)
class _Corner:
    """A pixel for each place: ``index`` among those of all samples (-1: none), its ``weight`` (places, 1), and the weight's
    ``slopes`` (2, places) by the grid's numbers."""

    index: Array
    weight: Array
    slopes: Array


def _cubic(away: Array, near: bool) -> tuple[Array, Array]:
    """Weight of a pixel ``away`` pixels from a place (below 1: ``near``, else below 2), and its slope: PyTorch's curve."""
    if near:
        return (1.25 * away - 2.25) * away * away + 1, (3.75 * away - 4.5) * away
    return ((-0.75 * away + 3.75) * away - 6) * away + 3, (-2.25 * away + 7.5) * away - 6


def _rows(call: Call, x: Array) -> Array:
    """The channels of each pixel of each sample as a row: (N, C, H, W) -> (N H W, C)."""
    samples, channels, *size = x.shape
    rows = x.reshape(samples, channels, prod(size)).swapaxes(1, 2)
    return call.kernels.xp.ascontiguousarray(rows).reshape(samples * prod(size), channels)


def _values(call: Call, rows: Array, corner: _Corner) -> Array:
    """What stands at a corner of each place, zeros outside."""
    found = call.kernels.xp.empty((corner.index.size, rows.shape[1]), rows.dtype)
    call.kernels.embedding(rows, corner.index, 0, found)
    return found


def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding: str = "zeros", align_corners: bool = False, *,
    name: str | None = None,
) -> Tensor:
    """Take images at computed places between their pixels, as deformable attention does.

    Args: input (N, C, H, W); grid (N, Ho, Wo, 2), columns first: from -1 to 1 over the image, whose ends are the outermost pixels'
    centres with ``align_corners``, else their edges. ``mode``: "bilinear", "nearest" or "bicubic". ``padding``: what is outside,
    "zeros", "border" or "reflection". Returns (N, C, Ho, Wo).
    """
    return input.graph.apply(GridSample(mode, padding, align_corners), (input, grid), name=name)[0]
