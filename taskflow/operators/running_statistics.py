"""running_statistics: moving averages of the mean and variance that batch normalisation uses in evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.moments import DOUBLE
from taskflow.operators.operator import INPUTS, Call, Example, Operator, Reads, register
from taskflow.operators.spec import Dim, Soap, Spec, positive, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("running_statistics")
class RunningStatistics(Operator):
    """moments (G, 2, C), mean (C), variance (C) -> the mean and variance moved by ``momentum`` towards those of the batch,
    which are averages over the groups, each of ``count`` elements, with unbiased variances. Unchanged in evaluation."""

    count: int
    momentum: float
    kept = INPUTS

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("running_statistics", inputs, 3)
        moments, mean, variance = inputs
        positive("running_statistics", count=self.count)
        fits = len(moments.shape) == 3 and moments.shape[1] == 2 and moments.dtype == DOUBLE
        if not fits or mean != variance or mean.shape != moments.shape[2:] or not mean.differentiable:
            raise ValueError(
                "running_statistics: inputs must be float64 moments (G, 2, C), and floats (C) for mean and variance, "
                f"got {moments}, {mean} and {variance}"
            )
        return (mean, variance)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        return (Dim("c", inputs[1].shape[0], Soap.ATTRIBUTE),)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads((Rect((0, 0, *piece.lo), (inputs[0].shape[0], 2, *piece.hi)), piece, piece))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return (piece, piece)

    def forward(self, call: Call) -> None:
        (moments, mean, variance), (new_mean, new_variance) = call.inputs, call.outputs
        if not call.state.training:
            new_mean[...], new_variance[...] = mean, variance
            return
        call.kernels.channel_running(
            moments, self.count, self.momentum, self._correction, mean, variance, new_mean, new_variance
        )

    def backward(self, call: Call) -> None:
        moments, mean, _ = call.inputs
        dmean, dvariance = (np.zeros_like(mean) if d is None else d for d in call.grad_outputs)
        into, into_mean, into_variance = call.grad_inputs
        moving = self.momentum if call.state.training else 0.0
        if into is not None:
            share = moving / len(moments) / self.count
            dsquares = share * self._correction * dvariance
            dfirst = share * dmean - 2 * moments[:, 0] / self.count * dsquares
            into.put(np.stack((dfirst, np.broadcast_to(dsquares, dfirst.shape)), axis=1))
        if into_mean is not None:
            into_mean.put((1 - moving) * dmean)
        if into_variance is not None:
            into_variance.put((1 - moving) * dvariance)

    @property
    def _correction(self) -> float:
        """Makes the variance of a sample an unbiased estimate; one element has none and stays."""
        return self.count / max(self.count - 1, 1)

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return piece.volume * (6 * inputs[0].shape[0] + 6)

    @classmethod
    def example(cls, random: Random) -> Example:
        each = Spec((random.randint(1, 8),), np.dtype(np.float64))
        moments = Spec((random.choice((1, 1, 2, 3)), 2, *each.shape), DOUBLE)
        return Example(cls(random.randint(1, 6), random.uniform(0.1, 0.9)), (moments, each, each))


def running_statistics(
    moments: Tensor, mean: Tensor, variance: Tensor, count: int, momentum: float, *, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the next running mean and variance, each (C), from moments (G, 2, C), with ``count`` elements a channel in each
    group."""
    new_mean, new_variance = moments.graph.apply(
        RunningStatistics(count, momentum), (moments, mean, variance), name=name
    )
    return new_mean, new_variance
