"""Notation: a configuration as strategies are described, ``n/4 c/2 @ 0-7``, a synchronisation, ``ring/every``, and a plan as
Megatron-LM's users name it, ``t8 p4 d16 mb1``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

from taskflow.graph import Node
from taskflow.mapper.buckets import LAYER, bucket_word, default_bucket, parse_bucket
from taskflow.mapper.config import BLOCK, OpConfig, Sync, SyncAlgorithm, UpdatePlacement, ranges
from taskflow.mapper.pipeline_schedules import PipelineSchedule

_WEIGHT = r"(?:\d+\.?\d*(?:e[+-]?\d+)?)"
_SIZES = rf"{_WEIGHT}(?::{_WEIGHT})+"


def parse_config(text: str, node: Node, processors: int) -> OpConfig:
    """Return the configuration that `OpConfig.describe` writes as ``text``: cuts (``whole`` for none) and, after an ``@``, a
    processor for each piece; without it pieces run on 0, 1, 2, ... For uneven pieces their proportions replace their number:
    ``n/3:3:1:1``, or ``n/(3:1)*8`` if they repeat. ``n/2 x4``: four processors run each piece. Raises ValueError if ``text`` is
    malformed or does not fit the operator."""
    cuts, at, places = text.partition("@")
    degrees = [1] * len(node.dims)
    weights: list[tuple[float, ...]] = [()] * len(node.dims)
    names = [dim.name for dim in node.dims]
    words = cuts.split()
    if not words:
        raise ValueError(f"operator {node.name}: {text!r} has no cut; write whole @ 0, or for example {_example(node)}")
    copies = int(words.pop()[1:]) if re.fullmatch(r"x[1-9]\d*", words[-1]) else 1
    for word in words if words != ["whole"] else ():
        match = re.fullmatch(rf"(.+?)/(?:(\d+|{_SIZES})|\(({_SIZES})\)\*([1-9]\d*))", word)
        if match is None or match.group(1) not in names:
            raise ValueError(
                f"operator {node.name}: {word!r} in {text!r} is not a cut; write DIMENSION/PIECES with one of the dimensions "
                f"{', '.join(names) or '(none)'}, for example {_example(node)}"
            )
        pieces = match.group(2).split(":") if match.group(2) else match.group(3).split(":") * int(match.group(4))
        dim = names.index(match.group(1))
        degrees[dim] = len(pieces) if len(pieces) > 1 else int(pieces[0])
        weights[dim] = tuple(map(float, pieces)) if len(pieces) > 1 else ()
    found = parse_ranges(places, f"operator {node.name}: {text!r}") if at else tuple(range(prod(degrees) * copies))
    config = OpConfig(tuple(degrees), found, tuple(weights) if any(weights) else (), copies)
    config.verify(node, processors)
    return config


_STAGES = {"zero2": 2, "zero3": 3, "fsdp": 3}
_SYNC_NUMBER = re.compile(r"(hsdp|replicas|prefetch|bucket|)(\d+)|(block)")
_SYNC_FIELDS = {"": "chunks", "hsdp": "shard_group", "replicas": "replicas", "prefetch": "prefetch", "bucket": "bucket"}


def parse_sync(text: str, who: str) -> Sync:
    """Return the synchronisation that `Sync` prints as ``text``: ``ring/every``, ``owner/spread/8`` with chunks, or
    ``collective/zero3/hsdp4/prefetch2``. Raises ValueError that begins with ``who``."""
    words = text.replace(" ", "").split("/")
    overlap = words[-1] != "after"
    words = words if overlap else words[:-1]
    travels, places = [t.value for t in SyncAlgorithm], [p.value for p in UpdatePlacement]
    numbers = [_SYNC_NUMBER.fullmatch(word) for word in words[2:]]
    kinds = [_SYNC_FIELDS[match[1] or ""] if match[2] else "prefetch" for match in numbers if match is not None]
    if (
        len(words) < 2 or words[0] not in travels or words[1] not in (*places, *_STAGES) or None in numbers
        or len(set(kinds)) < len(kinds)
    ):
        raise ValueError(
            f"{who}: write TRAVEL/PLACE or TRAVEL/PLACE/CHUNKS, such as ring/every or owner/spread/8, or for shares of gradients "
            f"or weights collective/zero2 or collective/zero3, which hsdpN, replicasN and prefetchN or block may follow, or after "
            f"another collective bucketN and after, with TRAVEL one of "
            f"{', '.join(travels)} and PLACE one of {', '.join(places)}; got {text!r}"
        )
    said: dict[str, Any] = {
        kind: int(match[2]) if match[2] else BLOCK for kind, match in zip(kinds, numbers) if match is not None
    }
    if words[1] in _STAGES:
        return Sync(SyncAlgorithm(words[0]), UpdatePlacement.SHARDED, zero=_STAGES[words[1]], overlap=overlap, **said)
    return Sync(SyncAlgorithm(words[0]), UpdatePlacement(words[1]), overlap=overlap, **said)


def parse_ranges(text: str, who: str) -> tuple[int, ...]:
    """Return ``0-3,8`` as (0, 1, 2, 3, 8). Raises ValueError that begins with ``who``."""
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise ValueError(f"{who}: processors must be numbers and ranges such as 0-3,8, got {text.strip()!r}")
        low, high = int(match.group(1)), int(match.group(2) or match.group(1))
        if high < low:
            raise ValueError(f"{who}: range {part} runs backwards; write the processors one by one, for example {low},{low - 1}")
        if high - low > 1_000_000:
            raise ValueError(f"{who}: range {part} is longer than any machine")
        found += range(low, high + 1)
    return tuple(found)


def _example(node: Node) -> str:
    first = next((dim.name for dim in node.dims if dim.divisible), None)
    return f"{first}/2 @ 0-1" if first else "whole @ 0"


# ---- plans of tensor, pipeline and data parallelism ------------------------------------------------------------------
RECOMPUTE = ("none", "selective", "light", "linear", "full", "whole")
OVERLAP = ("none", "grads")
_TOKEN = re.compile(r"(mb|zero|hsdp|[tcpdev])([0-9]+)")
_FLAGS = ("sp", "nosp", "ring", "regather")
_SETTING = re.compile(r"(recompute|zero|schedule|stages|prefetch|overlap|devices|shares|split|bucket)=(\S*)")
MOST_LAYERS = 100_000
_RUN = re.compile(r"(\w+)\*([1-9]\d*)")  # layers that are treated alike
NOTATION = (
    "tN (tensor; nosp, regather), cN (context; ring), pN (pipeline), dN (data), eN (experts), mbN (samples of a micro-batch and "
    "replica), vN (stages a rank), zero0 to zero3, fsdp, hsdpN, prefetch=block|N, "
    f"overlap={'|'.join(OVERLAP)}, recompute={'|'.join(RECOMPUTE)} or by layer full*60,none*20, zero=1*1,3*78,1*1, "
    f"bucket=40M|{LAYER}, split=N (parts of a micro-batch that take turns), "
    f"schedule={'|'.join(s.value for s in PipelineSchedule)}, "
    "stages=N,N,... (layers), shares=N,N,... (samples of each replica), devices=0-3,... or KIND,..."
)
_OTHER_NAMES = {
    "tp": "t", "pp": "p", "dp": "d", "cp": "c", "ep": "e", "mbs": "mb", "vp": "v", "vpp": "v", "fsdp": "hsdp", "zero-": "zero",
    "tensor": "t", "pipeline": "p", "data": "d", "context": "c", "experts": "e",
}
_ALMOST = re.compile(r"(?:[tcpdev]|mb|zero|hsdp|tp|pp|dp|cp|ep|mbs|vpp?)[=:-]?\d.*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HybridPlan:
    """Degrees of parallelism. ``data`` None: as many replicas as the devices allow. ``context``: devices over which each
    sequence is cut. ``experts``: replicas over which the experts of a layer are distributed. ``stages``: how many layers each
    stage has; empty: as even as possible. ``zero``: the stage of ZeRO. ``shard_group``: replicas that hold all shards together,
    0: all. ``ring``: devices that share a sequence pass their keys around. ``overlap``: gradients are summed during the
    backward pass ("grads") or after it ("none"). ``sequence_parallel``: operators between the layers that a tensor group shares
    are cut along the sequence (Korthikanti et al., arXiv 2205.05198); otherwise each device of the group computes all of them
    (Megatron-LM without --sequence-parallel). ``regather``: what the shared layers gather along the sequence is not kept but
    gathered again for the backward pass (Megatron-LM with --sequence-parallel). ``shares``: samples of a micro-batch that each
    replica takes, for replicas of unequal speed; empty: ``micro_batch`` each. ``devices``: the machine's devices in the order
    in which the plan uses them, as numbers or as the name of a kind for all devices of it; others are idle; empty: all in
    order. ``recompute_layers``, ``zero_layers``: the same as ``recompute`` and ``zero`` for each layer, in order; empty: the
    same for all. Operators before the first layer count as its own, those after the last as that one's. ``split``: parts of a
    micro-batch that take turns: while values of one are exchanged, the devices compute another (dual-batch overlap). ``bucket``:
    elements of the layers whose weights travel together without ZeRO and with its stage 1 (`Sync.bucket`); None: the library's."""

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
    overlap: str = "grads"
    sequence_parallel: bool = True
    regather: bool = False
    shares: tuple[int, ...] = ()
    devices: tuple[int | str, ...] = ()
    recompute_layers: tuple[str, ...] = ()
    zero_layers: tuple[int, ...] = ()
    split: int = 1
    bucket: int | None = None

    def __post_init__(self) -> None:
        for what in ("tensor", "pipeline", "data", "micro_batch", "virtual", "context", "experts", "split"):
            value = getattr(self, what)
            if value is not None and value < 1:
                raise ValueError(f"plan: {what} must be at least 1, got {value}")
        for zero in (self.zero, *self.zero_layers):
            if not 0 <= zero <= 3:
                raise ValueError(f"plan: zero{zero} is no stage of ZeRO; zero0 to zero3 are")
        most = max((self.zero, *self.zero_layers))
        if self.shard_group == 1 or (self.shard_group and most < 2):
            raise ValueError(
                f"plan: hsdp{self.shard_group} is for two replicas or more, and for zero2 or zero3 (the default with hsdp), "
                f"got zero{most}"
            )
        if self.bucket is not None and min(self.zero_layers or (self.zero,)) > 1:
            raise ValueError(f"plan: bucket= is for zero0 and zero1; with zero{most} weights travel block by block")
        if self.prefetch != BLOCK and most < 3:
            raise ValueError(f"plan: prefetch={self.prefetch} is how far ahead weights are gathered, which needs zero3 or fsdp")
        if self.ring and self.context == 1:
            raise ValueError("plan: ring is how the keys of a context go around, which needs c2 or more")
        if not self.sequence_parallel and self.tensor == 1:
            raise ValueError("plan: nosp is what a tensor group does not share, which needs t2 or more")
        if self.regather and not (self.tensor > 1 and self.sequence_parallel):
            raise ValueError("plan: regather is for what a tensor group gathers along the sequence: t2 or more, without nosp")
        for level in (self.recompute, *self.recompute_layers):
            if level not in RECOMPUTE:
                raise ValueError(f"plan: recompute must be one of {', '.join(RECOMPUTE)}, got {level!r}")
        if self.overlap not in OVERLAP:
            raise ValueError(f"plan: overlap must be one of {', '.join(OVERLAP)}, got {self.overlap!r}")
        if self.overlap == "none" and most > 1:
            raise ValueError(
                f"plan: overlap=none sums gradients after the backward pass, which zero{most} does not keep so long"
            )
        if self.virtual > 1 and self.pipeline == 1:
            raise ValueError(f"plan: v{self.virtual} interleaves the stages of a pipeline, which needs p2 or more")
        if self.pipeline > 1 and self.schedule.chunks not in (None, self.virtual):
            raise ValueError(f"plan: schedule={self.schedule.value} needs v{self.schedule.chunks}, got v{self.virtual}")
        if self.stages and len(self.stages) != self.pipeline * self.virtual:
            raise ValueError(
                f"plan: stages= needs the layers of {self.pipeline * self.virtual} stages (p x v), got {len(self.stages)}"
            )
        if self.shares:
            self._check_shares()

    def _check_shares(self) -> None:
        if self.micro_batch is not None:
            raise ValueError(
                f"plan: shares= says how many samples of a micro-batch each replica takes, which mb{self.micro_batch} says of all; "
                "leave one of them out"
            )
        if min(self.shares) < 1 or self.data not in (None, len(self.shares)):
            raise ValueError(
                f"plan: shares= needs 1 sample or more for each of {self.data or 'the'} replicas, got "
                f"{','.join(map(str, self.shares))}"
            )
        if self.experts > 1:
            raise ValueError(f"plan: e{self.experts} deals experts to replicas that take as many samples each; leave shares= out")

    @property
    def in_blocks(self) -> bool:
        """True if weights of ZeRO's stages 2 and 3 are gathered, or their gradients summed, block by block (`gather_units`)."""
        return self.prefetch == BLOCK and not self.schedule.weights_apart

    def bucket_of(self, zero: int) -> int:
        """Return the elements of the buckets of layers at a stage of ZeRO, of a plan with ``data``; 0: each layer by itself."""
        return default_bucket(zero, self.sharers) if self.bucket is None or zero > 1 else self.bucket

    @property
    def together(self) -> int:
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

    def __str__(self) -> str:
        said = [f"t{self.tensor}", *["nosp"] * (not self.sequence_parallel), *["regather"] * self.regather]
        said += [*[f"c{self.context}"] * (self.context > 1)]
        said += [*["ring"] * self.ring, f"p{self.pipeline}"]
        said += [f"{name}{value}" for name, value in (("d", self.data), ("mb", self.micro_batch)) if value is not None]
        said += [f"e{self.experts}"] * (self.experts > 1)
        said += [f"v{self.virtual}"] * (self.virtual > 1) + [f"split={self.split}"] * (self.split > 1)
        said += [f"zero{self.zero}"] * (self.zero > 0)
        said += [f"hsdp{self.shard_group}"] * bool(self.shard_group) + [f"prefetch={self.prefetch}"] * (self.prefetch != BLOCK)
        said += [f"overlap={self.overlap}"] * (self.overlap != "grads")
        said += [f"bucket={bucket_word(self.bucket)}"] if self.bucket is not None else []
        said += [f"schedule={self.schedule.value}"] * (self.schedule is not PipelineSchedule.ONE_F_ONE_B)
        said += [f"{name}={','.join(map(str, some))}" for name, some in (("stages", self.stages), ("shares", self.shares)) if some]
        said += [f"devices={_devices(self.devices)}"] * bool(self.devices)
        said += [f"recompute={self.recompute}"] * (self.recompute != "none")
        by_layer = (("recompute", self.recompute_layers), ("zero", self.zero_layers))
        return " ".join([*said, *(f"{name}={_runs(values)}" for name, values in by_layer if values)])


