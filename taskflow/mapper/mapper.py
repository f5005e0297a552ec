"""Mapper: every decision that changes speed but no values. Users swap mappers without touching the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper.again import HadAgain
from taskflow.mapper.config import Exchange, OpConfig
from taskflow.mapper.pipeline import Pipeline, in_micro_batches
from taskflow.mapper.plan import HybridPlan
from taskflow.mapper.report import Profile
from taskflow.mapper.strategy import SUMS, Strategy
from taskflow.mapper.sync import CollectiveSync, MessageSync, Sync, SyncAlgorithm, UpdatePlacement
from taskflow.regions import Rect


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """A copy of ``rect`` of ``tensor`` that ``target`` needs; ``candidates`` are the processors that hold it, its owner first."""

    tensor: str
    rect: Rect
    target: int
    candidates: tuple[int, ...]
    nbytes: int


class Mapper(ABC):
    """Decision maker that lowering and the runtime ask, as in Legion.

    ``slice_task`` and ``map_task`` must be written; the other methods have defaults that suit most programs. Every rank asks
    the same questions and must get the same answers, so an answer may depend only on the arguments and on the mapper's own
    fields, which must be equal on all ranks.
    """

    name: str = "custom"

    def prepare(self, graph: OperatorGraph, machine: Machine) -> None:
        """Prepare for the other questions; called once, before them."""

    @abstractmethod
    def slice_task(self, node: Node, machine: Machine) -> Sequence[int]:
        """Choose how the operator is cut: a degree for each of ``node.dims``."""

    @abstractmethod
    def map_task(self, node: Node, piece: int, degrees: Sequence[int], machine: Machine) -> int:
        """Choose the processor that runs a piece (numbered with the last dimension fastest)."""

    def map_tasks(self, node: Node, count: int, degrees: Sequence[int], machine: Machine) -> Sequence[int]:
        """Choose the processors that run an operator's ``count`` pieces. Default: `map_task` of each piece."""
        return [self.map_task(node, piece, degrees, machine) for piece in range(count)]

    def select_task_sources(self, request: CopyRequest) -> int:
        """Choose which of ``request.candidates`` sends the copy. Default: the owner."""
        return request.candidates[0]

    def select_reduction(self, layer: str, nbytes: int, holders: Sequence[int], machine: Machine) -> Sync:
        """Choose how the gradients of a layer are summed between the processors that hold its weights, and where the weights
        are updated.

        Default: between devices the library's all-reduce, after which every holder updates. CPU ranks of one machine copy on
        their own cores, so there gradients go straight to owners; each owner updates its share and sends it (reduce-scatter,
        all-gather). That takes fewer messages, and update state is held once.
        """
        return (
            MessageSync(SyncAlgorithm.OWNER, UpdatePlacement.SHARDED)
            if _copying(holders, machine)
            else CollectiveSync(UpdatePlacement.REPLICATED)
        )

    def select_sums(self, processors: Sequence[int], machine: Machine) -> SyncAlgorithm:
        """Choose how partial values (of operators that are cut along a contracted dimension, or of a batch's statistics) are
        summed between the ``processors`` that the strategy uses: `Strategy.sums`.

        Default: between devices by the library's all-reduce, since all that have a part also need the sum. Between CPU ranks of
        one machine, which copy on their own cores, by an owner.
        """
        return SyncAlgorithm.OWNER if _copying(processors, machine) else SyncAlgorithm.COLLECTIVE

    def select_weights(self, node: Node, degrees: Sequence[int], machine: Machine) -> Sequence[Sequence[float]]:
        """Choose the proportions of the pieces along each dimension, for processors of unequal speed: `OpConfig.weights`.
        Pieces along other dimensions are even. Default: none."""
        return ()

    def select_copies(self, node: Node, machine: Machine) -> int:
        """Choose how many processors compute each piece redundantly (`OpConfig.copies`). With more than one, `map_task` is
        asked about every copy: for piece k, about the numbers from k * copies on. Default: one. Of what is made of weights alone
        (`Node.of_weights`, such as a table of positions) a copy wherever it is read is what frameworks do: a single one sends
        its results to all others, and gathers their gradients."""
        return 1

    def select_pipeline(self, graph: OperatorGraph, machine: Machine) -> Pipeline | None:
        """Choose micro-batches, stages and the order of passes. `slice_task` and `map_task` then decide how one micro-batch is
        cut and where its pieces run. Default: none, operator after operator with the whole batch."""
        return None

    def select_again(self, graph: OperatorGraph, machine: Machine) -> HadAgain:
        """Choose what is not kept for the backward pass, but computed or fetched again. Default: all is kept."""
        return HadAgain()

    def select_exchange(self, graph: OperatorGraph, machine: Machine) -> Exchange:
        """Choose how tensors are resharded within a group of processors: `Strategy.exchange`. Default: by copies."""
        return Exchange.COPIES

    def select_plan(self, graph: OperatorGraph, machine: Machine) -> HybridPlan | None:
        """Return the plan in notation that all answers together are: `Strategy.plan`. Default: none."""
        return None

    def order_tasks(self, name: str, operator: str | None, kind: str) -> int:
        """Return the priority of a task among those that become ready at the same time; lower goes first. Default: program
        order."""
        return 0

    def memoize(self, trace: str) -> bool:
        """True if a trace of the generic task API is compiled and replayed once it repeats. Default: yes."""
        return True

    def report_profiling(self, profile: Profile) -> None:
        """Receive what this rank measured; called after each step and after each replay of a trace of the task API. Default:
        nothing, and then nothing is measured."""

    @property
    def wants_profiling(self) -> bool:
        """True if `report_profiling` is overridden."""
        return type(self).report_profiling is not Mapper.report_profiling

    @property
    def orders_tasks(self) -> bool:
        """True if `order_tasks` is overridden."""
        return type(self).order_tasks is not Mapper.order_tasks

    @property
    def selects_sources(self) -> bool:
        """True if `select_task_sources` is overridden."""
        return type(self).select_task_sources is not Mapper.select_task_sources


