"""Rows: sums, normalisation and embeddings on the GPU (rows.cu)."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskflow.kernels.gpu.launching import MANY_BLOCKS, flag, parts_of, whole
from taskflow.kernels.gpu.pointwise import PointwiseOnGPU
from taskflow.kernels.kernel_set import Array

SQUARE_PART = 1 << 14  # elements of one part of a sum of squares
COMPARED_ROWS = 1 << 13  # of an embedding's gradient: up to so many, each is compared with all; more are sorted


class RowsOnGPU(PointwiseOnGPU):
    """Kernels with one block for each row. Sums are added in a fixed order, so a rerun gives the same bits."""

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
