"""HybridPlan: a plan as Megatron-LM's users name it, ``t8 p4 d16 mb1``. Its words are the table of `plan_words`."""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

from taskflow.mapper.buckets import default_bucket
from taskflow.mapper.pipeline_schedules import PipelineSchedule
from taskflow.mapper.plan_words import CHECKS, WORDS
from taskflow.mapper.sync import BLOCK

NOTATION = ", ".join(word.form + (f" ({word.short})" if word.short else "") for word in WORDS if word.form)
_OTHER_NAMES = {
    "tp": "t", "pp": "p", "dp": "d", "cp": "c", "ep": "e", "mbs": "mb", "vp": "v", "vpp": "v", "fsdp": "hsdp", "zero-": "zero",
    "tensor": "t", "pipeline": "p", "data": "d", "context": "c", "experts": "e",
}
_ALMOST = re.compile(r"(?:[tcpdev]|mb|zero|hsdp|tp|pp|dp|cp|ep|mbs|vpp?)[=:-]?\d.*", re.IGNORECASE)
_TOKEN = re.compile(r"(mb|zero|hsdp|[tcpdev])([0-9]+)")


@dataclass(frozen=True, slots=True)
class HybridPlan:
    """Degrees of parallelism and what else a plan in notation says; `WORDS` explains each. ``data`` None: as many replicas as the
    devices allow. ``micro_batch`` None: all samples of a replica at once, or one in a pipeline. ``stages`` and ``shares`` empty:
    even ones. ``devices`` empty: all in order. ``bucket`` None: the library's. ``recompute_layers``, ``zero_layers``: by layer, in
    order; empty: the same for all. Operators before the first layer count as its own, those after the last as that one's. With
    them ``recompute`` is "none", and ``zero`` is the highest of the stages. Raises ValueError if words do not go together."""

    tensor: int = 1
    pipeline: int = 1
    data: int | None = None
    micro_batch: int | None = None
    virtual: int = 1
    zero: int = 0
    recompute: str = "none"
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    stages: tuple[int, ...] = ()
    context: int = 1
    experts: int = 1
    shard_group: int = 0
    prefetch: int | str = BLOCK
    ring: bool = False
    ulysses: bool = False
    overlap: str = "grads"
    sequence_parallel: bool = True
    loss_parallel: bool = True
    regather: bool = False
    shares: tuple[int, ...] = ()
    devices: tuple[int | str, ...] = ()
    recompute_layers: tuple[str, ...] = ()
    zero_layers: tuple[int, ...] = ()
    split: int = 1
    bucket: int | None = None
    products: str = ""

    def __post_init__(self) -> None:
        if self.zero_layers:
            object.__setattr__(self, "zero", max(self.zero_layers))
        if self.recompute_layers:
            object.__setattr__(self, "recompute", "none")
        for check in CHECKS:
            if wrong := check(self):
                raise ValueError(f"plan: {wrong}")

    @property
    def zeros(self) -> tuple[int, ...]:
        """Return the stages of ZeRO that layers have: of each, if the plan says it by layer, else the one of all."""
        return self.zero_layers or (self.zero,)

    def levels_of(self, layers: int) -> tuple[str, ...]:
        """Return what each of a network's layers recomputes."""
        return self.recompute_layers or (self.recompute,) * layers

    @property
    def sums_beside(self) -> bool:
        """True if gradients are summed beside the backward pass."""
        return self.overlap != "none"

    @property
    def gathers_late(self) -> bool:
        """True if new weights of ZeRO's stages 1 and 2 are gathered beside the next forward pass."""
        return self.overlap == "all"

    @property
    def along(self) -> bool:
        """True if a tensor group cuts what lies between its shared layers along the sequence."""
        return self.tensor > 1 and self.sequence_parallel

    @property
    def cuts(self) -> tuple[object, ...]:
        """Return what plans say that cut layers alike, and place their pieces alike within a group."""
        return self.tensor, self.context, self.experts, self.sequence_parallel, self.loss_parallel, self.ulysses

    @property
    def passes_alike(self) -> tuple[object, ...]:
        """Return what plans say that have a device compute, hold and send the same of each layer in a pass."""
        return self.cuts, self.micro_batch or 1

    @property
    def of_group(self) -> HybridPlan:
        """Return the plan that cuts layers as this one does, of one group with as few replicas as its experts take."""
        return HybridPlan(
            tensor=self.tensor, context=self.context, experts=self.experts, data=self.experts,
            sequence_parallel=self.sequence_parallel, loss_parallel=self.loss_parallel, ulysses=self.ulysses,
        )

    @property
    def has_again(self) -> tuple[object, ...]:
        """Return what plans say that have the same again for the backward pass (`HadAgain`)."""
        return self.recompute_layers or self.recompute, self.regather

    def zeros_of(self, layers: int) -> tuple[int, ...]:
        """Return the stage of ZeRO of each of a network's layers."""
        return self.zero_layers or (self.zero,) * layers

    @property
    def changes(self) -> int:
        """Return how often a layer is recomputed or sharded otherwise than the one before it."""
        return sum(sum(a != b for a, b in pairwise(values)) for values in (self.recompute_layers, self.zero_layers))

    @property
    def in_blocks(self) -> bool:
        """True if weights of ZeRO's stages 2 and 3 are gathered, or their gradients summed, block by block (`gather_units`)."""
        return self.prefetch == BLOCK and not self.schedule.weights_apart

    def bucket_of(self, zero: int) -> int:
        """Return the elements of the buckets of layers at a stage of ZeRO, of a plan with ``data``; 0: each layer by itself."""
        return default_bucket(zero, self.sharers) if self.bucket is None or zero > 1 else self.bucket

    @property
    def samples_a_pass(self) -> int:
        """Return the samples of a micro-batch that all replicas take together, of a plan with ``data`` and ``micro_batch``, or
        ``shares``."""
        return sum(self.shares) or (self.data or 1) * (self.micro_batch or 1)

    @property
    def sharers(self) -> int:
        """Return how many devices share a layer's weights under ZeRO: one of each replica, times those that share its sequences."""
        return (self.data or 1) * self.context

    @property
    def undivided(self) -> int:
        """Return what a replica takes of a micro-batch, in samples, if ``split`` does not divide it; 0 if it divides it for all."""
        return next((each for each in self.shares or (self.micro_batch or 1,) if each % self.split), 0)

    @property
    def may_split(self) -> bool:
        """True if each replica's samples divide into ``split`` parts, and if parts have exchanges within layers to hide."""
        return not self.undivided and (self.split == 1 or max(self.tensor, self.context, self.experts) > 1)

    def verify_runs(self) -> None:
        """Raise ValueError for what is priced and exported only."""
        if self.products:
            raise ValueError(
                f"plan {self}: products={self.products} is priced and exported (torchtitan, Megatron-LM), but not run here; "
                "leave it out"
            )

    def __str__(self) -> str:
        return " ".join(text for word in WORDS if (text := word.text(self)))


