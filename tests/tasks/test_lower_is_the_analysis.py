"""lower's task graph is what the dependence analysis says of the same launches: the same order, edge by edge, and the same
copies.

Launches are the forward and backward tasks, the update of a bundle and the carrying of a state; copies, sums and fills lie
between them. Values flow alike if the transitive reductions of both graphs' flows, which are unique, are equal. Where a
later launch overwrites what an earlier one reads, the analysis asks for an order; lower keeps it, or has given the
reader a copy of its own, and then the order holds for that copy.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from fast_and_slow import fast_among
from language_model import CONFIG, ONE_STEP, model, random_strategy

from taskflow.graph import OperatorGraph
from taskflow.mapper import MessageSync, OpConfig, Strategy
from taskflow.operators.operator import Soap
from taskflow.regions import LogicalRegion, Privilege, Requirement
from taskflow.regions.dependence import Analysis
from taskflow.regions.ordering import DependenceKind as DependenceKind
from taskflow.rules import SGD
from taskflow.tasks.lower.gradient_flow import gradient_flow
from taskflow.tasks.lower.lower import cut, lower, parameter_uses
from taskflow.tasks.lower.parameters import lay_out
from taskflow.tasks.task import Compute, Kind, TaskGraph, Update

READ, WRITE, REDUCE, READ_WRITE = Privilege.READ, Privilege.WRITE, Privilege.REDUCE, Privilege.READ_WRITE
Edges = set[tuple[str, str]]


class Definition:
    """The launches of one step with their region requirements, given to the analysis in program order."""

    def __init__(self, graph: OperatorGraph, strategy: Strategy) -> None:
        self.graph, self.strategy = graph, strategy
        self.analysis = Analysis(exact=True, contiguous=True)
        self.names: list[str] = []
        self.flows: Edges = set()  # a value, or the order of a sum, passes from one launch to the other
        self.overwrites: set[tuple[str, str, str]] = set()  # (reader or writer, later writer, region)
        self.copies: set[tuple] = set()
        self.regions: dict[str, LogicalRegion] = {}
        pieces = [cut(graph, strategy, n) for n in range(len(graph))]
        active, needed, trained = gradient_flow(graph)
        for node in graph:
            for piece in pieces[node.number]:
                if node.operator.kind == "state":
                    self.launch(f"start {piece.name}", piece.processor, self.outputs(piece, WRITE))
                else:
                    self.launch(f"{piece.name} forward", piece.processor, self.forward(piece, pieces[node.number]))
        for loss in graph.losses:  # brought to processor 0
            self.launch(f"fetch {loss.name}", 0, [self.need(loss.name, loss.spec, loss.spec.rect, READ)])
        for node in reversed(graph.nodes):
            for piece in pieces[node.number] if node.number in active else []:
                self.launch(f"{piece.name} backward", piece.processor, self.backward(piece, needed))
        layout = lay_out(graph, parameter_uses(pieces), trained)
        for bundle in layout.bundles:
            specs = {p.name: p.spec for p in graph.parameters}
            needs = [self.need(f"d {c.parameter}", specs[c.parameter], c.rect, READ) for c in bundle.cells]
            needs += [self.need(c.parameter, specs[c.parameter], c.rect, READ_WRITE) for c in bundle.cells]
            self.launch(f"update {bundle.name}", bundle.group[0], needs)
        for state, becomes in graph.carries:
            for piece in pieces[state.node]:
                rect = piece.writes[0]
                self.launch(
                    f"carry {state.name}{rect}", piece.processor,
                    [self.need(becomes.name, becomes.spec, rect, READ), self.need(state.name, state.spec, rect, WRITE)],
                )

    def need(self, name, spec, rect, privilege) -> Requirement:
        region = self.regions.setdefault(name, LogicalRegion(name, spec.rect, np.dtype(np.float64)))
        return Requirement(region, rect, privilege)

    def saved(self, piece, privilege) -> list[Requirement]:
        """What a piece's forward task leaves for its backward task."""
        specs = piece.node.operator.saves(piece.node.specs, piece.rect)
        return [self.need(f"saved {piece.name} {i}", s, s.rect, privilege) for i, s in enumerate(specs) if s.rect.volume]

    def outputs(self, piece, privilege) -> list[Requirement]:
        return [self.need(t.name, t.spec, r, privilege) for t, r in zip(piece.node.outputs, piece.writes)]

    def inputs(self, piece, privilege, gradient=False, of=lambda tensor: True) -> list[Requirement]:
        unique = dict.fromkeys(
            (t.name, t.spec, r) for t, r in zip(piece.node.inputs, piece.reads.inputs) if of(t) and not r.empty
        )
        return [self.need(f"d {n}" if gradient else n, s, r, privilege) for n, s, r in unique]

    def weights(self, piece, privilege, gradient=False) -> list[Requirement]:
        return [
            self.need(f"d {p.name}" if gradient else p.name, p.spec, r, privilege)
            for p, r in zip(piece.node.parameters, piece.reads.weights) if not r.empty
        ]

    def forward(self, piece, pieces) -> list[Requirement]:
        result = self.inputs(piece, READ) + self.weights(piece, READ) + self.saved(piece, WRITE)
        for tensor, rect in zip(piece.node.outputs, piece.writes):
            index = piece.node.outputs.index(tensor)
            shared = sum(other.writes[index] == rect for other in pieces) > 1
            result.append(self.need(tensor.name, tensor.spec, rect, REDUCE if shared else WRITE))
        return result

    def backward(self, piece, needed) -> list[Requirement]:
        """What forward reads, backward reduces into; what forward writes, backward reads."""
        keeps = piece.node.operator.keeps(piece.node.specs)

        def needs(tensor) -> bool:
            return (tensor.node, tensor.index) in needed

        result = [
            self.need(f"d {t.name}", t.spec, r, READ) for t, r in zip(piece.node.outputs, piece.writes) if needs(t)
        ]
        result += self.saved(piece, READ)
        result += self.inputs(piece, READ) if keeps.inputs else []
        result += self.weights(piece, READ) if keeps.weights else []
        result += self.outputs(piece, READ) if keeps.outputs else []
        return result + self.inputs(piece, REDUCE, True, needs) + self.weights(piece, REDUCE, True)

    def launch(self, name: str, processor: int, needs: list[Requirement]) -> None:
        done = self.analysis.launch(needs, processor)
        assert done.number == len(self.names)
        self.names.append(name)
        for d in done.dependences:
            # Partial values of a forward sum have a buffer each, so they need no order among themselves.
            if d.kind in (DependenceKind.ANTI, DependenceKind.OUTPUT):
                self.overwrites.add((self.names[d.earlier], name, d.region.name))
            elif not (d.kind is DependenceKind.ORDER and name.endswith("forward")):
                self.flows.add((self.names[d.earlier], name))
        for copy in done.copies:
            if copy.source_processor >= 0 and copy.source_processor != processor:
                self.copies.add((copy.region.name, copy.rect, copy.source_processor, processor))


