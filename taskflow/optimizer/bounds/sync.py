"""The synchronisation of one layer by itself: its messages, sums and updates under given configurations of its users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import ring_bytes
from taskflow.mapper import OpConfig, Sync, SyncAlgorithm, UpdatePlacement
from taskflow.operators.tensor import Parameter
from taskflow.optimizer.cost import Costs
from taskflow.partition import even_cuts
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks import Kind
from taskflow.tasks.lower import SMALLEST_CHUNK_BYTES, lay_out

Row = tuple[int, float, list[int], list[tuple[int, int]]]
"""A task: its processor (-1: a message), seconds, the earlier rows that it waits for, and the (user, piece)s whose backward
tasks it waits for."""

State = tuple[list[int], list[tuple[int, int]]]  # what completes a value: rows, and (user, piece)s


class Prices:
    """Costs of messages and of tasks that are no operator's, each asked once."""

    def __init__(self, costs: Costs) -> None:
        self.copy = cache(costs.copy)
        self.collective = cache(costs.collective)
        self.other = cache(costs.other)


@dataclass(frozen=True, slots=True)
class HeldBundle:
    """A bundle: ``size`` elements of ``item`` bytes that each of ``waits`` (processors, rising) holds, with the (user, piece)s
    whose backward tasks complete its own gradient."""

    size: int
    item: int
    trained: bool
    waits: Mapping[int, tuple[tuple[int, int], ...]]


def bundles_of(graph: OperatorGraph, users: Sequence[tuple[Node, OpConfig]], trained: set[str]) -> list[HeldBundle]:
    """The bundles of a layer that ``users`` share, in the order in which `lay_out` has them."""
    uses: dict[Parameter, dict[int, dict[Rect, None]]] = {}
    readers: dict[tuple[str, int], list[tuple[Rect, int, int]]] = {}  # parameter, processor -> Rect, user, piece
    for user, (node, config) in enumerate(users):
        for piece, (rect, processor) in enumerate(config.pieces(node)):
            for parameter, read in zip(node.parameters, node.reads(rect).weights):
                of_parameter = uses.setdefault(parameter, {})
                if not read.empty:
                    of_parameter.setdefault(processor, {})[read] = None
                    readers.setdefault((parameter.name, processor), []).append((read, user, piece))
    lists = {p: {k: list(v) for k, v in table.items()} for p, table in uses.items()}
    lists_of = {p.name: table for p, table in lists.items()}
    found = []
    for bundle in lay_out(graph, lists, trained).bundles:
        waits = {
            p: tuple(sorted({
                (user, piece)
                for cell in bundle.cells
                for read, user, piece in readers.get((cell.parameter, p), ()) if read.overlaps(cell.rect)
            }))
            for p in bundle.group
        }
        reached = any(lists_of[cell.parameter] and cell.parameter in trained for cell in bundle.cells)
        found.append(HeldBundle(bundle.size, bundle.dtype.itemsize, reached, waits))
    return found


def layer_sync(
    prices: Prices, rule: UpdateRule, sync: Sync, bundles: Sequence[HeldBundle], first: int, image: Sequence[int] = ()
) -> list[Row]:
    """The tasks of a layer's synchronisation as `tasks.synchronise` emits them. ``first``: the layer's place among all layers,
    which decides where sums are made (`ParameterLayout.rank`). ``image``: as they would be on renumbered processors (said with
    the numbers before). Moves within a processor and clipping are left out."""
    writer = _Writer(prices, rule, image)
    for number, bundle in enumerate(bundles):
        if bundle.trained:
            writer.bundle(bundle, sync, first + number)
    return writer.rows


def kind_of_sync(sync: Sync, bundles: Sequence[HeldBundle], first: int, image: Sequence[int] = ()) -> object:
    """What `layer_sync`'s tasks depend on, apart from the order in which they are listed: for each bundle how it travels, its
    chunks and the order of its holders."""
    found: list[object] = []
    for number, bundle in enumerate(bundles):
        if bundle.trained:
            group = sorted(bundle.waits, key=lambda p: image[p] if image else p)
            by = (first + number) % len(group)
            count = _chunks(sync, bundle)
            found.append((sync.travel, sync.place, count, *group[by:], *group[:by]) if len(group) > 1 else group[0])
    return tuple(found)


