"""JSON form of a strategy, described in docs/guide/planning.md; how such a file is written, read and checked."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper.again import HadAgain
from taskflow.mapper.config import Exchange, OpConfig
from taskflow.mapper.pipeline import Pipeline
from taskflow.mapper.pipeline_schedules import PipelineSchedule
from taskflow.mapper.plan import is_plan, parse_plan
from taskflow.mapper.plan_of import checked, plan_of
from taskflow.mapper.strategy import Strategy
from taskflow.mapper.sync import SyncAlgorithm, SyncEntry, sync_entry, sync_of_entry
from taskflow.reading import MOST, Count, Entry, Name, NotNegative, Whole, read_format, read_json
from taskflow.wording import some
from taskflow.writing import json_text, path_text, replacing

FORMAT = "taskflow-strategy"
VERSION = 1

Figure = Annotated[float, Meta(ge=0, le=MOST**3)]
Number = Annotated[int, Meta(ge=0)]


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
    program: Annotated[Name, Meta(description="What drives the GPUs.")] | UnsetType | None = UNSET
    expert_imbalance: (
        Annotated[float, Meta(ge=1, description="Tokens that the busiest device of experts has, as a multiple of the mean.")]
        | UnsetType | None
    ) = UNSET


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


class PhaseEntry(Entry, frozen=True, kw_only=True):
    """A part of a search."""

    name: str
    seconds: Figure
    proposals: Number
    best_seconds: Annotated[Figure, Meta(description="Of the best plan after it; null: there was none.")] | None
    not_run: Annotated[str, Meta(description="Why it did not run; null: it did.")] | None


class SearchEntry(Entry, frozen=True, kw_only=True):
    """Figures of the search that found the plan. Reports show it."""

    algorithm: str | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    iteration_seconds: Figure | UnsetType = UNSET
    lower_bound_seconds: Figure | UnsetType | None = UNSET
    gap: float | UnsetType | None = UNSET
    optimal: bool | UnsetType = UNSET
    optimal_among: str | UnsetType | None = UNSET
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
    phases: list[PhaseEntry] | UnsetType = UNSET
    history: list[ImprovementEntry] | UnsetType = UNSET


class StrategyFile(HadAgain, frozen=True, kw_only=True):
    """A strategy: one configuration for each operator of a model."""

    format: Literal["taskflow-strategy"]
    version: Literal[1]
    name: Annotated[str, Meta(description="What results call it.")] = "file"
    plan: Annotated[
        str, Meta(description="The plan in notation that the other entries are. It is not believed if they differ. null: none.")
    ] | UnsetType | None = UNSET
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
    search: SearchEntry | UnsetType = UNSET


def read_strategy(path: str | Path) -> StrategyFile:
    """Read a strategy file. Raises ValueError with the file's name and the key's place for contents that are not permitted,
    FileNotFoundError if it does not exist."""
    return as_file(read_json(path, "strategy file"), str(path))


def as_file(content: Any, where: str) -> StrategyFile:
    """Return the file of a JSON value. Raises ValueError that begins with ``where``."""
    return read_format(StrategyFile, content, where, "a strategy file")


# ---- writing and reading -------------------------------------------------------------------------------------------
def save(
    strategy: Strategy, graph: OperatorGraph, machine: str, path: str | Path, made_from: Mapping[str, Any] | None = None,
    search: Mapping[str, Any] | None = None,
) -> None:
    """Write a strategy file. It records which graph and machine the strategy is for.

    ``made_from``: a JSON table of options from which the command line makes the model and the machine again. ``search``: how
    the strategy was found (`SearchResult.as_json`). Raises FileNotFoundError if there is no such folder, and ValueError for
    what `load` would refuse.
    """
    if not (folder := Path(path).absolute().parent).is_dir():
        raise FileNotFoundError(f"cannot write strategy file {path}: there is no folder {folder}")
    text = json_text(as_content(strategy, graph, machine, made_from, search), 1) + "\n"
    with replacing(path) as file:
        file.write_text(text, encoding="utf-8")


def as_content(
    strategy: Strategy, graph: OperatorGraph, machine: str, made_from: Mapping[str, Any] | None = None,
    search: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the contents of a strategy file as a JSON table (`save`). Raises ValueError for what `load` would refuse."""
    strategy.verify_names(graph)
    strategy.verify_syncs(graph)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "name": strategy.name,
        "plan": str(plan) if (plan := plan_of(graph, strategy)) is not None else None,
        "model": graph.name,
        "graph": graph.fingerprint(),
        "machine": machine,
        "processors": strategy.processors,
        **({"made_from": paths_of(made_from, path_text)} if made_from is not None else {}),
        "operators": {node.name: config_entry(node, strategy[node.name]) for node in graph},
        "syncs": {layer: sync_entry(sync) for layer, sync in strategy.syncs.items()},
        "sums": strategy.sums.value,
        **({"exchange": strategy.exchange.value} if strategy.exchange is not Exchange.COPIES else {}),
        **({"pipeline": _pipeline_entry(strategy.pipeline)} if strategy.pipeline is not None else {}),
        **{what: [node.name for node in graph if node.name in of] for what, of in strategy.again.sets().items() if of},
        **({"search": dict(search)} if search is not None else {}),
    }
    as_file(content, f"strategy {strategy.name}")
    return content


