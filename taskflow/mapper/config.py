"""OpConfig: how one operator is cut and placed. Sync: how a layer's weights are synchronised."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import inf, prod

from taskflow.drawing import Drawing
from taskflow.graph import Node
from taskflow.partition import Grid, even_cuts, weighted_cuts
from taskflow.regions import Rect

BLOCK = "block"
"""Weights are gathered a block ahead (`Sync.prefetch`)."""


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


@dataclass(frozen=True, slots=True)
class Sync:
    """The way in which a layer's weights are synchronised among the processors that hold them.

    ``chunks``: the number of parts of a SHARDED update or a RING (at most one a holder); 0: as many as leave each at least 1
    MiB. A COLLECTIVE ignores it. A REPLICATED collective is one all-reduce. A SHARDED one is a reduce-scatter of the gradients,
    by which every holder gets the sum of one share of equal size. After the update of the shares, one all-gather of the new
    weights follows (ZeRO's stage 1: Rajbhandari et al., "ZeRO: Memory optimizations toward training trillion parameter models",
    arXiv 1910.02054).

    ``zero``: the stage of ZeRO, for a COLLECTIVE that is SHARDED. 2: gradients are also kept as shares only, after a
    reduce-scatter in each backward pass. 3 (FSDP): so are weights; an all-gather collects them for each pass that reads them.
    ``shard_group``: the number of neighbouring holders (by their numbers) that have all shares between them (hybrid sharding,
    HSDP). Groups have equal sizes, at most this one. Between groups, the shares' gradients are all-reduced. 0: all holders form
    one group. ``replicas``: how many replicas hold the layer. Weights that k times as many processors hold (a tensor-parallel
    group has those of a normalisation on each of its devices) are in k groups, each with one processor of every replica, as
    FSDP shares them; ``shard_group`` counts within these. 0: replicas do not matter. ``prefetch``: with stage 3, how many
    layers ahead weights are gathered; or `BLOCK`. Then the layers of a block are gathered together, while the block before
    computes, and their gradients are summed together (`gather_units`). FSDP2 does so with `fully_shard` of each block.
    ``overlap``: whether a collective sums gradients during the backward pass, as soon as they are ready. If not, it waits until
    each holder's backward pass is over (Megatron-LM without --overlap-grad-reduce). ``bucket``: with stage 1 or an all-reduce, the
    elements that layers have at least whose gradients are summed together, and whose new weights are gathered together
    (`bucket_units`); 0: each layer by itself. ``late_gather``: with stages 1 and 2, whether new weights are gathered at the
    beginning of the next step, behind its first forward passes, instead of after the update (Megatron-LM's
    --overlap-param-gather)."""

    algorithm: SyncAlgorithm = SyncAlgorithm.OWNER
    placement: UpdatePlacement = UpdatePlacement.SHARDED
    chunks: int = 0
    zero: int = 1
    shard_group: int = 0
    prefetch: int | str = BLOCK
    overlap: bool = True
    replicas: int = 0
    bucket: int = 0
    late_gather: bool = False

    def __post_init__(self) -> None:
        if self.zero != 3:
            object.__setattr__(self, "prefetch", BLOCK)  # one spelling of what gathers nothing
        for what in ("chunks", "shard_group", "replicas", "bucket", *(("prefetch",) if self.prefetch != BLOCK else ())):
            if not isinstance(value := getattr(self, what), int) or value < 0:
                or_block = f", or {BLOCK!r}" if what == "prefetch" else ""
                raise ValueError(f"Sync: {what} must be an integer, 0 or more{or_block}, got {value!r}")
        if self.zero not in (1, 2, 3):
            raise ValueError(f"Sync: zero, the stage of ZeRO, must be 1, 2 or 3, got {self.zero!r}")
        if self.algorithm is SyncAlgorithm.COLLECTIVE and (self.placement is UpdatePlacement.OWNER or self.chunks):
            raise ValueError(
                f"Sync: a collective leaves each holder with the whole sum, or with a share of it, so that it goes with placement "
                f"'every' or 'spread' and 0 chunks; got {self.placement.value!r} and {self.chunks}"
            )
        if self.zero > 1 and (self.algorithm, self.placement) != (SyncAlgorithm.COLLECTIVE, UpdatePlacement.SHARDED):
            raise ValueError(
                f"Sync: zero {self.zero} keeps shares by reduce-scatter and all-gather, so that it goes with algorithm "
                f"'collective' and placement 'spread'; got {self.algorithm.value!r} and {self.placement.value!r}"
            )
        if not self.overlap and (self.algorithm is not SyncAlgorithm.COLLECTIVE or self.zero > 1):
            raise ValueError(
                f"Sync: overlap False has collectives wait for the end of the backward pass; it goes with algorithm 'collective' "
                f"and zero 1, since zero 2 and 3 keep no whole gradients until then; got {self.algorithm.value!r} and "
                f"zero {self.zero}"
            )
        if self.bucket and (self.algorithm is not SyncAlgorithm.COLLECTIVE or self.zero > 1):
            raise ValueError(
                f"Sync: bucket {self.bucket} has collectives take several layers at once; it goes with algorithm 'collective' "
                f"and zero 1, since zero 2 and 3 go block by block; got {self.algorithm.value!r} and zero {self.zero}"
            )
        if self.late_gather and (self.placement is not UpdatePlacement.SHARDED or self.algorithm is not SyncAlgorithm.COLLECTIVE
                                 or self.zero > 2):  # fmt: skip
            raise ValueError(
                f"Sync: late_gather has an all-gather of new weights wait for the next step; it goes with algorithm 'collective', "
                f"placement 'spread' and zero 1 or 2; got {self.algorithm.value!r}, {self.placement.value!r} and {self.zero}"
            )
        if self.shard_group == 1 or (self.shard_group and self.zero == 1):
            raise ValueError(
                f"Sync: shard_group {self.shard_group} needs zero 2 or 3, and two holders or more; for one use placement 'every'"
            )
        if self.replicas and self.zero == 1:
            raise ValueError(f"Sync: replicas {self.replicas} say who shares weights with zero 2 or 3; got zero 1")

    @property
    def in_blocks(self) -> bool:
        """True if weights are gathered, and their gradients summed, block by block."""
        return self.zero > 1 and self.prefetch == BLOCK

    @property
    def ahead(self) -> int:
        """Return how many units (blocks or layers) ahead weights are gathered."""
        return self.prefetch if isinstance(self.prefetch, int) else 1

    def __str__(self) -> str:
        where = self.placement.value if self.zero == 1 else f"zero{self.zero}"
        words = [self.algorithm.value, where] + [str(self.chunks)] * bool(self.chunks)
        words += [f"hsdp{self.shard_group}"] * bool(self.shard_group) + [f"replicas{self.replicas}"] * bool(self.replicas)
        words += [f"prefetch{self.prefetch}"] * (self.prefetch != BLOCK) + [f"bucket{self.bucket}"] * bool(self.bucket)
        words += ["late"] * self.late_gather + ["after"] * (not self.overlap)
        return "/".join(words)


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
