"""CutLinks: which dimension of each tensor is cut when one dimension of an operator is cut. Found by asking the operator what
its pieces read and write."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from taskflow.graph import Node
from taskflow.partition import even_cuts
from taskflow.regions import Rect

FREE = -1  # all pieces read, or write, the same of the tensor
MIXED = -2  # pieces differ, but not as the pieces of one dimension


@dataclass(frozen=True, slots=True)
class CutLinks:
    """The effect of cutting one dimension of an operator: for each input, weight and output, the dimension that is cut with it,
    or FREE or MIXED."""

    inputs: tuple[int, ...]
    weights: tuple[int, ...]
    outputs: tuple[int, ...]


Known = dict[tuple[Hashable, ...], CutLinks]


def links(node: Node, dim: int, degree: int, known: Known) -> CutLinks:
    """Return what is cut when ``node`` is cut into ``degree`` pieces along dimension ``dim``. ``known``: a cache, shared by
    operators that are alike."""
    key = (node.operator, node.specs, dim, degree)
    if key not in known:
        known[key] = _asked(node, dim, degree)
    return known[key]


def _asked(node: Node, dim: int, degree: int) -> CutLinks:
    sizes = [d.size for d in node.dims]
    edges = even_cuts(sizes[dim], degree)
    pieces = [
        Rect(tuple(low if i == dim else 0 for i in range(len(sizes))), tuple(high if i == dim else n for i, n in enumerate(sizes)))
        for low, high in zip(edges, edges[1:])
    ]
    reads = [node.reads(piece) for piece in pieces]
    writes = [node.writes(piece) for piece in pieces]
    return CutLinks(
        tuple(_axis([r.inputs[j] for r in reads], spec.shape) for j, spec in enumerate(node.specs)),
        tuple(_axis([r.weights[j] for r in reads], p.shape) for j, p in enumerate(node.parameters)),
        tuple(_axis([w[o] for w in writes], t.shape) for o, t in enumerate(node.outputs)),
    )


def _axis(rects: Sequence[Rect], shape: tuple[int, ...]) -> int:
    first = rects[0]
    differ = [a for a in range(len(shape)) if any((r.lo[a], r.hi[a]) != (first.lo[a], first.hi[a]) for r in rects)]
    if not differ:
        return FREE
    (axis, *others) = differ
    if others or shape[axis] < len(rects):
        return MIXED
    edges = even_cuts(shape[axis], len(rects))
    return axis if all(r.lo[axis] <= low and high <= r.hi[axis] for r, low, high in zip(rects, edges, edges[1:])) else MIXED
