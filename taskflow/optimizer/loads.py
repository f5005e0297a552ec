"""Loads: how long a strategy keeps each processor and each link busy, found without lowering it.

A step cannot be shorter than its busiest resource, and strategies with lower loads are usually faster, so searches ask for
loads first and simulate what looks promising. Counted are forward and backward tasks, each tensor's way to its readers and
its gradient's way back, partial values' way to an owner or around a ring of all that computed some, and each weight's way
around a ring of its holders (the least that travels). Not counted are sums and updates, that transfers wait for each other, and
the latencies of a ring's rounds after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig, SyncAlgorithm
from taskflow.operators.operator import Reads
from taskflow.operators.tensor import Tensor
from taskflow.optimizer.cost import Pieces
from taskflow.optimizer.evaluate import Evaluator
from taskflow.regions import Rect

Vector = NDArray[np.float64]

MOST_KEPT = 20_000  # loads of single operators, tensors and layers that are remembered
MOST_SUMS = 4000  # of their sums, and what these are sums of


@dataclass(frozen=True, slots=True)
class _Cut:
    """What each piece of a cut operator reads and writes."""

    reads: tuple[Reads, ...]
    writes: tuple[tuple[Rect, ...], ...]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What some operators' loads are added up of. ``names``: of all operators whose configurations matter; places are in it.
    ``operators``: (operator, its kind, its place). ``tensors``: (tensor, who makes it, its kind, its place, whether there is a
    gradient, the readers: (operator, which input, its kind, its place)). ``layers``: (what uses a weight, kinds, places).
    ``shape``: a number that parts share if they differ only in which operators they are about: then equal configurations have
    equal loads."""

    names: tuple[str, ...]
    operators: tuple[tuple[Node, int, int], ...]
    tensors: tuple[tuple[Tensor, Node, int, int, bool, tuple[tuple[Node, int, int, int], ...]], ...]
    layers: tuple[tuple[tuple[Node, ...], tuple[int, ...], tuple[int, ...]], ...]
    shape: int


