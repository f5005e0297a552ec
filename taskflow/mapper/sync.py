"""Sync: how a layer's weights are synchronised, how strategy files say it (`SyncEntry`), and how plans do (`sync_of`).

A new way is a field of a kind of `Sync`, one of `SyncEntry`, and a line in `sync_of` and in `sync_words`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from taskflow.reading import Entry, Whole

if TYPE_CHECKING:
    from taskflow.mapper.plan import HybridPlan

BLOCK = "block"
"""Weights are gathered a block ahead (`ShardedSync.prefetch`)."""


Stage = Annotated[int, Meta(ge=1, le=3)]


class SyncAlgorithm(Enum):
    """Algorithm that sums gradients between processors: around a ring, up and down a binomial tree, or straight to an owner,
    each by messages of our own; or by collectives of the communication library (NCCL between GPUs, else MPI)."""

    RING = "ring"
    TREE = "tree"
    OWNER = "owner"
    COLLECTIVE = "collective"


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
        algorithm: SyncAlgorithm = SyncAlgorithm.OWNER, placement: UpdatePlacement = UpdatePlacement.SHARDED, **options: Any
    ) -> Sync:
        """Return what strategy files and the notation say word by word: ``options`` are fields of any kind. One at the default of
        files may be said of every kind. Raises ValueError if another does not belong to the kind."""
        given = _UNSAID | {"algorithm": algorithm, "placement": placement} | options
        messages = algorithm is not SyncAlgorithm.COLLECTIVE
        kind = MessageSync if messages else CollectiveSync if given["zero"] == 1 else ShardedSync
        own = {f.name for f in fields(kind)}
        for name, value in given.items():
            if name not in own and value != _UNSAID[name] and name != "prefetch":  # which files have at 1 for any kind
                homes = [home for other, home in _GOES_WITH.items() if name in {f.name for f in fields(other)}]
                shown = value.value if isinstance(value, Enum) else value
                raise ValueError(
                    f"Sync: {name} {shown!r} goes with {', or with '.join(homes)}; "
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
    def shard_group(self) -> int:
        """Holders that have all shares between them; 0: all."""
        return 0

    @property
    def prefetch(self) -> int | str:
        """How far ahead weights are gathered that are kept as shares."""
        return BLOCK

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

    @property
    def ordered(self) -> bool:
        """True if weights, or their gradients, are kept as shares, gathered or summed at another time, or in buckets."""
        return self.zero > 1 or not self.overlap or bool(self.bucket) or self.late_gather


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
    """Synchronisation by collectives. REPLICATED: one all-reduce of the gradients. SHARDED: a reduce-scatter gives every holder the
    sum of one share; after the update of the shares, one all-gather follows of the new weights (ZeRO's stage 1: Rajbhandari et
    al., "ZeRO: Memory optimizations toward training trillion parameter models", arXiv 1910.02054).

    - ``overlap``: sum gradients during the backward pass, as soon as they are ready. Otherwise summing waits until each
      holder's backward pass is over (Megatron-LM without --overlap-grad-reduce).
    - ``bucket``: the least number of elements of the layers whose gradients are summed together, and whose new weights are
      gathered together (`bucket_units`); 0: each layer by itself.
    - ``late_gather``: gather new weights at the beginning of the next step, behind its first forward passes, instead of after
      the update (Megatron-LM's --overlap-param-gather).
    """

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

    - ``zero``: the stage of ZeRO. 3 (FSDP): weights are kept as shares too; an all-gather collects them for each pass that reads
      them.
    - ``shard_group``: the number of neighbouring holders (by their numbers) that have all shares between them (hybrid
      sharding, HSDP). Groups have equal sizes, at most this one. Between groups, the shares' gradients are all-reduced. 0: all
      holders form one group.
    - ``prefetch``: with stage 3, how many layers ahead weights are gathered; or `BLOCK`. Then the layers of a block are gathered
      together, while the block before computes, and their gradients are summed together (`gather_units`), as FSDP2 does with
      `fully_shard` of each block.
    - ``replicas``: how many replicas hold the layer; 0: that does not matter. If k times as many processors hold its weights,
      as a tensor-parallel group does those of a normalisation, they are in k groups. Each group has one processor of every
      replica, as FSDP shares them; ``shard_group`` counts within these.
    - ``late_gather``: as in `CollectiveSync`, with stage 2.
    """

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


# ---- files and plans ------------------------------------------------------------------------------------------------
class SyncEntry(Entry, frozen=True, kw_only=True):
    """Synchronisation of a layer's weights."""

    travel: Annotated[SyncAlgorithm, Meta(description="How sums of gradients travel.")]
    place: Annotated[UpdatePlacement, Meta(description="Where the weights are updated.")]
    chunks: Annotated[Whole, Meta(description="Into how many parts a spread update or a ring is divided. 0: by size.")] = 0
    zero: Annotated[Stage, Meta(description="Stage of ZeRO of a collective with a spread update.")] = 1
    shard_group: Annotated[Whole, Meta(description="Holders that have all shares together, with zero 2 or 3. 0: all.")] = 0
    replicas: Annotated[
        Whole, Meta(description="Replicas of the layer, with zero 2 or 3, which share its weights. 0: all holders share them.")
    ] = 0
    prefetch: Annotated[
        Whole | Literal["block"], Meta(description="Layers gathered ahead, with zero 3; block: a block of layers, one ahead.")
    ] = 1
    overlap: Annotated[bool, Meta(description="Whether a collective sums gradients beside the backward pass.")] = True
    bucket: Annotated[
        Whole, Meta(description="Elements of the layers that a collective takes together, at least. 0: each layer by itself.")
    ] = 0
    late_gather: Annotated[
        bool, Meta(description="Whether new weights are gathered at the beginning of the next step, with a spread update.")
    ] = False


def sync_of_entry(entry: SyncEntry) -> Sync:
    """Return what an entry of a strategy file says. Raises ValueError if it does not go together."""
    options = msgspec.structs.asdict(entry)
    return Sync.of(options.pop("travel"), options.pop("place"), **options)


def sync_entry(sync: Sync) -> dict[str, Any]:
    """Return the entry of a strategy file."""
    found: dict[str, Any] = {"travel": sync.algorithm.value, "place": sync.placement.value}
    found["chunks"] = sync.chunks if isinstance(sync, MessageSync) else 0
    if isinstance(sync, ShardedSync):
        found |= {"zero": sync.zero, "shard_group": sync.shard_group}
        found |= {"replicas": sync.replicas} if sync.replicas else {}
        found |= {"prefetch": sync.prefetch} if sync.zero == 3 else {}
    found |= {} if sync.overlap else {"overlap": False}
    return found | ({"bucket": sync.bucket} if sync.bucket else {}) | ({"late_gather": True} if sync.late_gather else {})


def sync_of(zero: int, plan: HybridPlan) -> CollectiveSync | ShardedSync:
    """Return how a layer at a stage of ZeRO is synchronised under a plan with every degree set."""
    late = plan.gathers_late and 0 < zero < 3
    if zero < 2:
        place = UpdatePlacement.SHARDED if zero else UpdatePlacement.REPLICATED
        return CollectiveSync(place, plan.sums_beside, plan.bucket_of(zero), late)
    return ShardedSync(zero, plan.shard_group, plan.prefetch, plan.sharers if plan.tensor > 1 else 0, late)


def sync_words(sync: Sync) -> dict[str, Any]:
    """Return fields of the plan whose layers are synchronised so (the reverse of `sync_of`), its bucket written out."""
    return {
        "zero": sync.zero, "shard_group": sync.shard_group, "prefetch": sync.prefetch,
        "bucket": sync.bucket if sync.zero < 2 else None,
        "overlap": "all" if sync.late_gather else "grads" if sync.overlap else "none",
    }