def _runs(values: Sequence[object]) -> str:
    """``none*3,full*5``."""
    return ",".join(f"{value}*{len(list(same))}" for value, same in groupby(values))


def _by_layer(what: str, text: str) -> tuple[object, ...]:
    """The values of all layers, of ``none*3,full*5`` or ``1*1,3*7``."""
    found: list[object] = []
    for part in text.split(","):
        match = _RUN.fullmatch(part)
        if match is None or (what == "zero" and not match[1].isdecimal()):
            example = "1*1,3*30,1*1" if what == "zero" else "full*60,none*20"
            all_alike = f", or zero{text} for all layers" if what == "zero" and text in ("0", "1", "2", "3") else ""
            raise ValueError(
                f"plan: {what} by layer must be such as {what}={example}, with VALUE*LAYERS for each run of layers{all_alike}; "
                f"got {part!r}"
            )
        if int(match[2]) > MOST_LAYERS:
            raise ValueError(f"plan: {what}={text} has more layers than any network")
        found += [int(match[1]) if what == "zero" else match[1]] * int(match[2])
    return tuple(found)


def _devices(devices: Sequence[int | str]) -> str:
    """``0-3,8`` or ``v100,a100``."""
    return ",".join(
        ",".join(map(str, some)) if named else ranges(tuple(int(n) for n in some))
        for named, some in groupby(devices, key=lambda one: isinstance(one, str))
    )