def _chunks(sync: Sync, bundle: HeldBundle) -> int:
    many = sync.place is UpdatePlacement.SPREAD or (sync.place is UpdatePlacement.EVERY and sync.travel is SyncAlgorithm.RING)
    wanted = sync.chunks or max(1, bundle.size * bundle.item // SMALLEST_CHUNK_BYTES)
    if sync.travel is SyncAlgorithm.COLLECTIVE:
        wanted = len(bundle.waits)
    return min(len(bundle.waits), wanted, bundle.size) if many else 1


ANYWHERE = -2  # the processor of a row that runs on any of them, after the first of what it waits for


def least_sync(ways: Sequence[Sequence[Row]]) -> list[Row]:
    """What several ways to synchronise a layer have in common: of what follows each piece, and of the work of all
    processors together, the least."""
    tails: dict[tuple[int, int], float] = {}
    works = []
    for number, rows in enumerate(ways):
        after = [0.0] * len(rows)
        own: dict[tuple[int, int], float] = {}
        for row in range(len(rows) - 1, -1, -1):
            _, seconds, before, waits = rows[row]
            total = seconds + after[row]
            for earlier in before:
                after[earlier] = max(after[earlier], total)
            for wait in waits:
                own[wait] = max(own.get(wait, 0.0), total)
        tails = own if not number else {wait: min(tail, own.get(wait, 0.0)) for wait, tail in tails.items()}
        works.append(sum(seconds for processor, seconds, _, _ in rows if processor >= 0))
    least: list[Row] = [(-1, tail, [], [wait]) for wait, tail in tails.items()]
    return [*least, (ANYWHERE, min(works), [], sorted(tails))] if tails else []


class _Writer:
    def __init__(self, prices: Prices, rule: UpdateRule, image: Sequence[int]) -> None:
        self.prices, self.rule, self.image = prices, rule, image
        self.rows: list[Row] = []

    def bundle(self, bundle: HeldBundle, sync: Sync, number: int) -> None:
        """As tasks.synchronise has it."""
        waits, item = bundle.waits, bundle.item
        group = tuple(sorted(waits, key=lambda p: self.image[p] if self.image else p))
        count = _chunks(sync, bundle)
        cuts = even_cuts(bundle.size, count)
        if sync.travel is SyncAlgorithm.COLLECTIVE:
            self._collective(bundle, sync.place, group, cuts)
            return
        arrived: dict[int, State] = {p: ([], []) for p in group}
        for i, (low, high) in enumerate(zip(cuts, cuts[1:])):
            by = (number + i * len(group) // count) % len(group)
            order = group[by:] + group[:by]
            final = self._reduce([(p, ([], list(waits[p]))) for p in order], high - low, item, sync.travel)
            if sync.place is UpdatePlacement.EVERY:
                for p, state in self._broadcast(order, final, (high - low) * item, sync.travel).items():
                    arrived[p][0].extend(state[0])
                    arrived[p][1].extend(state[1])
            elif sync.place not in (UpdatePlacement.OWNER, UpdatePlacement.SPREAD):
                raise _unknown(sync.place)
            else:
                updated = self._update(order[0], high - low, item, final)
                self._broadcast(order, ([updated], []), (high - low) * item, sync.travel)
        if sync.place is UpdatePlacement.EVERY:
            for p in group:
                self._update(p, bundle.size, item, arrived[p])

    def _collective(self, bundle: HeldBundle, place: UpdatePlacement, group: tuple[int, ...], cuts: Sequence[int]) -> None:
        if place not in (UpdatePlacement.EVERY, UpdatePlacement.SPREAD):
            raise _unknown(place)
        states: list[State] = [([], list(bundle.waits[p])) for p in group]
        others, halves = len(group) - 1, 2 if place is UpdatePlacement.EVERY else 1
        nbytes = ring_bytes(len(group), bundle.size * bundle.item, halves)
        if others:
            seconds = self.prices.collective(group, nbytes, others * bundle.size, halves)
            states = [([self._row(-1, seconds, *states)], [])] * len(group)
        if place is UpdatePlacement.EVERY:
            for p, state in zip(group, states):
                self._update(p, bundle.size, bundle.item, state)
            return
        shares = zip(group, states, cuts, cuts[1:])  # perhaps fewer than there are holders
        updated = [self._update(p, high - low, bundle.item, state) for p, state, low, high in shares]
        if others:
            self._row(-1, self.prices.collective(group, nbytes, 0, halves), (updated, []))

    def _row(self, processor: int, seconds: float, *states: State) -> int:
        after = sorted({row for state in states for row in state[0]})
        waits = sorted({wait for state in states for wait in state[1]})
        self.rows.append((processor, seconds, after, waits))
        return len(self.rows) - 1

    def _copy(self, source: int, target: int, nbytes: int, *states: State) -> int:
        return self._row(-1, self.prices.copy(source, target, nbytes), *states)

    def _sum(self, processor: int, volume: int, item: int, parts: int, *states: State) -> int:
        seconds = self.prices.other(Kind.SUM, processor, volume * (parts - 1), volume * item * (parts + 1))
        return self._row(processor, seconds, *states)

    def _update(self, processor: int, volume: int, item: int, *states: State) -> int:
        nbytes = volume * item * (3 + 2 * self.rule.buffers)
        return self._row(
            processor, self.prices.other(Kind.UPDATE, processor, self.rule.flops(volume), nbytes), *states
        )

    def _reduce(self, parts: list[tuple[int, State]], volume: int, item: int, travel: SyncAlgorithm) -> State:
        """As tasks.reduce has it."""
        if len(parts) == 1:
            return parts[0][1]
        nbytes = volume * item

        def add(source: int, target: int) -> None:
            (giver, state), (taker, own) = parts[source], parts[target]
            came = self._copy(giver, taker, nbytes, state)
            parts[target] = (taker, ([self._sum(taker, volume, item, 2, ([came], []), own)], []))

        if travel is SyncAlgorithm.OWNER:
            owner, own = parts[0]
            came = [self._copy(p, owner, nbytes, state) for p, state in parts[1:]]
            return ([self._sum(owner, volume, item, len(parts), (came, []), own)], [])
        if travel is SyncAlgorithm.TREE:
            step = 1
            while step < len(parts):
                for i in range(0, len(parts) - step, 2 * step):
                    add(i + step, i)
                step *= 2
        elif travel is SyncAlgorithm.RING:
            for i in range(len(parts) - 1, 0, -1):
                add(i, i - 1)
        else:
            raise _unknown(travel)
        return parts[0][1]

    def _broadcast(self, order: Sequence[int], state: State, nbytes: int, travel: SyncAlgorithm) -> dict[int, State]:
        has: list[State] = [state] * len(order)

        def send(source: int, target: int) -> None:
            has[target] = ([self._copy(order[source], order[target], nbytes, has[source])], [])

        if travel is SyncAlgorithm.OWNER:
            for i in range(1, len(order)):
                send(0, i)
        elif travel is SyncAlgorithm.TREE:
            step = 1
            while step < len(order):
                step *= 2
            while step > 1:
                step //= 2
                for i in range(0, len(order) - step, 2 * step):
                    send(i, i + step)
        elif travel is SyncAlgorithm.RING:
            for i in range(1, len(order)):
                send(i - 1, i)
        else:
            raise _unknown(travel)
        return dict(zip(order, has))


def _unknown(way: SyncAlgorithm | UpdatePlacement) -> ValueError:
    return ValueError(
        f"exact: the lower bound does not know how weights are synchronised by {type(way).__name__}.{way.name}; pin another way, "
        f"or write its tasks in bounds/sync.py as tasks/lower/synchronise.py emits them"
    )
