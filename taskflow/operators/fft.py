"""fft: the discrete Fourier transform of the last dimension, of complex numbers as two real tensors (PyTorch: torch.fft)."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2
from random import Random
from typing import Any

import numpy as np

from taskflow.operators.operator import NOTHING, Array, Call, Example, Operator, Reads, register
from taskflow.operators.spec import Dim, Spec, sample_and_attributes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("fft")
class Fft(Operator):
    """x (..., T), and its imaginary part (..., T) if there is one -> the real and the imaginary part (..., ``count``) of y.

    y[k] = factor times the sum over t of x[t] exp(-2 pi i k t / T), for the first ``count`` k; ``inverse``: with + in place of -.
    Every dimension but the last can be cut.
    """

    inverse: bool
    factor: float
    count: int
    kept = NOTHING
    linear = True

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        fits = len(inputs) in (1, 2) and all(spec == inputs[0] and spec.differentiable and spec.shape for spec in inputs)
        if not fits or not 0 < self.count <= inputs[0].shape[-1]:
            given = ", ".join(map(str, inputs))
            raise ValueError(f"fft: takes one or two float tensors of one shape, with at least {self.count} numbers, got {given}")
        return (Spec((*inputs[0].shape[:-1], self.count), inputs[0].dtype),) * 2

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        shape = (*inputs[0].shape[:-1], self.count)
        return sample_and_attributes(shape, fixed=len(shape) - 1)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads((Rect((*piece.lo[:-1], 0), (*piece.hi[:-1], inputs[0].shape[-1])),) * len(inputs))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return (piece, piece)

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        length = inputs[0].shape[-1]
        return 5 * length * max(1, ceil(log2(length))) * (piece.volume // self.count)

    def forward(self, call: Call) -> None:
        y = _transformed(_joined(*call.inputs), self.inverse, call.inputs[0].shape[-1])[..., : self.count]
        for out, part in zip(call.outputs, (y.real, y.imag)):
            out[...] = part * self.factor

    def backward(self, call: Call) -> None:
        known = next(grad for grad in call.grad_outputs if grad is not None)
        grads = (np.zeros_like(known) if grad is None else grad for grad in call.grad_outputs)
        x = _transformed(_joined(*grads), not self.inverse, call.specs[0].shape[-1])  # without what lies beyond ``count``
        for target, part in zip(call.grad_inputs, (x.real, x.imag)):
            if target is not None:
                target.put((part * self.factor).astype(known.dtype))

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 5) for _ in range(random.randint(1, 3)))
        specs = (Spec(shape, np.dtype(np.float64)),) * random.randint(1, 2)
        return Example(cls(random.random() < 0.5, random.choice((1.0, 0.5)), random.randint(1, shape[-1])), specs)


def _joined(real: Array, imag: Array | None = None) -> Any:
    """A complex array of at least single precision."""
    wide = np.result_type(np.float32, real.dtype if real.dtype.kind == "f" else np.float32)
    x = real.astype(wide)
    return x if imag is None else x + 1j * imag.astype(wide)


def _transformed(x: Any, inverse: bool, length: int) -> Any:
    """The sums of ``length`` terms, of which those that x lacks are 0."""
    return np.fft.ifft(x, length, norm="forward") if inverse else np.fft.fft(x, length)


def fft(
    real: Tensor, imag: Tensor | None = None, *, inverse: bool = False, factor: float = 1.0, count: int | None = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Transform the last dimension (..., T) of numbers whose imaginary part may be missing. ``factor``: of the sums, 1 / T for the
    whole inverse; ``count``: only so many results, T // 2 + 1 for all that are different of real numbers. Returns the real and the
    imaginary part."""
    inputs = (real,) if imag is None else (real, imag)
    made = Fft(inverse, float(factor), real.shape[-1] if count is None else count)
    first, second = real.graph.apply(made, inputs, name=name)
    return first, second