def is_plan(text: str) -> bool:
    """True if a mapper's name is meant to be a plan such as ``t2 p2 mb1``: whether one of its words is one of the notation's, or
    looks like one (``tp2``, ``t2,p2``)."""
    return any(
        word in _FLAGS or word == "fsdp" or _TOKEN.fullmatch(word) or _SETTING.fullmatch(word) or _ALMOST.fullmatch(word)
        for word in text.split()
    )


def _meant(word: str) -> str:
    """What a word without a meaning may be meant to be, as ``"; write t2"``; empty if nothing comes to mind."""
    parts = re.fullmatch(r"([a-z-]+?)[=:-]?(\d+)", word.lower())
    if parts is not None and (known := _TOKEN.fullmatch(f"{_OTHER_NAMES.get(parts[1], parts[1])}{parts[2]}")):
        return f"; write {known[0]}"
    inner = [part for part in re.split(r"[,;]|(?<=\d)(?=[a-z])", word.lower()) if part]
    if len(inner) > 1 and all(_TOKEN.fullmatch(part) for part in inner):
        return f"; write {' '.join(inner)}, with spaces between"
    return ""


def parse_plan(text: str) -> HybridPlan:
    """Return the plan that a notation stands for. Raises ValueError that names the word that is wrong."""
    names = {
        "t": "tensor", "c": "context", "e": "experts", "p": "pipeline", "d": "data", "mb": "micro_batch", "v": "virtual",
        "zero": "zero", "hsdp": "shard_group",
    }
    found: dict[str, object] = {}
    for word in ("zero3" if word == "fsdp" else word for word in text.split()):
        value: object
        if word in ("sp", "nosp"):
            key, value = "sequence_parallel", word == "sp"
        elif word in ("ring", "regather"):
            key, value = word, True
        elif token := _TOKEN.fullmatch(word):
            key, value = names[token[1]], int(token[2])
        elif setting := _SETTING.fullmatch(word):
            key, value = setting[1], _setting(*setting.groups())
            if isinstance(value, tuple) and key in ("recompute", "zero"):
                key += "_layers"
        else:
            raise ValueError(f"plan {text!r}: no meaning for {word!r}{_meant(word)}; a plan has {NOTATION}")
        if key in found or key.removesuffix("_layers") in found or f"{key}_layers" in found:
            raise ValueError(f"plan {text!r}: {word!r} says {key.removesuffix('_layers')} for the second time")
        found[key] = value
    if "shard_group" in found and "zero_layers" not in found:
        found.setdefault("zero", 3)
    if found.get("shard_group") == 0:
        raise ValueError(f"plan {text!r}: hsdp0 is for no replica; hsdpN is for two or more that have all shares together")
    if found.get("schedule") is PipelineSchedule.ZERO_BUBBLE_V:
        if found.get("pipeline", 1) == 1:
            raise ValueError(f"plan {text!r}: schedule=zbv gives each rank of a pipeline two stages, which needs p2 or more")
        found.setdefault("virtual", 2)
    return HybridPlan(**found)  # type: ignore[arg-type]


