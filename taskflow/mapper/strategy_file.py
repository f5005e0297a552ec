"""JSON form of a strategy, described in docs/guide/planning.md, and how such a file is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from taskflow.mapper.config import Exchange, SyncAlgorithm, UpdatePlacement
from taskflow.mapper.pipeline_schedules import PipelineSchedule
from taskflow.reading import MOST, Count, Entry, Name, NotNegative, Whole, read_as, read_json

FORMAT = "taskflow-strategy"
VERSION = 1

Figure = Annotated[float, Meta(ge=0, le=MOST**3)]
Number = Annotated[int, Meta(ge=0)]
Stage = Annotated[int, Meta(ge=1, le=3)]


class OperatorEntry(Entry, frozen=True, kw_only=True):
    """The cut of one operator, and the processors of its pieces."""

    dims: Annotated[list[Name], Meta(description="Names of the dimensions of its iteration space.")] | UnsetType = UNSET
    degrees: Annotated[list[Count], Meta(description="Pieces along each of these dimensions.")]
    processors: Annotated[list[Whole], Meta(description="Who runs each piece. The last dimension's number changes fastest.")]
    weights: Annotated[
        list[list[NotNegative]],
        Meta(description="Proportions of the pieces along each dimension. An empty list: even pieces. Without it: all even."),
    ] | UnsetType = UNSET
    copies: Annotated[Count, Meta(description="How many processors run each piece, each for itself.")] = 1


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


class PipelineEntry(Entry, frozen=True, kw_only=True):
    """Micro-batches, stages and the order of passes."""

    micro_batches: Annotated[Count, Meta(description="Into how many parts the samples of a step are divided.")]
    schedule: Annotated[PipelineSchedule, Meta(description="The order of passes on each rank.")]
    ranks: Annotated[Count, Meta(description="Groups of devices; stage s is with group s % ranks; under zbv back again.")]
    stages: Annotated[dict[Name, Whole], Meta(description="Operator's name -> its stage. One that is not named: 0.")]
    split: Annotated[Count, Meta(description="Parts of a micro-batch that take turns in a pass.")] = 1


class MadeFrom(Entry, frozen=True, kw_only=True):
    """Options of the command that made the plan. The command makes the same model and machine from them again."""

    model: Annotated[Name, Meta(description="A network's name, or file.py:function.")] | UnsetType | None = UNSET
    machine: Annotated[Name, Meta(description="A machine's name or file.")] | UnsetType | None = UNSET
    devices: Annotated[Count, Meta(description="Its first so many devices.")] | UnsetType | None = UNSET
    batch: Annotated[Count, Meta(description="Samples a step.")] | UnsetType | None = UNSET
    size: Annotated[Name, Meta(description="The network's preset.")] | UnsetType | None = UNSET
    rule: Annotated[Name, Meta(description="The update rule.")] | UnsetType | None = UNSET
    set: Annotated[dict[Name, str], Meta(description="Values of --set.")] | UnsetType | None = UNSET
    costs: Annotated[Name, Meta(description="What said how long tasks take.")] | UnsetType | None = UNSET


class ImprovementEntry(Entry, frozen=True, kw_only=True):
    """A new best plan during a search."""

    proposal: Number
    elapsed_seconds: Figure
    iteration_seconds: Figure


class ProofEntry(Entry, frozen=True, kw_only=True):
    """Figures of an exact search's proof."""

    strategies: Number
    renumberings: Number
    partial_plans: Number
    pruned: dict[str, Number]
    simulated: Number
    tolerance: Figure
    complete: bool


class SearchEntry(Entry, frozen=True, kw_only=True):
    """Figures of the search that found the plan. Reports show it."""

    algorithm: str | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    iteration_seconds: Figure | UnsetType = UNSET
    lower_bound_seconds: Figure | UnsetType | None = UNSET
    gap: float | UnsetType | None = UNSET
    optimal: bool | UnsetType = UNSET
    locally_optimal: bool | UnsetType = UNSET
    search_seconds: Figure | UnsetType = UNSET
    proposals: Number | UnsetType = UNSET
    accepted: Number | UnsetType = UNSET
    refused_for_memory: Number | UnsetType = UNSET
    stopped: str | UnsetType = UNSET
    left_out: list[str] | UnsetType = UNSET
    proof: ProofEntry | UnsetType | None = UNSET
    starts_iteration_seconds: dict[str, Figure] | UnsetType = UNSET
    starts_lacking_memory: list[str] | UnsetType = UNSET
    history: list[ImprovementEntry] | UnsetType = UNSET


class StrategyFile(Entry, frozen=True, kw_only=True):
    """A strategy: one configuration for each operator of a model."""

    format: Literal["taskflow-strategy"]
    version: Literal[1]
    name: Annotated[str, Meta(description="What results call it.")] = "file"
    model: Annotated[str, Meta(description="The name of the model that it was made for.")] | UnsetType = UNSET
    graph: Annotated[str, Meta(description="That model's fingerprint.")] | UnsetType = UNSET
    machine: Annotated[str, Meta(description="The name of the machine that it was made for.")] | UnsetType = UNSET
    processors: Annotated[Count, Meta(description="How many processors the machine has.")]
    made_from: MadeFrom | UnsetType = UNSET
    problem: Annotated[Any, Meta(description="Not read. The first files have it.")] = UNSET
    operators: Annotated[dict[str, OperatorEntry], Meta(description="Operator's name -> how it is cut and placed.")]
    syncs: Annotated[dict[str, SyncEntry], Meta(description="Layer's name -> how its weights are kept equal.")] = {}  # noqa: RUF012
    sums: Annotated[
        Literal["owner", "collective"], Meta(description="How partial values of one output become their sum.")
    ] = "owner"
    exchange: Annotated[
        Exchange, Meta(description="How tensors are cut anew within a group of processors.")
    ] = Exchange.COPIES
    pipeline: PipelineEntry | UnsetType = UNSET
    recompute: Annotated[
        list[Name], Meta(description="Operators whose outputs are computed again for the backward pass.")
    ] = []  # noqa: RUF012
    regather: Annotated[
        list[Name], Meta(description="Operators whose inputs from other processors are brought again for the backward pass.")
    ] = []  # noqa: RUF012
    rerun: Annotated[
        list[Name], Meta(description="Operators that run again for the backward pass even if it reads nothing of theirs.")
    ] = []  # noqa: RUF012
    search: SearchEntry | UnsetType = UNSET


def read_strategy(path: str | Path) -> StrategyFile:
    """Read a strategy file. Raises ValueError with the file's name and the key's place for contents that are not permitted,
    FileNotFoundError if it does not exist."""
    return as_file(read_json(path, "strategy file"), str(path))


def as_file(content: Any, where: str) -> StrategyFile:
    """Return the file of a JSON value. Raises ValueError that begins with ``where``."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{where}: not a strategy file (its format must be {FORMAT!r})")
    if content.get("version") != VERSION:
        raise ValueError(f"{where}: version {content.get('version')} of the format; this taskflow reads {VERSION}")
    return read_as(StrategyFile, content, where)
