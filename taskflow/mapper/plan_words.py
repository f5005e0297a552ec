"""WORDS: the words of plans in notation, a row each.

A row says what a word means, how it is read and written, and what is wrong with it beside others. Parsing, printing, errors, the
table in docs/guide/pipelines.md and the tests' random plans come from it. A new word is a field of `HybridPlan` and a row here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from taskflow.mapper import plan_checks
from taskflow.mapper.buckets import LAYER, bucket_word, parse_bucket
from taskflow.mapper.config import ranges
from taskflow.mapper.narrow_products import NARROW_PRODUCTS
from taskflow.mapper.notation import parse_ranges
from taskflow.mapper.pipeline_schedules import PipelineSchedule
from taskflow.mapper.plan_checks import OVERLAP, RECOMPUTE, fine
from taskflow.mapper.sync import BLOCK

if TYPE_CHECKING:
    from taskflow.mapper.plan import HybridPlan

MOST_LAYERS = 100_000

Check = Callable[["HybridPlan"], "str | None"]


@dataclass(frozen=True, slots=True)
class Word:
    """Word of the notation, of a ``field`` of `HybridPlan`. ``form``: as help names it, with what it is in ``short``; ``pattern``:
    of the text, whose first group ``read`` gets; ``write``: the text of a value; ``check``: what is wrong with it in a plan, None
    if nothing. ``says``, ``usual``: its row in the guide, and what is meant without it. ``example``: what an error proposes.
    ``drawn``: texts that the tests' random plans choose from. ``always``: it is written even where it says what is meant without
    it; ``other``: a field that says it instead, if that is set; ``spelling``: it is another spelling, and never written."""

    form: str
    field: str
    pattern: re.Pattern[str]
    read: Callable[[str], object]
    write: Callable[[Any], str]
    says: str
    usual: str
    check: Check
    short: str = ""
    example: str = ""
    drawn: tuple[str, ...] = ()
    always: bool = False
    other: str = ""
    spelling: bool = False

    def text(self, plan: HybridPlan) -> str:
        """Return what a plan says of it; empty if nothing."""
        value, plans = getattr(plan, self.field), cast(Any, type(plan))
        if self.spelling or value is None or (self.other and getattr(plan, self.other)):
            return ""
        if not self.always and value == _usual(plans)[self.field]:
            return ""
        return self.write(value)


@cache
def _usual(plans: type[Any]) -> dict[str, object]:
    """What each field of a plan is if nothing is said; searches write thousands of plans."""
    return {of.name: of.default for of in fields(plans)}


def _count(letter: str, field: str, short: str, says: str, usual: str, check: Check = fine, always: bool = False) -> Word:
    """``t8``."""

    def wrong(plan: HybridPlan) -> str | None:
        value = getattr(plan, field)
        return f"{field} must be at least 1, got {value}" if value is not None and value < 1 else check(plan)

    pattern = re.compile(rf"{letter}([0-9]+)")
    return Word(
        f"{letter}N", field, pattern, int, lambda value: f"{letter}{value}", says, usual, wrong, short, f"{letter}2", always=always
    )


def _flag(word: str, field: str, says: str, usual: str, check: Check, value: object = True, drawn: tuple[str, ...] = ()) -> Word:
    return Word(word, field, re.compile(f"({word})"), lambda _: value, lambda _: word, says, usual, check, "", word, drawn)


def _setting(
    key: str, field: str, form: str, read: Callable[[str], object], write: Callable[[Any], str], says: str, usual: str,
    check: Check, example: str, drawn: tuple[str, ...] = (), value: str = r"\S*", other: str = "", short: str = "",
) -> Word:
    """``stages=5,6,6,5``."""
    return Word(
        f"{key}={form}", field, re.compile(f"{key}=({value})"), read, lambda value: f"{key}={write(value)}", says, usual, check,
        short, f"{key}={example}", tuple(f"{key}={one}" for one in drawn), other=other,
    )


def _numbers(key: str, what: str) -> Callable[[str], object]:
    def read(text: str) -> object:
        if not re.fullmatch(r"\d+(,\d+)*", text):
            raise ValueError(f"plan: {key} must be numbers of {what} such as 5,6,6,5, got {text!r}")
        return tuple(map(int, text.split(",")))

    return read


def _one_number(key: str, what: str, word: str = "") -> Callable[[str], object]:
    def read(text: str) -> object:
        if text == word:
            return text
        if not text.isdecimal():
            raise ValueError(f"plan: {key} must be {word and word + ' or '}a number of {what}, got {text!r}")
        return int(text)

    return read


def _one_of(key: str, known: Mapping[str, object]) -> Callable[[str], object]:
    def read(text: str) -> object:
        if text not in known:
            raise ValueError(f"plan: {key} must be one of {', '.join(known)}, got {text!r}")
        return known[text]

    return read


def _by_layer(what: str, example: str, of: Callable[[str], object]) -> Callable[[str], object]:
    """Reads the values of all layers, of ``none*3,full*5`` or ``1*1,3*7``."""

    def read(text: str) -> object:
        found: list[object] = []
        for part in text.split(","):
            match = re.fullmatch(r"(\w+)\*([1-9]\d*)", part)
            if match is None or (what == "zero" and not match[1].isdecimal()):
                all_alike = f", or zero{text} for all layers" if what == "zero" and text in ("0", "1", "2", "3") else ""
                raise ValueError(
                    f"plan: {what} by layer must be such as {what}={example}, with VALUE*LAYERS for each run of layers{all_alike}; "
                    f"got {part!r}"
                )
            if int(match[2]) > MOST_LAYERS:
                raise ValueError(f"plan: {what}={text} has more layers than any network")
            found += [of(match[1])] * int(match[2])
        return tuple(found)

    return read


def _runs(values: Sequence[object]) -> str:
    """``none*3,full*5``."""
    return ",".join(f"{value}*{len(list(same))}" for value, same in groupby(values))


def _list(values: Sequence[object]) -> str:
    return ",".join(map(str, values))


def _read_devices(text: str) -> tuple[int | str, ...]:
    found: list[int | str] = []
    for part in text.split(","):
        found += parse_ranges(part, "plan: devices") if part[:1].isdigit() else [part]
    return tuple(found)


def _devices(devices: Sequence[int | str]) -> str:
    """``0-3,8`` or ``v100,a100``."""
    return ",".join(
        ",".join(map(str, some)) if named else ranges(tuple(int(n) for n in some))
        for named, some in groupby(devices, key=lambda one: isinstance(one, str))
    )


WORDS: tuple[Word, ...] = (
    _count(
        "t", "tensor", "tensor",
        "tensor parallelism: N neighbouring devices share each layer, as the mapper `megatron` does; what lies between the shared "
        "layers is cut along the sequence",
        "1", always=True,
    ),
    _flag(
        "nosp", "sequence_parallel",
        "with `tN`, each of the N devices computes all of what lies between the shared layers (Megatron-LM without "
        "`--sequence-parallel`): more memory, the same bytes",
        "cut along the sequence (`sp`)", plan_checks.no_sequence, False, drawn=("nosp",),
    ),
    Word("", "sequence_parallel", re.compile("(sp)"), lambda _: True, str, "", "", fine, spelling=True),
    _flag(
        "nolp", "loss_parallel",
        "with `tN`, each of the N devices has the scores of all words for its part of the sequence, as losses that are code of "
        "one's own need them (no loss parallelism)",
        "scores of its words for the whole sequence", plan_checks.no_loss, False, drawn=("nolp",),
    ),
    _flag(
        "regather", "regather",
        "with `tN`, what shared layers gather along the sequence is gathered again for the backward pass (Megatron-LM with "
        "`--sequence-parallel`): less memory, two more all-gathers a layer",
        "kept", plan_checks.again, drawn=("regather",),
    ),
    _count(
        "c", "context", "context",
        "context parallelism: each sequence is cut over N groups of `t`; attention is cut by queries, keys and values are "
        "gathered",
        "1",
    ),
    _flag(
        "ring", "ring",
        "with `cN`, keys and values go around the N groups, from neighbour to neighbour, and their gradients back; for networks "
        "with attention in blocks of keys (`--set key_blocks=N`; `--key-blocks N` of `examples/llama.py`)",
        "gathered",
        plan_checks.ring, drawn=("ring",),
    ),
    _flag(
        "ulysses", "ulysses",
        "with `cN`, the N groups share attention by heads instead of queries: two all-to-alls bring queries, keys and values of "
        "whole sequences to a part of the heads, and one the results back (DeepSpeed-Ulysses)",
        "by queries", plan_checks.ulysses, drawn=("ulysses",),
    ),
    _count("p", "pipeline", "pipeline", "pipeline ranks", "1", always=True),
    _count("d", "data", "data", "replicas (data parallelism)", "all devices that are left", always=True),
    _count(
        "mb", "micro_batch", "samples of a micro-batch and replica",
        "samples of one micro-batch on one replica",
        "1 with `p2` or more, else all at once", always=True,
    ),
    _count(
        "e", "experts", "experts",
        "expert parallelism: N neighbouring replicas deal the experts of a layer among them; `dispatch` and `combine` become "
        "all-to-alls",
        "1",
    ),
    _count(
        "v", "virtual", "stages a rank",
        "stages on each pipeline rank (interleaved)",
        "1", plan_checks.virtual,
    ),
    _setting(
        "split", "split", "N", _one_number("split", "parts of a micro-batch"), str,
        "each micro-batch in N parts that take turns, so that exchanges of one hide behind the arithmetic of another "
        "([turns](#what-holds))",
        "1",
        lambda plan: f"split must be at least 1, got {plan.split}" if plan.split < 1 else None,
        "2", ("2", "2", "3"), short="parts of a micro-batch that take turns",
    ),
    Word(
        "zero0 to zero3", "zero", re.compile(r"zero([0-9]+)"), int, lambda zero: f"zero{zero}",
        "what replicas keep as shares: nothing, the update rule's state, gradients too, weights too ([sharded "
        "state](#sharded-state))",
        "`zero0`", plan_checks.stage, example="zero1", drawn=("zero1", "zero1", "zero2", "zero3"), other="zero_layers",
    ),
    Word("fsdp", "zero", re.compile("(fsdp)"), lambda _: 3, str, "the same as `zero3`", "", fine, spelling=True),
    Word(
        "hsdpN", "shard_group", re.compile(r"hsdp([0-9]+)"), int, lambda group: f"hsdp{group}",
        "shares within N neighbouring replicas, such as those of a node (hybrid sharding); `zero3` if no other `zero` is named",
        "all replicas", plan_checks.group, example="hsdp2", drawn=("hsdp2",),
    ),
    _setting(
        "prefetch", "prefetch", f"{BLOCK}|N", _one_number("prefetch", "layers", BLOCK), str,
        "with `zero3`, a whole block is gathered at once, one block ahead (as FSDP2 does), or single layers, N layers ahead "
        "([blocks](#sharded-state))",
        "`block`", plan_checks.prefetch,
        "2", ("0", "2"),
    ),
    _setting(
        "overlap", "overlap", "|".join(OVERLAP), str, str,
        "gradients are summed beside the backward pass, or after it; `all`: and new weights of `zero1` and `zero2` are gathered "
        "beside the next forward pass",
        "`grads`", plan_checks.overlap,
        "none", OVERLAP,
    ),
    _setting(
        "bucket", "bucket", f"40M|{LAYER}", parse_bucket, bucket_word,
        "without ZeRO and with `zero1`, elements of the layers whose gradients are summed, and whose new weights are gathered, at "
        "once ([buckets](#sharded-state)); or each layer by itself",
        "25 MiB of float32 numbers without ZeRO (PyTorch's DistributedDataParallel); with `zero1` 40 million elements, or a "
        "million for each replica if that is more (Megatron-LM); `layer` for networks that carry states from step to step, as "
        "batch normalisation does",
        plan_checks.bucket, "40M", ("2K", LAYER),
    ),
    _setting(
        "schedule", "schedule", "|".join(s.value for s in PipelineSchedule),
        _one_of("schedule", {s.value: s for s in PipelineSchedule}), lambda schedule: schedule.value,
        "`gpipe`, `1f1b`, `zb-h1` (zero bubble), or `zbv` (zero bubble, two stages a rank in a V; `v2` follows); with the last "
        "two, `recompute=` [saves little memory](#what-holds)",
        "`1f1b`", plan_checks.chunks,
        "zb-h1", tuple(s.value for s in PipelineSchedule),
    ),
    _setting(
        "stages", "stages", "N,N,...", _numbers("stages", "layers"), _list,
        "layers of each stage",
        "as even as can be, first and last getting fewer", plan_checks.dealt, "5,6,6,5", short="layers",
    ),
    _setting(
        "shares", "shares", "N,N,...", _numbers("shares", "samples"), _list,
        "samples of a micro-batch that each replica takes, instead of `mb`; for replicas of unequal speed",
        "`mb` each", plan_checks.shared, "6,6,2,2", short="samples of each replica",
    ),
    _setting(
        "devices", "devices", "0-3,... or KIND,...", _read_devices, _devices,
        "the devices in the order in which they have places, by number or by kind; those that are not named are idle",
        "all as they are numbered", fine, "4-7,0-3",
    ),
    _setting(
        "products", "products", "|".join(NARROW_PRODUCTS), _one_of("products", {word: word for word in NARROW_PRODUCTS}), str,
        "products of linear layers within layers, and of experts, in 8 bits (torchtitan's float8, Megatron-LM's `--fp8-format`): "
        "priced with casts and exported, but not run here; a search chooses it where it is asked for (`--products fp8`)",
        "the network's type", fine, "fp8",
    ),
    _setting(
        "recompute", "recompute", "|".join(RECOMPUTE), str, str,
        "`none`, `selective` (attention's scores), `light` (these, and normalisation and activations), `alternate` (all of a layer "
        "but its output, what attention gives and every other product, as torchtitan's selective checkpoint of operators), "
        "`linear` (all of a layer but its output and what attention gives), `full` (all of a layer that its backward pass reads, "
        "as PyTorch's checkpoint, which stops early), or `whole` (all of a layer, as Megatron-LM's and DeepSpeed's reentrant "
        "checkpoint)",
        "`none`", plan_checks.levels,
        "full", RECOMPUTE[1:], value=r"[^\s*]*", other="recompute_layers",
    ),
    _setting(
        "recompute", "recompute_layers", "full*60,none*20", _by_layer("recompute", "full*60,none*20", str), _runs,
        "the same by layer, in order: here the first 60 layers are recomputed and the last 20 are not",
        "all layers alike", fine, "full*60,none*20",
        ("full*1,none*2,light*1", "none*3,linear*1", "whole*2,full*2"), short="by layer",
    ),
    _setting(
        "zero", "zero_layers", "1*1,3*78,1*1", _by_layer("zero", "1*1,3*30,1*1", int), _runs,
        "ZeRO's stage by layer: here the first and the last layer keep their weights whole",
        "all layers alike", fine, "1*1,3*30,1*1",
        ("1*1,3*2,2*1", "3*1,0*3"), short="by layer",
    ),
)
CHECKS = tuple([word.check for word in WORDS if word.check is not fine])
