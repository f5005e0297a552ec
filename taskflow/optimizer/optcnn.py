"""OptCNN's search: dynamic programming over an additive cost (paper, section 8.2.3; `taskflow.optimizer.eliminate`).

The cost of a plan is the sum of each operator's time, of the transfers between each pair of operators, and of each layer's
synchronisation, as if nothing overlapped. As in the paper's comparison, the steps of a recurrent layer take one decision
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig, Strategy, depths
from taskflow.operators.tensor import Tensor
from taskflow.optimizer.eliminate import Matrix, Vector, eliminate
from taskflow.optimizer.evaluator import Evaluator
from taskflow.optimizer.found import Found, SearchOptions
from taskflow.optimizer.moves import follow
from taskflow.optimizer.pieces import Pieces
from taskflow.optimizer.run import Run
from taskflow.optimizer.space import OperatorSpace, Space, SpaceOptions, place
from taskflow.regions import Rect


def optcnn(evaluator: Evaluator, options: SearchOptions | None = None) -> Found:
    """The plan with the least additive cost, judged by the evaluator. It takes no proposals: the budget does not bind it.
    ValueError if the costs are only known for whole tasks."""
    options = options or SearchOptions()
    run = Run("optcnn", evaluator, options)

    def body() -> str:
        run.phase = "elimination"
        run.set(additive_plan(evaluator, options.space))
        return "finished"

    return run.conduct(body)


def additive_plan(evaluator: Evaluator, options: SpaceOptions | None = None) -> Strategy:
    """The strategy with the least additive cost among `choices`, with the default synchronisation."""
    try:
        cost = Additive(evaluator, options or SpaceOptions())
    except TypeError as error:
        raise ValueError(f"optcnn: needs costs of pieces, not only of whole tasks ({error})") from error
    chosen = eliminate(cost.vertices, cost.edges)
    return cost.strategy(chosen.chosen)


def fused(graph: OperatorGraph) -> list[list[Node]]:
    """Operators that decide together: those that share weights, and in a network with such ones also the equal operators
    of one depth between them."""
    shares = len({n.parameters[0].name for n in graph if n.parameters}) < sum(bool(n.parameters) for n in graph)
    depth = depths(graph)
    groups: dict[object, list[Node]] = {}
    for node in graph:
        key: object = node.name
        if node.parameters:
            key = node.parameters[0].name
        elif shares:
            key = (node.operator, node.specs, depth[node.name])
        groups.setdefault(key, []).append(node)
    return list(groups.values())


def choices(space: OperatorSpace, most: int) -> list[OpConfig]:
    """At most ``most`` configurations on the first processors, contiguous: those with the most pieces first, powers of two
    and even divisions before others."""
    tuples = sorted(
        space.tuples, key=lambda t: (-(prod(t) & -prod(t)), any(d.size % k for d, k in zip(space.dims, t)), -prod(t), t)
    )
    whole = tuple(1 for _ in space.dims)
    kept = [t for t in tuples if t != whole][: most - 1]
    return [place(t, space.processors) for t in [*kept, whole]]


class Additive:
    """The additive cost of a graph: a vector for each group of operators, a matrix for each pair that exchanges data."""

    def __init__(self, evaluator: Evaluator, options: SpaceOptions) -> None:
        self.graph, self.costs = evaluator.graph, evaluator.costs
        n = self.processors = len(evaluator.machine.processors)
        self.pieces = Pieces(self.graph, evaluator.costs, evaluator.rule is not None)
        self.training = evaluator.rule is not None
        self.groups = fused(self.graph)
        self._group = {node.number: i for i, group in enumerate(self.groups) for node in group}
        space, most = Space(self.graph, n, options), 64 if n <= 8 else 32 if n <= 16 else 16
        shared: dict[object, list[OpConfig]] = {}
        self.configs = [shared.setdefault(id(space[g[0]]), choices(space[g[0]], most)) for g in self.groups]
        self._seconds: dict[object, float] = {}
        self.vertices: list[Vector] = [
            np.array([self._vertex(group, config) for config in configs])
            for group, configs in zip(self.groups, self.configs)
        ]
        self.edges = self._edges()

    def strategy(self, chosen: Sequence[int]) -> Strategy:
        """The plan of a choice for every group."""
        configs = {}
        for group, listed, choice in zip(self.groups, self.configs, chosen):
            for node in group:
                configs[node.name] = follow(group[0], listed[choice], node)
        return Strategy(self.processors, {node.name: configs[node.name] for node in self.graph}, {}, "optcnn")

    def _vertex(self, group: Sequence[Node], config: OpConfig) -> float:
        total = sum(self._operator(node, follow(group[0], config, node)) for node in group)
        return total + (self._synchronisation(group, config) if self.training else 0.0)

    def _operator(self, node: Node, config: OpConfig) -> float:
        """Seconds of the busiest processor for the operator's forward and backward tasks."""
        key = (node.operator, node.specs, node.number in self.pieces.active, config)
        if key not in self._seconds:
            busy: dict[int, float] = {}
            for rect, processor in config.pieces(node):
                busy[processor] = busy.get(processor, 0.0) + sum(self.pieces.seconds(node, rect, processor))
            self._seconds[key] = max(busy.values())
        return self._seconds[key]

    def _synchronisation(self, group: Sequence[Node], config: OpConfig) -> float:
        """Each holder sends all but its share of the gradients, and of the new weights, in two messages to a neighbour."""
        node = group[0]
        if not node.parameters:
            return 0.0
        holders: dict[tuple[int, Rect], list[int]] = {}
        for rect, processor in config.pieces(node):
            for i, read in enumerate(node.reads(rect).weights):
                if processor not in holders.setdefault((i, read), []):
                    holders[i, read].append(processor)
        busy: dict[int, float] = {}
        for (i, read), group_ in holders.items():
            if len(group_) > 1:
                nbytes = read.volume * node.parameters[i].spec.dtype.itemsize * (len(group_) - 1) // len(group_)
                for a, b in zip(group_, group_[1:] + group_[:1]):
                    busy[a] = busy.get(a, 0.0) + 2 * self.costs.copy(a, b, nbytes)
        return max(busy.values(), default=0.0)

    def _edges(self) -> dict[tuple[int, int], Matrix]:
        edges: dict[tuple[int, int], Matrix] = {}
        known: dict[object, Matrix] = {}
        for node in self.graph:
            for i, tensor in enumerate(node.inputs):
                u, v = self._group[tensor.node], self._group[node.number]
                giver = self.graph.producer(tensor)
                key = (giver.operator, giver.specs, tensor.index, node.operator, node.specs, i, u, v,
                       (tensor.node, tensor.index) in self.pieces.needs_gradient)
                if key not in known:
                    known[key] = self._transfers(giver, tensor, node, i, u, v)
                edges[u, v] = edges[u, v] + known[key] if (u, v) in edges else known[key]
        return edges

    def _transfers(self, giver: Node, tensor: Tensor, taker: Node, index: int, u: int, v: int) -> Matrix:
        """Seconds to bring a tensor from each cut of its producer to each cut of its reader, and its gradient back."""
        ways = 2 if (tensor.node, tensor.index) in self.pieces.needs_gradient else 1
        held: list[dict[int, list[Rect]]] = []
        for config in self.configs[u]:
            table: dict[int, list[Rect]] = {}
            for rect, processor in follow(self.groups[u][0], config, giver).pieces(giver):
                table.setdefault(processor, []).append(giver.writes(rect)[tensor.index])
            held.append(table)
        matrix = np.zeros((len(self.configs[u]), len(self.configs[v])))
        for b, config in enumerate(self.configs[v]):
            reads = [
                (taker.reads(rect).inputs[index], processor)
                for rect, processor in follow(self.groups[v][0], config, taker).pieces(taker)
            ]
            for a, table in enumerate(held):
                matrix[a, b] = ways * self._slowest(table, reads, tensor.dtype.itemsize)
        return matrix

    def _slowest(self, held: dict[int, list[Rect]], reads: Sequence[tuple[Rect, int]], itemsize: int) -> float:
        """Seconds of the processor that has most to receive."""
        busy: dict[int, float] = {}
        for rect, processor in reads:
            here = sum(rect.intersect(own).volume for own in set(held.get(processor, ())) if rect.overlaps(own))
            if missing := rect.volume - here:
                source = next((p for p in held if p != processor), processor)
                if source != processor:
                    busy[processor] = busy.get(processor, 0.0) + self.costs.copy(source, processor, missing * itemsize)
        return max(busy.values(), default=0.0)
