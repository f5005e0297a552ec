"""What an operator's cut means for its tensors: split along an axis, whole on each rank, or partial sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from taskflow.graph import Node
from taskflow.operators.operator import Soap
from taskflow.regions import Rect


@dataclass(frozen=True, slots=True)
class Lies:
    """How a tensor lies along one mesh dimension. ``axis``: the one that is split; None: whole on each rank, or, if ``partial``,
    each rank has a summand."""

    axis: int | None = None
    partial: bool = False

    def __str__(self) -> str:
        return "partial sums" if self.partial else "whole" if self.axis is None else f"split along axis {self.axis}"


WHOLE, PARTIAL = Lies(), Lies(None, True)


class NotEven(ValueError):
    """Pieces of an operator read more of a tensor than an even share of it: halos, or what no axis divides."""


def output_lies(node: Node, dim: int | None, output: int = 0) -> Lies:
    """How an output lies along a mesh dimension along which the operator's dimension ``dim`` is cut."""
    if dim is None:
        return WHOLE
    axis = node.axis(dim, lambda piece: node.writes(piece)[output])
    if axis is not None:
        return Lies(axis)
    return PARTIAL if node.dims[dim].soap is Soap.REDUCTION else WHOLE


def input_lies(node: Node, dim: int | None, index: int, pieces: int = 2) -> Lies:
    """How an operator that is cut wants an input. Raises NotEven for halos."""
    return _read(node, dim, pieces, lambda piece: node.reads(piece).inputs[index])


def weight_lies(node: Node, dim: int | None, index: int, pieces: int = 2) -> Lies:
    """The same of a parameter."""
    return _read(node, dim, pieces, lambda piece: node.reads(piece).weights[index])


def dim_that_reads(node: Node, index: int, axis: int) -> int | None:
    """The operator's dimension whose pieces are those of an axis of an input, and which is no sum; None if there is none."""
    for dim, of in enumerate(node.dims):
        if of.divisible and of.soap is not Soap.REDUCTION and of.size > 1 and output_lies(node, dim).axis is not None:
            try:
                if input_lies(node, dim, index).axis == axis:
                    return dim
            except NotEven:
                continue
    return None


def _read(node: Node, dim: int | None, pieces: int, rect_of: Callable[[Rect], Rect]) -> Lies:
    if dim is None:
        return WHOLE
    axis = node.axis(dim, rect_of)
    if axis is None:
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
    """Whether of the pieces that share an output one alone reads a parameter (a bias)."""
    if dim is None or node.dims[dim].soap is not Soap.REDUCTION:
        return False
    low = list(node.space.lo)
    low[dim] = node.dims[dim].size // 2
    return node.reads(Rect(tuple(low), node.space.hi)).weights[index].empty
