"""CompiledEvaluator: the compiled evaluator. Geometry and costs come from Python once; placement is applied in C++."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine, collective
from taskflow.mapper import SUMS, OpConfig, Strategy, Sync, SyncAlgorithm
from taskflow.optimizer.cost import Costs, Roofline
from taskflow.optimizer.evaluate._core import Core
from taskflow.optimizer.evaluate.core_model import CoreTables, alike, describe_cut, describe_model, unsupported
from taskflow.optimizer.evaluate.evaluator import NO_SYNCS, Evaluator, TooManyTasksError, Usage, same_processors
from taskflow.optimizer.evaluate.evaluator import usage as usage_of
from taskflow.optimizer.evaluate.folded import FoldedStep
from taskflow.optimizer.evaluate.ordered import KnownTotals, OrderedEvaluator
from taskflow.optimizer.evaluate.repetition import Repetition
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks import Kind, Span, TaskGraph, Timeline, message_resources, together

KINDS = (
    Kind.FORWARD, Kind.BACKWARD, Kind.COPY, Kind.MOVE, Kind.SUM, Kind.FILL, Kind.NORM, Kind.CLIP, Kind.UPDATE,
    Kind.COLLECTIVE,
)
TRAVELLING = tuple(i for i, kind in enumerate(KINDS) if kind.travels)
SIMULATIONS = ("full", "delta")


class CompiledEvaluator(Evaluator):
    """Evaluator in C++. Seconds, tasks and timelines are bit for bit those of `PythonEvaluator`. Strategies that the core does
    not support (`Strategy.ordered`: an order of passes, recomputation, shares; samples that several processors compute) go to an
    `OrderedEvaluator`."""

    reference: OrderedEvaluator | None = None
    """What evaluates the current strategy, if the core does not."""

    def __init__(
        self,
        graph: OperatorGraph,
        machine: Machine,
        costs: Costs,
        rule: UpdateRule | None,
        clip_norm: float | None,
        algorithm: str = "full",
        repetition: Repetition | None = None,
    ) -> None:
        super().__init__(graph, machine, costs, rule, clip_norm)
        self.repetition = repetition  # whose machine ``machine`` is; ``costs`` are the whole machine's
        reason = unsupported(graph, machine, costs, rule)
        if reason:
            raise ValueError(f"CompiledEvaluator: {graph.name} needs the reference evaluator: {reason}")
        self._core = Core()
        self._core.use(SIMULATIONS.index(algorithm))
        self._tables = CoreTables(self._core, 1 if repetition is None else repetition.count)
        if repetition is not None:
            self._core.repeat(repetition.count)
        self._regions: dict[Rect, int] = {}
        self._lists: dict[tuple[int, ...], int] = {}
        self._cuts: dict[object, int] = {}
        self._known: dict[str, tuple[int, dict[tuple[int, ...], int]]] = {}  # numbers of nodes, and of their cuts, of proposals
        self._cut_rects: list[list[Rect]] = []
        self._links: dict[int, int] = {}
        self.groups: list[tuple[int, ...]] = []
        """The sets of processors that collectives were among."""
        self._route_classes: dict[tuple[object, ...], int] = {}
        self._nodes = {node.name: node for node in graph}
        self._like = alike(graph)
        layers = list(dict.fromkeys(p.layer for p in graph.parameters))
        self._layers = {layer: i for i, layer in enumerate(layers)}
        self._seconds = inf
        self._configs: dict[str, OpConfig] = {}  # the current ones; accepted changes come here first
        self._syncs: dict[str, Sync] = {}
        self._sums = SyncAlgorithm.OWNER
        self._known_totals = KnownTotals()  # of strategies that the core does not support
        self._pieces, self._most = 0, len(machine.processors)
        self._proposed = self._stale = False
        self._describe_machine()
        describe_model(self._core, graph, rule, clip_norm is not None, self._layers, self._region, self._list)

    # ---- the model -------------------------------------------------------------------------------------------------
    def _describe_machine(self) -> None:
        processors = self.machine.processors
        self._core.machine(
            len(processors),
            [self.costs.processor_class(p.number) for p in processors],
            type(self.costs) is Roofline,
            self.costs.by_runs,
            [p.flops_per_second for p in processors],
            [p.bytes_per_second for p in processors],
            [p.overhead_seconds for p in processors],
            self._cost,
            self._route,
            self._group,
            lambda: self.checkpoint(),
            self._tables.chunks,
        )

    def _region(self, rect: Rect) -> int:
        number = self._regions.get(rect)
        if number is None:
            number = self._regions[rect] = self._core.add_region(rect.lo, rect.hi)
        return number

    def _list(self, rects: list[Rect]) -> int:
        key = tuple([self._region(rect) for rect in rects])
        number = self._lists.get(key)
        if number is None:
            number = self._lists[key] = self._core.add_list(key)
        return number

    def _cut(self, node: Node, config: OpConfig) -> int:
        """The number of a cut in the core's table: made once for all nodes that are alike (`alike`)."""
        key = (self._like[node.number], config.degrees, config.weights, config.copies)
        number = self._cuts.get(key)
        if number is not None:
            return number
        self.checkpoint()
        if config.copies > 1 and not node.of_weights:
            raise ValueError(f"evaluator: {node.name}: each piece of what has samples is computed once, got {config.copies} copies")
        rects = config.partition(node).rects() if self.repetition is None else self.repetition.rects(node, config)
        rects = [rect for rect in rects for _ in range(config.copies)]
        number = self._cuts[key] = describe_cut(self._core, node, rects, config.copies > 1, self._list)
        self._cut_rects.append(rects)
        return number

    # ---- what the core asks ----------------------------------------------------------------------------------------
    def _cost(self, kind: int, cut: int, piece: int, where: int, flops: int, nbytes: int, node: int) -> float:
        which = KINDS[kind]
        if which is Kind.COPY:
            return self.costs.copy(cut, piece, nbytes, (flops >> 32, flops & 0xFFFFFFFF))  # which has no flops, but runs
        if which is Kind.COLLECTIVE:
            return self.costs.collective(self.groups[where], nbytes, flops, cut)
        if which in (Kind.FORWARD, Kind.BACKWARD):
            rect = self._cut_rects[cut][piece]
            return self.costs.piece(self.graph.nodes[node], rect, which is Kind.BACKWARD, where, flops, nbytes)
        return self.costs.other(which, where, flops, nbytes, cut)  # of these tasks it is the runs

    @property
    def link_places(self) -> Mapping[int, int]:
        """Return the core's numbers of the links that it has met (they follow the processors'), by link as in `resources`."""
        return self._links

    def _route(self, source: int, target: int) -> tuple[list[int], float, float, int]:
        # Asked for every pair of processors that exchange anything: of 1,024 these are hundreds of thousands.
        latency, rate = 0.0, inf
        for link in self.machine.route(source, target):
            latency += link.latency_seconds
            rate = min(rate, link.bytes_per_second)
        numbers = self._numbers(message_resources(source, target, self.machine))
        route = self._route_classes.setdefault(self.costs.route_class(source, target), len(self._route_classes))
        return numbers, latency, rate, route

    def _group(self, members: tuple[int, ...]) -> tuple[list[int], bool]:
        self.groups.append(members)
        occupied = self.occupied(members)
        return self._numbers(occupied), together(Kind.COLLECTIVE, occupied, self.machine)

    def occupied(self, group: tuple[int, ...]) -> tuple[int, ...]:
        """Return what a collective among a group occupies, numbered as `resources` has it. Processors of other repetitions are
        counted on after the machine's."""
        return collective(self.machine, group).resources if self.repetition is None else self.repetition.occupied(group)

    def _numbers(self, occupied: Iterable[int]) -> list[int]:
        """As the core numbers things: of the links only those in use."""
        first = len(self.machine.processors)
        return [r if r < first else first + self._links.setdefault(r, len(self._links)) for r in occupied]

    # ---- Evaluator -------------------------------------------------------------------------------------------------
    @property
    def strategy(self) -> Strategy:
        """Current strategy, built when it is asked for, since most plans of a walk never are."""
        if self._stale or self._strategy is None:
            was = super().strategy
            self._strategy = Strategy(was.processors, dict(self._configs), dict(self._syncs), was.name, self._sums)
            self._stale = False
        return self._strategy

    @property
    def pieces(self) -> int:
        self.strategy if self._strategy is None else None  # noqa: B018
        return super().pieces if self.reference is not None else self._pieces

    def at(self, strategy: Strategy) -> bool:
        return not self._stale and super().at(strategy)

    @property
    def seconds(self) -> float:
        self.strategy  # noqa: B018 (says what to do if there is none)
        return self._seconds if self.reference is None else self.reference.seconds

    @property
    def tasks(self) -> int:
        self.strategy  # noqa: B018
        return len(self._core) if self.reference is None else self.reference.tasks

    def set(self, strategy: Strategy) -> float:
        same_processors(strategy, self.machine)
        if self._beyond(strategy):
            reference = self._ordered()
            with reference.interruptible(self.checkpoint):
                seconds = reference.set(strategy)
            self.reference, self._strategy, self._proposed, self._stale = reference, strategy, False, False
            return seconds
        strategy.verify(self.graph)
        self._proposed = False
        self._core.begin()
        for node in self.graph:
            self._change(node, strategy[node.name])
        for layer in self._layers:
            self._change_sync(layer, strategy.sync(layer))
        self._change_sums(strategy.sums)
        seconds = self._core.evaluate(inf)
        if seconds == inf:
            raise TooManyTasksError(strategy)
        self._seconds = seconds
        self._core.accept()
        self.reference, self._strategy, self._proposed, self._stale = None, strategy, False, False
        self._configs, self._syncs, self._sums = dict(strategy.configs), dict(strategy.syncs), strategy.sums
        self._pieces = super().pieces
        return self._seconds

    def keep(self) -> None:
        if self.reference is not None:
            self.reference.keep()

    def seconds_of(self, strategy: Strategy) -> float:
        if not self._beyond(strategy):
            return super().seconds_of(strategy)
        with (reference := self._ordered()).interruptible(self.checkpoint):
            return reference.seconds_of(strategy)

    def propose(
        self, changes: Mapping[str, OpConfig], limit: float = inf, syncs: Mapping[str, Sync] = NO_SYNCS,
        sums: SyncAlgorithm | None = None,
    ) -> float:
        if self._strategy is None:
            self.strategy  # noqa: B018
        self.proposals += 1
        self._proposed = False
        if self.reference is None and any(sync.zero > 1 for sync in syncs.values()):
            self.reference = self._ordered()
            self.reference.set(self.strategy)
        if self.reference is not None:
            return self.reference.propose(changes, limit, syncs, sums)
        if self.repetition is not None and not self.repetition.takes(changes, syncs):
            return inf
        self._core.begin()
        for name, config in changes.items():
            known = self._known.get(name)
            even = not config.weights and config.copies == 1
            cut = known[1].get(config.degrees) if known is not None and even else None
            if known is None or cut is None:
                self._propose_change(self._node(name), config)
                continue
            try:  # a cut that is known has been verified; then only its places are new
                self._core.change(known[0], cut, config.processors)
            except (TypeError, ValueError, OverflowError):
                config.verify(self._node(name), self._most)
                raise
        for layer, sync in syncs.items():
            self._change_sync(layer, sync)
        if sums is not None:
            self._change_sums(sums)
        seconds = self._core.evaluate(limit)
        self._proposal = (changes, syncs, sums or self._sums, seconds)
        self._proposed = seconds < inf
        return seconds

    def accept(self) -> None:
        if self.reference is not None:
            self.reference.accept()
            self._strategy = self.reference.strategy
            return
        if not self._proposed:
            raise ValueError("accept: there is no proposal to accept, or it was cut short by its limit")
        changes, syncs, self._sums, seconds = self._proposal
        self._syncs.update(syncs)
        self._core.accept()
        for name, config in changes.items():
            self._pieces += len(config.processors) - len(self._configs[name].processors)
        self._configs.update(changes)
        self._seconds, self._proposed, self._stale = seconds, False, True

    def timeline(self) -> Timeline:
        self.strategy  # noqa: B018
        if self.reference is not None:
            return self.reference.timeline()
        ready, start, end, order, _, starts, place = (array.tolist() for array in self._core.times())
        copies = np.isin(self.task_table()["kind"], TRAVELLING).tolist()
        spans = tuple(
            Span(i, *times, tuple(starts[first:last]) if copy else ())
            for i, (times, first, last, copy) in enumerate(
                zip(zip(ready, start, end), place, [*place[1:], len(starts)], copies)
            )
        )
        return Timeline(spans, tuple(order))

    def folded(self, strategy: Strategy) -> FoldedStep | None:
        if self.repetition is not None:
            return None
        with (reference := self.reference or self._ordered()).interruptible(self.checkpoint):
            return reference.folded(strategy)

    def lowered(self, strategy: Strategy | None = None) -> TaskGraph:
        return super().lowered(strategy) if self.reference is None else self.reference.lowered(strategy)

    def current(self) -> tuple[TaskGraph, Timeline]:
        if self.reference is None:
            return super().current()
        with self.reference.interruptible(self.checkpoint):
            return self.reference.current()

    def evaluated(self, strategy: Strategy) -> tuple[TaskGraph, Timeline]:
        if self.reference is not None and self.at(strategy):
            return self.current()
        found = super().evaluated(strategy)
        if self._beyond(strategy):
            self._known_totals.evaluated(strategy, *found)
        return found

    def usage(self) -> Usage:
        if self.reference is not None:
            return self.reference.usage()
        return usage_of(self.lowered(), self.timeline(), self.machine)

    def task_table(self) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
        """Return the current strategy's tasks as arrays by column: kind (an index into `KINDS`), processor, source (of a
        collective an index into ``groups``), node, flops, nbytes, cost; and ``after_offset``, ``after``: predecessors, without
        most of those that others imply."""
        self.strategy  # noqa: B018
        return self._core.tasks()

    def _beyond(self, strategy: Strategy) -> bool:
        """True if the core does not support a strategy."""
        copied = (name for name, config in strategy.configs.items() if config.copies > 1)
        return strategy.ordered or any(name in self._nodes and not self._nodes[name].of_weights for name in copied)

    def _ordered(self) -> OrderedEvaluator:
        return OrderedEvaluator(self.graph, self.machine, self.costs, self.rule, self.clip_norm, self._known_totals)

    def _node(self, name: str) -> Node:
        return self._nodes[name] if name in self._nodes else self.graph.node(name)

    def _propose_change(self, node: Node, config: OpConfig) -> None:
        config.verify(node, self._most)
        self._change(node, config)
        if not config.weights and config.copies == 1:
            self._known.setdefault(node.name, (node.number, {}))[1][config.degrees] = self._cut(node, config)

    def _change(self, node: Node, config: OpConfig) -> None:
        self._core.change(node.number, self._cut(node, config), config.processors)

    def _change_sums(self, sums: SyncAlgorithm) -> None:
        if sums not in SUMS:
            raise ValueError(f"propose: partial values are summed by SyncAlgorithm.OWNER or SyncAlgorithm.COLLECTIVE, got {sums!r}")
        self._core.change_sums(sums is SyncAlgorithm.COLLECTIVE)

    def _change_sync(self, layer: str, sync: Sync) -> None:
        if layer in self._layers:
            self._core.change_sync(self._layers[layer], *self._tables.way(sync))
