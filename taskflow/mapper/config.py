"""OpConfig: how one operator is cut and placed. Sync: how a layer's weights are synchronised."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from enum import Enum
from functools import lru_cache
from math import inf, prod
from typing import Any

from taskflow.drawing import Drawing
from taskflow.graph import Node
from taskflow.partition import Grid, even_cuts, weighted_cuts
from taskflow.regions import Rect

BLOCK = "block"
"""Weights are gathered a block ahead (`ShardedSync.prefetch`)."""


@dataclass(frozen=True, slots=True)
class OpConfig:
    """Configuration of one operator: ``degrees[i]`` pieces along dimension i of its iteration space; ``processors[k]`` runs
    piece k, pieces numbered with the last dimension fastest. ``weights[i]``, if given: the proportions of the pieces along
    dimension i (empty: even pieces), for processors of unequal speed. ``copies``: how many processors compute each whole piece
    redundantly, as Megatron-LM's tensor-parallel ranks do between shared layers. ``processors`` then lists the processors of
    piece 0, then those of piece 1, and so on."""

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
        ``n/2 x4 @ 0-7``."""
        weights = self.weights or ((),) * len(self.degrees)
        counts = [_proportions(w) if w else str(k) for k, w in zip(self.degrees, weights)]
        cuts = " ".join(f"{d.name}/{n}" for d, k, n in zip(node.dims, self.degrees, counts) if k > 1) or "whole"
        return f"{cuts}{f' x{self.copies}' * (self.copies > 1)} @ {ranges(self.processors)}"


