"""Annotations: how a user wants single tensors of a model to be laid out: split along a dimension, replicated, or placed by a
table of processors. After GShard (Lepikhin et al., arXiv 2006.16668, section 3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from taskflow.graph import OperatorGraph
from taskflow.operators.tensor import Parameter, Tensor


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter of a graph, to be annotated."""

    graph: OperatorGraph
    parameter: Parameter

    @property
    def name(self) -> str:
        return self.parameter.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parameter.shape


T = TypeVar("T", Tensor, Weight)


@dataclass(frozen=True, slots=True)
class Annotation:
    """Wanted layout of the tensor called ``tensor``: ``degrees[i]`` pieces along dimension i, piece k (the last dimension
    fastest) on ``processors[k]``. If all degrees are 1 and there are no processors, each reader has the whole. ``text``: the
    annotation as the user wrote it."""

    tensor: str
    degrees: tuple[int, ...]
    processors: tuple[int, ...]
    text: str

    @property
    def replicated(self) -> bool:
        """True if every reader must have the whole tensor."""
        return not self.processors

    def __str__(self) -> str:
        return f"{self.text} of {self.tensor}"


_of_graphs: WeakKeyDictionary[OperatorGraph, dict[str, Annotation]] = WeakKeyDictionary()


def split(tensor: T, dim: int, parts: int, processors: Sequence[int] | None = None) -> T:
    """Annotate a tensor or a parameter: its readers see it cut into ``parts`` pieces along ``dim``, on processors 0, 1, ... (or
    on ``processors``). Returns the tensor. Raises ValueError if there is no such dimension, or if the tensor has another
    annotation."""
    at = dim % max(1, len(tensor.shape))
    if not -len(tensor.shape) <= dim < len(tensor.shape) or not 1 <= parts <= tensor.shape[at]:
        raise ValueError(f"split: {tensor.name} {list(tensor.shape)} cannot be cut into {parts} parts along dimension {dim}")
    degrees = tuple(parts if i == at else 1 for i in range(len(tensor.shape)))
    return _kept(tensor, degrees, tuple(range(parts)) if processors is None else tuple(processors), f"split({dim}, {parts})")


def replicate(tensor: T) -> T:
    """Annotate a tensor or a parameter: each of its readers has the whole of it. Returns the tensor."""
    return _kept(tensor, (1,) * len(tensor.shape), (), "replicate")


def shard(tensor: T, assignment: Any) -> T:
    """Annotate a tensor or a parameter with a table of processors that has as many dimensions as the tensor. The table's shape
    is the number of pieces along each dimension; its entries are the pieces' processors. Returns the tensor."""
    table = np.asarray(assignment)
    fits = table.ndim == len(tensor.shape) and all(0 < k <= n for k, n in zip(table.shape, tensor.shape))
    if not fits or table.dtype.kind not in "iu":
        raise ValueError(
            f"shard: {tensor.name} {list(tensor.shape)} needs a table of processors with {len(tensor.shape)} dimensions, each at "
            f"most the tensor's, got {table.dtype} {list(table.shape)}"
        )
    cut = "x".join(map(str, table.shape))
    return _kept(tensor, table.shape, tuple(int(p) for p in table.reshape(-1)), f"shard({cut})")


def annotate(graph: OperatorGraph, patterns: Mapping[str, Sequence[Any]]) -> None:
    """Annotate from outside a model. ``patterns`` maps patterns of names of tensors and parameters (``*`` and ``?`` as in a
    shell) to ("split", dim, parts), ("replicate",) or ("shard", table). Raises ValueError if a pattern matches nothing."""
    kinds: dict[str, Any] = {"split": split, "replicate": replicate, "shard": shard}
    there_are: dict[str, Any] = {t.name: t for node in graph for t in node.outputs}
    there_are |= {p.name: Weight(graph, p) for p in graph.parameters}
    for pattern, (kind, *arguments) in patterns.items():
        found = [value for name, value in there_are.items() if name == pattern or fnmatchcase(name, pattern)]
        if kind not in kinds or not found:
            why = f"no annotation {kind!r}; there are {', '.join(kinds)}" if kind not in kinds else "no tensor has such a name"
            raise ValueError(f"annotate: {pattern!r}: {why}")
        for value in found:
            kinds[kind](value, *arguments)


def annotations_of(graph: OperatorGraph) -> dict[str, Annotation]:
    """Return the annotations of a graph's tensors and parameters, by name."""
    return dict(_of_graphs.get(graph, {}))


def weight(tensor: Tensor, number: int = 0) -> Weight:
    """Return a parameter of the operator that makes a tensor, to be annotated: `replicate(weight(scores))`."""
    graph = tensor.graph
    if not isinstance(graph, OperatorGraph):
        raise ValueError(f"weight: {tensor.name} belongs to no graph")
    found = graph.parameters_of(tensor)
    if not 0 <= number < len(found):
        raise ValueError(f"weight: {tensor.name} has {len(found)} parameters, no number {number}")
    return Weight(graph, found[number])


def _kept(tensor: T, degrees: tuple[int, ...], processors: tuple[int, ...], text: str) -> T:
    graph = tensor.graph
    if not isinstance(graph, OperatorGraph):
        raise ValueError(f"{text}: {tensor.name} belongs to no graph")
    if int(np.prod(degrees)) != len(processors) and processors:
        raise ValueError(f"{text}: {tensor.name} has {np.prod(degrees)} pieces, got {len(processors)} processors")
    result = Annotation(tensor.name, degrees, processors, text)
    before = _of_graphs.setdefault(graph, {}).setdefault(tensor.name, result)
    if (before.degrees, before.processors) != (degrees, processors):
        raise ValueError(f"{tensor.name} is annotated twice: {before.text}, and {text}")
    return tensor
