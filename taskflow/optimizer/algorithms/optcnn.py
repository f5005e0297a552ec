"""OptCNN's search: dynamic programming over an additive cost (paper, section 8.2.3; `taskflow.optimizer.algorithms.elimination`).

The cost of a plan is the sum of each operator's time, of the transfers between each pair of operators, and of each layer's
synchronisation, as if nothing overlapped. As in the paper's comparison, the steps of a recurrent layer take one decision
together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import OpConfig, Strategy, depths
from taskflow.operators.tensor import Tensor
from taskflow.optimizer.algorithms.elimination import Matrix, Vector, eliminate
from taskflow.optimizer.algorithms.initial import known, with_syncs
from taskflow.optimizer.algorithms.moves import follow
from taskflow.optimizer.cost import Costs, Pieces
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.loads import common_volumes
from taskflow.optimizer.result import SearchOptions, SearchResult
from taskflow.optimizer.run import Run
from taskflow.optimizer.space import OperatorSpace, SearchSpace, SpaceOptions
from taskflow.regions import Rect

MOST_PROCESSORS = 256  # between all pairs of which routes and messages are added up


def optcnn(evaluator: Evaluator, options: SearchOptions | None = None) -> SearchResult:
    """The plan with the least additive cost, judged by the evaluator. It takes no proposals, and where the seconds of the budget
    do not suffice it gives the best of the known strategies. ValueError if the costs are only known for whole tasks."""
    options = options or SearchOptions()
    run = Run("optcnn", evaluator, options)

    def body() -> str:
        run.enter("elimination")
        try:
            plan = additive_plan(evaluator, options.space, lambda: run.over)
        except TimeoutError as error:
            run.leave_out(str(error))
            if run.best is None:
                run.set(known(evaluator.graph, evaluator.machine)[0], start=True)
            return "budget"
        run.try_set(plan)
        return "finished"

    return run.conduct(body)


def additive_plan(
    evaluator: Evaluator, options: SpaceOptions | None = None, over: Callable[[], bool] | None = None
) -> Strategy:
    """The strategy with the least additive cost among `choices`, with the default synchronisation. TimeoutError once
    ``over`` says that there is no time left to find it, or, if it may say so at all, on more than MOST_PROCESSORS."""
    if over is not None and len(evaluator.machine.processors) > MOST_PROCESSORS:
        raise TimeoutError(f"dynamic programming (more than {MOST_PROCESSORS} processors)")
    try:
        cost = Additive(evaluator, options or SpaceOptions(), over or (lambda: False))
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
    return list(dict.fromkeys(space.at(t) for t in [*kept, whole]))  # a pinned operator has one


class Additive:
    """The additive cost of a graph: a vector for each group of operators, a matrix for each pair that exchanges data."""

    def __init__(
        self, evaluator: Evaluator, options: SpaceOptions, over: Callable[[], bool] = lambda: False
    ) -> None:
        self._over = over
        self.graph, self.costs, self.machine = evaluator.graph, evaluator.costs, evaluator.machine
        self.links = Links(evaluator.machine, evaluator.costs, self._hurry)
        n = self.processors = len(evaluator.machine.processors)
        self.pieces = Pieces(self.graph, evaluator.costs, evaluator.rule is not None)
        self.training = evaluator.rule is not None
        self.groups = fused(self.graph)
        self._group = {node.number: i for i, group in enumerate(self.groups) for node in group}
        space, most = SearchSpace(self.graph, n, options), 64 if n <= 8 else 32 if n <= 16 else 16
        listed: dict[int, list[OpConfig]] = {}
        for group in self.groups:
            if id(space[group[0]]) not in listed:
                listed[id(space[group[0]])] = choices(space[group[0]], most)
        self.configs = [listed[id(space[group[0]])] for group in self.groups]
        self._seconds: dict[object, float] = {}
        self.vertices = self._vertices()
        self.edges = self._edges()

    def _hurry(self) -> None:
        if self._over():
            raise TimeoutError("dynamic programming (no time)")

    def strategy(self, chosen: Sequence[int]) -> Strategy:
        """The plan of a choice for every group."""
        configs = {}
        for group, listed, choice in zip(self.groups, self.configs, chosen):
            for node in group:
                configs[node.name] = follow(group[0], listed[choice], node)
        plain = Strategy(self.processors, {node.name: configs[node.name] for node in self.graph}, {}, "optcnn")
        return with_syncs(plain, self.graph, self.machine)

    def _vertices(self) -> list[Vector]:
        """Of groups of equal operators with the same choices once."""
        known: dict[object, Vector] = {}
        found: list[Vector] = []
        for group, configs in zip(self.groups, self.configs):
            key = (
                id(configs), tuple((n.operator, n.specs, n.number in self.pieces.active) for n in group),
                tuple(p.spec for p in group[0].parameters),
            )
            if key not in known:
                known[key] = np.array([self._vertex(group, config) for config in configs])
            found.append(known[key])
        return found

    def _vertex(self, group: Sequence[Node], config: OpConfig) -> float:
        self._hurry()
        total = sum(self._operator(node, follow(group[0], config, node)) for node in group)
        return total + (self._synchronisation(group, config) if self.training else 0.0)

    def _operator(self, node: Node, config: OpConfig) -> float:
        """Seconds of the busiest processor for the operator's forward and backward tasks."""
        key = (node.operator, node.specs, node.number in self.pieces.active, config)
        if key not in self._seconds:
            self._seconds[key] = max(self.pieces.busy(node, config).values())
        return self._seconds[key]

    def _synchronisation(self, group: Sequence[Node], config: OpConfig) -> float:
        """Seconds of the busiest link: each holder sends every other one its share of the gradients, and then of the new
        weights."""
        node = group[0]
        if not node.parameters:
            return 0.0
        holders: dict[tuple[int, Rect], set[int]] = {}
        for rect, processor in config.pieces(node):
            for i, read in enumerate(node.reads(rect).weights):
                holders.setdefault((i, read), set()).add(processor)
        nbytes: dict[tuple[int, ...], int] = {}  # by holders
        for (i, read), holding in holders.items():
            if len(holding) > 1:
                key = tuple(sorted(holding))
                nbytes[key] = nbytes.get(key, 0) + read.volume * node.parameters[i].spec.dtype.itemsize
        messages = np.zeros((self.processors, self.processors))
        for key, size in nbytes.items():
            messages[np.ix_(key, key)] += size // len(key)
        return 2 * self.links.busiest(messages)

    def _edges(self) -> dict[tuple[int, int], Matrix]:
        edges: dict[tuple[int, int], Matrix] = {}
        known: dict[object, Matrix] = {}
        for node in self.graph:
            for i, tensor in enumerate(node.inputs):
                u, v = self._group[tensor.node], self._group[node.number]
                giver = self.graph.producer(tensor)
                # How operators are cut depends on what the first of their group chooses from and on its dimensions.
                key = (giver.operator, giver.specs, tensor.index, node.operator, node.specs, i,
                       id(self.configs[u]), self.groups[u][0].dims, id(self.configs[v]), self.groups[v][0].dims,
                       (tensor.node, tensor.index) in self.pieces.needs_gradient)
                if key not in known:
                    self._hurry()
                    known[key] = self._transfers(giver, tensor, node, i, u, v)
                edges[u, v] = edges[u, v] + known[key] if (u, v) in edges else known[key]
        return edges

    def _transfers(self, giver: Node, tensor: Tensor, taker: Node, index: int, u: int, v: int) -> Matrix:
        """Seconds to bring a tensor from each cut of its producer to each cut of its reader, and its gradient back."""
        ways = 2 if (tensor.node, tensor.index) in self.pieces.needs_gradient else 1
        held = [
            _corners([(giver.writes(r)[tensor.index], p) for r, p in follow(self.groups[u][0], c, giver).pieces(giver)])
            for c in self.configs[u]
        ]
        read = [
            _corners([(taker.reads(r).inputs[index], p) for r, p in follow(self.groups[v][0], c, taker).pieces(taker)])
            for c in self.configs[v]
        ]
        scale, together = ways * tensor.dtype.itemsize, _joined(read)
        rows = []
        for one in held:
            self._hurry()
            rows.append(self._slowest(one, together, len(read), scale))
        return np.array(rows)

    def _slowest(self, held: Corners, read: Corners, cuts: int, scale: int) -> Vector:
        """Seconds of the link that has most to carry, for each of several cuts of the reader. Two messages back and forth
        count as one of twice the size."""
        volumes = common_volumes(read.low, read.high, held.low, held.high)  # (reads, owners)
        n = self.processors
        pairs = (read.cut[:, None] * n + held.processor[None]) * n + read.processor[:, None]
        messages = np.bincount(pairs.ravel(), volumes.ravel(), cuts * n * n)
        return self.links.busiest_of(messages.reshape(cuts, n * n) * scale)


