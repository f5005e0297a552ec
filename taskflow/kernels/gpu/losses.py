"""Losses: softmax and cross-entropy on the GPU (losses.cu)."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskflow.kernels.gpu.launching import NULL, factor, flag, whole
from taskflow.kernels.gpu.rows import RowsOnGPU
from taskflow.kernels.kernel_set import Array, Split


class LossesOnGPU(RowsOnGPU):
    """Kernels with one block for each row. Sums are added in a fixed order, so a rerun gives the same bits."""

    __slots__ = ()

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
