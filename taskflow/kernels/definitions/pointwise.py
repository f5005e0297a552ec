"""Layer normalisation, and activations.

The compiled twin is native/_pointwise.pyx; tests/kernels/test_kernels_pointwise.py holds them equal.
"""

from __future__ import annotations

from math import erf, pi, sqrt

import numpy as np

from taskflow.kernels.definitions.arrays import Array, put
from taskflow.kernels.definitions.rows import RowKernels


class PointwiseKernels(RowKernels):
    """Normalisation of rows, and activations of arrays of any shape."""

    __slots__ = ()

    def layer_norm(
        self, x: Array, weight: Array, bias: Array, eps: float, out: Array, statistics: Array
    ) -> None:
        """Normalisation of every row: out (R, C) = (x - mean) / sqrt(variance + eps) weight + bias. statistics (R, 2) is filled
        with the mean and 1 / sqrt(variance + eps)."""
        mean = x.mean(axis=1)
        np.subtract(x, mean[:, None], out=out)
        statistics[:, 0] = mean
        statistics[:, 1] = 1 / np.sqrt(np.einsum("rc,rc->r", out, out) / x.shape[1] + eps)
        out *= statistics[:, 1:]
        out *= weight
        out += bias

    def layer_norm_backward(
        self, x: Array, weight: Array, statistics: Array, dy: Array, out: Array | None, sums: Array | None,
        accumulate: bool = False,
    ) -> None:
        """Gradient of x, out (R, C), and of weight and bias, sums (2, C), from the statistics that `layer_norm` left. Results
        that are None are not computed; ``accumulate`` concerns ``out`` alone."""
        normal = (x - statistics[:, :1]) * statistics[:, 1:]
        if sums is not None:
            self.sum_rows(normal * dy, sums[0])
            self.sum_rows(dy, sums[1])
        if out is not None:
            share = dy * weight
            share -= share.mean(axis=1, keepdims=True) + normal * (share * normal).mean(axis=1, keepdims=True)
            share *= statistics[:, 1:]
            put(share, out, accumulate)

    def activate(self, function: str, x: Array, out: Array) -> None:
        """Activation: out = relu, sigmoid or tanh of x."""
        if function == "relu":
            out[...] = np.where(x < 0, 0, x)  # NaN stays, and so does -0
        elif function == "tanh":
            np.tanh(x, out=out)
        elif function == "sigmoid":  # by exp of what is not positive, which cannot overflow
            e = np.exp(-np.abs(x))
            np.divide(np.where(x >= 0, 1, e), 1 + e, out=out)
        else:
            raise ValueError(f"activate: function must be relu, sigmoid or tanh, got {function!r}")

    def activate_backward(self, function: str, y: Array, dy: Array, out: Array, accumulate: bool = False) -> None:
        """Gradient of x: dy times the derivative of the function where its value is y. The derivative of relu is 0 where y is
        0, and 1 where it is NaN."""
        if function == "relu":
            put(np.where(y <= 0, 0, dy), out, accumulate)
        elif function == "tanh":
            put(dy * (1 - y * y), out, accumulate)
        elif function == "sigmoid":
            put(dy * y * (1 - y), out, accumulate)
        else:
            raise ValueError(f"activate_backward: function must be relu, sigmoid or tanh, got {function!r}")

    def gelu(self, x: Array, approximate: bool, out: Array) -> None:
        """GELU: out = x Phi(x), where Phi is the normal distribution function or its approximation by tanh."""
        np.multiply(x, _gelu_gate(x, approximate), out=out)

    def gelu_backward(
        self, x: Array, approximate: bool, dy: Array, out: Array, accumulate: bool = False
    ) -> None:
        """Gradient of x: dy times the derivative of gelu at x."""
        gate = _gelu_gate(x, approximate)
        if approximate:
            slope = 2 * gate * (1 - gate) * _TANH_SCALE * (1 + 3 * 0.044715 * x * x)
        else:
            slope = np.exp(-0.5 * x * x) / sqrt(2 * pi)
        put(dy * (gate + x * slope), out, accumulate)


_TANH_SCALE = sqrt(2 / pi)
_erf = np.frompyfunc(erf, 1, 1)


def _gelu_gate(x: Array, approximate: bool) -> Array:
    """The probability that a standard normal number is below x, or its approximation by a tanh."""
    if approximate:
        return 0.5 + 0.5 * np.tanh(_TANH_SCALE * (x + 0.044715 * x * x * x))
    below = np.asarray(_erf(x / x.dtype.type(sqrt(2))), x.dtype)
    return 0.5 + 0.5 * below