_EXAMPLES = {
    "recompute": "recompute=full", "zero": "zero=1*1,3*30,1*1", "schedule": "schedule=zb-h1", "stages": "stages=5,6,6,5",
    "prefetch": "prefetch=2", "overlap": "overlap=none", "devices": "devices=4-7,0-3", "shares": "shares=6,6,2,2",
    "split": "split=2", "bucket": "bucket=40M",
}


def _setting(key: str, value: str) -> object:
    if not value:
        raise ValueError(f"plan: {key}= says nothing; leave it out, or write for example {_EXAMPLES[key]}")
    if key == "zero" or (key == "recompute" and "*" in value):
        return _by_layer(key, value)
    if key == "schedule":
        if value not in (known := [s.value for s in PipelineSchedule]):
            raise ValueError(f"plan: schedule must be one of {', '.join(known)}, got {value!r}")
        return PipelineSchedule(value)
    if key in ("stages", "shares"):
        if not re.fullmatch(r"\d+(,\d+)*", value):
            what = "layers" if key == "stages" else "samples"
            raise ValueError(f"plan: {key} must be numbers of {what} such as 5,6,6,5, got {value!r}")
        return tuple(map(int, value.split(",")))
    if key == "devices":
        found: list[int | str] = []
        for part in value.split(","):
            found += parse_ranges(part, "plan: devices") if part[:1].isdigit() else [part]
        return tuple(found)
    if key == "split":
        if not value.isdecimal():
            raise ValueError(f"plan: split must be a number of parts of a micro-batch, got {value!r}")
        return int(value)
    if key == "bucket":
        return parse_bucket(value)
    if key == "prefetch":
        if value != BLOCK and not value.isdecimal():
            raise ValueError(f"plan: prefetch must be {BLOCK} or a number of layers, got {value!r}")
        return value if value == BLOCK else int(value)
    return value
