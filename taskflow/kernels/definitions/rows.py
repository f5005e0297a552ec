"""Kernels on rows: sums, LSTM cells, embedding.

The compiled twin is native/_rows.pyx; tests/kernels/test_kernels_agree.py holds them equal.
"""

from __future__ import annotations

import numpy as np

from taskflow.kernels.definitions.arrays import Array, put


class RowKernels:
    """Sums over rows, LSTM cells, embedding."""

    __slots__ = ()

    def sum_rows(self, x: Array, out: Array, accumulate: bool = False) -> None:
        """Sum over rows: x (R, C) -> out (C)."""
        put(x.sum(axis=0), out, accumulate)

    def lstm_cell(self, gates: Array, c_prev: Array, c: Array, h: Array) -> None:
        """LSTM cell: c = f c_prev + i g, h = o tanh(c). gates (N, 4, H): pre-activations of i, f, g, o, replaced by their
        activations. c_prev, c and h: (N, H). All may be strided over N, such as ``gates[:, t]`` of (N, T, 4, H)."""
        i, f, g, o = (gates[:, k] for k in range(4))
        for gate in (i, f, o):
            gate[...] = _sigmoid(gate)
        np.tanh(g, out=g)
        c[...] = f * c_prev + i * g
        h[...] = o * np.tanh(c)

    def lstm_cell_backward(
        self, gates: Array, c_prev: Array, c: Array, dh: Array, dc: Array, dgates: Array
    ) -> None:
        """Gradients of an LSTM cell. gates (N, 4, H): activations that `lstm_cell` left. dh (N, H): gradient of h. dc (N, H):
        on entry the gradient of c from the next step, on return the gradient of c_prev. dgates (N, 4, H): gradient of the
        pre-activations. All may be strided over N."""
        i, f, g, o = (gates[:, k] for k in range(4))
        t = np.tanh(c)
        total = dc + dh * o * (1 - t * t)
        dgates[:, 0] = total * g * i * (1 - i)
        dgates[:, 1] = total * c_prev * f * (1 - f)
        dgates[:, 2] = total * i * (1 - g * g)
        dgates[:, 3] = dh * t * o * (1 - o)
        dc[...] = total * f

    def embedding(self, table: Array, index: Array, first: int, out: Array) -> None:
        """Rows of a table: out[r] = table[index[r] - first] for index (R), table (V, E), out (R, E). Rows whose index lies
        outside ``[first, first + V)`` become zero."""
        here = (index >= first) & (index < first + len(table))
        out[...] = 0
        out[here] = table[index[here] - first]

    def embedding_backward(self, index: Array, first: int, dy: Array, out: Array, accumulate: bool = False) -> None:
        """Gradient of the table: out[index[r] - first] += dy[r] for ascending r; indices outside the table are ignored. out (V,
        E)."""
        if not accumulate:
            out[...] = 0
        here = (index >= first) & (index < first + len(out))
        np.add.at(out, index[here] - first, dy[here])


def _sigmoid(x: Array) -> Array:
    # tanh saturates instead of overflowing, for any x.
    half = x.dtype.type(0.5)
    return np.tanh(x * half) * half + half
