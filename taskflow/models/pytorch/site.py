"""Site: where a module of PyTorch is being turned into operators, and whose parameters it shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from taskflow.graph import OperatorGraph
from taskflow.operators.operator import Init
from taskflow.operators.tensor import Parameter, Tensor


class Unsupported(ValueError):
    """What has no counterpart here; the message says what, and `from_torch` adds where."""


@dataclass(frozen=True, slots=True)
class Site:
    """``name``: the module's path, which its operators are named by. ``known``: our parameters by identity of PyTorch's.
    ``training``: whether the module is in training while the whole is. ``names``: paths of PyTorch's parameters by identity."""

    name: str
    graph: OperatorGraph
    known: dict[int, Parameter] = field(default_factory=dict)
    training: bool = True
    names: dict[int, str] = field(default_factory=dict)

    def below(self, name: str) -> Site:
        """The same for a module in this one."""
        return Site(f"{self.name}.{name}", self.graph, self.known, self.training, self.names)

    def named(self, parameter: Any, name: str) -> Site:
        """Where a parameter of this module lies: by the first of its paths if it has several, else ``name`` in this one."""
        return Site(self.names.get(id(parameter), f"{self.name}.{name}"), self.graph, self.known, self.training, self.names)

    def has(self, parameter: Any) -> bool:
        """True if a layer before has this parameter of PyTorch's, too."""
        return id(parameter) in self.known

    def shared(self, *theirs: Any) -> Sequence[Parameter] | None:
        """Our parameters for these of PyTorch's (None among them: it has none) if a layer before has them too; None if they are
        new. Raises Unsupported if only some of them are."""
        given = [parameter for parameter in theirs if parameter is not None]
        found = [self.known[id(p)] for p in given if id(p) in self.known]
        if not found or not given:
            return None
        if len(found) < len(given):
            raise Unsupported("shares some of its parameters with another layer, but not all of them")
        return found

    def own(self, made: Tensor, *theirs: Any) -> Tensor:
        """Remember which of our parameters stand for these; returns ``made``, the layer's result."""
        given = [parameter for parameter in theirs if parameter is not None]
        for parameter, ours in zip(given, self.graph.parameters_of(made)):
            self.known.setdefault(id(parameter), ours)
        return made


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter that the module's code uses by itself, outside of torch.nn's layers: ``site`` is where it lies (named by its
    path), ``tensor`` PyTorch's parameter."""

    site: Site
    tensor: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def layer(self) -> Site:
        """The module whose parameter it is."""
        name = self.site.name.rpartition(".")[0] or self.site.name
        return Site(name, self.site.graph, self.site.known, names=self.site.names)


def require(fine: bool, why: str) -> None:
    """Raise Unsupported unless ``fine``."""
    if not fine:
        raise Unsupported(why)


def started(parameter: Any) -> Init:
    """How a graph starts what PyTorch starts as it has: a constant, or normal numbers of its spread."""
    if parameter.is_meta:
        return Init("normal", 0.02)
    spread = float(parameter.detach().float().std(unbiased=False))
    return Init("normal", spread) if spread else Init("constant", float(parameter.detach().flatten()[0]))