def _copying(processors: Sequence[int], machine: Machine) -> bool:
    """True if processors copy what they send each other by themselves, as CPU ranks do."""
    route = machine.route(processors[0], processors[1]) if len(processors) > 1 else ()
    return any(link.occupies_endpoints for link in route)


def map_graph(mapper: Mapper, graph: OperatorGraph, machine: Machine) -> Strategy:
    """Ask a mapper about every operator and every layer, and return the strategy. Raises ValueError that names the mapper and
    the operator if an answer is no configuration."""
    mapper.prepare(graph, machine)
    count = len(machine.processors)
    pipeline: Any = mapper.select_pipeline(graph, machine)
    if not isinstance(pipeline, (Pipeline, type(None))):
        raise ValueError(f"mapper {mapper.name}: select_pipeline must return a Pipeline or None, got {pipeline!r}")
    parts = 1 if pipeline is None else pipeline.parts
    known: dict[OpConfig, OpConfig] = {}  # layers are alike: one object is quick to compare, and holds less memory
    processors: dict[tuple[int, ...], tuple[int, ...]] = {}  # likewise: on many devices they have a million entries
    configs: dict[str, OpConfig] = {}
    divided: dict[tuple[object, ...], OpConfig] = {}
    for node in graph:
        config = _configure(mapper, node, machine)
        key = config, node.operator if config.copies > 1 else node.operator.kind, node.dims
        if key not in divided:
            try:
                config.verify(node, count)
            except ValueError as error:
                raise ValueError(f"mapper {mapper.name}: {error}") from None
            whole = in_micro_batches(node, config, parts)
            if whole not in known:
                places = processors.setdefault(whole.processors, whole.processors)
                known[whole] = whole if places is whole.processors else replace(whole, processors=places)
            divided[key] = known[whole]
        configs[node.name] = divided[key]
    holders: dict[str, dict[int, OpConfig]] = {}
    nbytes: dict[str, int] = {}
    for parameter in graph.parameters:
        nbytes[parameter.layer] = nbytes.get(parameter.layer, 0) + parameter.spec.nbytes
    for node in graph:
        for parameter in node.parameters:
            config = configs[node.name]
            holders.setdefault(parameter.layer, {})[id(config)] = config
    syncs: dict[str, Sync] = {}
    groups: dict[tuple[int, ...], tuple[int, ...]] = {}
    for layer, of in holders.items():
        if (alike := tuple(of)) not in groups:
            groups[alike] = tuple(sorted(set().union(*(config.processors for config in of.values()))))
        answer: Any = mapper.select_reduction(layer, nbytes[layer], groups[alike], machine)
        if not isinstance(answer, Sync):
            raise ValueError(f"mapper {mapper.name}: select_reduction of {layer} must return a Sync, got {answer!r}")
        syncs[layer] = answer
    used = tuple(sorted(set().union(*(config.processors for config in known))))
    sums: Any = mapper.select_sums(used, machine)
    if sums not in SUMS:
        raise ValueError(
            f"mapper {mapper.name}: select_sums must return SyncAlgorithm.OWNER or SyncAlgorithm.COLLECTIVE, got {sums!r}"
        )
    exchange: Any = mapper.select_exchange(graph, machine)
    if not isinstance(exchange, Exchange):
        raise ValueError(f"mapper {mapper.name}: select_exchange must return an Exchange, got {exchange!r}")
    again: Any = mapper.select_again(graph, machine)
    if not isinstance(again, HadAgain):
        raise ValueError(f"mapper {mapper.name}: select_again must return a HadAgain, got {again!r}")
    plan = mapper.select_plan(graph, machine)
    strategy = Strategy(count, configs, syncs, mapper.name, sums, pipeline, again, exchange, plan)
    strategy.verify(graph)
    return strategy


