"""Softmax and cross-entropy, over all classes and over blocks of them.

The compiled twin is native/_losses.pyx; tests/kernels/test_kernels_agree.py holds them equal, and for blocks of
classes tests/kernels/test_kernels_classes.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from taskflow.kernels.definitions.arrays import Array, Split, put


class LossKernels:
    """Softmax and losses. Blocks of classes: see taskflow.operators.class_blocks."""

    __slots__ = ()

    def softmax(self, x: Array, out: Array, ends: Array | None = None) -> None:
        """x (R, C) -> out (R, C), softmax of every row. With ``ends`` (R) integers, of the first ends[r] columns of row
        r, and zeros behind them; x may then have fewer columns than out, but no fewer than the largest end."""
        if ends is not None:
            x = _cut_off(x, np.asarray(ends), out.shape[1])
        top = x.max(axis=1, keepdims=True)
        np.subtract(x, np.where(np.isneginf(top), 0, top) if ends is not None else top, out=out)
        np.exp(out, out=out)
        total = out.sum(axis=1, keepdims=True)
        if ends is not None:
            total[np.asarray(ends) == 0] = 1  # nothing is seen: zeros
        out /= total

    def softmax_backward(self, y: Array, dy: Array, out: Array, accumulate: bool = False) -> None:
        """y (R, C): softmax's output, dy its gradient -> the gradient of x."""
        put(y * (dy - (y * dy).sum(axis=1, keepdims=True)), out, accumulate)

    def cross_entropy(
        self, logits: Array, target: Array, ignore: int, probabilities: Array, smoothing: float = 0.0
    ) -> Any:
        """logits (R, C), target (R) integers -> the sum over rows of -log softmax(logits)[target], rows whose target is
        ``ignore`` left out; probabilities (R, C) is filled with softmax(logits). Any other target outside [0, C) is an
        IndexError; on a device that does not wait the sum is then not a number, and it comes as an array ().
        ``smoothing``: the weight that the target gives to all classes in equal shares."""
        _check_targets(target, ignore, logits.shape[1])
        rows = np.flatnonzero(target != ignore)
        # Before ``probabilities`` is filled, which may be ``logits``.
        chosen = logits[rows, target[rows]].astype(np.float64)
        if smoothing:
            chosen = (1 - smoothing) * chosen + smoothing * logits[rows].mean(axis=1, dtype=np.float64)
        top = logits.max(axis=1, keepdims=True)
        np.subtract(logits, top, out=probabilities)
        np.exp(probabilities, out=probabilities)
        total = probabilities.sum(axis=1, keepdims=True)
        probabilities /= total
        losses = np.log(total[rows, 0], dtype=np.float64) + top[rows, 0] - chosen
        return float(losses.sum())

    def cross_entropy_backward(
        self, probabilities: Array, target: Array, ignore: int, scale: float, out: Array, accumulate: bool = False,
        smoothing: float = 0.0,
    ) -> None:
        """Gradient of the logits: scale (probabilities - (1 - smoothing) onehot(target) - smoothing / C), zero in rows
        whose target is ``ignore``: (R, C)."""
        _check_targets(target, ignore, probabilities.shape[1])
        gradient = probabilities * out.dtype.type(scale)
        rows = np.flatnonzero(target != ignore)
        gradient[rows, target[rows]] -= out.dtype.type(scale * (1 - smoothing))
        if smoothing:
            gradient -= out.dtype.type(scale * smoothing / probabilities.shape[1])
        gradient[target == ignore] = 0
        put(gradient, out, accumulate)

    def class_blocks(
        self, logits: Array, target: Array, ignore: int, split: Split, probabilities: Array, out: Array, smoothing: float = 0.0
    ) -> None:
        """What some whole blocks of all classes say of themselves: a pair for each block, in out (R, 2 b) float64.

        logits (R, W) are their scores, target (R) integers below the number of classes. A pair's first is the logarithm of the
        sum of exp(scores). Its second is what lies in the block of (1 - smoothing) onehot(target) * scores + smoothing /
        classes * sum of scores. probabilities (R, W) is filled with the softmax of every block. Both are zeros in rows whose
        target is ``ignore``. Other targets outside of the classes are an IndexError, or not a number on a device that does
        not wait.
        """
        classes, columns = split[0], logits.shape[1]
        _check_targets(target, ignore, classes)
        start, starts, widths = _blocks(split, columns)
        counts = target != ignore
        pairs = out.reshape(len(out), len(starts), 2)
        # Before ``probabilities`` is filled, which may be ``logits``.
        pairs[..., 1] = 0
        if smoothing:
            pairs[..., 1] = smoothing / classes * np.add.reduceat(logits, starts, axis=1, dtype=np.float64)
        rows = np.flatnonzero(counts & (target >= start) & (target < start + columns))
        here = target[rows] - start
        pairs[rows, np.searchsorted(starts, here, "right") - 1, 1] += (1 - smoothing) * logits[rows, here].astype(np.float64)
        top = np.maximum.reduceat(logits, starts, axis=1)
        top[np.isneginf(top)] = 0  # nothing in the block has a chance: its sum is 0
        np.subtract(logits, np.repeat(top, widths, axis=1), out=probabilities)
        np.exp(probabilities, out=probabilities)
        total = np.add.reduceat(probabilities, starts, axis=1)
        with np.errstate(divide="ignore"):
            pairs[..., 0] = np.log(total, dtype=np.float64) + top
        total[total == 0] = 1
        probabilities /= np.repeat(total, widths, axis=1)
        pairs[~counts], probabilities[~counts] = 0, 0

    def class_blocks_backward(
        self, probabilities: Array, target: Array, ignore: int, split: Split, dy: Array, out: Array, accumulate: bool = False,
        smoothing: float = 0.0,
    ) -> None:
        """dy (R, 2 b) float64, the gradient of what `class_blocks` gives -> that of the scores (R, W)."""
        classes, columns = split[0], out.shape[1]
        _check_targets(target, ignore, classes)
        start, starts, widths = _blocks(split, columns)
        pairs = dy.reshape(len(dy), len(starts), 2)
        gradient = probabilities * np.repeat(pairs[..., 0].astype(out.dtype), widths, axis=1)
        if smoothing:
            gradient += np.repeat((pairs[..., 1] * (smoothing / classes)).astype(out.dtype), widths, axis=1)
        rows = np.flatnonzero((target != ignore) & (target >= start) & (target < start + columns))
        here = target[rows] - start
        gradient[rows, here] += (
            (1 - smoothing) * pairs[rows, np.searchsorted(starts, here, "right") - 1, 1]
        ).astype(out.dtype)
        gradient[target == ignore] = 0
        put(gradient, out, accumulate)

    def cross_entropy_of_blocks(self, y: Array, target: Array, ignore: int, shares: Array) -> Any:
        """y (R, 2 B), the pairs of all blocks -> the sum over rows of log(sum of exp(first)) - sum of second, rows whose
        target is ``ignore`` left out. shares (R, B) is filled with the softmax over the blocks' first, and zeros in those
        rows."""
        pairs, counts = y.reshape(*shares.shape, 2), target != ignore
        top = pairs[..., 0].max(axis=1, keepdims=True)
        np.exp(pairs[..., 0] - top, out=shares)
        total = shares.sum(axis=1, keepdims=True)
        shares /= total
        shares[~counts] = 0
        losses = np.log(total[:, 0], dtype=np.float64) + (top[:, 0] - pairs[..., 1].sum(axis=1))
        return float(losses[counts].sum())

    def cross_entropy_of_blocks_backward(
        self, shares: Array, target: Array, ignore: int, scale: float, out: Array, accumulate: bool = False
    ) -> None:
        """Gradient of the pairs: for each block scale shares and -scale, zeros in rows whose target is ``ignore``: (R, 2 B)."""
        gradient = np.stack((shares * scale, np.full_like(shares, -scale)), axis=-1)
        gradient[target == ignore] = 0
        put(gradient.reshape(out.shape), out, accumulate)


