"""Relaxation: a lower bound on every completion of a partial plan (`bounds/partial_plan.h` has the argument).

This module makes the tables of the compiled bound: the cost of every piece of every cut, what pieces of neighbours read from
each other, and the synchronisation of layers. Costs are those of the evaluator's own model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from taskflow.graph import Node
from taskflow.machine import ring_bytes
from taskflow.mapper import MessageSync, OpConfig, Sync, SyncAlgorithm
from taskflow.optimizer.bounds._partial_plan import Relax
from taskflow.optimizer.bounds.sync import HeldBundle, Prices, bundles_of, kind_of_sync, layer_sync, least_sync
from taskflow.optimizer.bounds.updates import LeastUpdates
from taskflow.optimizer.bounds.work_and_path import reads_all_of, representatives
from taskflow.optimizer.cost import Pieces
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.space import Renumbering
from taskflow.regions import Rect
from taskflow.tasks import Kind
from taskflow.tasks.lower import contiguous, gradient_flow

FREE, AFTER_INPUTS, AFTER_FORWARD = range(3)


@dataclass(frozen=True, slots=True)
class CutGeometry:
    """Cut of an operator: its pieces and what each reads; and for each output the distinct Rects (slots) that pieces write, the
    slot of each piece, and the piece that owns each slot."""

    pieces: tuple[Rect, ...]
    reads: tuple[tuple[Rect, ...], ...]
    slots: tuple[tuple[Rect, ...], ...]
    slot_of: tuple[tuple[int, ...], ...]
    owners: tuple[tuple[int, ...], ...]


class Relaxation:
    """Lower bound on the completions of a partial plan. ``choices``: the configurations that each operator may have. ``syncs``:
    how any layer that is not ``pinned`` (name -> its only synchronisation) may be synchronised. ``group``: with more than the
    identity, `seconds` holds for the partial plan on any of these renumberings of the processors. ``sums``: how partial values
    are summed; if that may be by an all-reduce, the bound holds for either way.

    ``order``: the operators, producers first; operators are given by their places in it. ``fix(ops, choices)`` and
    ``free(ops)`` fix and free some, the last fixed first freed. ``seconds(limit)`` returns the bound and the argument that
    gives it (an index into REASONS); ``children(ops, choices, limit)`` returns the same for each list of choices. ``layers``:
    names.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        choices: Mapping[str, Sequence[OpConfig]],
        syncs: Sequence[Sync] = (MessageSync(),),
        group: Sequence[Renumbering] = (),
        pinned: Mapping[str, Sync] | None = None,
        sums: SyncAlgorithm = SyncAlgorithm.OWNER,
    ) -> None:
        self.evaluator, self.syncs, self.pinned = evaluator, list(syncs), pinned or {}
        self.group = list(group) or [tuple(range(len(evaluator.machine.processors)))]
        self.graph, self.costs, self.rule = evaluator.graph, evaluator.costs, evaluator.rule
        self.processors = len(evaluator.machine.processors)
        self.order = fixing_order(evaluator)
        self.choices = [list(choices[node.name]) for node in self.order]
        self._place = {node.number: i for i, node in enumerate(self.order)}
        self._pieces = Pieces(self.graph, self.costs, self.rule is not None)
        self._active, self._needs, self._trained = gradient_flow(self.graph) if self.rule else (set(), set(), set())
        self._sums = sums
        self._all_reduces: dict[tuple[tuple[int, ...], int, int], float] = {}
        self._cuts: list[list[CutGeometry]] = []
        self._sizes: dict[tuple[int, int], int] = {}
        self._regions: dict[Rect, int] = {}
        self._plans: dict[tuple[object, ...], int] = {}
        self._bundles: dict[tuple[int, ...], list[HeldBundle]] = {}
        self._prices = Prices(self.costs)
        self._users: list[list[int]] = []
        everyone, machine = range(self.processors), evaluator.machine
        serial = all(machine.route(p, q) for p in everyone for q in everyone if p != q)
        self.core = Relax(self.processors, serial, self._layer_syncs)
        self._layers(representatives(evaluator))
        for node in self.order:
            self._operator(node)
        self._edges()
        for volume, item in list(self._sizes):
            self._size(volume, item)
        self.core.prepare()
        self.fix, self.free = self.core.fix, self.core.free
        self.seconds, self.children = self.core.seconds, self.core.children

    # ---- operators -----------------------------------------------------------------------------------------------
    def _operator(self, node: Node) -> None:
        keeps, active = node.operator.keeps(node.specs), node.number in self._active
        turn = FREE
        if active and (keeps.outputs or any(s.nbytes for s in node.operator.saves(node.specs, node.space))):
            turn = AFTER_FORWARD
        elif active and keeps.inputs:
            turn = AFTER_INPUTS
        place = self._place[node.number]
        layer = next((i for i, users in enumerate(self._users) if place in users), -1)
        readers = [n for n in self.graph if n.number in self._active for t in n.inputs if t.node == node.number]
        self.core.add_op(
            node.operator.kind != "state", active, turn, layer,
            [any(t is loss for loss in self.graph.losses) and self.rule is not None for t in node.outputs],
            [all(sum(u is t for u in n.inputs) < 2 for n in readers) for t in node.outputs],
        )  # fmt: skip
        numbers: dict[tuple[object, ...], int] = {}
        cuts: list[CutGeometry] = []
        for config in self.choices[place]:
            key = (config.degrees, config.weights)
            if key not in numbers:
                numbers[key] = len(cuts)
                cuts.append(cut_of(node, config))
                self._add_cut(place, node, cuts[-1])
            self.core.add_config(place, numbers[key], config.processors, self._together(node, cuts[numbers[key]], config))
        self._cuts.append(cuts)

    def _add_cut(self, place: int, node: Node, cut: CutGeometry) -> None:
        of_class: dict[tuple[Rect, int], tuple[float, float]] = {}
        forward, backward = [], []
        for piece in cut.pieces:
            for processor in range(self.processors):
                key = (piece, self.costs.processor_class(processor))
                if key not in of_class:
                    of_class[key] = self._pieces.seconds(node, piece, processor)
                forward.append(of_class[key][0])
                backward.append(of_class[key][1])
        sizes = [
            [self._size_of(rect, tensor.dtype.itemsize) for rect in rects]
            for rects, tensor in zip(cut.slots, node.outputs)
        ]
        self.core.add_cut(
            place, len(cut.pieces), forward, backward, [list(s) for s in cut.slot_of], [list(s) for s in cut.owners], sizes
        )

    def _together(self, node: Node, cut: CutGeometry, config: OpConfig) -> list[list[float]]:
        """The least seconds, by output and slot, of the all-reduce that may sum what several processors write of it."""
        if self._sums is not SyncAlgorithm.COLLECTIVE or all(len(set(of)) == len(of) for of in cut.slot_of):
            return []
        found: list[list[float]] = []
        for tensor, rects, of in zip(node.outputs, cut.slots, cut.slot_of):
            groups: list[set[int]] = [set() for _ in rects]
            for slot, processor in zip(of, config.processors):
                groups[slot].add(processor)
            found.append([
                self._all_reduce(tuple(sorted(group)), rect.volume, tensor.dtype.itemsize) if len(group) > 1 else -inf
                for group, rect in zip(groups, rects)
            ])  # fmt: skip
        return found

    def _all_reduce(self, members: tuple[int, ...], volume: int, item: int) -> float:
        """The least seconds of an all-reduce, on any renumbered processors: a ring goes through them in rising order."""
        key = (members, volume, item)
        if key not in self._all_reduces:
            nbytes, flops = ring_bytes(len(members), volume * item), (len(members) - 1) * volume
            images = {tuple(sorted(image[p] for p in members)) for image in self.group}
            self._all_reduces[key] = min(self.costs.collective(there, nbytes, flops) for there in images)
        return self._all_reduces[key]

    def _size_of(self, rect: Rect, itemsize: int) -> int:
        return self._sizes.setdefault((rect.volume, itemsize), len(self._sizes))

    def _size(self, volume: int, item: int) -> None:
        """Cost of sending, moving, adding and filling this many elements."""
        everyone, nbytes = range(self.processors), volume * item

        def other(kind: Kind, flops: int, touched: int) -> list[float]:
            return [self.costs.other(kind, p, flops, touched) for p in everyone]

        self.core.add_size(
            [self.costs.copy(p, q, nbytes) if p != q else 0.0 for p in everyone for q in everyone],
            other(Kind.MOVE, 0, 2 * nbytes), other(Kind.SUM, volume, 3 * nbytes), other(Kind.FILL, 0, nbytes),
        )  # fmt: skip

    # ---- edges ---------------------------------------------------------------------------------------------------
    def _edges(self) -> None:
        inward: list[list[int]] = [[] for _ in self.order]
        out: list[list[int]] = [[] for _ in self.order]
        for node in self.graph:  # so that ``out`` lists readers in program order
            seen = set()
            for index, tensor in enumerate(node.inputs):
                if (tensor.node, tensor.index) in seen:
                    continue  # left out, which only makes the bound smaller
                seen.add((tensor.node, tensor.index))
                source, target = self._place[tensor.node], self._place[node.number]
                cuts = self._cuts[target]
                number = self.core.add_edge(
                    source, tensor.index, target,
                    node.number in self._active and (tensor.node, tensor.index) in self._needs,
                    all(not reads[index].empty for cut in cuts for reads in cut.reads),
                    reads_all_of(node, tensor),
                    [
                        self._touches(before.slots[tensor.index], after, index, tensor.dtype.itemsize)
                        for before in self._cuts[source] for after in cuts
                    ],
                )  # fmt: skip
                out[source].append(number)
                inward[target].append(number)
        for place in range(len(self.order)):
            self.core.link(place, inward[place], out[place])

    def _touches(
        self, slots: Sequence[Rect], cut: CutGeometry, index: int, itemsize: int
    ) -> list[tuple[int, int, int, int, bool, bool, bool]]:
        rows = []
        for piece, reads in enumerate(cut.reads):
            rect = reads[index]
            shared = [(slot, owned, owned.intersect(rect)) for slot, owned in enumerate(slots) if owned.overlaps(rect)]
            for slot, owned, part in shared:
                view = len(shared) == 1 and contiguous(rect.relative_to(owned), owned.shape)
                rows.append((
                    slot, piece, self._size_of(part, itemsize), self._regions.setdefault(rect, len(self._regions)),
                    view, part == owned, rect == owned,
                ))  # fmt: skip
        return rows

    # ---- layers --------------------------------------------------------------------------------------------------
    def _layers(self, processors: Sequence[int]) -> None:
        names = list(dict.fromkeys(p.layer for p in self.graph.parameters if p.name in self._trained))
        self.layers = list(dict.fromkeys(p.layer for p in self.graph.parameters))
        least = LeastUpdates(self.evaluator, processors)
        for name in self.layers:
            users = [i for i, n in enumerate(self.order) if any(p.layer == name for p in n.parameters)]
            if name not in names or not all(self.order[i].number in self._active for i in users):
                users = []  # never synchronised
            self._users.append(users)
            self.core.add_layer(users, *(least.of(name) if users else (0.0, 0.0)))

    # ---- synchronisation -----------------------------------------------------------------------------------------
    def use(self, layer: int, sync: Sync, image: int) -> None:
        """Synchronise a layer in one way, on renumbered processors (``image``: an index into ``group``). All operators must be
        fixed."""
        chosen = self.core.chosen
        if self._users[layer]:  # else it has no gradient
            self.core.use_sync(layer, self._plan(layer, [image], [sync], chosen))

    def unuse(self, layer: int) -> None:
        """Return to any synchronisation on any renumbered processors."""
        if self._users[layer]:
            self.core.use_sync(layer, self._any_way(layer, self.core.chosen))

    def ways(self, layer: int) -> list[Sync]:
        """Return the different ways to synchronise a layer; none if they are all the same. All its operators must be fixed."""
        if not self._users[layer]:
            return []
        shared = any(len(bundle.waits) > 1 for bundle in self._bundles_of(layer, self.core.chosen))
        return self._permitted(layer) if shared else []

    def _permitted(self, layer: int) -> list[Sync]:
        pinned = self.pinned.get(self.layers[layer])
        return self.syncs if pinned is None else [pinned]

    def _layer_syncs(self, ops: Sequence[int], chosen: dict[int, int]) -> list[tuple[int, int]]:
        """The synchronisations that are known now that ``ops`` are fixed: of layers all of whose users are."""
        return [
            (layer, self._any_way(layer, chosen)) for layer, users in enumerate(self._users)
            if any(op in users for op in ops) and all(user in chosen for user in users)
        ]

    def _any_way(self, layer: int, chosen: Mapping[int, int]) -> int:
        return self._plan(layer, range(len(self.group)), self._permitted(layer), chosen)

    def _plan(
        self, layer: int, images: Sequence[int], syncs: Sequence[Sync], chosen: Mapping[int, int]
    ) -> int:
        """The number of a layer's synchronisation: of what all have in common that it may be."""
        users = self._users[layer]
        bundles = self._bundles_of(layer, chosen)
        if all(len(bundle.waits) == 1 for bundle in bundles):
            images, syncs = [0], self.syncs[:1]  # nothing is sent
        key = (layer, tuple(images), tuple(syncs), *(chosen[i] for i in users))
        if key not in self._plans:
            assert self.rule is not None
            different: dict[object, tuple[Sync, Renumbering]] = {}
            for sync in syncs:
                for image in images:
                    alike = kind_of_sync(sync, bundles, layer, self.group[image])
                    different.setdefault(alike, (sync, self.group[image]))
            ways = [layer_sync(self._prices, self.rule, sync, bundles, layer, image) for sync, image in different.values()]
            rows = ways[0] if len(ways) == 1 else least_sync(ways)
            self._plans[key] = self.core.add_sync(
                [(p, s, after, [(users[u], piece) for u, piece in waits]) for p, s, after, waits in rows]
            )
        return self._plans[key]

    def _bundles_of(self, layer: int, chosen: Mapping[int, int]) -> list[HeldBundle]:
        users = self._users[layer]
        key = (layer, *(chosen[i] for i in users))
        if key not in self._bundles:
            pairs = [(self.order[i], self.choices[i][chosen[i]]) for i in users]
            self._bundles[key] = bundles_of(self.graph, pairs, self._trained)
        return self._bundles[key]


