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
        """Softmax of every row: x (R, C) -> out (R, C). With ``ends`` (R) integers, it is taken over the first ends[r] columns
        of row r, and the rest of the row is zero; x may then have fewer columns than out, but no fewer than the largest end."""
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
        """Gradient of x, from y (R, C), softmax's output, and dy, its gradient."""
        put(y * (dy - (y * dy).sum(axis=1, keepdims=True)), out, accumulate)

    def cross_entropy(
        self, logits: Array, target: Array, ignore: int, probabilities: Array, smoothing: float = 0.0
    ) -> Any:
        """Sum over rows of -log softmax(logits)[target]: logits (R, C), target (R) integers. Rows whose target is ``ignore``
        are left out; probabilities (R, C) is filled with softmax(logits). Any other target outside [0, C) raises IndexError. On
        an asynchronous device the sum is NaN instead, and is returned as an array (). ``smoothing``: the share of the target's
        weight that is spread evenly over all classes."""
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
        """Gradient of the logits (R, C): scale (probabilities - (1 - smoothing) onehot(target) - smoothing / C), zero in rows
        whose target is ``ignore``."""
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
        """Cross-entropy's contribution of each block of classes: a pair of numbers for each block, in out (R, 2 b) float64.

        logits (R, W) are the scores of the blocks, target (R) integers below the number of classes. The first number of a pair
        is the logarithm of the sum of exp(scores). The second is the block's part of (1 - smoothing) onehot(target) * scores +
        smoothing / classes * sum of scores. probabilities (R, W) is filled with the softmax of every block. Both are zero in
        rows whose target is ``ignore``. Other targets outside the classes raise IndexError, or give NaN on an asynchronous
        device.
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
        """Gradient of the scores (R, W), from dy (R, 2 b) float64, the gradient of the pairs of `class_blocks`."""
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
        """Sum over rows of log(sum of exp(first)) - sum of second, for y (R, 2 B), the pairs of all blocks. Rows whose target
        is ``ignore`` are left out. shares (R, B) is filled with the softmax over the blocks' first numbers, and with zeros in
        those rows."""
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
        """Gradient of the pairs (R, 2 B): scale shares and -scale for each block, zero in rows whose target is ``ignore``."""
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
