"""normalize: the elementwise half of batch normalisation, whose statistics `moments` gathers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from random import Random

import numpy as np

from taskflow.floats import sums_in
from taskflow.operators.moments import DOUBLE
from taskflow.operators.operator import Array, Call, Example, Keeps, Operator, Reads, register
from taskflow.operators.spec import Dim, Init, Soap, Spec, WeightSpec, positive, takes
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.regions import Rect


@dataclass(frozen=True, slots=True)
class _Group:
    """Part of one group of samples that a piece has."""

    number: int  # of the group, counted from the piece's first
    rows: slice  # of the piece's samples
    x: Array  # (N, C, P)
    sums: Array  # (2, C) float64: of x and its square, over the whole group


@register("normalize")
class Normalize(Operator):
    """x (N, C, ...), moments (G, 2, C), running mean and variance (C), weight and bias (C) -> y = (x - mean) / sqrt(variance +
    eps) weight + bias.

    In training, mean and variance are those of a sample's group of ``samples`` samples, from `moments`; in evaluation, the
    running ones. C cuts the weights (parameter). Not ``affine``: without weight and bias.
    """

    samples: int
    eps: float
    affine: bool = field(default=True, repr=False)  # files that name operators are of networks that have weights there
    kept = Keeps(outputs=False)
    flops_per_element = 3

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("normalize", inputs, 4)
        x, moments, *running = inputs
        positive("normalize", samples=self.samples)
        if len(x.shape) < 2 or not x.differentiable or x.shape[0] % self.samples:
            raise ValueError(
                f"normalize: input must be a float tensor (N, C, ...), N a multiple of samples={self.samples}, got {x}"
            )
        wanted = Spec((x.shape[0] // self.samples, 2, x.shape[1]), DOUBLE)
        each = Spec(x.shape[1:2], sums_in(x.dtype))
        if moments != wanted or running != [each, each]:
            given = ", ".join(map(str, inputs[1:]))
            raise ValueError(f"normalize: statistics of {x} must be {wanted}, {each}, {each}, got {given}")
        return (x,)

    def weights(self, inputs: Sequence[Spec]) -> tuple[WeightSpec, ...]:
        shape = inputs[0].shape[1:2]
        if not self.affine:
            return ()
        return (WeightSpec("weight", shape, Init("constant", 1.0)), WeightSpec("bias", shape, Init("constant", 0.0)))

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        samples, channels, *positions = inputs[0].shape
        return (
            Dim("n", samples, Soap.SAMPLE),
            Dim("c", channels, Soap.PARAMETER if self.affine else Soap.ATTRIBUTE),
            *(Dim(f"a{i}", size, Soap.ATTRIBUTE) for i, size in enumerate(positions, 2)),
        )

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        channels = Rect(piece.lo[1:2], piece.hi[1:2])
        first, last = piece.lo[0] // self.samples, -(-piece.hi[0] // self.samples)
        moments = Rect((first, 0, piece.lo[1]), (last, 2, piece.hi[1]))
        return Reads((piece, moments, channels, channels), (channels, channels) if self.affine else ())

    def unread(self, training: bool) -> tuple[int, ...]:
        return (2, 3) if training else (1,)  # running mean and variance; the batch's moments

    def forward(self, call: Call) -> None:
        (weight, bias), y = self._weights(call), _flat(call.outputs[0])
        scales = call.kernels.xp.empty((2, len(weight)), y.dtype)
        for group in self._groups(call):
            call.kernels.channel_scales(group.sums, self._count(call), self.eps, weight, bias, out=scales)
            call.kernels.channel_affine(group.x, scales[0], scales[1], out=y[group.rows])

    def backward(self, call: Call) -> None:
        weight, dy = self._weights(call)[0], _flat(call.grad)
        dx, dmoments, dmean, dvariance = call.grad_inputs
        xp, count, channels = call.kernels.xp, self._count(call), len(weight)
        products, totals = xp.empty((2, channels), DOUBLE), None
        zero = call.kernels.constant(("zeros", channels, dy.dtype), lambda: np.zeros(channels, dy.dtype))
        changes = None
        if dmoments is not None:
            fill = xp.empty if call.state.training else xp.zeros
            changes = fill(call.inputs[1].shape, DOUBLE)
        for group in self._groups(call):
            gradient, found = dy[group.rows], xp.empty((5, channels), DOUBLE)
            call.kernels.channel_products(group.x, gradient, out=products)
            call.kernels.channel_changes(group.sums, count, self.eps, weight, products, out=found)
            if dx is not None:
                call.kernels.channel_affine(
                    gradient, found[0].astype(dy.dtype), zero, out=_flat(dx.array)[group.rows], accumulate=dx.accumulate
                )
            if changes is not None and call.state.training:
                changes[group.number] = found[3:]
            some = [found[1], found[2]]  # of bias and weight
            if not call.state.training:
                some += [-found[0] * found[1], found[4] * count]  # of the running mean and variance
            totals = some if totals is None else [a + b for a, b in zip(totals, some)]
        assert totals is not None, "a piece has samples"
        dweight, dbias = call.grad_weights or (None, None)
        running = totals[2:] or (0.0, 0.0)
        for target, value in zip((dbias, dweight, dmean, dvariance, dmoments), (*totals[:2], *running, changes)):
            if target is not None:
                target.put(value)

    def _weights(self, call: Call) -> tuple[Array, Array]:
        if self.affine:
            return call.weights[0], call.weights[1]
        channels, dtype = call.piece.hi[1] - call.piece.lo[1], call.inputs[0].dtype
        one = call.kernels.constant(("ones", channels, dtype), lambda: np.ones(channels, dtype))
        return one, call.kernels.constant(("zeros", channels, dtype), lambda: np.zeros(channels, dtype))

    def _count(self, call: Call) -> int:
        """Number of elements of a channel in a group, whatever the piece."""
        return self.samples * prod(call.specs[0].shape[2:])

    def _groups(self, call: Call) -> Iterator[_Group]:
        x, (_, moments, mean, variance) = _flat(call.inputs[0]), call.inputs
        first, last = call.piece.lo[0], call.piece.hi[0]
        if not call.state.training:  # what sums the running statistics would have
            groups, middle = -(-last // self.samples) - first // self.samples, mean.astype(DOUBLE)
            moments = call.kernels.xp.empty((groups, 2, len(mean)), DOUBLE)
            moments[:, 0] = middle * self._count(call)
            moments[:, 1] = (variance + middle * middle) * self._count(call)
        for number, sums in enumerate(moments):
            start = (first // self.samples + number) * self.samples
            rows = slice(max(start, first) - first, min(start + self.samples, last) - first)
            yield _Group(number, rows, x[rows], sums)

    @classmethod
    def example(cls, random: Random) -> Example:
        samples, groups, channels = random.randint(1, 4), random.choice((1, 1, 2, 3)), random.randint(1, 4)
        positions = (random.randint(1, 3) for _ in range(random.randint(0, 2)))
        dtype = np.dtype(np.float64)
        x, each = Spec((samples * groups, channels, *positions), dtype), Spec((channels,), dtype)
        # With a small eps, a variance near 0 would be too curved for finite differences.
        operator = cls(samples, random.uniform(0.5, 1), random.random() < 0.7)
        return Example(operator, (x, Spec((groups, 2, channels), DOUBLE), each, each))


def _flat(x: Array) -> Array:
    """(N, C, ...) as (N, C, P), the same memory."""
    return x.reshape(*x.shape[:2], prod(x.shape[2:]))


def normalize(
    input: Tensor,
    moments: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    samples: int,
    eps: float = 1e-5,
    *,
    affine: bool = True,
    name: str | None = None,
    parameters: Sequence[Parameter] | None = None,
) -> Tensor:
    """Normalise by the sums of `moments`; in evaluation by the running statistics.

    Args: input (N, C, ...). Returns the same shape. ``affine``: with weight and bias. ``parameters`` shares another layer's
    (weight, bias).
    """
    operator = Normalize(samples, eps, affine)
    inputs = (input, moments, running_mean, running_var)
    return input.graph.apply(operator, inputs, name=name, parameters=parameters)[0]
