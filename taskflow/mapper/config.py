"""OpConfig: how one operator is cut and placed. Exchange: how tensors go between operators that are cut differently."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import inf, prod

from taskflow.drawing import Drawing
from taskflow.graph import Node
from taskflow.partition import Grid, even_cuts, weighted_cuts
from taskflow.regions import Rect


@dataclass(frozen=True, slots=True)
class OpConfig:
    """Configuration of one operator: how it is cut into pieces, and which processor runs each.

    - ``degrees[i]``: the number of pieces along dimension i of its iteration space.
    - ``processors[k]``: the processor of piece k; pieces are numbered with the last dimension fastest.
    - ``weights[i]``, if given: the proportions of the pieces along dimension i (empty: even pieces), for processors of unequal
      speed.
    - ``copies``: how many processors compute each whole piece redundantly, as Megatron-LM's tensor-parallel ranks do between
      shared layers. ``processors`` then lists the processors of piece 0, then those of piece 1, and so on.
    """

    degrees: tuple[int, ...]
    processors: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...] = ()
    copies: int = 1

    def partition(self, node: Node) -> Grid:
        """Return the cut of ``node``'s iteration space."""
        sizes = tuple([dim.size for dim in node.dims])
        if not self.weights:
            return _even_grid(sizes, self.degrees)
        return Grid(
            [weighted_cuts(s, w) if w else even_cuts(s, d) for s, d, w in zip(sizes, self.degrees, self.weights)]
        )

    def pieces(self, node: Node) -> list[tuple[Rect, int]]:
        """Return every piece with the processor that runs it; with copies, once for each of its processors."""
        rects = self.partition(node).rects()
        if self.copies > 1:
            rects = [rect for rect in rects for _ in range(self.copies)]
        return list(zip(rects, self.processors))

    def is_local(self, node: Node) -> bool:
        """True for what is made of weights alone and computed on several processors, each for what reads it there."""
        return node.of_weights and self.copies > 1

    def draw(self, node: Node) -> Drawing:
        """Draw the pieces of ``node``'s iteration space on their processors, for a notebook."""
        return self.partition(node).draw(self.processors)

    def verify(self, node: Node, processors: int, known: dict[int, tuple[int, ...]] | None = None) -> None:
        """Raise ValueError that says what is wrong if this does not fit the operator or the machine. ``known``: tuples of
        processors that were found to be right, by id, which grow by this one's."""
        who = f"operator {node.name}"
        dims = node.dims
        if len(self.degrees) != len(dims):
            raise ValueError(
                f"{who}: needs one degree for each of {[d.name for d in dims]}, got {self.degrees}"
            )
        for dim, degree in zip(dims, self.degrees):
            if not isinstance(degree, int) or not 1 <= degree <= max(1, dim.size):
                raise ValueError(f"{who}: degree of {dim.name} must be 1 to {dim.size}, got {degree!r}")
            if degree > 1 and not dim.divisible:
                raise ValueError(f"{who}: dimension {dim.name} cannot be cut, got degree {degree}")
        if self.copies != 1:
            self._verify_copies(node)
        elif len(self.processors) != prod(self.degrees):
            raise ValueError(
                f"{who}: {prod(self.degrees)} pieces need as many processors, got {len(self.processors)}"
            )
        if known is None or id(self.processors) not in known:
            used = set(self.processors)  # of micro-batches there are many, on few processors
            fine = set(map(type, used)) == {int} and min(used) >= 0 and max(used) < processors
            for processor in () if fine else used:
                if not isinstance(processor, int) or not 0 <= processor < processors:
                    raise ValueError(f"{who}: processor {processor!r} does not exist; there are 0 to {processors - 1}")
            if known is not None:
                known[id(self.processors)] = self.processors
        if self.weights:
            self._verify_weights(node)

    def _verify_copies(self, node: Node) -> None:
        who, copies, pieces = f"operator {node.name}", self.copies, prod(self.degrees)
        if not isinstance(copies, int) or copies < 1:
            raise ValueError(f"{who}: copies must be a positive integer, got {copies!r}")
        if len(self.processors) != pieces * copies:
            raise ValueError(f"{who}: {pieces} x {copies} copies need as many processors, got {len(self.processors)}")
        for first in range(0, len(self.processors), copies):
            of_piece = self.processors[first : first + copies]
            if len(set(of_piece)) < copies:
                raise ValueError(f"{who}: copies of a piece run on different processors, got {ranges(of_piece)}")
        if node.operator.kind == "state":
            raise ValueError(f"{who}: what is carried from step to step is in one place, so that it cannot have copies")
        for i, (dim, degree) in enumerate(zip(node.dims, self.degrees)):
            if degree > 1 and writes_together(node, i):
                raise ValueError(
                    f"{who}: pieces along {dim.name} write the same elements, and are added, so that they cannot have copies; "
                    "cut another dimension"
                )

    def _verify_weights(self, node: Node) -> None:
        who = f"operator {node.name}"
        if len(self.weights) != len(self.degrees):
            raise ValueError(f"{who}: needs one list of weights a dimension (it may be empty), got {self.weights}")
        for dim, degree, weights in zip(node.dims, self.degrees, self.weights):
            if weights and (len(weights) != degree or not all(0 <= w < inf for w in weights) or sum(weights) <= 0):
                raise ValueError(
                    f"{who}: {dim.name} needs {degree} weights, finite, not negative, not all 0, got {weights}"
                )
        if any(rect.empty for rect in self.partition(node).rects()):
            raise ValueError(f"{who}: weights {self.weights} leave a piece empty; use a smaller degree")

    def describe(self, node: Node) -> str:
        """Return one line: ``n/4 c/2 @ 0-7``, with weights ``n/3:3:1:1 @ 0-3`` (where they repeat, ``n/(3:1)*8``), or with copies
        ``n/2 x4 @ 0-7``. Where processors repeat, as in micro-batches, ``@ (0-3)*8``."""
        weights = self.weights or ((),) * len(self.degrees)
        counts = [_proportions(w) if w else str(k) for k, w in zip(self.degrees, weights)]
        cuts = " ".join(f"{d.name}/{n}" for d, k, n in zip(node.dims, self.degrees, counts) if k > 1) or "whole"
        return f"{cuts}{f' x{self.copies}' * (self.copies > 1)} @ {_places(self.processors)}"


