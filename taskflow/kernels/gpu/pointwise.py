"""Pointwise: activations, the LSTM cell, random numbers, dropout and update rules on the GPU (pointwise.cu, random.cu)."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from taskflow.kernels.gpu.launching import NULL, Launching, factor, flag, whole
from taskflow.kernels.kernel_set import Array, Key

FUNCTIONS = {"relu": 0, "sigmoid": 1, "tanh": 2}


class PointwiseOnGPU(Launching):
    """Kernels with one thread for each element."""

    __slots__ = ()

    def lstm_cell(self, gates: Array, c_prev: Array, c: Array, h: Array) -> None:
        rows, width = c.shape
        pitched = (part for array in (gates, c_prev, c, h) for part in (array, _pitch("lstm_cell", array)))
        self._each(c, "lstm_cell", rows * width, whole(rows), whole(width), *pitched)

    def lstm_cell_backward(
        self, gates: Array, c_prev: Array, c: Array, dh: Array, dc: Array, dgates: Array
    ) -> None:
        rows, width = c.shape
        given = (gates, c_prev, c, dh, dc, dgates)
        pitched = (part for array in given for part in (array, _pitch("lstm_cell_backward", array)))
        self._each(c, "lstm_cell_backward", rows * width, whole(rows), whole(width), *pitched)

    def activate(self, function: str, x: Array, out: Array) -> None:
        which = flag(_function("activate", function))
        self._each(out, "activate", out.size, which, whole(out.size), self._dense(x), out)

    def activate_backward(self, function: str, y: Array, dy: Array, out: Array, accumulate: bool = False) -> None:
        which = flag(_function("activate_backward", function))
        y, dy = self._dense(y), self._dense(dy)
        self._each(out, "activate_backward", out.size, which, whole(out.size), y, dy, out, flag(accumulate))

    def gelu(self, x: Array, approximate: bool, out: Array) -> None:
        self._each(out, "gelu", out.size, whole(out.size), self._dense(x), flag(approximate), out)

    def gelu_backward(
        self, x: Array, approximate: bool, dy: Array, out: Array, accumulate: bool = False
    ) -> None:
        x, dy = self._dense(x), self._dense(dy)
        self._each(
            out, "gelu_backward", out.size, whole(out.size), x, flag(approximate), dy, out, flag(accumulate)
        )

    # ---- random numbers -----------------------------------------------------------------------------------------
    def uniform(self, key: Key, stream: int, shape: tuple[int, ...], lo: tuple[int, ...], out: Array) -> None:
        dial = self.device.dial(("dropout",), lambda _, step, __: [step])  # an operator's stream is its step
        self._each(out, "uniform", out.size, *self._places(key, stream, shape, lo, out), out, dial)

    def normal(self, key: Key, stream: int, shape: tuple[int, ...], lo: tuple[int, ...], out: Array) -> None:
        self._each(out, "normal", out.size, *self._places(key, stream, shape, lo, out), out)

    def dropout(
        self, key: Key, stream: int, shape: tuple[int, ...], lo: tuple[int, ...], p: float, x: Array, out: Array,
        mask: Array,
    ) -> None:
        kind = out.dtype.type
        places = self._places(key, stream, shape, lo, out)
        dial = self.device.dial(("dropout",), lambda _, step, __: [step])  # an operator's stream is its step
        self._each(out, "dropout", out.size, *places, kind(p), kind(1 / (1 - p)), self._dense(x), out, mask, dial)

    def dropout_backward(self, mask: Array, p: float, dy: Array, out: Array, accumulate: bool = False) -> None:
        scale = out.dtype.type(1 / (1 - p))
        self._each(
            out, "dropout_backward", out.size, whole(out.size), self._dense(mask), scale, self._dense(dy), out, flag(accumulate)
        )

    def _places(
        self, key: Key, stream: int, shape: tuple[int, ...], lo: tuple[int, ...], out: Array
    ) -> tuple[Any, ...]:
        """Arguments that say which positions of an array of ``shape`` the elements of ``out`` have."""
        pitches = [prod(shape[d + 1 :]) for d in range(len(shape))]
        extents = tuple(out.shape)
        table = self.constant(
            ("box", tuple(shape), extents), lambda: np.array([*extents, *pitches, 1], np.int64)
        )
        base = sum(low * pitch for low, pitch in zip(lo, pitches))
        words = (np.uint32(key[0]), np.uint32(key[1]), np.uint32(stream))
        return whole(out.size), *words, flag(len(extents)), table, np.uint64(base)

    # ---- update rules -------------------------------------------------------------------------------------------
    def sgd(
        self, w: Array, g: Array, velocity: Array | None, lr: float, momentum: float, dampening: float,
        weight_decay: float, nesterov: bool, scale: Any, first: bool,
    ) -> None:
        kind = w.dtype.type
        dial = self.device.dial(("sgd",), lambda lr, _, updates: [lr, updates == 0])
        self._each(
            w, "sgd", w.size, whole(w.size), w, self._dense(g), NULL if velocity is None else velocity, kind(lr), kind(momentum),
            kind(1 - dampening), kind(weight_decay), flag(nesterov), *factor(scale), flag(first), dial,
        )

    def adam(
        self, w: Array, g: Array, m: Array, v: Array, lr: float, beta1: float, beta2: float, eps: float,
        weight_decay: float, decoupled: bool, scale: Any, step: int,
    ) -> None:
        kind = w.dtype.type
        along = weight_decay if decoupled else 0.0

        def numbers(lr: float, _: int, updates: int) -> list[float]:
            """kept, size and root of the step after so many updates."""
            return [1 - lr * along, lr / (1 - beta1 ** (updates + 1)), (1 - beta2 ** (updates + 1)) ** 0.5]

        kept, size, root = numbers(lr, 0, step - 1)
        self._each(
            w, "adam", w.size, whole(w.size), w, self._dense(g), m, v, kind(kept), kind(weight_decay - along), kind(1 - beta1),
            kind(beta2), kind(1 - beta2), kind(size), kind(root), kind(eps), *factor(scale),
            self.device.dial(("adam", beta1, beta2, along), numbers),
        )


def _function(who: str, name: str) -> int:
    if name not in FUNCTIONS:
        raise ValueError(f"{who}: function must be relu, sigmoid or tanh, got {name!r}")
    return FUNCTIONS[name]


def _pitch(who: str, array: Array) -> np.int64:
    """Number of elements between the starts of two rows; elements of a row are contiguous."""
    inner = array[0] if len(array) else array
    if not inner.flags.c_contiguous:
        raise ValueError(f"{who}: rows must be contiguous, got shape {array.shape}, strides {array.strides}")
    return np.int64(array.strides[0] // array.dtype.itemsize)