@dataclass(frozen=True, slots=True)
class Corners:
    """Rects as arrays: (pieces, dimensions), the processor of each, and of which cut it is."""

    low: np.ndarray  # type: ignore[type-arg]
    high: np.ndarray  # type: ignore[type-arg]
    processor: np.ndarray  # type: ignore[type-arg]
    cut: np.ndarray  # type: ignore[type-arg]


def _corners(pieces: Sequence[tuple[Rect, int]]) -> Corners:
    """Without repeats: what a processor holds or reads twice moves once."""
    distinct = list(dict.fromkeys(pieces))
    return Corners(
        np.array([r.lo for r, _ in distinct]), np.array([r.hi for r, _ in distinct]), np.array([p for _, p in distinct]),
        np.zeros(len(distinct), dtype=np.int64),
    )


def _joined(cuts: Sequence[Corners]) -> Corners:
    """The pieces of several cuts, one after another."""
    return Corners(
        np.concatenate([c.low for c in cuts]), np.concatenate([c.high for c in cuts]),
        np.concatenate([c.processor for c in cuts]),
        np.repeat(np.arange(len(cuts)), [len(c.processor) for c in cuts]),
    )


class Links:
    """How long messages keep the links of a machine busy. A message's seconds are taken to grow linearly with its bytes.
    ``look_up`` is called now and then while that is worked out, and may raise."""

    def __init__(self, machine: Machine, costs: Costs, look_up: Callable[[], None] = lambda: None) -> None:
        n = len(machine.processors)
        self._start, self._each = np.zeros(n * n), np.zeros(n * n)
        pairs, links = [], []
        for source in range(n):
            look_up()
            for target in range(n):
                if source != target:
                    pair = source * n + target
                    small, large = costs.copy(source, target, 0), costs.copy(source, target, 1 << 24)
                    self._start[pair], self._each[pair] = small, (large - small) / (1 << 24)
                    for link in machine.route(source, target):
                        pairs.append(pair)
                        links.append(link.number)
        numbers = np.unique(np.array(links, dtype=np.int64), return_inverse=True)[1]
        order = np.argsort(numbers, kind="stable")  # pairs of one link side by side
        self._pairs = np.array(pairs, dtype=np.int64)[order]
        self._first = np.flatnonzero(np.diff(numbers[order], prepend=-1))

    def busiest(self, nbytes: np.ndarray) -> float:  # type: ignore[type-arg]
        """Seconds of the busiest link for messages of ``nbytes`` [source, target]; what stays on a processor is free."""
        return float(self.busiest_of(nbytes.reshape(1, -1))[0])

    def busiest_of(self, nbytes: np.ndarray) -> Vector:  # type: ignore[type-arg]
        """The same for several sets of messages, each a row."""
        if not len(self._pairs):
            return np.zeros(len(nbytes))
        seconds = np.where(nbytes > 0, self._start + self._each * nbytes, 0.0)
        busiest: Vector = np.add.reduceat(seconds[:, self._pairs], self._first, axis=1).max(axis=1)
        return busiest