def _check_targets(target: Array, ignore: int, classes: int) -> None:
    wrong = np.flatnonzero((target != ignore) & ((target < 0) | (target >= classes)))
    if wrong.size:
        row = int(wrong[0])
        raise IndexError(
            f"cross_entropy: a target must lie in [0, {classes}) or be ignore={ignore}, got {target[row]} in row {row}"
        )


def _blocks(split: Split, columns: int) -> tuple[int, Array, Array]:
    """The first class that is here; where the blocks that are here begin among these classes, and how wide they are."""
    classes, blocks, first = split
    start = first * classes // blocks
    edges: Array = np.arange(first, blocks + 1) * classes // blocks - start
    edges = edges[edges <= columns]
    return start, edges[:-1], np.diff(edges)


def _cut_off(x: Array, ends: Array, columns: int) -> Array:
    """x (R, C) with ``columns`` columns, minus infinity from column ends[r] on."""
    wrong = np.flatnonzero((ends < 0) | (ends > min(x.shape[1], columns)))
    if wrong.size:
        row = int(wrong[0])
        raise ValueError(
            f"softmax: ends must lie in [0, {min(x.shape[1], columns)}], the columns of x, got {ends[row]} in row {row}"
        )
    masked = np.full((len(x), columns), -np.inf, x.dtype)
    np.copyto(masked[:, : x.shape[1]], x[:, :columns], where=np.arange(min(x.shape[1], columns)) < ends[:, None])
    return masked
