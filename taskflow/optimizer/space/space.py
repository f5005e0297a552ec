"""The SOAP space: every configuration that a search may give an operator on a machine (paper, section 4).

A configuration is a degree for each dimension and a processor for each piece. With n processors an operator has at most n
pieces. Its *placements* are structured or arbitrary. Structured: piece number ``slot`` runs on processor (offset +
stride x slot) mod n. Contiguous ones have stride 1 and number pieces in the natural order; strided ones have another
stride; permuted ones take the cut dimensions in another order. A space may have only the contiguous ones, from any
offset. Arbitrary: any processor for any piece.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, permutations, product
from math import factorial, prod
from random import Random

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig
from taskflow.operators.operator import Dim, Soap
from taskflow.optimizer.space.constraints import Constraints
from taskflow.optimizer.space.permitted import Permitted

DEGREES = ("any", "even", "powers")
PLACEMENTS = ("structured", "contiguous", "arbitrary")
FOLLOW = ("none", "passive", "elementwise", "weightless")
MOST_TUPLES = 4096  # above this many degree tuples an operator falls back to even ones, then to powers of two


@dataclass(frozen=True, slots=True)
class SpaceOptions:
    """Options that define the strategies from which a search may choose.

    ``degrees``: ``any`` up to the dimension's size; ``even``, those that divide it (the paper's equal pieces); ``powers`` of
    two. An operator with more than MOST_TUPLES tuples of degrees takes the next smaller set. ``placements``: see the module. In
    the default search, structured ones include the machine's device groups (`optimizer.space.device_groups`). With contiguous
    ones, known strategies are repaired to have these too. ``reduction``: whether contracted dimensions may be cut.
    ``most_pieces``: of one operator; 0 means one for each processor. ``follow``: which operators do not choose in exact search
    and in `mcmc` but follow a neighbour (`optimizer.space.decisions`, `optimizer.space.followers`). ``none``: all choose.
    ``passive``: inputs, carried state, views and scalars follow. ``elementwise``: also activations, normalisation and sums of
    two tensors; not the loss. ``weightless``: all without weights. ``uneven``: whether the guided search may give unequal
    devices pieces of uneven size (`optimizer.space.shares`); with equal devices pieces are always even. ``constraints``: on
    single operators; they override everything else.
    """

    degrees: str = "any"
    placements: str = "structured"
    reduction: bool = True
    most_pieces: int = 0
    follow: str = "none"
    uneven: bool = True
    constraints: Constraints = field(default_factory=Constraints)

    def __post_init__(self) -> None:
        if self.degrees not in DEGREES:
            raise ValueError(f"space: degrees must be one of {', '.join(DEGREES)}, got {self.degrees!r}")
        if self.placements not in PLACEMENTS:
            raise ValueError(f"space: placements must be one of {', '.join(PLACEMENTS)}, got {self.placements!r}")
        if self.follow not in FOLLOW:
            raise ValueError(f"space: follow must be one of {', '.join(FOLLOW)}, got {self.follow!r}")
        if self.most_pieces < 0:
            raise ValueError(f"space: most_pieces must not be negative, got {self.most_pieces}")


class OperatorSpace:
    """Configurations of one operator on ``processors`` processors, of which only the ``permitted`` ones may be used."""

    __slots__ = ("_cuts", "_ends", "_strides", "devices", "dims", "most", "options", "permitted", "processors", "tuples")

    def __init__(
        self, dims: Sequence[Dim], processors: int, options: SpaceOptions | None = None, permitted: Permitted | None = None
    ) -> None:
        self.dims, self.permitted = tuple(dims), permitted
        self.devices = permitted.devices if permitted is not None else ()
        self.processors = len(self.devices) or processors
        self.options = options or SpaceOptions()
        self.most = self.options.most_pieces or self.processors
        self._cuts: dict[tuple[int, int, bool, bool], tuple[tuple[int, ...], ...]] = {}
        self._strides: dict[int, tuple[int, ...]] = {}
        self.tuples = self._tuples()
        self._ends: list[int] = []

    def _tuples(self) -> list[tuple[int, ...]]:
        if self.permitted is not None and self.permitted.pin is not None:
            return [self.permitted.pin.degrees]
        most = min(self.most, self.permitted.pieces) if self.permitted is not None and self.permitted.pieces else self.most
        first = DEGREES.index(self.options.degrees)
        for choice in DEGREES[first:]:
            steps = [degrees_of(dim, most, choice, self.options.reduction) for dim in self.dims]
            if self.permitted is not None:
                steps = [tuple(d for d in degrees if d <= cap) for degrees, cap in zip(steps, self.permitted.caps)]
            found = list(_bounded(steps, most, MOST_TUPLES + 1))
            if len(found) <= MOST_TUPLES or choice == DEGREES[-1]:
                break
        return found

    def cuts(
        self, pieces: int, *, dimensions: int = 0, contracted: bool = True, nearest: bool = False
    ) -> tuple[tuple[int, ...], ...]:
        """Return those of ``tuples`` that cut into this many pieces, in order. ``dimensions``: only those that cut at most this
        many dimensions (0: any number). ``contracted``: whether contracted dimensions may be cut. ``nearest``: if there are
        none, those with the next smaller number of pieces; an operator for which there are still none (it is pinned) returns
        its own, so that there always is one. Results are cached."""
        key = (pieces, dimensions, contracted, nearest)
        if key not in self._cuts:
            fits = [
                degrees for degrees in self.tuples
                if (prod(degrees) <= pieces if nearest else prod(degrees) == pieces)
                and (not dimensions or sum(d > 1 for d in degrees) <= dimensions)
                and (contracted or all(d == 1 or dim.soap is not Soap.REDUCTION for d, dim in zip(degrees, self.dims)))
            ]
            if nearest:
                fits = fits or [min(self.tuples, key=prod)]
                most = max(map(prod, fits))
                fits = [degrees for degrees in fits if prod(degrees) == most]
            self._cuts[key] = tuple(fits)
        return self._cuts[key]

    @property
    def ends(self) -> list[int]:
        """Cumulative number of configurations up to each of ``tuples``, counted when it is first needed."""
        if not self._ends:
            self._ends = list(accumulate(self.placements(degrees) for degrees in self.tuples))
        return self._ends

    @property
    def size(self) -> int:
        """Number of configurations."""
        return self.ends[-1]

    def placements(self, degrees: Sequence[int]) -> int:
        """Return the number of distinct placements of a cut."""
        if self.permitted is not None and self.permitted.pin is not None:
            return 1
        pieces = prod(degrees)
        if self.options.placements == "arbitrary":
            return int(self.processors**pieces)
        return len(self.strides(pieces)) * self.processors * self.orders(degrees)

    def orders(self, degrees: Sequence[int]) -> int:
        """Return the number of orders in which the pieces of a cut may be numbered."""
        return 1 if self.options.placements == "contiguous" else orders(degrees)

    def strides(self, pieces: int) -> tuple[int, ...]:
        """Return the strides with which ``pieces`` pieces reach different processors: divisors of the number of processors."""
        if pieces not in self._strides:
            n = self.processors
            fits = tuple(s for s in range(1, n + 1) if n % s == 0 and s * pieces <= n)
            self._strides[pieces] = (fits or (1,)) if pieces > 1 and self.options.placements != "contiguous" else (1,)
        return self._strides[pieces]

    def draw(self, random: Random) -> OpConfig:
        """Draw a configuration, each with probability 1 / size.

        So the proposal "replace one random operator's configuration" has q(S | S*) = q(S* | S) = 1 / (operators x size)
        whatever S is, and the Metropolis-Hastings rule needs no correction (paper, section 6.2).
        """
        return self.numbered(random.randrange(self.size))

    def numbered(self, number: int) -> OpConfig:
        """Return the configuration of a number, 0 to `size` - 1. Raises IndexError if there is none."""
        ends = self.ends
        index = bisect_right(ends, number)
        return self._placed(self.tuples[index], number - (ends[index - 1] if index else 0))

    def __iter__(self) -> Iterator[OpConfig]:
        """Every configuration; only sensible where `size` is small."""
        for degrees in self.tuples:
            for number in range(self.placements(degrees)):
                yield self._placed(degrees, number)

    def _placed(self, degrees: tuple[int, ...], number: int) -> OpConfig:
        n, pieces = self.processors, prod(degrees)
        if self.options.placements == "arbitrary":
            return self._there(OpConfig(degrees, tuple(number // n**i % n for i in range(pieces))))
        number, offset = divmod(number, n)
        order, stride = divmod(number, len(self.strides(pieces)))
        return self.at(degrees, offset, self.strides(pieces)[stride], order)

    def at(self, degrees: Sequence[int], offset: int = 0, stride: int = 1, order: int = 0) -> OpConfig:
        """Return `place` on the processors that the operator may have; the pinned configuration if it has one."""
        return self._there(place(degrees, self.processors, offset, stride, order))

    def _there(self, config: OpConfig) -> OpConfig:
        """A configuration on processors 0, 1, ... moved to the permitted ones."""
        if self.permitted is not None and self.permitted.pin is not None:
            return self.permitted.pin
        if not self.devices:
            return config
        return OpConfig(config.degrees, tuple(self.devices[p] for p in config.processors))

    def contains(self, config: OpConfig) -> bool:
        """True if `draw` can return this configuration."""
        if config.weights or config.degrees not in set(self.tuples):
            return False
        if self.permitted is not None:
            if self.permitted.pin is not None or self.permitted.violation(config):
                return config == self.permitted.pin
            if self.devices:
                config = OpConfig(config.degrees, tuple(self.devices.index(p) for p in config.processors))
        if self.options.placements == "arbitrary":
            return all(0 <= p < self.processors for p in config.processors)
        return any(
            place(config.degrees, self.processors, config.processors[0], stride, order) == config
            for stride in self.strides(len(config.processors))
            for order in range(self.orders(config.degrees))
        )

    def candidates(self, aligned: bool = True, most: int = 0) -> list[OpConfig]:
        """Return structured configurations to try one after another. ``aligned``: only offsets at which pieces fill whole
        blocks of the machine (a multiple of the pieces, or below the stride); else all offsets. ``most``: at most this many, an
        even sample of all (0: all)."""
        n = self.processors
        rows = []  # degrees, stride, how many orders, and the offsets, as ranges of equal lengths
        for degrees in self.tuples:
            for stride in self.strides(prod(degrees)):
                width = stride if aligned else n
                block = prod(degrees) * stride if aligned else n
                whole, rest = divmod(n, block)
                rows.append((degrees, stride, self.orders(degrees), width, block, whole * width + min(rest, width)))
        ends = list(accumulate(offsets * ways for _, _, ways, _, _, offsets in rows))
        step = max(1, -(-ends[-1] // most)) if most else 1
        found: dict[OpConfig, None] = {}
        for number in range(0, ends[-1], step):
            row = bisect_right(ends, number)
            degrees, stride, ways, width, block, _ = rows[row]
            offset, order = divmod(number - (ends[row - 1] if row else 0), ways)
            found[self.at(degrees, offset // width * block + offset % width, stride, order)] = None
        return list(found)


def degrees_of(dim: Dim, most: int, choice: str, reduction: bool) -> tuple[int, ...]:
    """Return the degrees that a dimension may have."""
    if not dim.divisible or (dim.soap is Soap.REDUCTION and not reduction):
        return (1,)
    top = min(max(dim.size, 1), most)
    if choice == "powers":
        return tuple(1 << i for i in range(top.bit_length()) if 1 << i <= top)
    return tuple(d for d in range(1, top + 1) if choice == "any" or dim.size % d == 0)


def _bounded(steps: Sequence[Sequence[int]], most: int, limit: int) -> Iterator[tuple[int, ...]]:
    """Tuples of one degree from each step whose product is at most ``most``; at most ``limit`` of them."""
    count = 0
    stack: list[tuple[tuple[int, ...], int]] = [((), 1)]
    while stack and count < limit:
        chosen, pieces = stack.pop()
        if len(chosen) == len(steps):
            count += 1
            yield chosen
            continue
        fitting = [d for d in steps[len(chosen)] if pieces * d <= most]
        stack.extend(((*chosen, d), pieces * d) for d in reversed(fitting))


def orders(degrees: Sequence[int]) -> int:
    """Return the number of orders in which the cut dimensions can be numbered."""
    return factorial(sum(d > 1 for d in degrees))


def place(degrees: Sequence[int], processors: int, offset: int = 0, stride: int = 1, order: int = 0) -> OpConfig:
    """Return the structured configuration: slot s runs on (offset + stride x s) mod ``processors``. ``order``: the permutation
    of the cut dimensions that numbers the slots (0: the natural one)."""
    degrees = tuple(degrees)
    pieces = prod(degrees)
    if order == 0:
        return OpConfig(degrees, tuple([(offset + stride * s) % processors for s in range(pieces)]))
    return OpConfig(degrees, tuple([(offset + stride * s) % processors for s in _slots(degrees, order)]))


@lru_cache(maxsize=4096)
def _slots(degrees: tuple[int, ...], order: int) -> tuple[int, ...]:
    """Piece -> slot, the cut dimensions numbered in the given order."""
    cut = [i for i, d in enumerate(degrees) if d > 1]
    chosen = _permutation(cut, order)
    weight, step = dict.fromkeys(range(len(degrees)), 0), 1
    for i in reversed(chosen):
        weight[i] = step
        step *= degrees[i]
    return tuple(sum(weight[i] * c for i, c in enumerate(color)) for color in product(*(range(d) for d in degrees)))


def _permutation(items: Sequence[int], number: int) -> tuple[int, ...]:
    for i, chosen in enumerate(permutations(items)):
        if i == number:
            return chosen
    raise ValueError(f"place: there are {factorial(len(items))} orders of {len(items)} cut dimensions, got number {number}")


class SearchSpace:
    """Spaces of all operators of a graph; operators with equal dimensions and constraints share one."""

    def __init__(self, graph: OperatorGraph, processors: int, options: SpaceOptions | None = None) -> None:
        self.options = options or SpaceOptions()
        self.processors = processors
        self.permitted = self.options.constraints.resolve(graph, processors)
        shared: dict[tuple[tuple[Dim, ...], Permitted | None], OperatorSpace] = {}
        self.operators: dict[str, OperatorSpace] = {}
        for node in graph:
            key = node.dims, self.permitted.get(node.name)
            if key not in shared:
                shared[key] = OperatorSpace(node.dims, processors, self.options, key[1])
            self.operators[node.name] = shared[key]

    def __getitem__(self, node: Node | str) -> OperatorSpace:
        return self.operators[node if isinstance(node, str) else node.name]

    @property
    def strategies(self) -> int:
        """Number of strategies."""
        return prod(space.size for space in self.operators.values())

    def random(self, random: Random) -> dict[str, OpConfig]:
        """Draw a configuration for every operator, uniform over all strategies."""
        return {name: space.draw(random) for name, space in self.operators.items()}
