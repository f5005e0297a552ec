"""batch_norm: normalisation of channels over the batch (PyTorch: torch.nn.BatchNorm1d, BatchNorm2d).

Ioffe and Szegedy, "Batch normalization", arXiv 1502.03167. Composed of `moments`, whose partial sums the runtime adds,
`normalize` and `running_statistics`, so that the statistics are those of the whole batch whatever the split.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from taskflow.floats import sums_in
from taskflow.operators.moments import moments
from taskflow.operators.normalize import normalize
from taskflow.operators.running_statistics import running_statistics
from taskflow.operators.spec import positive
from taskflow.operators.state import state
from taskflow.operators.tensor import Parameter, Tensor


def batch_norm(
    input: Tensor,
    eps: float = 1e-5,
    momentum: float = 0.1,
    *,
    samples: int | None = None,
    affine: bool = True,
    statistics: tuple[Tensor, Tensor] | None = None,
    name: str | None = None,
    parameters: Sequence[Parameter] | None = None,
) -> Tensor:
    """Normalise every channel: (x - mean) / sqrt(variance + eps) weight + bias; in evaluation with the running statistics.

    Args: input (N, C, ...). ``samples``: statistics of every group of this many samples (a divisor of N) instead of the whole
    batch ("ghost batches", Hoffer et al., arXiv 1705.08741). If processors hold whole groups, no statistics travel, and results
    still do not depend on the split. Not ``affine``: without weight and bias. ``parameters`` shares another layer's (weight,
    bias), ``statistics`` its states (running mean, running variance), which follow its batch first and then this one, as where a
    network is called twice in a step. Returns the same shape. Adds the states ``name.running_mean`` and ``name.running_var``
    unless they are given.
    """
    name = name or "batch_norm"
    graph, size = input.graph, input.shape[0] if samples is None else samples
    positive(name, samples=size)
    if input.ndim < 2:
        raise ValueError(f"{name}: input must be (N, C, ...), got {input}")
    shape = input.shape[1:2]
    if statistics is None:
        mean = state(graph, shape, sums_in(input.dtype), lasting=True, name=f"{name}.running_mean")
        variance = state(graph, shape, sums_in(input.dtype), start=1.0, lasting=True, name=f"{name}.running_var")
        statistics = (mean, variance)
    sums = moments(input, size, name=f"{name}.moments")
    output = normalize(input, sums, *statistics, size, eps, affine=affine, name=name, parameters=parameters)
    count = size * prod(input.shape[2:])
    so_far = [graph.carried(each) for each in statistics]  # by an earlier call, if there was one
    followed = running_statistics(sums, so_far[0], so_far[1], count, momentum, name=f"{name}.running")
    for each, becomes in zip(statistics, followed):
        graph.carry(each, becomes)
    return output