@lru_cache(maxsize=64)
def _places(processors: tuple[int, ...]) -> str:
    """``0-3,8``, or ``(0-3)*8`` of so many micro-batches."""
    try:
        period = processors.index(processors[0], 1)
    except ValueError:  # none comes twice
        return ranges(processors)
    count, rest = divmod(len(processors), period)
    if rest or processors[:period] * count != processors:
        return ranges(processors)
    return f"({ranges(processors[:period])})*{count}"


def _proportions(weights: tuple[float, ...]) -> str:
    """``3:3:1:1``, or ``(3:1)*8`` of so many micro-batches."""
    count = len(weights)
    period = next(n for n in range(1, count + 1) if count % n == 0 and weights[:n] * (count // n) == weights)
    text = ":".join(f"{x:g}" for x in weights[:period])
    return f"({text})*{count // period}" if 1 < period < count else ":".join([text] * (count // period))


def copy_on_each(node: Node, processors: int) -> OpConfig:
    """Return a configuration in which each of so many processors computes all of an operator that is made of weights alone."""
    return OpConfig((1,) * len(node.dims), tuple(range(processors)), copies=processors)


def writes_together(node: Node, dim: int) -> bool:
    """True if pieces along a dimension write the same elements of some output: partial values, which are added."""
    return any(node.written_axis(dim, tensor.index) is None for tensor in node.outputs)


@lru_cache(maxsize=64)
def _even_grid(sizes: tuple[int, ...], degrees: tuple[int, ...]) -> Grid:
    """The grid of even cuts. Layers are alike, and on many devices there are tens of thousands of cuts."""
    return Grid([even_cuts(s, d) for s, d in zip(sizes, degrees)])


class Exchange(Enum):
    """Way in which a tensor moves between operators that cut it differently.

    It matters where the processors that have the tensor are also those that read it. COPIES: piece by piece, from each holder
    to each reader. COLLECTIVES: all together, by a collective of the communication library. RING: as COLLECTIVES, but whole
    pieces that each processor reads in turn (the keys of a context) go from neighbour to neighbour.
    """

    COPIES = "copies"
    COLLECTIVES = "collectives"
    RING = "ring"


@lru_cache(maxsize=64)  # on ten thousand devices those of a layer are as many, and layers are alike
def ranges(numbers: tuple[int, ...]) -> str:
    """Return ``0-3,8`` for (0, 1, 2, 3, 8)."""
    parts: list[str] = []
    start = previous = None
    for n in (*numbers, None):
        if previous is not None and n is not None and n == previous + 1:
            previous = n
            continue
        if start is not None:
            parts.append(f"{start}" if start == previous else f"{start}-{previous}")
        start = previous = n
    return ",".join(parts)
