"""Rows: sums, normalisation, softmax, losses and embeddings on the GPU (rows.cu)."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskflow.kernels.gpu.launching import NULL, factor, flag, parts_of, whole
from taskflow.kernels.gpu.pointwise import PointwiseOnGPU
from taskflow.kernels.kernel_set import Array, Split

MOMENTS, PRODUCTS = 0, 1  # what `channel_totals` sums
SQUARE_PART = 1 << 14  # elements of one part of a sum of squares
COMPARED_ROWS = 1 << 13  # of an embedding's gradient: up to so many, each is compared with all; more are sorted
MANY_BLOCKS = 512  # enough to keep any GPU busy


class RowsOnGPU(PointwiseOnGPU):
    """Kernels with one block for each row or channel. Sums are added in a fixed order, so a rerun gives the same bits."""

    __slots__ = ()

    # ---- sums ---------------------------------------------------------------------------------------------------
    def sum_rows(self, x: Array, out: Array, accumulate: bool = False) -> None:
        rows, columns = x.shape
        parts, x = parts_of(rows, columns), self._dense(x)
        if parts > 1:
            some = self.xp.empty((parts, columns), x.dtype)
            self._each(x, "sum_rows", some.size, whole(rows), whole(columns), whole(parts), x, some, flag(False))
            x, rows = some, parts
        self._each(x, "sum_rows", columns, whole(rows), whole(columns), whole(1), x, out, flag(accumulate))

    def sum_of_squares(self, x: Array) -> Any:
        flat = self._dense(x.reshape(-1))
        parts = max(1, min(MANY_BLOCKS, flat.size // SQUARE_PART))
        some, out = self.xp.empty(parts, np.float64), self.xp.empty((), np.float64)
        self._blocks(flat, "squares", parts, whole(flat.size), whole(parts), flat, some)
        self._total(flat, some, out)
        return out

    def _total(self, like: Array, x: Array, out: Array) -> None:
        self._blocks(like, "total", 1, whole(x.size), x, np.float64(1), out, flag(False))

    # ---- channels of (N, C, P) ----------------------------------------------------------------------------------
    def channel_sums(self, x: Array, out: Array, accumulate: bool = False) -> None:
        totals = self.xp.empty((2, x.shape[1]), np.float64)
        self._channels(MOMENTS, x, None, totals)
        value = totals[0].astype(out.dtype)
        if accumulate:
            out += value
        else:
            out[...] = value

    def channel_moments(self, x: Array, out: Array) -> None:
        self._channels(MOMENTS, x, None, out)

    def channel_products(self, x: Array, dy: Array, out: Array) -> None:
        self._channels(PRODUCTS, x, dy, out)

    def _channels(self, what: int, x: Array, dy: Array | None, out: Array) -> None:
        """out (2, C) float64."""
        samples, channels, positions = x.shape
        if not x.size:
            out.fill(0)
            return
        parts = max(1, min(samples * positions // 2048, MANY_BLOCKS // channels))
        into = out if parts == 1 and out.flags.c_contiguous else self.xp.empty((parts, 2, channels), np.float64)
        arrays = (NULL if a is None else self._dense(a) for a in (x, dy))
        sizes = (whole(n) for n in (samples, channels, positions, parts))
        self._blocks(x, "channel_totals", parts * channels, flag(what), *sizes, *arrays, into)
        if into is not out:
            out[...] = into.sum(axis=0)

    def channel_affine(self, x: Array, scale: Array, offset: Array, out: Array, accumulate: bool = False) -> None:
        _, channels, positions = out.shape
        given = (self._dense(a) for a in (x, scale, offset))
        self._each(
            out, "channel_affine", out.size, whole(out.size), whole(channels), whole(positions), *given, out, flag(accumulate)
        )

    # ---- normalisation of rows ----------------------------------------------------------------------------------
    def layer_norm(
        self, x: Array, weight: Array, bias: Array, eps: float, out: Array, statistics: Array
    ) -> None:
        rows, columns = x.shape
        self._blocks(
            x, "layer_norm", rows, whole(rows), whole(columns), self._dense(x), weight, bias, x.dtype.type(eps), out, statistics
        )

    def layer_norm_backward(
        self, x: Array, weight: Array, statistics: Array, dy: Array, out: Array | None, sums: Array | None,
        accumulate: bool = False,
    ) -> None:
        rows, columns = x.shape
        x, dy = self._dense(x), self._dense(dy)
        if sums is not None:
            parts = parts_of(rows, columns)
            into = sums if parts == 1 else self.xp.empty((parts, 2, columns), x.dtype)
            sizes = (whole(n) for n in (rows, columns, parts))
            self._each(x, "layer_norm_sums", parts * columns, *sizes, x, statistics, dy, into)
            if parts > 1:
                self.sum_rows(into.reshape(parts, 2 * columns), sums.reshape(2 * columns))
        if out is not None:
            self._blocks(
                x, "layer_norm_backward", rows, whole(rows), whole(columns), x, weight, statistics, dy, out, flag(accumulate)
            )

    # ---- softmax and losses -------------------------------------------------------------------------------------
    def softmax(self, x: Array, out: Array, ends: Array | None = None) -> None:
        rows, columns = out.shape
        ends = NULL if ends is None else self._integers(ends)
        sizes = (whole(n) for n in (rows, x.shape[1], columns))
        self._blocks(out, "softmax", rows, *sizes, self._dense(x), ends, out)

    def softmax_backward(self, y: Array, dy: Array, out: Array, accumulate: bool = False) -> None:
        rows, columns = y.shape
        y, dy = self._dense(y), self._dense(dy)
        self._blocks(y, "softmax_backward", rows, whole(rows), whole(columns), y, dy, out, flag(accumulate))

    def cross_entropy(
        self, logits: Array, target: Array, ignore: int, probabilities: Array, smoothing: float = 0.0
    ) -> Any:
        rows, columns = logits.shape
        losses, out = self.xp.empty(rows, np.float64), self.xp.empty((), np.float64)
        self._blocks(
            logits, "cross_entropy", rows, whole(rows), whole(columns), self._dense(logits), self._integers(target),
            whole(ignore), probabilities, losses, np.float64(smoothing),
        )
        self._total(logits, losses, out)
        return out

    def cross_entropy_backward(
        self, probabilities: Array, target: Array, ignore: int, scale: Any, out: Array, accumulate: bool = False,
        smoothing: float = 0.0,
    ) -> None:
        rows, columns = probabilities.shape
        self._each(
            out, "cross_entropy_backward", out.size, whole(rows), whole(columns), self._dense(probabilities),
            self._integers(target), whole(ignore), *factor(scale), out, flag(accumulate), np.float64(smoothing),
        )

    def class_blocks(
        self, logits: Array, target: Array, ignore: int, split: Split, probabilities: Array, out: Array, smoothing: float = 0.0
    ) -> None:
        (rows, columns), here = logits.shape, out.shape[1] // 2
        sizes = (whole(n) for n in (rows, columns, here, *split))
        self._blocks(
            logits, "class_blocks", rows * here, *sizes, self._dense(logits), self._integers(target), whole(ignore),
            probabilities, out, np.float64(smoothing),
        )

    def class_blocks_backward(
        self, probabilities: Array, target: Array, ignore: int, split: Split, dy: Array, out: Array, accumulate: bool = False,
        smoothing: float = 0.0,
    ) -> None:
        (rows, columns), here = out.shape, dy.shape[1] // 2
        sizes = (whole(n) for n in (rows, columns, here, *split))
        self._each(
            out, "class_blocks_backward", out.size, *sizes, self._dense(probabilities), self._integers(target),
            whole(ignore), self._dense(dy), out, flag(accumulate), np.float64(smoothing),
        )

    def cross_entropy_of_blocks(self, y: Array, target: Array, ignore: int, shares: Array) -> Any:
        rows, blocks = shares.shape
        losses, out = self.xp.empty(rows, np.float64), self.xp.empty((), np.float64)
        self._blocks(
            y, "cross_entropy_of_blocks", rows, whole(rows), whole(blocks), self._dense(y), self._integers(target),
            whole(ignore), shares, losses,
        )
        self._total(y, losses, out)
        return out

    def cross_entropy_of_blocks_backward(
        self, shares: Array, target: Array, ignore: int, scale: Any, out: Array, accumulate: bool = False
    ) -> None:
        rows, blocks = shares.shape
        self._each(
            out, "cross_entropy_of_blocks_backward", shares.size, whole(rows), whole(blocks), self._dense(shares),
            self._integers(target), whole(ignore), *factor(scale), out, flag(accumulate),
        )

    # ---- embedding ----------------------------------------------------------------------------------------------
    def embedding(self, table: Array, index: Array, first: int, out: Array) -> None:
        rows, columns = out.shape
        sizes = (whole(n) for n in (rows, columns, len(table)))
        self._each(out, "embedding", out.size, *sizes, self._dense(table), self._integers(index), whole(first), out)

    def embedding_backward(self, index: Array, first: int, dy: Array, out: Array, accumulate: bool = False) -> None:
        (entries, columns), rows = out.shape, len(dy)
        if not accumulate:
            out.fill(0)
        if not rows:
            return
        sizes = (whole(n) for n in (rows, columns, entries))
        if rows <= COMPARED_ROWS:
            index = self._integers(index)
            self._blocks(out, "embedding_backward", rows, *sizes, index, whole(first), self._dense(dy), out)
            return
        # Sorting waits for the GPU, so this cannot be recorded; comparing all with all would take longer.
        keys = self._integers(index) * rows + self.constant(("rows", rows), lambda: np.arange(rows))
        keys.sort()
        self._blocks(out, "embedding_backward_sorted", rows, *sizes, keys, whole(first), self._dense(dy), out)
