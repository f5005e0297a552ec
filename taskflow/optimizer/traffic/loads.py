"""Loads: how long a strategy keeps each processor and each link busy, found without lowering it.

A step cannot be shorter than its busiest resource, and strategies with lower loads are usually faster. So searches compute
loads first and simulate what looks promising. Loads include forward and backward tasks, and the transfers of each tensor to its
readers and of its gradient back. They also include partial values sent to an owner, or around a ring of all that computed some,
and each weight's gradient around a ring of its holders (the least that can travel). They leave out sums and updates, waits of
transfers for each other, and the latencies of a ring's rounds after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig, SyncAlgorithm
from taskflow.operators.tensor import Tensor
from taskflow.optimizer.cost import Pieces
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.traffic.edges import Accesses, Makers, Numbers, Vector, common, makers, needed, owned, sent
from taskflow.optimizer.traffic.messages import Links
from taskflow.optimizer.traffic.synchronisation import around, holders, ring_bytes

MOST_KEPT = 20_000  # loads of single operators, tensors and layers that are remembered
MOST_SUMS = 4000  # of their sums, and what these are sums of


@dataclass(frozen=True, slots=True)
class _Parts:
    """Parts that some operators' loads are added up of. ``names``: of all operators whose configurations matter; places are in it.
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
    """Loads of one graph on one machine. ``sums``: how partial values are summed (`Strategy.sums`). Raises TypeError if the
    evaluator's costs are only known for whole tasks, TimeoutError if ``over`` returns true while routes or loads are added up."""

    def __init__(
        self, evaluator: Evaluator, over: Callable[[], bool] = lambda: False, sums: SyncAlgorithm = SyncAlgorithm.OWNER
    ) -> None:
        self.graph: OperatorGraph = evaluator.graph
        self._n = len(evaluator.machine.processors)
        self._pieces = Pieces(self.graph, evaluator.costs, evaluator.rule is not None)
        self._training, self._sums = evaluator.rule is not None, sums
        self._kept: dict[object, Vector] = {}
        self._sums_of: dict[tuple[int, tuple[int, ...]], Vector] = {}
        self._parts: dict[tuple[int, ...], _Parts] = {}
        self._numbers: dict[OpConfig, int] = {}
        self._shapes: dict[object, int] = {}
        self._accesses = Accesses(self.graph)
        self._nodes = {node.name: node for node in self.graph}
        kinds, active = self._accesses.kinds, self._pieces.active
        self._kind = [2 * kinds[node.number] + (node.number in active) for node in self.graph]
        self._readers: dict[Tensor, list[tuple[Node, int]]] = {t: [] for node in self.graph for t in node.outputs}
        self._sharing: dict[str, list[Node]] = {}
        for node in self.graph:
            for i, tensor in enumerate(node.inputs):
                self._readers[tensor].append((node, i))
            for parameter in node.parameters[:1]:
                self._sharing.setdefault(parameter.name, []).append(node)
        self._over = over
        self._links = Links(evaluator.machine, evaluator.costs, self._hurry)

    def of(self, configs: Mapping[str, OpConfig]) -> Vector:
        """Return the seconds of every processor, then of every link, under these configurations of all operators."""
        self._forget()
        parts = self._parts_of(self.graph.nodes)
        return self._add(parts, configs, [self._number(configs[name]) for name in parts.names])

    def after(self, loads: Vector, configs: Mapping[str, OpConfig], changes: Mapping[str, OpConfig]) -> Vector:
        """Return the ``loads`` of ``configs`` after changes."""
        self._forget()
        parts = self._parts_of([self._nodes[name] for name, config in changes.items() if configs[name] != config])
        return loads - self._sum(parts, configs) + self._sum(parts, {**configs, **changes})

    def _hurry(self) -> None:
        if self._over():
            raise TimeoutError("loads (no time)")

    def _number(self, config: OpConfig) -> int:
        return self._numbers.setdefault(config, len(self._numbers))

    def _parts_of(self, nodes: Sequence[Node]) -> _Parts:
        """Return, of these operators, the tensors at them and the weights they use."""
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
        total = np.zeros(self._n + self._links.count)
        busy, links = total[: self._n], total[self._n :]
        for node, kind, at in parts.operators:
            busy += self._compute(node, configs[node.name], (kind, numbers[at]))
        for tensor, giver, kind, at, back, readers in parts.tensors:
            uses = {(of, i, numbers[place]): (r, i) for r, i, of, place in readers}
            key: object = (tensor.index, back, kind, numbers[at], tuple(uses))
            if key not in self._kept:
                self._keep(key, self._transfer(tensor, giver, back, list(uses.values()), configs))
            links += self._kept[key]
        for sharing, kinds, places in parts.layers:
            last = {numbers[place]: k for k, place in enumerate(places)}
            key = (tuple(p.spec for p in sharing[0].parameters), tuple((number, kinds[k]) for number, k in last.items()))
            if key not in self._kept:
                self._keep(key, self._synchronise([sharing[k] for k in last.values()], configs))
            links += self._kept[key]
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
        """Messages from the pieces that write a tensor to all that read it, and of its gradient ``back``."""
        of_parts = makers(self._accesses(giver, configs[giver.name]), configs[giver.name], tensor.index)
        held = owned(of_parts)
        read = needed((self._accesses(r, configs[r.name]), configs[r.name], i) for r, i in uses)
        volume = common(read, held)
        partial = self._add_up(of_parts, volume, read.processor)
        nbytes = (partial + sent(volume, read, held, self._n)[0]) * tensor.dtype.itemsize
        busy = self._links.busy(nbytes)
        return busy + self._links.busy(nbytes.reshape(self._n, self._n).T.ravel()) if back else busy

    def _add_up(self, of_parts: Makers, volume: Vector, readers: Numbers) -> Vector:
        """Elements [source x n + target] that add up partial values. From ``volume`` [read, Rect] of what ``readers`` get of the
        owners it takes away what they have themselves when an all-reduce is over."""
        messages: Vector = np.zeros(self._n**2)
        for at, (rect, of) in enumerate(of_parts.items()):
            owner, *others = of
            if not others:
                continue
            if self._sums is SyncAlgorithm.COLLECTIVE:
                adds = np.zeros(self._n, dtype=bool)
                adds[list(of)] = True
                here = (volume[:, at] > 0) & adds[readers]
                if len(set(readers[here])) == len(of):
                    volume[here, at] = 0
                    around(of, rect.volume, messages, self._n)
                    continue
            messages[[p * self._n + owner for p in others]] += rect.volume
        return messages

    def _synchronise(self, sharing: Sequence[Node], configs: Mapping[str, OpConfig]) -> Vector:
        """The weights of operators that share them: one operator for each configuration."""
        held = holders((self._accesses(node, configs[node.name]), configs[node.name]) for node in sharing)
        return self._links.busy(ring_bytes(held, sharing[0].parameters, self._n))

    def _keep(self, key: object, value: Vector) -> None:
        self._hurry()
        self._kept[key] = value

    def _forget(self) -> None:
        """Before an answer, not within one: configurations may get other numbers then."""
        if len(self._kept) > MOST_KEPT:
            self._kept.clear()
            self._accesses.clear()
            self._numbers.clear()
            self._sums_of.clear()
        if len(self._parts) > MOST_SUMS:
            self._parts.clear()
            self._shapes.clear()
            self._sums_of.clear()
        if len(self._sums_of) > MOST_SUMS:
            self._sums_of.clear()
