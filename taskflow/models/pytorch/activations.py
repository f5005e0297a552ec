"""Activations of torch.nn that are neither straight lines nor one operator's only form: for each class a function of its site, the
module and its argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from taskflow import operators as ops
from taskflow.models.pytorch.registry import tensor_of
from taskflow.models.pytorch.site import Held, Site, Unsupported
from taskflow.operators.tensor import Tensor

SELU = (1.6732632423543772848170429916717, 1.0507009873554804934193349852946)  # Klambauer et al., arXiv 1706.02515


def prelu(site: Site, m: Any, x: Tensor) -> Tensor:
    """x above 0, elsewhere x times a weight, one or one for each channel; the derivative at 0 is the weight."""
    slope = tensor_of(Held(site.named(m.weight, "weight"), m.weight), site.graph, site.name)
    if slope.shape != (1,):
        slope = ops.reshape(slope, (1, slope.shape[0], *[1] * (x.ndim - 2)), name=f"{site.name}.channels")
    above = ops.relu(x, name=f"{site.name}.above")
    below = ops.sub(x, above, name=f"{site.name}.below")
    return ops.add(above, ops.mul(below, slope, name=f"{site.name}.scaled"), name=site.name)


def log_softmax(name: str, x: Tensor, dim: int | None) -> Tensor:
    """The logarithm of softmax: x minus the logarithm of the sum of exponentials."""
    if dim is None:
        raise Unsupported("needs dim")
    return ops.sub(x, ops.logsumexp(x, dim, True, name=f"{name}.sum"), name=name)


def log_sigmoid(name: str, x: Tensor) -> Tensor:
    """log(1 / (1 + exp(-x)))."""
    return ops.scale(ops.softplus(ops.scale(x, -1.0, name=f"{name}.minus"), name=f"{name}.plus"), -1.0, name=name)


def glu(name: str, x: Tensor, dim: int) -> Tensor:
    """Half of x, times the sigmoid of the other half."""
    value, gate = ops.split(x, x.shape[dim] // 2, dim, name=f"{name}.halves")
    return ops.mul(value, ops.sigmoid(gate, name=f"{name}.gate"), name=name)


ACTIVATIONS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.PReLU: prelu,
    nn.ELU: lambda site, m, x: ops.elu(x, m.alpha, name=site.name),
    nn.SELU: lambda site, m, x: ops.elu(x, *SELU, name=site.name),
    nn.CELU: lambda site, m, x: ops.elu(x, m.alpha, 1.0, 1 / m.alpha, name=site.name),
    nn.Softplus: lambda site, m, x: ops.softplus(x, m.beta, m.threshold, name=site.name),
    nn.Mish: lambda site, m, x: ops.mish(x, name=site.name),
    nn.GLU: lambda site, m, x: glu(site.name, x, m.dim),
    nn.LogSigmoid: lambda site, m, x: log_sigmoid(site.name, x),
    nn.LogSoftmax: lambda site, m, x: log_softmax(site.name, x, m.dim),
    nn.Softmin: lambda site, m, x: ops.softmax(ops.scale(x, -1.0, name=f"{site.name}.minus"), m.dim, name=site.name),
    nn.Tanhshrink: lambda site, m, x: ops.sub(x, ops.tanh(x, name=f"{site.name}.tanh"), name=site.name),
}