def _configure(mapper: Mapper, node: Node, machine: Machine) -> OpConfig:
    who = f"mapper {mapper.name}, operator {node.name}"
    try:
        degrees = tuple(mapper.slice_task(node, machine))
    except TypeError as error:
        raise ValueError(f"{who}: slice_task must return one degree for each of {[d.name for d in node.dims]}") from error
    if len(degrees) != len(node.dims) or not all(isinstance(d, int) and d >= 1 for d in degrees):
        raise ValueError(
            f"{who}: slice_task must return one degree (1 or more) for each of {[d.name for d in node.dims]}, "
            f"got {degrees}"
        )
    pieces = 1
    for dim, degree in zip(node.dims, degrees):
        if degree > max(1, dim.size):  # before it is asked for the processor of each piece
            raise ValueError(
                f"mapper {mapper.name}: operator {node.name}: degree of {dim.name} must be 1 to {dim.size}, got {degree}"
            )
        pieces *= degree
    copies: Any = mapper.select_copies(node, machine)
    if not isinstance(copies, int) or copies < 1:
        raise ValueError(f"{who}: select_copies must return how many processors run each piece, 1 or more, got {copies!r}")
    weights = tuple(tuple(map(float, of)) for of in mapper.select_weights(node, degrees, machine))
    processors = tuple(mapper.map_tasks(node, pieces * copies, degrees, machine))
    if copies > 1 and node.of_weights:
        copies, processors = _once_each(copies, processors)
    return OpConfig(degrees, processors, weights, copies)


def _once_each(copies: int, processors: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """The copies of each piece of what is computed of weights alone, once on each of their processors: a mapper that places
    pieces in its own way knows nothing of these copies, and may place several on one."""
    groups = [tuple(dict.fromkeys(processors[i : i + copies])) for i in range(0, len(processors), copies)]
    if len({len(group) for group in groups}) != 1:
        return copies, processors
    return len(groups[0]), tuple(p for group in groups for p in group)
