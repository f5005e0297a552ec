"""Site: a module of PyTorch that is being turned into operators, and the parameters that it shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from taskflow.graph import OperatorGraph
from taskflow.operators.operator import Init
from taskflow.operators.tensor import Parameter, Tensor


class Unsupported(ValueError):
    """Error for something that has no counterpart here; the message says what, and `from_torch` adds where."""


@dataclass(frozen=True, slots=True)
class Site:
    """Place at which a module is turned into operators. ``name``: the module's path, by which its operators are named.
    ``known``: our parameters by the identity of PyTorch's. ``training``: whether the module is in training while the whole is.
    ``names``: paths of PyTorch's parameters by identity. ``record``: adds what another module without parameters computes."""

    name: str
    graph: OperatorGraph
    known: dict[int, Parameter] = field(default_factory=dict)
    training: bool = True
    names: dict[int, str] = field(default_factory=dict)
    record: Callable[..., Any] | None = None

    def below(self, name: str) -> Site:
        """Return the site of a module within this one."""
        return Site(f"{self.name}.{name}", self.graph, self.known, self.training, self.names)

    def named(self, parameter: Any, name: str) -> Site:
        """Return the path of a parameter of this module: the first of its paths if it has several, else ``name`` within this
        module."""
        return Site(self.names.get(id(parameter), f"{self.name}.{name}"), self.graph, self.known, self.training, self.names)

    def has(self, parameter: Any) -> bool:
        """True if an earlier layer has this parameter of PyTorch's too."""
        return id(parameter) in self.known

    def shared(self, *theirs: Any) -> Sequence[Parameter] | None:
        """Return our parameters for these of PyTorch's (None for missing ones) if an earlier layer has them too; None if they
        are new. Raises Unsupported if only some of them are."""
        given = [parameter for parameter in theirs if parameter is not None]
        found = [self.known[id(p)] for p in given if id(p) in self.known]
        if not found or not given:
            return None
        if len(found) < len(given):
            raise Unsupported("shares some of its parameters with another layer, but not all of them")
        return found

    def build(self, builder: Callable[..., Tensor], theirs: Sequence[Any], *args: Any, **options: Any) -> Tensor:
        """Add an operator by its builder, of arguments and of ``theirs``: PyTorch's parameters (None for missing ones), which are
        ours if an earlier layer has them. It is called as the module is, unless options have a ``name``."""
        named = {"name": self.name, **options, "parameters": self.shared(*theirs)}
        return self.own(builder(*args, **named), *theirs)

    def own(self, result: Tensor, *theirs: Any) -> Tensor:
        """Record which of our parameters stand for these; return ``result``, the layer's result."""
        given = [parameter for parameter in theirs if parameter is not None]
        for parameter, ours in zip(given, self.graph.parameters_of(result)):
            self.known.setdefault(id(parameter), ours)
        return result


@dataclass(frozen=True, slots=True)
class Held:
    """Parameter that the module's code uses directly, outside torch.nn's layers. ``site``: where it is (named by its path).
    ``tensor``: PyTorch's parameter. ``kept``: the shape that the graph keeps it in, if that is another one of as many numbers."""

    site: Site
    tensor: Any
    kept: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def layer(self) -> Site:
        """Module that owns the parameter."""
        name = self.site.name.rpartition(".")[0] or self.site.name
        return Site(name, self.site.graph, self.site.known, names=self.site.names)


def require(fine: bool, why: str) -> None:
    """Raise Unsupported unless ``fine``."""
    if not fine:
        raise Unsupported(why)


def require_shape(theirs: Any, shape: Sequence[int]) -> None:
    """Raise Unsupported unless ``shape`` is that of PyTorch's tensor."""
    require(tuple(shape) == tuple(theirs.shape), f"returns {list(theirs.shape)} in PyTorch, but {list(shape)} here")


def started(parameter: Any) -> Init:
    """Return how a graph initialises a parameter to resemble PyTorch's current values: a constant, or normal numbers with their
    spread."""
    if parameter.is_meta:
        return Init("normal", 0.02)
    spread = float(parameter.detach().float().std(unbiased=False))
    return Init("normal", spread) if spread else Init("constant", float(parameter.detach().flatten()[0]))