def paths_of(made_from: Mapping[str, Any], as_said: Callable[[str], str]) -> dict[str, Any]:
    """Return options with the paths among them as files say them (`path_text`) or as this system does (`path_here`)."""
    plain = {key: as_said(value) if isinstance(value, str) else value for key, value in made_from.items()}
    return {key: paths_of(value, as_said) if isinstance(value, Mapping) else value for key, value in plain.items()}


def config_entry(node: Node, config: OpConfig) -> dict[str, Any]:
    """Return an operator's entry in a strategy file."""
    return {
        "dims": [dim.name for dim in node.dims],
        "degrees": list(config.degrees),
        "processors": list(config.processors),
        **({"weights": [list(w) for w in config.weights]} if config.weights else {}),
        **({"copies": config.copies} if config.copies > 1 else {}),
    }


def load(path: str | Path, graph: OperatorGraph, processors: int) -> Strategy:
    """Read a strategy file and check that it fits. Raises ValueError that says what differs, FileNotFoundError if it does not
    exist. What its operators say counts: if they are not those of the plan in the file, the strategy has no `Strategy.plan`,
    and a warning says where they differ. If it is for another number of processors and `for_processors` exists, that is read."""
    file = read_strategy(path)
    if file.processors != processors and (other := for_processors(path, processors)).is_file():
        path, file = other, read_strategy(other)
    _compare(file, graph, processors, str(path))
    return _strategy(file, graph, str(path))


def for_processors(path: str | Path, processors: int) -> Path:
    """Return the name of the file beside ``path`` with the plan for another number of processors: ``plan.6.json``."""
    path = Path(path)
    return path.with_name(f"{path.name.removesuffix('.json')}.{processors}.json")


def from_content(content: Mapping[str, Any], graph: OperatorGraph, where: str) -> Strategy:
    """Return the strategy of a table such as `as_content` makes, checked as `load` does; format and version may be left out.
    Raises ValueError that begins with ``where``."""
    return _strategy(as_file({"format": FORMAT, "version": VERSION, **content}, where), graph, where)


def _strategy(file: StrategyFile, graph: OperatorGraph, where: str) -> Strategy:
    try:
        strategy = _from_file(file)
        strategy.verify(graph)
        strategy.verify_syncs(graph)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if file.plan is UNSET:
        return _named(strategy, graph)
    if file.plan is None:
        return strategy
    try:
        plan = parse_plan(file.plan)
    except ValueError as error:
        raise ValueError(f"{where}: plan: {error}") from None
    found, why = checked(plan, graph, strategy)
    if found is None:
        warnings.warn(f"{where}: not the plan {plan} that it says, but taken as its operators have it: {why}", stacklevel=4)
    return replace(strategy, plan=found)


def _named(strategy: Strategy, graph: OperatorGraph) -> Strategy:
    """The strategy of a file from before files had a plan. It may be what its name says."""
    try:
        plan = parse_plan(strategy.name) if is_plan(strategy.name) else None
    except ValueError:
        return strategy
    return strategy if plan is None else replace(strategy, plan=checked(plan, graph, strategy)[0])


def _from_file(file: StrategyFile) -> Strategy:
    configs = {
        name: OpConfig(tuple(entry.degrees), tuple(entry.processors), tuple(map(tuple, entry.weights or ())), entry.copies)
        for name, entry in file.operators.items()
    }
    syncs = {layer: sync_of_entry(entry) for layer, entry in file.syncs.items()}
    pipeline = None
    if file.pipeline is not UNSET:
        entry = file.pipeline
        pipeline = Pipeline(entry.micro_batches, entry.stages, entry.ranks, entry.schedule, entry.split)
    return Strategy(
        file.processors, configs, syncs, file.name, SyncAlgorithm(file.sums), pipeline, HadAgain(**file.sets()), file.exchange
    )


def _pipeline_entry(pipeline: Pipeline) -> dict[str, Any]:
    return {
        "micro_batches": pipeline.micro_batches,
        "schedule": pipeline.schedule.value,
        "ranks": pipeline.ranks,
        "stages": dict(pipeline.stages),
        **({"split": pipeline.split} if pipeline.split > 1 else {}),
    }


def search_of(path: str | Path) -> dict[str, Any] | None:
    """Return how the plan in a strategy file was found (`SearchResult.as_json`); None if the file does not say. Raises
    ValueError if it is no strategy file, FileNotFoundError if it does not exist."""
    found = read_strategy(path).search
    return msgspec.to_builtins(found) if found else None


def _compare(file: StrategyFile, graph: OperatorGraph, processors: int, path: str) -> None:
    if file.processors != processors:
        raise ValueError(
            f"{path}: made for {file.processors} processors ({file.machine or 'of no machine that it names'}), "
            f"but this run has {processors}; start it with -n {file.processors} or search again"
        )
    same = file.graph == graph.fingerprint()
    here = {node.name: [dim.name for dim in node.dims] for node in graph}
    there = {name: entry.dims for name, entry in file.operators.items()}
    differences = [
        *(f"operator {n} is not in the file" for n in here if n not in there and not same),
        *(f"operator {n} is not in this model" for n in there if n not in here and not same),
        *(
            f"operator {n} has dimensions {here[n]}, in the file {there[n] or 'none'}"
            for n in here if n in there and here[n] != there[n] and not (same and there[n] is msgspec.UNSET)
        ),
    ]
    if differences:
        raise ValueError(
            f"{path}: made for model {file.model or 'that it does not name'}, which differs from {graph.name}: "
            + some(differences, 5, "; ")
            + "; give the model that it was made for, or search again"
        )
    # The same operators with other sizes: usable if every degree still fits, which verify() checks next.
