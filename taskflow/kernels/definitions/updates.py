"""Update rules on flat arrays.

The compiled twin is native/_updates.pyx; tests/kernels/test_kernels_updates.py holds them equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from taskflow.kernels.definitions.arrays import Array


class UpdateKernels:
    """Steps of update rules, and the sum of squares for clipping gradients."""

    __slots__ = ()

    def sgd(
        self, w: Array, g: Array, velocity: Array | None, lr: float, momentum: float, dampening: float,
        weight_decay: float, nesterov: bool, scale: float, first: bool,
    ) -> None:
        """Step of torch.optim.SGD on flat arrays, with g multiplied by ``scale`` first. ``first``: the first step, in which the
        velocity becomes the gradient."""
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
        """Step of torch.optim.Adam (AdamW if ``decoupled``) on flat arrays; ``step`` counts from 1."""
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

    def sum_of_squares(self, x: Array) -> Any:
        """Sum of squares in double precision, in a fixed order: a float, or an array () on an asynchronous device."""
        flat = x.reshape(-1)
        return float(np.einsum("i,i->", flat, flat, dtype=np.float64, casting="safe"))
