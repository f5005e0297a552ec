"""NumpyKernels: the readable reference of every kernel.

The compiled twins, and the tests that hold each equal to it:

- native/_native.pyx and native/_losses.pyx: tests/kernels/test_kernels_agree.py
- native/_products.pyx: tests/kernels/test_kernels_matmul.py
- native/_pointwise.pyx: tests/kernels/test_kernels_pointwise.py
- native/_images.pyx: tests/kernels/test_kernels_images.py
- onednn/_onednn.pyx: tests/kernels/test_onednn_kernels.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from taskflow.kernels.composite import CompositeKernels
from taskflow.kernels.kernel_set import Array, Key, Split
from taskflow.kernels.philox import words_at


class NumpyKernels(CompositeKernels):
    """Plain numpy; works wherever numpy does."""

    __slots__ = ()
    name = "numpy"

    def matmul(self, a: Array, b: Array, out: Array, accumulate: bool = False) -> None:
        if accumulate:
            out += a @ b
        else:
            np.matmul(a, b, out=out)

    def sum_rows(self, x: Array, out: Array, accumulate: bool = False) -> None:
        _put(x.sum(axis=0), out, accumulate)

    def lstm_cell(self, gates: Array, c_prev: Array, c: Array, h: Array) -> None:
        i, f, g, o = (gates[:, k] for k in range(4))
        for gate in (i, f, o):
            gate[...] = _sigmoid(gate)
        np.tanh(g, out=g)
        c[...] = f * c_prev + i * g
        h[...] = o * np.tanh(c)

    def lstm_cell_backward(
        self, gates: Array, c_prev: Array, c: Array, dh: Array, dc: Array, dgates: Array
    ) -> None:
        i, f, g, o = (gates[:, k] for k in range(4))
        t = np.tanh(c)
        total = dc + dh * o * (1 - t * t)
        dgates[:, 0] = total * g * i * (1 - i)
        dgates[:, 1] = total * c_prev * f * (1 - f)
        dgates[:, 2] = total * i * (1 - g * g)
        dgates[:, 3] = dh * t * o * (1 - o)
        dc[...] = total * f

    def softmax(self, x: Array, out: Array, ends: Array | None = None) -> None:
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
        _put(y * (dy - (y * dy).sum(axis=1, keepdims=True)), out, accumulate)

    def cross_entropy(
        self, logits: Array, target: Array, ignore: int, probabilities: Array, smoothing: float = 0.0
    ) -> float:
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
        _check_targets(target, ignore, probabilities.shape[1])
        gradient = probabilities * out.dtype.type(scale)
        rows = np.flatnonzero(target != ignore)
        gradient[rows, target[rows]] -= out.dtype.type(scale * (1 - smoothing))
        if smoothing:
            gradient -= out.dtype.type(scale * smoothing / probabilities.shape[1])
        gradient[target == ignore] = 0
        _put(gradient, out, accumulate)

    def class_blocks(
        self, logits: Array, target: Array, ignore: int, split: Split, probabilities: Array, out: Array, smoothing: float = 0.0
    ) -> None:
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
        _put(gradient, out, accumulate)

    def cross_entropy_of_blocks(self, y: Array, target: Array, ignore: int, shares: Array) -> float:
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
        gradient = np.stack((shares * scale, np.full_like(shares, -scale)), axis=-1)
        gradient[target == ignore] = 0
        _put(gradient.reshape(out.shape), out, accumulate)

    def embedding(self, table: Array, index: Array, first: int, out: Array) -> None:
        here = (index >= first) & (index < first + len(table))
        out[...] = 0
        out[here] = table[index[here] - first]

    def embedding_backward(self, index: Array, first: int, dy: Array, out: Array, accumulate: bool = False) -> None:
        if not accumulate:
            out[...] = 0
        here = (index >= first) & (index < first + len(out))
        np.add.at(out, index[here] - first, dy[here])

    def uniform(self, key: Key, stream: int, shape: tuple[int, ...], lo: tuple[int, ...], out: Array) -> None:
        words = words_at(key, stream, _positions(shape, lo, out.shape))
        if out.dtype == np.float32:
            out[...] = (words >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
        else:
            out[...] = words * 2.0**-32

    def normal(self, key: Key, stream: int, shape: tuple[int, ...], lo: tuple[int, ...], out: Array) -> None:
        positions = _positions(shape, lo, out.shape)
        first = words_at(key, stream, positions & ~np.uint64(1)) * 2.0**-32
        second = words_at(key, stream, positions | np.uint64(1)) * 2.0**-32
        radius = np.sqrt(-2.0 * np.log1p(-first))
        angle = 2.0 * np.pi * second
        out[...] = radius * np.where(positions & np.uint64(1), np.sin(angle), np.cos(angle))

    def sgd(
        self, w: Array, g: Array, velocity: Array | None, lr: float, momentum: float, dampening: float,
        weight_decay: float, nesterov: bool, scale: float, first: bool,
    ) -> None:
        kind = w.dtype.type
        step = g * kind(scale) + w * kind(weight_decay) if weight_decay else g * kind(scale)
        if velocity is not None:
            if first:
                velocity[...] = step
            else:
                velocity *= kind(momentum)
                velocity += step * kind(1 - dampening)
            step = step + velocity * kind(momentum) if nesterov else velocity
        w -= step * kind(lr)

    def adam(
        self, w: Array, g: Array, m: Array, v: Array, lr: float, beta1: float, beta2: float, eps: float,
        weight_decay: float, decoupled: bool, scale: float, step: int,
    ) -> None:
        kind = w.dtype.type
        g = g * kind(scale)
        if decoupled:
            w *= kind(1 - lr * weight_decay)
        elif weight_decay:
            g = g + w * kind(weight_decay)
        m += (g - m) * kind(1 - beta1)
        v *= kind(beta2)
        v += g * g * kind(1 - beta2)
        size = lr / (1 - beta1**step)
        w -= kind(size) * m / (np.sqrt(v) / kind((1 - beta2**step) ** 0.5) + kind(eps))

    def sum_of_squares(self, x: Array) -> float:
        flat = x.reshape(-1)
        return float(np.einsum("i,i->", flat, flat, dtype=np.float64, casting="safe"))


def _put(value: Array, out: Array, accumulate: bool) -> None:
    if accumulate:
        out += value
    else:
        out[...] = value


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


def _sigmoid(x: Array) -> Array:
    # tanh saturates instead of overflowing, for any x.
    half = x.dtype.type(0.5)
    return np.tanh(x * half) * half + half


def _positions(shape: tuple[int, ...], lo: tuple[int, ...], box: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Row-major positions in an array of ``shape`` of the elements of the box at ``lo``."""
    positions: np.ndarray[Any, Any] = np.zeros((), np.uint64)
    for size, low, extent in zip(shape, lo, box):
        positions = positions[..., None] * np.uint64(size) + np.arange(low, low + extent, dtype=np.uint64)
    return positions


def busy(iterations: int) -> float:
    """Task Bench's compute-bound kernel: 64 multiply-adds, 128 flops, an iteration. The start values keep every
    number in (-1, 0) for ever. Returns their sum."""
    a = -0.5 - np.arange(64) / 256
    for _ in range(iterations):
        a = a * a + a
    return float(a.sum())