def plan_with(plan: HybridPlan, **changes: Any) -> HybridPlan:
    """Return the plan with these fields changed, and without the words that do not go with them: a ring of keys where there is no
    context any more. Raises ValueError if the changes themselves do not go together."""
    changed = copy(plan)
    for name, value in changes.items():
        object.__setattr__(changed, name, value)
    usual = {of.name: of.default for of in fields(plan)}
    for word in WORDS:
        if word.field not in changes and word.check(changed):
            object.__setattr__(changed, word.field, usual[word.field])
    return replace(changed)  # which looks at all words


def is_plan(text: str) -> bool:
    """True if a mapper's name is meant to be a plan such as ``t2 p2 mb1``: whether one of its words is one of the notation's, or
    looks like one (``tp2``, ``t2,p2``)."""
    return any(_ALMOST.fullmatch(one) or any(word.pattern.fullmatch(one) for word in WORDS) for one in text.split())


def parse_plan(text: str) -> HybridPlan:
    """Return the plan that a notation stands for. Raises ValueError that names the word that is wrong."""
    found: dict[str, Any] = {}
    for one in text.split():
        word, match = next(((word, match) for word in WORDS if (match := word.pattern.fullmatch(one))), (None, None))
        if word is None or match is None:
            raise ValueError(f"plan {text!r}: no meaning for {one!r}{_meant(one)}; a plan has {NOTATION}")
        if not match[1]:
            raise ValueError(f"plan: {one} says nothing; leave it out, or write for example {word.example}")
        value, key = word.read(match[1]), word.field
        if key in found or key.removesuffix("_layers") in found or f"{key}_layers" in found:
            raise ValueError(f"plan {text!r}: {one!r} says {key.removesuffix('_layers')} for the second time")
        found[key] = value
    if "shard_group" in found and "zero_layers" not in found:
        found.setdefault("zero", 3)
    if found.get("shard_group") == 0:
        raise ValueError(f"plan {text!r}: hsdp0 is for no replica; hsdpN is for two or more that have all shares together")
    schedule: PipelineSchedule = found.get("schedule", PipelineSchedule.ONE_F_ONE_B)
    if schedule.chunks not in (None, 1):
        if found.get("pipeline", 1) == 1:
            gives = f"schedule={schedule.value} gives each rank of a pipeline {schedule.chunks} stages"
            raise ValueError(f"plan {text!r}: {gives}, which needs p2 or more")
        found.setdefault("virtual", schedule.chunks)
    return HybridPlan(**found)


def _meant(word: str) -> str:
    """What a word without a meaning may be meant to be, as ``"; write t2"``; empty if nothing comes to mind."""
    parts = re.fullmatch(r"([a-z-]+?)[=:-]?(\d+)", word.lower())
    if parts is not None and (known := _TOKEN.fullmatch(f"{_OTHER_NAMES.get(parts[1], parts[1])}{parts[2]}")):
        return f"; write {known[0]}"
    inner = [part for part in re.split(r"[,;]|(?<=\d)(?=[a-z])", word.lower()) if part]
    if len(inner) > 1 and all(_TOKEN.fullmatch(part) for part in inner):
        return f"; write {' '.join(inner)}, with spaces between"
    return ""
