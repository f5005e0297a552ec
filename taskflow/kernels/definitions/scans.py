"""Selective scan: a linear recurrence whose decay and input depend on the step (state space layers).

Gu and Dao, "Mamba: Linear-time sequence modeling with selective state spaces", arXiv 2312.00752, Algorithm 2. The compiled twin is
native/_scans.pyx; tests/kernels/test_kernels_scans.py holds them equal.
"""

from __future__ import annotations

import numpy as np

from taskflow.kernels.definitions.arrays import Array


class ScanKernels:
    """Recurrences over the steps of a sequence, one for each channel and state."""

    __slots__ = ()

    def selective_scan(self, x: Array, dt: Array, a: Array, b: Array, c: Array, out: Array) -> None:
        """From states h (N, D, S) of zeros on, for each step t: h = exp(dt_t a) h + dt_t x_t b_t, out_t = the sum of c_t h over
        states. x, dt and out: (N, T, D). a: (D, S). b and c: (N, T, S)."""
        h = np.zeros_like(x, shape=(x.shape[0], *a.shape))
        for t in range(x.shape[1]):
            _advance(h, x[:, t], dt[:, t], a, b[:, t])
            out[:, t] = (h * c[:, t, None]).sum(axis=2)

    def selective_scan_backward(
        self, x: Array, dt: Array, a: Array, b: Array, c: Array, dy: Array, dx: Array, ddt: Array, da: Array, db: Array, dc: Array
    ) -> None:
        """Gradients of all arguments of `selective_scan`, which are written, from that of its result, dy (N, T, D). States are
        computed again."""
        states = np.zeros_like(x, shape=(x.shape[1] + 1, x.shape[0], *a.shape))  # before each step, and at the end
        for t in range(x.shape[1]):
            states[t + 1] = states[t]
            _advance(states[t + 1], x[:, t], dt[:, t], a, b[:, t])
        da[...] = 0
        dh = np.zeros_like(states[0])
        for t in reversed(range(x.shape[1])):
            step, came = dt[:, t, :, None], dy[:, t, :, None]
            dc[:, t] = (came * states[t + 1]).sum(axis=1)
            dh += came * c[:, t, None]
            db[:, t] = (dh * step * x[:, t, :, None]).sum(axis=1)
            entered = (dh * b[:, t, None]).sum(axis=2)
            dh *= np.exp(step * a)
            decayed = dh * states[t]
            dx[:, t] = entered * dt[:, t]
            ddt[:, t] = entered * x[:, t] + (decayed * a).sum(axis=2)
            da += (decayed * step).sum(axis=0)


def _advance(h: Array, x: Array, dt: Array, a: Array, b: Array) -> None:
    """Take states by one step: h (N, D, S), x and dt (N, D), b (N, S)."""
    h *= np.exp(dt[:, :, None] * a)
    h += (dt * x)[:, :, None] * b[:, None]