def _proportions(weights: tuple[float, ...]) -> str:
    """``3:3:1:1``, or ``(3:1)*8`` of so many micro-batches."""
    count = len(weights)
    period = next(n for n in range(1, count + 1) if count % n == 0 and weights[:n] * (count // n) == weights)
    said = ":".join(f"{x:g}" for x in weights[:period])
    return f"({said})*{count // period}" if 1 < period < count else ":".join([said] * (count // period))


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


class SyncAlgorithm(Enum):
    """Algorithm that sums gradients between processors: around a ring, up and down a binomial tree, or straight to an owner,
    each by messages of our own; or by collectives of the communication library (NCCL between GPUs, else MPI)."""

    RING = "ring"
    TREE = "tree"
    OWNER = "owner"
    COLLECTIVE = "collective"


class Exchange(Enum):
    """Way in which a tensor moves between operators that cut it differently.

    It matters where the processors that have the tensor are also those that read it. COPIES: piece by piece, from each holder
    to each reader. COLLECTIVES: all together, by a collective of the communication library. RING: as COLLECTIVES, but whole
    pieces that each processor reads in turn (the keys of a context) go from neighbour to neighbour.
    """

    COPIES = "copies"
    COLLECTIVES = "collectives"
    RING = "ring"


class UpdatePlacement(Enum):
    """Place where a parameter is updated. REPLICATED: on every processor that holds it (gradients are all-reduced). OWNER: on
    one of them, which sends new weights. SHARDED: each holder updates its share and sends it to the others (reduce-scatter,
    then all-gather). The values are the words of strategy files and of `--pin-sync`."""

    REPLICATED = "every"
    OWNER = "owner"
    SHARDED = "spread"


class Sync(ABC):
    """The way in which a layer's weights are synchronised among the processors that hold them: by messages (`MessageSync`), by
    collectives of whole gradients (`CollectiveSync`), or as shares that each holder keeps (`ShardedSync`). Each has the fields
    that mean something for it; what is here can be asked of all."""

    __slots__ = ()

    @staticmethod
    def of(
        algorithm: SyncAlgorithm = SyncAlgorithm.OWNER, placement: UpdatePlacement = UpdatePlacement.SHARDED, **said: Any
    ) -> Sync:
        """Return what strategy files and the notation say word by word: ``said`` are fields of any kind. One at the default of
        files may be said of every kind. Raises ValueError if another does not belong to the kind."""
        given = _UNSAID | {"algorithm": algorithm, "placement": placement} | said
        messages = algorithm is not SyncAlgorithm.COLLECTIVE
        kind = MessageSync if messages else CollectiveSync if given["zero"] == 1 else ShardedSync
        own = {f.name for f in fields(kind)}
        for name, value in given.items():
            if name not in own and value != _UNSAID[name] and name != "prefetch":  # which files have at 1 for any kind
                homes = [home for other, home in _GOES_WITH.items() if name in {f.name for f in fields(other)}]
                said_value = value.value if isinstance(value, Enum) else value
                raise ValueError(
                    f"Sync: {name} {said_value!r} goes with {', or with '.join(homes)}; "
                    f"got {algorithm.value!r}, {placement.value!r} and zero {given['zero']}"
                )
        return kind(**{name: value for name, value in given.items() if name in own})

    @property
    def algorithm(self) -> SyncAlgorithm:
        """How sums of gradients travel."""
        return SyncAlgorithm.COLLECTIVE

    @property
    @abstractmethod
    def placement(self) -> UpdatePlacement:
        """Where the weights are updated."""

    @property
    def zero(self) -> int:
        """The stage of ZeRO; 0: no update is spread."""
        return int(self.placement is UpdatePlacement.SHARDED)

    @property
    def overlap(self) -> bool:
        """Whether gradients are summed as soon as they are ready."""
        return True

    @property
    def bucket(self) -> int:
        """Elements that are synchronised together, at least; 0: each layer by itself."""
        return 0

    @property
    def late_gather(self) -> bool:
        """Whether new weights are gathered in the next step."""
        return False

    @property
    def in_blocks(self) -> bool:
        """True if weights are gathered, and their gradients summed, block by block."""
        return False


@dataclass(frozen=True, slots=True)
class MessageSync(Sync):
    """Synchronisation by messages of our own. ``chunks``: the number of parts of a SHARDED update or a RING (at most one a holder);
    0: as many as leave each at least 1 MiB."""

    algorithm: SyncAlgorithm = SyncAlgorithm.OWNER
    placement: UpdatePlacement = UpdatePlacement.SHARDED
    chunks: int = 0

    def __post_init__(self) -> None:
        _check_counts(self, "chunks")
        if self.algorithm is SyncAlgorithm.COLLECTIVE:
            raise ValueError("MessageSync: algorithm must be one of messages, got 'collective'; use CollectiveSync or ShardedSync")

    def __str__(self) -> str:
        return "/".join([self.algorithm.value, self.placement.value] + [str(self.chunks)] * bool(self.chunks))


@dataclass(frozen=True, slots=True)
class CollectiveSync(Sync):
    """Synchronisation by collectives. REPLICATED: one all-reduce. SHARDED: a reduce-scatter of the gradients, by which every holder
    gets the sum of one share of equal size. After the update of the shares, one all-gather of the new weights follows (ZeRO's
    stage 1: Rajbhandari et al., "ZeRO: Memory optimizations toward training trillion parameter models", arXiv 1910.02054).

    ``overlap``: whether gradients are summed during the backward pass, as soon as they are ready. If not, it waits until each
    holder's backward pass is over (Megatron-LM without --overlap-grad-reduce). ``bucket``: the elements that layers have at
    least whose gradients are summed together, and whose new weights are gathered together (`bucket_units`); 0: each layer by
    itself. ``late_gather``: whether new weights are gathered at the beginning of the next step, behind its first forward
    passes, instead of after the update (Megatron-LM's --overlap-param-gather)."""

    placement: UpdatePlacement = UpdatePlacement.REPLICATED
    overlap: bool = True
    bucket: int = 0
    late_gather: bool = False

    def __post_init__(self) -> None:
        _check_counts(self, "bucket")
        if self.placement is UpdatePlacement.OWNER:
            raise ValueError(
                "Sync: a collective leaves each holder with the whole sum, or with a share of it, so that it goes with placement "
                "'every' or 'spread'; got 'owner'"
            )
        if self.late_gather and self.placement is not UpdatePlacement.SHARDED:
            raise ValueError(
                f"Sync: late_gather has an all-gather of new weights wait for the next step; it goes with placement 'spread', got "
                f"{self.placement.value!r}"
            )

    def __str__(self) -> str:
        words = ["collective", self.placement.value] + [f"bucket{self.bucket}"] * bool(self.bucket)
        return "/".join(words + ["late"] * self.late_gather + ["after"] * (not self.overlap))


@dataclass(frozen=True, slots=True)
class ShardedSync(Sync):
    """Synchronisation of weights whose gradients are kept as shares only, after a reduce-scatter in each backward pass.

    ``zero``: the stage of ZeRO. 3 (FSDP): weights are kept as shares too; an all-gather collects them for each pass that reads
    them. ``shard_group``: the number of neighbouring holders (by their numbers) that have all shares between them (hybrid
    sharding, HSDP). Groups have equal sizes, at most this one. Between groups, the shares' gradients are all-reduced. 0: all
    holders form one group. ``prefetch``: with stage 3, how many layers ahead weights are gathered; or `BLOCK`. Then the layers of
    a block are gathered together, while the block before computes, and their gradients are summed together (`gather_units`).
    FSDP2 does so with `fully_shard` of each block. ``replicas``: how many replicas hold the layer. Weights that k times as many
    processors hold (a tensor-parallel group has those of a normalisation on each of its devices) are in k groups, each with one
    processor of every replica, as FSDP shares them; ``shard_group`` counts within these. 0: replicas do not matter.
    ``late_gather``: as in `CollectiveSync`, with stage 2."""

    zero: int = 3
    shard_group: int = 0
    prefetch: int | str = BLOCK
    replicas: int = 0
    late_gather: bool = False

    def __post_init__(self) -> None:
        if self.zero not in (2, 3):
            raise ValueError(f"Sync: zero, the stage of ZeRO, must be 1, 2 or 3 (1: a CollectiveSync), got {self.zero!r}")
        if self.zero != 3:
            object.__setattr__(self, "prefetch", BLOCK)  # one spelling of what gathers nothing
        _check_counts(self, "shard_group", "replicas", *(("prefetch",) if self.prefetch != BLOCK else ()))
        if self.shard_group == 1:
            raise ValueError("Sync: shard_group needs two holders or more, got 1; for one use placement 'every'")
        if self.late_gather and self.zero == 3:
            raise ValueError(
                "Sync: late_gather has an all-gather of new weights wait for the next step; it goes with zero 1 or 2, got 3, which "
                "gathers weights for each pass"
            )

    @property
    def placement(self) -> UpdatePlacement:
        """Each holder updates its share."""
        return UpdatePlacement.SHARDED

    @property
    def in_blocks(self) -> bool:
        """True if weights are gathered, and their gradients summed, block by block."""
        return self.prefetch == BLOCK

    @property
    def ahead(self) -> int:
        """Return how many units (blocks or layers) ahead weights are gathered."""
        return self.prefetch if isinstance(self.prefetch, int) else 1

    def __str__(self) -> str:
        words = ["collective", f"zero{self.zero}"] + [f"hsdp{self.shard_group}"] * bool(self.shard_group)
        words += [f"replicas{self.replicas}"] * bool(self.replicas)
        return "/".join(words + [f"prefetch{self.prefetch}"] * (self.prefetch != BLOCK) + ["late"] * self.late_gather)


_GOES_WITH: dict[type[MessageSync | CollectiveSync | ShardedSync], str] = {
    MessageSync: "algorithm 'owner', 'ring' or 'tree'", CollectiveSync: "algorithm 'collective' and zero 1",
    ShardedSync: "algorithm 'collective', placement 'spread' and zero 2 or 3",
}  # fmt: skip
_UNSAID: dict[str, Any] = {
    "algorithm": SyncAlgorithm.COLLECTIVE, "placement": UpdatePlacement.SHARDED, "chunks": 0, "zero": 1, "shard_group": 0,
    "prefetch": BLOCK, "overlap": True, "replicas": 0, "bucket": 0, "late_gather": False,
}  # fmt: skip


def _check_counts(sync: Sync, *names: str) -> None:
    for name in names:
        if not isinstance(value := getattr(sync, name), int) or value < 0:
            or_block = f", or {BLOCK!r}" if name == "prefetch" else ""
            raise ValueError(f"Sync: {name} must be an integer, 0 or more{or_block}, got {value!r}")


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