class Loads:
    """Loads of one graph on one machine. ``sums``: how partial values are summed (`Strategy.sums`). TypeError if
    the evaluator's costs are only known for whole tasks, TimeoutError if ``over`` answers true while routes or loads are added
    up."""

    def __init__(
        self, evaluator: Evaluator, over: Callable[[], bool] = lambda: False, sums: SyncAlgorithm = SyncAlgorithm.OWNER
    ) -> None:
        self.graph: OperatorGraph = evaluator.graph
        self._costs = evaluator.costs
        self._n = len(evaluator.machine.processors)
        self._pieces = Pieces(self.graph, evaluator.costs, evaluator.rule is not None)
        self._training, self._sums = evaluator.rule is not None, sums
        self._route: dict[tuple[int, int], tuple[tuple[int, ...], float, float]] = {}
        self._machine = evaluator.machine
        self._links: dict[int, int] = {}
        self._kept: dict[object, Vector] = {}
        self._sums_of: dict[tuple[int, tuple[int, ...]], Vector] = {}
        self._parts: dict[tuple[int, ...], _Parts] = {}
        self._numbers: dict[OpConfig, int] = {}
        self._shapes: dict[object, int] = {}
        self._cuts: dict[object, _Cut] = {}
        self._nodes = {node.name: node for node in self.graph}
        kinds: dict[object, int] = {}
        active = self._pieces.active
        self._kind = [kinds.setdefault((n.operator, n.specs, n.number in active), len(kinds)) for n in self.graph]
        self._width = self._n
        self._readers: dict[Tensor, list[tuple[Node, int]]] = {t: [] for node in self.graph for t in node.outputs}
        self._sharing: dict[str, list[Node]] = {}
        for node in self.graph:
            for i, tensor in enumerate(node.inputs):
                self._readers[tensor].append((node, i))
            for parameter in node.parameters[:1]:
                self._sharing.setdefault(parameter.name, []).append(node)
        self._over = over
        self._rates: dict[object, tuple[float, float]] = {}
        for p in range(self._n):
            self._hurry()
            for q in range(self._n):
                if p != q:
                    self._describe(p, q)
        self._width = self._n + len(self._links)
        self._tabulate()

    def of(self, configs: Mapping[str, OpConfig]) -> Vector:
        """Seconds of every processor, then of every link, under these configurations of all operators."""
        self._forget()
        parts = self._parts_of(self.graph.nodes)
        return self._add(parts, configs, [self._number(configs[name]) for name in parts.names])

    def after(self, loads: Vector, configs: Mapping[str, OpConfig], changes: Mapping[str, OpConfig]) -> Vector:
        """``loads`` of ``configs``, with changes."""
        self._forget()
        parts = self._parts_of([self._nodes[name] for name, config in changes.items() if configs[name] != config])
        return loads - self._sum(parts, configs) + self._sum(parts, {**configs, **changes})

    def _hurry(self) -> None:
        if self._over():
            raise TimeoutError("loads (no time)")

    def _number(self, config: OpConfig) -> int:
        return self._numbers.setdefault(config, len(self._numbers))

    def _parts_of(self, nodes: Sequence[Node]) -> _Parts:
        """Of these operators, the tensors at them and the weights they use."""
        key = tuple([node.number for node in nodes])
        if key not in self._parts:
            places: dict[str, int] = {}
            tensors: dict[Tensor, None] = {}
            layers: dict[str, list[Node]] = {}

            def place(node: Node) -> int:
                return places.setdefault(node.name, len(places))

            for node in nodes:
                tensors.update(dict.fromkeys((*node.inputs, *node.outputs)))
                if node.parameters and self._training:
                    layers[node.parameters[0].name] = self._sharing[node.parameters[0].name]
            alone = tuple((node, self._kind[node.number], place(node)) for node in nodes)
            moved = tuple(
                (tensor, giver, self._kind[giver.number], place(giver), (tensor.node, tensor.index) in self._pieces.needs_gradient,
                 tuple((r, i, self._kind[r.number], place(r)) for r, i in self._readers[tensor]))
                for tensor in tensors if self._readers[tensor] for giver in (self.graph.producer(tensor),)
            )
            shared = tuple(
                (tuple(nodes), tuple(self._kind[n.number] for n in nodes), tuple(map(place, nodes))) for nodes in layers.values()
            )
            shape = (
                tuple(one[1:] for one in alone),
                tuple((t.index, *rest, tuple(r[1:] for r in readers)) for t, _, *rest, readers in moved),
                tuple((tuple(p.spec for p in nodes[0].parameters), *rest) for nodes, *rest in shared),
            )
            number = self._shapes.setdefault(shape, len(self._shapes))
            self._parts[key] = _Parts(tuple(places), alone, moved, shared, number)
        return self._parts[key]

    def _sum(self, parts: _Parts, configs: Mapping[str, OpConfig]) -> Vector:
        """Loads of parts; those of alike layers between alike neighbours are added up once."""
        numbers = [self._number(configs[name]) for name in parts.names]
        key = parts.shape, tuple(numbers)
        if key not in self._sums_of:
            self._sums_of[key] = self._add(parts, configs, numbers)
        return self._sums_of[key]

    def _add(self, parts: _Parts, configs: Mapping[str, OpConfig], numbers: Sequence[int]) -> Vector:
        """``numbers``: of the configurations of ``parts.names``."""
        self._hurry()
        total: Vector = np.zeros(self._width)
        for node, kind, at in parts.operators:
            total[: self._n] += self._compute(node, configs[node.name], (kind, numbers[at]))
        for tensor, giver, kind, at, back, readers in parts.tensors:
            uses = {(of, i, numbers[place]): (r, i) for r, i, of, place in readers}
            key: object = (tensor.index, back, kind, numbers[at], tuple(uses))
            if key not in self._kept:
                self._keep(key, self._transfer(tensor, giver, back, list(uses.values()), configs))
            total += self._kept[key]
        for sharing, kinds, places in parts.layers:
            last = {numbers[place]: k for k, place in enumerate(places)}
            key = (tuple(p.spec for p in sharing[0].parameters), tuple((number, kinds[k]) for number, k in last.items()))
            if key not in self._kept:
                self._keep(key, self._synchronise([sharing[k] for k in last.values()], configs))
            total += self._kept[key]
        return total

    # ---- one operator, one edge, one layer -------------------------------------------------------------------------
    def _compute(self, node: Node, config: OpConfig, key: tuple[int, int]) -> Vector:
        if key not in self._kept:
            busy: Vector = np.zeros(self._n)
            for processor, seconds in self._pieces.busy(node, config).items():
                busy[processor] = seconds
            self._keep(key, busy)
        return self._kept[key]

    def _transfer(
        self, tensor: Tensor, giver: Node, back: bool, uses: Sequence[tuple[Node, int]], configs: Mapping[str, OpConfig]
    ) -> Vector:
        """From the pieces that write a tensor to all that read it. A processor that reads a Rect several times has it once."""
        makers: dict[Rect, dict[int, None]] = {}  # of each Rect of the tensor: who computes it, or a part of it
        config = configs[giver.name]
        for written, p in zip(self._cut(giver, config).writes, config.processors):
            makers.setdefault(written[tensor.index], {})[p] = None
        have = _corners((rect, next(iter(of))) for rect, of in makers.items())
        need = _corners(
            (read.inputs[i], p) for r, i in uses
            for read, p in zip(self._cut(r, configs[r.name]).reads, configs[r.name].processors)
        )
        volume = common_volumes(*need[:2], *have[:2])
        partial = self._add_up(makers, volume, need[2])
        pairs = have[2][None] * self._n + need[2][:, None]
        volumes = partial + np.bincount(pairs.ravel(), volume.ravel(), self._n**2)
        return self._travel(volumes * tensor.dtype.itemsize, back)

    def _add_up(self, makers: Mapping[Rect, Mapping[int, None]], volume: np.ndarray, readers: np.ndarray) -> Vector:  # type: ignore[type-arg]
        """Elements [source x n + target] that add up partial values. From ``volume`` [read, Rect] of what ``readers`` get of the
        owners it takes away what they have themselves when an all-reduce is over."""
        messages: Vector = np.zeros(self._n**2)
        for at, (rect, of) in enumerate(makers.items()):
            owner, *others = of
            if not others:
                continue
            if self._sums is SyncAlgorithm.COLLECTIVE:
                adds = np.zeros(self._n, dtype=bool)
                adds[list(of)] = True
                here = (volume[:, at] > 0) & adds[readers]
                if len(set(readers[here])) == len(of):
                    volume[here, at] = 0
                    self._around(of, rect.volume, messages)
                    continue
            messages[[p * self._n + owner for p in others]] += rect.volume
        return messages

    def _around(self, group: Iterable[int], size: float, messages: Vector) -> None:
        """An all-reduce of ``size`` by a ring through the processors of a group."""
        ring = sorted(group)
        each = 2 * size * (len(ring) - 1) / len(ring)
        for p, q in zip(ring, ring[1:] + ring[:1]):
            messages[p * self._n + q] += each if p != q else 0.0

    def _synchronise(self, sharing: Sequence[Node], configs: Mapping[str, OpConfig]) -> Vector:
        """The weights of operators that share them: one operator for each configuration."""
        holders: dict[tuple[int, Rect], set[int]] = {}
        for node in sharing:
            config = configs[node.name]
            for reads, processor in zip(self._cut(node, config).reads, config.processors):
                for i, read in enumerate(reads.weights):
                    holders.setdefault((i, read), set()).add(processor)
        messages = np.zeros(self._n**2)
        for (i, read), group in holders.items():
            self._around(group, read.volume * sharing[0].parameters[i].spec.dtype.itemsize, messages)
        return self._travel(messages, False)

    def _cut(self, node: Node, config: OpConfig) -> _Cut:
        key = (self._kind[node.number], config.degrees, config.weights)
        if key not in self._cuts:
            rects = config.partition(node).rects()
            self._cuts[key] = _Cut(tuple(map(node.reads, rects)), tuple(map(node.writes, rects)))
        return self._cuts[key]

    def _keep(self, key: object, value: Vector) -> None:
        self._hurry()
        self._kept[key] = value

    def _forget(self) -> None:
        """Before an answer, not within one: configurations may get other numbers then."""
        if len(self._kept) > MOST_KEPT:
            self._kept.clear()
            self._cuts.clear()
            self._numbers.clear()
            self._sums_of.clear()
        if len(self._parts) > MOST_SUMS:
            self._parts.clear()
            self._shapes.clear()
            self._sums_of.clear()
        if len(self._sums_of) > MOST_SUMS:
            self._sums_of.clear()

    # ---- links -----------------------------------------------------------------------------------------------------
    def _describe(self, source: int, target: int) -> None:
        links = self._machine.route(source, target)
        numbers = tuple(self._links.setdefault(link.number, len(self._links)) for link in links)
        alike = self._costs.route_class(source, target)
        if alike not in self._rates:
            start = self._costs.copy(source, target, 0)
            self._rates[alike] = (start, (self._costs.copy(source, target, 1 << 24) - start) / (1 << 24))
        self._route[source, target] = (numbers, *self._rates[alike])

    def _tabulate(self) -> None:
        n = self._n
        self._start, self._each = np.zeros(n * n), np.zeros(n * n)
        pairs: list[int] = []
        where: list[int] = []
        for (p, q), (numbers, start, each) in self._route.items():
            self._start[p * n + q], self._each[p * n + q] = start, each
            pairs += [p * n + q] * len(numbers)
            where += [n + k for k in numbers]
        self._at, self._where = np.array(pairs, dtype=np.int64), np.array(where, dtype=np.int64)
        self._turned = np.arange(n * n).reshape(n, n).T.ravel()

    def _travel(self, messages: np.ndarray, back: bool) -> Vector:  # type: ignore[type-arg]
        """Seconds by link of messages [source x n + target], and of equal ones the other way if ``back``."""
        busy: Vector = np.zeros(self._width)
        for nbytes in (messages, messages[self._turned]) if back else (messages,):
            seconds = np.where(nbytes > 0, self._start + self._each * nbytes, 0.0)
            if len(self._at):
                busy += np.bincount(self._where, seconds[self._at], self._width)
        return busy


def common_volumes(
    low: np.ndarray, high: np.ndarray, others_low: np.ndarray, others_high: np.ndarray  # type: ignore[type-arg]
) -> np.ndarray:  # type: ignore[type-arg]
    """Elements [rect, other] that Rects and others have in common; corners are (Rects, dimensions)."""
    volume = np.ones((len(low), len(others_low)))
    for i in range(low.shape[1]):
        sides = np.minimum(high[:, i, None], others_high[None, :, i]) - np.maximum(low[:, i, None], others_low[None, :, i])
        volume *= np.maximum(sides, 0)
    return volume


def _corners(pieces: Iterable[tuple[Rect, int]]) -> tuple[np.ndarray, ...]:  # type: ignore[type-arg]
    """Low and high corners and processors of Rects, once each."""
    found = list(dict.fromkeys(pieces))
    return np.array([r.lo for r, _ in found]), np.array([r.hi for r, _ in found]), np.array([p for _, p in found])
