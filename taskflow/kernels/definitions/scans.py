"""Scans: linear recurrences whose decay and input depend on the step (state space layers, linear attention).

Gu and Dao, "Mamba: Linear-time sequence modeling with selective state spaces", arXiv 2312.00752, Algorithm 2; Yang et al., "Gated
delta networks", arXiv 2412.06464, equation 10. The compiled twin is native/_scans.pyx; tests/kernels/test_kernels_scans.py holds
them equal.
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

    def linear_attention(
        self, q: Array, k: Array, v: Array, g: Array, beta: Array | None, each: int, first: int, out: Array
    ) -> None:
        """From states S (N, H, K, V) of zeros on, for each step t: S = exp(g_t) S, u = beta_t (v_t - S^T k_t), or v_t without
        ``beta``, S = S + k_t u^T, out_t = S^T q_t. v and out: (N, T, H, V); g: (N, T, H) or (N, T, H, K); beta: (N, T, H); q and k:
        (N, T, G, K), of which head h uses number (first + h) // each."""
        q, k = (_of_heads(array, v.shape[2], each, first) for array in (q, k))
        states = np.zeros_like(v, shape=(v.shape[0], v.shape[2], q.shape[3], v.shape[3]))
        for t in range(v.shape[1]):
            _written(states, k[:, t], v[:, t], g[:, t], None if beta is None else beta[:, t])
            out[:, t] = (states * q[:, t, :, :, None]).sum(axis=2)

    def linear_attention_backward(
        self, q: Array, k: Array, v: Array, g: Array, beta: Array | None, each: int, first: int, dy: Array, dq: Array, dk: Array,
        dv: Array, dg: Array, dbeta: Array | None,
    ) -> None:
        """Gradients of all arguments of `linear_attention`, which are written, from that of its result, dy. States are computed
        again."""
        samples, steps, heads, value = v.shape
        q, k = (_of_heads(array, heads, each, first) for array in (q, k))
        of_q, of_k = np.empty_like(q), np.empty_like(k)
        states = np.zeros_like(v, shape=(steps + 1, samples, heads, q.shape[3], value))  # before each step, and at the end
        for t in range(steps):
            states[t + 1] = states[t]
            _written(states[t + 1], k[:, t], v[:, t], g[:, t], None if beta is None else beta[:, t])
        ds = np.zeros_like(states[0])
        for t in reversed(range(steps)):
            key, came, left = k[:, t], dy[:, t, :, None], _left(g[:, t])
            of_q[:, t] = (states[t + 1] * came).sum(axis=3)
            ds += q[:, t, :, :, None] * came
            du, decayed = (ds * key[..., None]).sum(axis=2), left * states[t]
            missed = v[:, t] if beta is None else v[:, t] - (decayed * key[..., None]).sum(axis=2)
            rate = 1 if beta is None else beta[:, t, :, None]
            of_k[:, t] = (ds * (rate * missed)[:, :, None]).sum(axis=3)
            dv[:, t] = rate * du
            if dbeta is not None:
                dbeta[:, t] = (du * missed).sum(axis=2)
                of_k[:, t] -= (decayed * dv[:, t, :, None]).sum(axis=3)
                ds -= key[..., None] * dv[:, t, :, None]
            ds *= left
            of_decay = (ds * states[t]).sum(axis=3)
            dg[:, t] = of_decay if g.ndim == 4 else of_decay.sum(axis=2)
        for gradient, of in ((dq, of_q), (dk, of_k)):
            whole = np.zeros_like(v, shape=(samples, steps, gradient.shape[2] * each, gradient.shape[3]))
            whole[:, :, first : first + heads] = of
            gradient[...] = whole.reshape(samples, steps, gradient.shape[2], each, gradient.shape[3]).sum(axis=3)


def _of_heads(array: Array, heads: int, each: int, first: int) -> Array:
    """Queries or keys of each head."""
    return np.repeat(array, each, axis=2)[:, :, first : first + heads]


def _left(decay: Array) -> Array:
    """What a decay (N, H) or (N, H, K) leaves of states, (N, H, 1 or K, 1)."""
    left = np.exp(decay)
    return left[..., None] if decay.ndim == 3 else left[..., None, None]


def _written(states: Array, key: Array, value: Array, decay: Array, beta: Array | None) -> None:
    """Take states (N, H, K, V) by one step: key (N, H, K), value (N, H, V), decay (N, H) or (N, H, K), beta (N, H)."""
    states *= _left(decay)
    if beta is not None:
        value = beta[..., None] * (value - (states * key[..., None]).sum(axis=2))
    states += key[..., None] * value[:, :, None]


def _advance(h: Array, x: Array, dt: Array, a: Array, b: Array) -> None:
    """Take states by one step: h (N, D, S), x and dt (N, D), b (N, S)."""
    h *= np.exp(dt[:, :, None] * a)
    h += (dt * x)[:, :, None] * b[:, None]