def launch_name(task) -> str | None:
    if isinstance(task.work, Compute):
        return task.name
    if isinstance(task.work, Update):
        return task.name[: task.name.rindex("[")]
    return task.name if task.name.startswith("carry") and task.kind is Kind.MOVE else None


def parts_meet(graph: TaskGraph, a, b) -> bool:
    """True if two parts share memory."""
    def resolve(part):
        buffer = graph.buffers[part.buffer]
        return (part.buffer, part.rect) if buffer.base is None else (buffer.base, buffer.part)

    (base_a, rect_a), (base_b, rect_b) = resolve(a), resolve(b)
    return base_a == base_b and rect_a.overlaps(rect_b)


def flows(graph: TaskGraph) -> Edges:
    """Launches between which a value passes, through any number of copies, sums and fills."""
    behind: list[set[str]] = []
    edges: Edges = set()
    for task in graph:
        before: set[str] = set()
        for number in task.after:
            earlier = graph.tasks[number]
            if any(parts_meet(graph, w, r) for w in earlier.writes for r in task.reads):
                name = launch_name(earlier)
                before |= {name} if name else behind[number]
        name = launch_name(task)
        if name:
            edges |= {(other, name) for other in before if other != name}
        behind.append(before)
    return edges


def ancestors(graph: TaskGraph) -> list[int]:
    """For each task the set, as bits, of the tasks that end before it starts."""
    result: list[int] = []
    for task in graph:
        bits = 0
        for number in task.after:
            bits |= result[number] | 1 << number
        result.append(bits)
    return result


