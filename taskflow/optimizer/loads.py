"""Loads: how long a strategy keeps each processor and each link busy, found without lowering it.

A step cannot be shorter than its busiest resource, and strategies with lower loads are usually faster, so searches ask for
loads first and simulate what looks promising. Counted are forward and backward tasks, each tensor's way to its readers and
its gradient's way back, partial values' way to an owner or around a ring of all that computed some, and each weight's way
around a ring of its holders (the least that travels). Not counted are sums and updates, that transfers wait for each other, and
the latencies of a ring's rounds after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig, Travel
from taskflow.operators.tensor import Tensor
from taskflow.optimizer.evaluator import Evaluator
from taskflow.optimizer.pieces import Pieces
from taskflow.regions import Rect

Vector = np.ndarray[tuple[int], np.dtype[np.float64]]

MOST_KEPT = 20_000  # loads of single operators, tensors and layers that are remembered


class Loads:
    """Loads of one graph on one machine. ``sums``: how partial values are summed (`Strategy.sums`). TypeError if
    the evaluator's costs are only known for whole tasks, TimeoutError if ``over`` answers true while routes or loads are added
    up."""

    def __init__(
        self, evaluator: Evaluator, over: Callable[[], bool] = lambda: False, sums: Travel = Travel.OWNER
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
        return self._sum(configs, self.graph.nodes)

    def after(self, loads: Vector, configs: Mapping[str, OpConfig], changes: Mapping[str, OpConfig]) -> Vector:
        """``loads`` of ``configs``, with changes."""
        touched = [self.graph.node(name) for name, config in changes.items() if configs[name] != config]
        return loads - self._sum(configs, touched) + self._sum({**configs, **changes}, touched)

    def _hurry(self) -> None:
        if self._over():
            raise TimeoutError("loads (no time)")

    def _sum(self, configs: Mapping[str, OpConfig], nodes: Iterable[Node]) -> Vector:
        """Of these operators, the tensors at them and the weights they use."""
        total: Vector = np.zeros(self._width)
        tensors: dict[Tensor, None] = {}
        layers: dict[str, list[Node]] = {}
        for node in nodes:
            self._hurry()
            total[: self._n] += self._compute(node, configs[node.name])
            tensors.update(dict.fromkeys((*node.inputs, *node.outputs)))
            if node.parameters:
                layers[node.parameters[0].name] = self._sharing[node.parameters[0].name]
        for tensor in tensors:
            self._hurry()
            if self._readers[tensor]:
                total += self._transfer(tensor, configs)
        if self._training:
            for sharing in layers.values():
                total += self._synchronise(sharing, configs)
        return total

    # ---- one operator, one edge, one layer -------------------------------------------------------------------------
    def _compute(self, node: Node, config: OpConfig) -> Vector:
        key = (node.operator, node.specs, node.number in self._pieces.active, config)
        if key not in self._kept:
            busy: Vector = np.zeros(self._n)
            for processor, seconds in self._pieces.busy(node, config).items():
                busy[processor] = seconds
            self._keep(key, busy)
        return self._kept[key]

    def _transfer(self, tensor: Tensor, configs: Mapping[str, OpConfig]) -> Vector:
        """From the pieces that write a tensor to all that read it. A processor that reads a Rect several times has it once."""
        giver = self.graph.producer(tensor)
        back = (tensor.node, tensor.index) in self._pieces.needs_gradient
        uses = {(r.operator, r.specs, i, configs[r.name]): (r, i) for r, i in self._readers[tensor]}
        key = (giver.operator, giver.specs, tensor.index, configs[giver.name], back, tuple(uses))
        if key not in self._kept:
            makers: dict[Rect, dict[int, None]] = {}  # of each Rect of the tensor: who computes it, or a part of it
            for rect, p in configs[giver.name].pieces(giver):
                makers.setdefault(giver.writes(rect)[tensor.index], {})[p] = None
            have = _corners((rect, next(iter(of))) for rect, of in makers.items())
            need = _corners(
                (r.reads(rect).inputs[i], p) for r, i in uses.values() for rect, p in configs[r.name].pieces(r)
            )
            sides = np.minimum(have[1][None], need[1][:, None]) - np.maximum(have[0][None], need[0][:, None])
            volume = np.prod(np.maximum(sides, 0), axis=2, dtype=np.float64)
            partial = self._add_up(makers, volume, need[2])
            pairs = have[2][None] * self._n + need[2][:, None]
            volumes = partial + np.bincount(pairs.ravel(), volume.ravel(), self._n**2)
            self._keep(key, self._travel(volumes * tensor.dtype.itemsize, back))
        return self._kept[key]

    def _add_up(self, makers: Mapping[Rect, Iterable[int]], volume: np.ndarray, readers: np.ndarray) -> Vector:  # type: ignore[type-arg]
        """Elements [source x n + target] that add up partial values. From ``volume`` [read, Rect] of what ``readers`` get of the
        owners it takes away what they have themselves when an all-reduce is over."""
        messages: Vector = np.zeros(self._n**2)
        for at, (rect, of) in enumerate(makers.items()):
            owner, *others = of
            here = (volume[:, at] > 0) & np.isin(readers, [owner, *others])
            if others and self._sums is Travel.COLLECTIVE and len(set(readers[here])) == 1 + len(others):
                volume[here, at] = 0
                self._around((owner, *others), rect.volume, messages)
            else:
                messages[[p * self._n + owner for p in others]] += rect.volume
        return messages

    def _around(self, group: Iterable[int], size: float, messages: Vector) -> None:
        """An all-reduce of ``size`` by a ring through the processors of a group."""
        ring = sorted(group)
        each = 2 * size * (len(ring) - 1) / len(ring)
        for p, q in zip(ring, ring[1:] + ring[:1]):
            messages[p * self._n + q] += each if p != q else 0.0

    def _synchronise(self, sharing: list[Node], configs: Mapping[str, OpConfig]) -> Vector:
        first = sharing[0]
        used = tuple(dict.fromkeys(configs[node.name] for node in sharing))
        key = (first.operator, first.specs, first.parameters, used)
        if key not in self._kept:
            holders: dict[tuple[int, Rect], set[int]] = {}
            for node in {configs[node.name]: node for node in sharing}.values():
                for rect, processor in configs[node.name].pieces(node):
                    for i, read in enumerate(node.reads(rect).weights):
                        holders.setdefault((i, read), set()).add(processor)
            messages = np.zeros(self._n**2)
            for (i, read), group in holders.items():
                self._around(group, read.volume * first.parameters[i].spec.dtype.itemsize, messages)
            self._keep(key, self._travel(messages, False))
        return self._kept[key]

    def _keep(self, key: object, value: Vector) -> None:
        if len(self._kept) > MOST_KEPT:
            self._kept.clear()
        self._kept[key] = value

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


def _corners(pieces: Iterable[tuple[Rect, int]]) -> tuple[np.ndarray, ...]:  # type: ignore[type-arg]
    """Low and high corners and processors of Rects, once each."""
    found = list(dict.fromkeys(pieces))
    return np.array([r.lo for r, _ in found]), np.array([r.hi for r, _ in found]), np.array([p for _, p in found])
