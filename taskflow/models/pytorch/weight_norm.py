"""Weight normalisation (torch.nn.utils.parametrizations.weight_norm): weight = g v / |v|, with a length g for each output channel.

Salimans and Kingma, arXiv 1602.07868.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import nn

from taskflow import operators as ops
from taskflow.models.pytorch.convolving import as_planes
from taskflow.models.pytorch.site import Held, Site, require, started
from taskflow.operators.tensor import Tensor

DIRECTION = ".parametrizations.weight.original1"
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d)


def is_weight_norm(part: nn.Module) -> bool:
    """True for a layer whose only parametrization is the weight normalisation of its weight."""
    found = part._modules.get("parametrizations")
    kinds = [type(each).__name__ for each in found["weight"]] if isinstance(found, nn.ModuleDict) and [*found] == ["weight"] else []
    return kinds == ["_WeightNorm"]


def name_of_direction(path: str, name: str, module: nn.Module) -> str | None:
    """Return what our parameter is called that stands for v of a convolution, if the parameter ``name`` of the part ``path`` is
    that; else None."""
    whole = f"{path}.{name}"
    own = whole.removesuffix(DIRECTION)
    return f"{own}.weight" if own != whole and isinstance(module.get_submodule(own), CONVOLUTIONS) else None


@dataclass(frozen=True, slots=True, eq=False)
class Normed:
    """The weight that a layer has: ``length`` g times ``base`` v over the norm of v along all dimensions but the first."""

    base: Held
    length: Held
    name: str
    value: Callable[[Held], Tensor]  # a parameter as a tensor of the graph

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the weight."""
        return self.base.shape

    def tensor(self) -> Tensor:
        """Return the weight."""
        v = self.value(self.base)
        return ops.mul(v, self.factors(v, (self.shape[0], *[1] * (v.ndim - 1))), name=self.name)

    def factors(self, v: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return g / |v| in a shape."""
        squares = ops.sum(ops.pow(v, 2.0, name=f"{self.name}.squares"), tuple(range(1, v.ndim)), name=f"{self.name}.sum")
        inverse = ops.rsqrt(squares, name=f"{self.name}.inverse")
        lengths = ops.reshape(self.value(self.length), (self.shape[0],), name=f"{self.name}.lengths")
        return ops.reshape(ops.mul(inverse, lengths, name=f"{self.name}.factors"), shape, name=f"{self.name}.each")


def convolved(
    kind: type[nn.Module], build: Callable[..., Any], x: Tensor, weight: Normed, bias: Any, options: dict[str, Any]
) -> Tensor:
    """Convolve with v, and scale the output's channels (of a transposed convolution the input's), in place of the weight."""
    held = weight.base.site
    path = held.name.removesuffix(DIRECTION)
    require(path != held.name, "weight normalisation of the module itself; put it into a module of its own")
    site = Site(path, held.graph, held.known, names=held.names)
    shape = as_planes(kind, weight.shape)
    v = ops.expand_weight(site.graph, shape, shape, init=started(weight.base.tensor), name=f"{path}.weight")
    site.own(v, weight.base.tensor)
    factors = weight.factors(v, (1, weight.shape[0], *[1] * (x.ndim - 2)))
    turned = issubclass(kind, (nn.ConvTranspose1d, nn.ConvTranspose2d))
    x = ops.mul(x, factors, name=f"{weight.name}.scaled") if turned else x
    y = build(site, SimpleNamespace(weight=weight.base.tensor, bias=None, transposed=turned, **options), x)
    y = y if turned else ops.mul(y, factors, name=f"{weight.name}.scaled")
    if bias is None:
        return y  # type: ignore[no-any-return]
    each = ops.reshape(weight.value(bias), (1, bias.shape[0], *[1] * (y.ndim - 2)), name=f"{path}.channels")
    return ops.add(y, each, name=f"{path}.biased")


def normed_along(name: str, v: Held, g: Held, dim: int) -> Tensor:
    """Build the weight of a convolution whose lengths are along another dimension than the first, as in HuBERT."""
    held = v.site
    path, dims = held.name.removesuffix(DIRECTION), len(v.shape)
    require(path != held.name and dims in (3, 4), f"weight_norm with dim={dim} of another layer than a convolution; only 0")
    site = Site(path, held.graph, held.known, names=held.names)
    shape = as_planes(nn.Conv1d if dims == 3 else nn.Conv2d, v.shape)
    planes = ops.expand_weight(site.graph, shape, shape, init=started(v.tensor), name=f"{path}.weight")
    directions = ops.reshape(site.own(planes, v.tensor), v.shape, name=f"{name}.directions")
    own = g.site
    lengths = own.own(ops.expand_weight(own.graph, g.shape, g.shape, init=started(g.tensor), name=own.name), g.tensor)
    over = tuple(i for i in range(dims) if i != dim % dims)
    squares = ops.sum(ops.pow(directions, 2.0, name=f"{name}.squares"), over, True, name=f"{name}.sums")
    scales = ops.mul(lengths, ops.rsqrt(squares, name=f"{name}.inverse"), name=f"{name}.scales")
    return ops.mul(directions, scales, name=name)