def cut_of(node: Node, config: OpConfig) -> CutGeometry:
    """Return the cut of a configuration."""
    pieces = tuple(config.partition(node).rects())
    writes = [node.writes(piece) for piece in pieces]
    slots: list[tuple[Rect, ...]] = []
    slot_of, owners = [], []
    for output in range(len(node.outputs)):
        first: dict[Rect, int] = {}
        for piece, rects in enumerate(writes):
            first.setdefault(rects[output], piece)
        numbers = {rect: i for i, rect in enumerate(first)}
        slots.append(tuple(first))
        slot_of.append(tuple(numbers[rects[output]] for rects in writes))
        owners.append(tuple(first.values()))
    return CutGeometry(pieces, tuple(node.reads(piece).inputs for piece in pieces), tuple(slots), tuple(slot_of), tuple(owners))


def fixing_order(evaluator: Evaluator) -> list[Node]:
    """Return the operators, producers first. Those that share a layer are as close together as possible, so that the cost of
    its synchronisation is known early, and inputs come just before their readers."""
    graph, done = evaluator.graph, dict[int, Node]()
    sharing: dict[str, list[Node]] = {}
    for node in graph:
        for parameter in node.parameters:
            sharing.setdefault(parameter.layer, []).append(node)

    def add(node: Node) -> None:
        if node.number in done:
            return
        for tensor in node.inputs:
            add(graph.nodes[tensor.node])
        done[node.number] = node
        for parameter in node.parameters[:1]:
            for other in sharing[parameter.layer]:
                add(other)

    for node in graph:
        if node.inputs:
            add(node)
    for node in graph:
        add(node)
    return list(done.values())
