"""Strategy: one configuration per operator, and its versioned JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from taskflow.drawing import box, device_colour, svg
from taskflow.drawing import table as html_table
from taskflow.graph import Node, OperatorGraph
from taskflow.mapper.config import Exchange, OpConfig, Sync, SyncAlgorithm, ranges
from taskflow.mapper.pipeline import Pipeline, verify_pipeline
from taskflow.mapper.strategy_file import FORMAT, VERSION, StrategyFile, as_file, read_strategy
from taskflow.regions import Rect
from taskflow.writing import json_text, replacing

MOST_ROWS = 200  # of the table that a notebook shows
SUMS = (SyncAlgorithm.OWNER, SyncAlgorithm.COLLECTIVE)  # how partial values may be summed


@dataclass(frozen=True, slots=True)
class Strategy:
    """Parallelisation strategy of a graph. ``configs``: operator name -> OpConfig. ``syncs``: layer name -> Sync (a layer that
    is not named: the default). ``sums``: how partial values that several processors computed of one Rect are added. OWNER: one
    of them adds and the others fetch the sum. COLLECTIVE: one all-reduce leaves the sum with all of them. ``pipeline``:
    micro-batches, stages and the order of passes; None: operator after operator. ``recompute``: operators whose outputs are not
    kept for the backward pass, but computed again there. ``exchange``: how tensors are resharded within a group of processors.
    With COLLECTIVES, partial values that `sums` adds by collectives become reduce-scatters where each processor reads only a
    share of the sum. ``regather``: operators whose inputs from other processors are not kept for the backward pass, but fetched
    again. ``rerun``: operators that run again for the backward pass even if it reads nothing of theirs, as those of a layer in a
    checkpoint without early stop. Unless ``recompute`` names them, too, what later operators read of them is kept. Raises
    ValueError if ``sums`` is any other algorithm."""

    processors: int
    configs: Mapping[str, OpConfig]
    syncs: Mapping[str, Sync] = field(default_factory=dict)
    name: str = "custom"
    sums: SyncAlgorithm = SyncAlgorithm.OWNER
    pipeline: Pipeline | None = None
    recompute: frozenset[str] = frozenset()
    exchange: Exchange = Exchange.COPIES
    regather: frozenset[str] = frozenset()
    rerun: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.sums not in SUMS:
            raise ValueError(
                f"strategy {self.name}: partial values are summed by 'owner' or 'collective' "
                f"(SyncAlgorithm.OWNER, SyncAlgorithm.COLLECTIVE), "
                f"got {self.sums!r}"
            )

    def __getitem__(self, operator: str) -> OpConfig:
        return self.configs[operator]

    def sync(self, layer: str) -> Sync:
        """Return how the weights of a layer are synchronised."""
        return self.syncs.get(layer, Sync())

    def partial(self, node: Node) -> bool:
        """True if several processors compute partial values of one Rect of an output of ``node``; `sums` says how these are
        added."""
        if self[node.name].copies > 1:
            return False
        makers: dict[tuple[int, Rect], set[int]] = {}
        for rect, processor in self[node.name].pieces(node):
            for output in enumerate(node.writes(rect)):
                makers.setdefault(output, set()).add(processor)
        return any(len(processors) > 1 for processors in makers.values())

    def verify_names(self, graph: OperatorGraph) -> None:
        """Raise ValueError that names operators of the graph without a configuration, and configurations without an operator."""
        names = {node.name for node in graph}
        missing, extra = names - set(self.configs), set(self.configs) - names
        if missing or extra:
            raise ValueError(
                f"strategy {self.name} does not fit model {graph.name}: "
                + "; ".join(
                    f"{what}: {', '.join(sorted(ops)[:5])}{' ...' if len(ops) > 5 else ''}"
                    for what, ops in (("no configuration for", missing), ("unknown operators", extra))
                    if ops
                )
            )

    def verify(self, graph: OperatorGraph) -> None:
        """Raise ValueError that names what does not fit the graph or the machine."""
        self.verify_names(graph)
        right: set[tuple[object, ...]] = set()  # layers are alike, and have the same configurations
        known: dict[int, tuple[int, ...]] = {}
        for node in graph:
            config = self.configs[node.name]
            if config.copies == 1 and not config.weights:
                if (key := (id(config), node.operator.kind, node.dims)) in right:
                    continue
                right.add(key)
            config.verify(node, self.processors, known)
        if self.pipeline is not None:
            verify_pipeline(graph, self.configs, self.pipeline)
        self._verify_again(graph)

    @property
    def ordered(self) -> bool:
        """True if the strategy says more than cuts, places and sums.

        That is an order of passes, recomputation or regathering, collectives that reshard tensors, pieces that several
        processors compute, gradients or weights kept as shares, or gradients that are not summed during the backward pass.
        """
        again = bool(self.recompute | self.regather | self.rerun)
        shares = any(sync.zero > 1 or not sync.overlap for sync in self.syncs.values())
        return self.pipeline is not None or again or self.exchange is not Exchange.COPIES or shares or (
            any(config.copies > 1 for config in self.configs.values())
        )

    def _verify_again(self, graph: OperatorGraph) -> None:
        names = {node.name for node in graph}
        for what, of in (("recompute", self.recompute), ("regather", self.regather), ("rerun", self.rerun)):
            if unknown := of - names:
                raise ValueError(f"strategy {self.name}: {what} names unknown operators: {', '.join(sorted(unknown)[:5])}")
        for node in graph:
            if node.name in self.recompute | self.rerun and not node.inputs:
                raise ValueError(
                    f"strategy {self.name}: operator {node.name} ({node.operator.kind}) has no inputs to be computed again "
                    f"from; leave it out of {'recompute' if node.name in self.recompute else 'rerun'}"
                )

    def describe(self, graph: OperatorGraph) -> str:
        """Return one line for each operator: ``lstm1: n/4 @ 0-3``."""
        return "\n".join(f"{node.name}: {self[node.name].describe(node)}" for node in graph)

    def __repr__(self) -> str:
        pieces = sum(len(config.processors) for config in self.configs.values())
        used = len({p for config in self.configs.values() for p in config.processors})
        order = f"; {self.pipeline}" if self.pipeline is not None else ""
        many = len(self.recompute | self.rerun)
        again = f"; {many} operator{'s' * (many > 1)} recomputed" if many else ""
        return (
            f"{self.name}: {len(self.configs)} operators in {pieces} pieces on {used} of {self.processors} processors{order}{again}"
        )

    def _repr_html_(self) -> str:
        return _page(self)


def _page(strategy: Strategy) -> str:
    """The strategy as an HTML table: an operator a row, its pieces as a strip of processors."""
    count, rows = strategy.processors, []
    for name, config in list(strategy.configs.items())[:MOST_ROWS]:
        width = 240 / len(config.processors)
        strip = [
            box(k * width, 0, width, 14, device_colour(p, count), f"piece {k} on {p}", str(p))
            for k, p in enumerate(config.processors)
        ]
        cut = "x".join(map(str, config.degrees))
        where = ranges(config.processors)
        rows.append((escape(name), cut, escape(where), svg(240, 14, strip, f"{len(strip)} pieces on {where}")))
    left = len(strategy.configs) - len(rows)
    more = f"<div>and {left} more operators</div>" if left else ""
    return f"<div>{html_table(('operator', 'degrees', 'processors', 'pieces'), rows, repr(strategy), raw=True)}{more}</div>"


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
        file.write_text(text)


def as_content(
    strategy: Strategy, graph: OperatorGraph, machine: str, made_from: Mapping[str, Any] | None = None,
    search: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the contents of a strategy file as a JSON table (`save`). Raises ValueError for what `load` would refuse."""
    strategy.verify_names(graph)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "name": strategy.name,
        "model": graph.name,
        "graph": graph.fingerprint(),
        "machine": machine,
        "processors": strategy.processors,
        **({"made_from": dict(made_from)} if made_from is not None else {}),
        "operators": {node.name: config_entry(node, strategy[node.name]) for node in graph},
        "syncs": {layer: _sync_entry(sync) for layer, sync in strategy.syncs.items()},
        "sums": strategy.sums.value,
        **({"exchange": strategy.exchange.value} if strategy.exchange is not Exchange.COPIES else {}),
        **({"pipeline": _pipeline_entry(strategy.pipeline)} if strategy.pipeline is not None else {}),
        **({"recompute": [node.name for node in graph if node.name in strategy.recompute]} if strategy.recompute else {}),
        **({"regather": [node.name for node in graph if node.name in strategy.regather]} if strategy.regather else {}),
        **({"rerun": [node.name for node in graph if node.name in strategy.rerun]} if strategy.rerun else {}),
        **({"search": dict(search)} if search is not None else {}),
    }
    as_file(content, f"strategy {strategy.name}")
    return content


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
    exist."""
    file = read_strategy(path)
    _compare(file, graph, processors, str(path))
    try:
        strategy = _from_file(file)
        strategy.verify(graph)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return strategy


def from_content(content: Mapping[str, Any], where: str) -> Strategy:
    """Return the strategy of a table such as `as_content` makes; format and version may be left out. Raises ValueError that
    begins with ``where``."""
    return _from_file(as_file({"format": FORMAT, "version": VERSION, **content}, where))


def _from_file(file: StrategyFile) -> Strategy:
    configs = {
        name: OpConfig(tuple(entry.degrees), tuple(entry.processors), tuple(map(tuple, entry.weights or ())), entry.copies)
        for name, entry in file.operators.items()
    }
    syncs = {
        layer: Sync(
            entry.travel, entry.place, entry.chunks, entry.zero, entry.shard_group, entry.prefetch, entry.overlap, entry.replicas
        )
        for layer, entry in file.syncs.items()
    }
    pipeline = None
    if file.pipeline is not UNSET:
        entry = file.pipeline
        pipeline = Pipeline(entry.micro_batches, entry.stages, entry.ranks, entry.schedule, entry.split)
    return Strategy(
        file.processors, configs, syncs, file.name, SyncAlgorithm(file.sums), pipeline, frozenset(file.recompute), file.exchange,
        frozenset(file.regather), frozenset(file.rerun),
    )


def _sync_entry(sync: Sync) -> dict[str, Any]:
    shares: dict[str, Any] = {"zero": sync.zero, "shard_group": sync.shard_group} if sync.zero > 1 else {}
    shares |= {"replicas": sync.replicas} if sync.replicas else {}
    shares |= {"prefetch": sync.prefetch} if sync.zero == 3 else {}
    shares |= {} if sync.overlap else {"overlap": False}
    return {"travel": sync.travel.value, "place": sync.place.value, "chunks": sync.chunks, **shares}


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
            + "; ".join(differences[:5])
            + (f"; and {len(differences) - 5} more" if len(differences) > 5 else "")
            + "; give the model that it was made for, or search again"
        )
    # The same operators with other sizes: usable if every degree still fits, which verify() checks next.
