"""Cuts: what an operator's cut means for its tensors: split along an axis, whole on each rank, or partial sums."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from taskflow.graph import Node
from taskflow.operators.operator import Operator, Soap, Spec
from taskflow.regions import Rect


@dataclass(frozen=True, slots=True)
class Lies:
    """Layout of a tensor along one mesh dimension. ``axis``: the axis that is split; None: whole on each rank, or, if
    ``partial``, each rank has a summand."""

    axis: int | None = None
    partial: bool = False

    def __str__(self) -> str:
        return "partial sums" if self.partial else "whole" if self.axis is None else f"split along axis {self.axis}"


WHOLE, PARTIAL = Lies(), Lies(None, True)
NOTHING_READ = {"full_like"}  # operators of an input's shape that read nothing of it: the framework computes them where it is


class NotEven(ValueError):
    """Error for pieces that read more of a tensor than an even share: halos, or parts that no axis divides."""


def output_lies(node: Node, dim: int | None, output: int = 0) -> Lies:
    """Return the layout of an output along a mesh dimension along which the operator's dimension ``dim`` is cut."""
    if dim is None:
        return WHOLE
    return _written(node.operator, node.specs, dim, output)


def input_lies(node: Node, dim: int | None, index: int, pieces: int = 2) -> Lies:
    """Return the layout that a cut operator needs for an input. Raises NotEven for halos."""
    return WHOLE if dim is None else _read(node.operator, node.specs, dim, pieces, index, False)


def weight_lies(node: Node, dim: int | None, index: int, pieces: int = 2) -> Lies:
    """Return the same for a parameter."""
    return WHOLE if dim is None else _read(node.operator, node.specs, dim, pieces, index, True)


def dim_that_reads(node: Node, index: int, axis: int) -> int | None:
    """Return the operator's dimension, not contracted, whose pieces are those of an axis of an input; None if there is none."""
    for dim, of in enumerate(node.dims):
        if of.divisible and of.soap is not Soap.REDUCTION and of.size > 1 and output_lies(node, dim).axis is not None:
            try:
                if input_lies(node, dim, index).axis == axis:
                    return dim
            except NotEven:
                continue
    return None


# Nodes that are alike are looked at once: their operator and the specs of what it takes say it all.
@lru_cache(maxsize=1 << 12)
def _alone(operator: Operator, specs: tuple[Spec, ...]) -> Node:
    """Return a node in no graph, so that no graph is kept."""
    return Node(0, operator.kind, operator, (), (), (), specs, operator.dims(specs))


@lru_cache(maxsize=1 << 14)
def _written(operator: Operator, specs: tuple[Spec, ...], dim: int, output: int) -> Lies:
    node = _alone(operator, specs)
    axis = node.written_axis(dim, output)
    if axis is not None:
        return Lies(axis)
    return PARTIAL if node.dims[dim].soap is Soap.REDUCTION else WHOLE


@lru_cache(maxsize=1 << 14)
def _read(operator: Operator, specs: tuple[Spec, ...], dim: int, pieces: int, index: int, weight: bool) -> Lies:
    node = _alone(operator, specs)

    def rect_of(piece: Rect) -> Rect:
        reads = node.reads(piece)
        return (reads.weights if weight else reads.inputs)[index]

    axis = node.axis(dim, rect_of)
    if operator.kind in NOTHING_READ:
        return _written(operator, specs, dim, 0)
    if axis is None or (weight and added_once(node, dim, index)):
        return WHOLE
    size = node.dims[dim].size
    whole = rect_of(node.space)
    if size % pieces == 0:
        for number in range(pieces):
            low, high = list(node.space.lo), list(node.space.hi)
            low[dim], high[dim] = number * size // pieces, (number + 1) * size // pieces
            found = rect_of(Rect(tuple(low), tuple(high)))
            extent = whole.shape[axis]
            wanted = (number * extent // pieces, (number + 1) * extent // pieces)
            others = [k for k in range(whole.ndim) if k != axis]
            if (found.lo[axis], found.hi[axis]) != wanted or any(found.shape[k] != whole.shape[k] for k in others):
                raise NotEven(
                    f"each piece of {node.dims[dim].name} reads {found.shape[axis]} of {extent} elements along axis {axis} of "
                    "what it takes, beyond an even share (a halo)"
                )
    return Lies(axis)


def added_once(node: Node, dim: int | None, index: int) -> bool:
    """True if the pieces that share an output add each element of a parameter (a bias) in one of them only: the first reads
    all, or each reads a share of its channels, which other dimensions cut, too."""
    if dim is None or node.dims[dim].soap is not Soap.REDUCTION:
        return False

    def rect_of(piece: Rect) -> Rect:
        return node.reads(piece).weights[index]

    low = list(node.space.lo)
    low[dim] = node.dims[dim].size // 2
    if rect_of(Rect(tuple(low), node.space.hi)).empty:
        return True
    axis = node.axis(dim, rect_of)
    others = (k for k, other in enumerate(node.dims) if other.soap is not Soap.REDUCTION)
    return axis is not None and any(node.axis(k, rect_of) == axis for k in others)
