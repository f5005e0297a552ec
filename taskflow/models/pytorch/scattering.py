"""Functions of torch that put entries where computed integers say: sums, numbers and entries at places of a dimension."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.pytorch.registry import constant, graph_of, number_of, only_number, stands_for, tensor_of
from taskflow.models.pytorch.shaping import permuted
from taskflow.models.pytorch.site import require
from taskflow.models.pytorch.steps import Fixed
from taskflow.operators.tensor import Tensor

FEW_PAIRS = 65536  # of an index and a place in a row that are compared with each other


@dataclass(frozen=True, slots=True)
class Along:
    """Tensors as the operators `gather` and `scatter_add` take them: (N, B, ...) with an index (N, K), for a dimension ``dim`` of
    tensors of ``ndim`` dimensions. ``index`` may be repeated along the dimensions behind ``dim``; if it differs there, ``dim`` is
    moved to the end."""

    index: Tensor
    dim: int
    ndim: int
    led: tuple[int, ...]
    moved: bool

    @classmethod
    def of(cls, name: str, index: Tensor, dim: int) -> Along:
        """Take an index of the same dimensions as the tensors."""
        dim %= index.ndim
        own = _once_behind(name, index, dim)
        order = [*(i for i in range(index.ndim) if i != dim), dim]
        rows = permuted(f"{name}.last", index, order) if own is None else own
        flat = ops.reshape(rows, (prod(rows.shape[:-1]), rows.shape[-1]), name=f"{name}.rows")
        return cls(flat, dim, index.ndim, rows.shape[:-1], own is None)

    def given(self, name: str, x: Tensor) -> Tensor:
        """Return a tensor as (N, B, ...)."""
        if self.moved:
            x = permuted(f"{name}.last", x, [*(i for i in range(self.ndim) if i != self.dim), self.dim])
        shape = (self.index.shape[0], *x.shape[len(self.led) :])
        return x if x.shape == shape else ops.reshape(x, shape, name=f"{name}.rows")

    def back(self, name: str, y: Tensor) -> Tensor:
        """Return (N, B, ...) as the tensors are."""
        shape = (*self.led, *y.shape[1:])
        y = y if y.shape == shape else ops.reshape(y, shape, name=f"{name}.shaped")
        last = self.ndim - 1
        return permuted(f"{name}.turned", y, [*range(self.dim), last, *range(self.dim, last)]) if self.moved else y


def _once_behind(name: str, index: Tensor, dim: int) -> Tensor | None:
    """An index (..., K, ...) as (..., K), if it is the same along all dimensions behind that of the places."""
    if dim == index.ndim - 1:
        return index
    graph = index.graph
    node = graph.nodes[index.node] if isinstance(graph, OperatorGraph) else None
    if node is None or node.operator.kind not in ("expand", "constant"):
        return None
    source = node.inputs[0] if node.inputs else index
    if node.operator.kind == "constant":
        array = np.asarray(node.operator.values)  # type: ignore[attr-defined]
        first = array.reshape(*array.shape[: dim + 1], -1)[..., :1]
        alike = bool((array.reshape(*array.shape[: dim + 1], -1) == first).all())
        return constant(graph, np.ascontiguousarray(first[..., 0]), f"{name}.once") if alike else None
    if source.ndim != index.ndim or source.shape[: dim + 1] != index.shape[: dim + 1] or set(source.shape[dim + 1 :]) != {1}:
        return None
    return ops.reshape(source, source.shape[: dim + 1], name=f"{name}.once")


def _require_alike(input: Any, index: Tensor, src: Any, dim: int) -> None:
    shape = tuple(input.tensor.shape) if isinstance(input, Fixed) else input.shape
    fits = len(shape) == index.ndim and all(a == b for i, (a, b) in enumerate(zip(shape, index.shape)) if i != dim % len(shape))
    require(fits, "at computed indices, whose other dimensions must have the tensor's sizes")
    require(src is None or src.shape == index.shape, "of entries that have not the shape of their indices")


def _added(name: str, input: Any, dim: int, index: Tensor, src: Tensor, distinct: bool = False) -> Tensor:
    """Sums of the entries that go to each place, in the shape of the input."""
    along, size = Along.of(f"{name}.index", index, dim), input.shape[dim]
    rows = along.given(f"{name}.entries", src)
    return along.back(f"{name}.sums", ops.scatter_add(rows, along.index, size, distinct=distinct, name=f"{name}.rows"))


def _shaped(name: str, input: Any, *others: Any) -> tuple[Any, ...]:
    graph = graph_of(input, *others)
    return tuple(tensor_of(value, graph, name) for value in (input, *others))


@stands_for("scatter_add", "scatter_add_", raw=True)
def scatter_add(name: str, input: Any, dim: int, index: Any, src: Any) -> Any:
    """input, and entries of ``src`` added where computed integers say."""
    x, at, entries = _shaped(name, input, index, src)
    _require_alike(x, at, entries, dim)
    summed = _added(name, x, dim, at, entries)
    return summed if only_number(input) == 0 else ops.add(x, summed, name=name)


@stands_for("scatter_reduce", "scatter_reduce_", raw=True)
def scatter_reduce(
    name: str, input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """A sum, a mean, an extreme or a product of what goes to each place. The tensor's own entries are more of them, or stand where
    nothing goes."""
    x, at, entries = _shaped(name, input, index, src)
    _require_alike(x, at, entries, dim)
    dim %= x.ndim
    if include_self:
        own = np.arange(x.shape[dim]).reshape([x.shape[i] if i == dim else 1 for i in range(x.ndim)])
        places = ops.expand(constant(x.graph, own, f"{name}.own"), x.shape, name=f"{name}.places")
        at = ops.concat([at, places], dim, name=f"{name}.index")
        entries = ops.concat([entries, x], dim, name=f"{name}.entries")
    if reduce in ("sum", "mean"):
        found = _added(name, x, dim, at, entries)
    else:
        along = Along.of(f"{name}.at", at, dim)
        each = along.given(f"{name}.of", entries)
        found = along.back(name, ops.scatter_reduce(each, along.index, x.shape[dim], reduce, name=f"{name}.rows"))
    if reduce != "mean" and (include_self or only_number(input) == 0):
        return found
    count = hits(f"{name}.there", x.graph, x.shape, dim, at)
    if reduce == "mean":
        some = ops.clamp(count, 1.0, None, name=f"{name}.some")
        found = ops.mul(found, ops.pow(some, -1.0, name=f"{name}.share"), name=f"{name}.mean")
    return found if include_self else ops.where(count, "ne", 0.0, found, x, name=f"{name}.or_own")


@stands_for("index_add", "index_add_", raw=True)
def index_add(name: str, input: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Any:
    """input, and parts of ``source`` added where computed integers say: in a graph what each node gets from its neighbours."""
    x, at, parts = _shaped(name, input, index, source)
    dim %= x.ndim
    require(at.ndim == 1, "the index must have one dimension")
    order = [dim, *(i for i in range(x.ndim) if i != dim)]
    parts = permuted(f"{name}.first", parts, order)
    each = ops.reshape(parts, (1, *parts.shape), name=f"{name}.source")
    index = ops.reshape(at, (1, *at.shape), name=f"{name}.index")
    summed = ops.scatter_add(each, index, x.shape[dim], name=f"{name}.sums")
    summed = ops.reshape(summed, summed.shape[1:], name=f"{name}.nodes")
    summed = permuted(f"{name}.turned", summed, [*range(1, dim + 1), 0, *range(dim + 1, x.ndim)])
    summed = summed if alpha == 1 else ops.scale(summed, float(alpha), name=f"{name}.alpha")
    return summed if only_number(input) == 0 else ops.add(x, summed, name=name)


def hits(name: str, graph: OperatorGraph, shape: tuple[int, ...], dim: int, index: Tensor) -> Tensor:
    """How many of computed integers name each place of a dimension: floats of this shape."""
    last, dim = len(shape) - 1, dim % len(shape)
    if dim == last and index.shape[-1] * shape[-1] <= FEW_PAIRS:
        places = constant(graph, np.arange(shape[-1]).reshape((1,) * len(shape) + (-1,)), f"{name}.places")
        alone = ops.reshape(index, (*index.shape, 1), name=f"{name}.alone")
        return ops.sum(ops.compare(alone, "eq", places, name=f"{name}.each"), last, name=f"{name}.counts")
    along = Along.of(f"{name}.index", index, dim)
    rest = index.shape[dim + 1 :] if not along.moved else ()
    one = ops.compare(along.index, "ge", 0, name=f"{name}.ones")  # an array of ones would be as large as the scores of attention
    if rest:
        alone = ops.reshape(one, (*one.shape, *[1] * len(rest)), name=f"{name}.alone")
        one = ops.expand(alone, (*one.shape, *rest), name=f"{name}.all")
    return along.back(f"{name}.counts", ops.scatter_add(one, along.index, shape[dim], name=f"{name}.each"))


def scattered_entries(graph: OperatorGraph, name: str, input: Any, dim: int, index: Any, src: Any) -> Tensor:
    """input, but a number, or entries of ``src``, where computed integers say. Those of entries must be distinct in each row,
    which the step checks."""
    x, at = tensor_of(input, graph, name), tensor_of(index, graph, name)
    number, entries = number_of(src), None
    entries = tensor_of(src, graph, name) if number is None else None
    _require_alike(x, at, entries, dim)
    if entries is not None:
        put = _added(name, x, dim, at, entries, distinct=True)
        if only_number(input) == 0:
            return put
    else:
        put = constant(graph, np.full((1,), number, x.dtype), f"{name}.number")
    there = hits(f"{name}.there", graph, x.shape, dim, at)
    return ops.where(there, "ne", 0.0, put, x, name=name)