def reduction(edges: Edges) -> Edges:
    """The transitive reduction of an acyclic graph."""
    after: dict[str, set[str]] = {}
    for a, b in edges:
        after.setdefault(a, set()).add(b)
    reach: dict[str, set[str]] = {}

    def reachable(a: str) -> set[str]:
        if a not in reach:
            reach[a] = set()
            for b in after.get(a, ()):
                reach[a] |= {b} | reachable(b)
        return reach[a]

    return {(a, b) for a, b in edges if not any(b in reachable(c) for c in after[a] if c != b)}


def without(edges: Edges, kind: str) -> Edges:
    """Edges between launches that lower has too (the starts of states and the fetching of losses are not tasks)."""
    return {(a, b) for a, b in edges if not a.startswith(kind) and not b.startswith(kind)}


def strategy_of(seed: int, graph: OperatorGraph, contract: bool) -> Strategy:
    random = Random(seed)
    strategy = random_strategy(graph, random.randint(2, 5), random)
    if contract:
        return strategy
    configs = {}
    for node in graph:
        config = strategy[node.name]
        keep = [i for i, dim in enumerate(node.dims) if dim.soap is not Soap.REDUCTION]
        degrees = tuple(d if i in keep else 1 for i, d in enumerate(config.degrees))
        count = int(np.prod(degrees))
        configs[node.name] = OpConfig(degrees, config.processors[:count])
    return Strategy(strategy.processors, configs, strategy.syncs)


@pytest.mark.parametrize("seed", fast_among(range(40), range(20)))
def test_same_order_edge_by_edge(seed):
    graph = model(config=(CONFIG, ONE_STEP)[seed % 2])
    strategy = strategy_of(seed, graph, contract=True)
    wanted = without(without(Definition(graph, strategy).flows, "start"), "fetch")
    found = flows(lower(graph, strategy, SGD(0.1)))
    assert reduction(found) == reduction(wanted)
    assert len(wanted) > 100


@pytest.mark.parametrize("seed", fast_among(range(40), range(20)))
def test_nothing_is_overwritten_before_it_was_read(seed):
    graph = model(config=(CONFIG, ONE_STEP)[seed % 2])
    strategy = strategy_of(seed, graph, contract=True)
    # One chunk a bundle: the definition has one update for all of it, which would wait for readers of other chunks.
    syncs = {n: replace(sync, chunks=1) if isinstance(sync, MessageSync) else sync for n, sync in strategy.syncs.items()}
    strategy = replace(strategy, syncs=syncs)
    overwrites = Definition(graph, strategy).overwrites
    tasks = lower(graph, strategy, SGD(0.1))
    before = ancestors(tasks)
    launches: dict[str, list[int]] = {}
    for task in tasks:
        if name := launch_name(task):
            launches.setdefault(name, []).append(task.number)
    checked = 0
    for reader, writer, region in overwrites:
        for number in launches.get(reader, ()):
            copies = [
                c for c in tasks.tasks[number].after
                if tasks.tasks[c].kind in (Kind.COPY, Kind.MOVE)
                and tasks.buffers[tasks.tasks[c].reads[0].buffer].region == region
            ]
            for late in launches[writer]:
                ordered = before[late] >> number & 1 or (copies and all(before[late] >> c & 1 for c in copies))
                assert ordered, f"{writer} may overwrite {region} before {reader} has read it"
                checked += 1
    assert checked


@pytest.mark.parametrize("seed", fast_among(range(40), range(20)))
def test_same_copies_of_values(seed):
    """Of tensors that are not split sums: those of sums are checked by their order and their bytes elsewhere."""
    graph = model(config=(CONFIG, ONE_STEP)[seed % 2])
    strategy = strategy_of(seed, graph, contract=False)
    # The scalars of losses are sums over the sample cuts.
    tensors = {t.name for node in graph for t in node.outputs if t.spec.shape}
    wanted = {c for c in Definition(graph, strategy).copies if c[0] in tensors}
    tasks = lower(graph, strategy, SGD(0.1))
    found = set()
    for task in tasks:
        if task.kind is Kind.COPY:
            source = tasks.buffers[task.reads[0].buffer]
            if source.region in tensors and source.number not in tasks.weights.values():
                rect = task.reads[0].rect.shift(source.rect.lo)
                found.add((source.region, rect, task.source, task.processor))
    assert found == wanted
    assert wanted
