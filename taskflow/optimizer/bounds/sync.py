"""Synchronisation of one layer by itself: its messages, sums and updates under given configurations of its users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from taskflow.floats import sum_bytes
from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig, Sync
from taskflow.operators.tensor import Parameter
from taskflow.optimizer.cost import Costs
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks import Kind
from taskflow.tasks.lower import SyncStep, SyncTask, chunk_count, first_root, lay_out, make_sync_table, sync_tasks

Row = tuple[int, float, list[int], list[tuple[int, int]]]
"""A task: its processor (-1: a message), seconds, the earlier rows that it waits for, and the (user, piece)s whose backward
tasks it waits for."""


class Prices:
    """Costs of messages and of tasks that belong to no operator, each asked only once."""

    def __init__(self, costs: Costs) -> None:
        self.copy = cache(costs.copy)
        self.collective = cache(costs.collective)
        self.other = cache(costs.other)


@dataclass(frozen=True, slots=True)
class HeldBundle:
    """Bundle with its holders: ``size`` elements of ``item`` bytes. ``waits``: for each holder (processors, ascending), the
    (user, piece)s whose backward tasks complete its own gradient."""

    size: int
    item: int
    trained: bool
    waits: Mapping[int, tuple[tuple[int, int], ...]]


def bundles_of(graph: OperatorGraph, users: Sequence[tuple[Node, OpConfig]], trained: set[str]) -> list[HeldBundle]:
    """Return the bundles of a layer that ``users`` share, in the order of `lay_out`."""
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
    """Return the tasks of a layer's synchronisation, as in `tasks.lower.gradient_sync`. ``first``: the layer's place among all
    layers, which determines where sums are computed (`ParameterLayout.rank`). ``image``: as they would be on renumbered
    processors (stated in the old numbers). Moves within a processor and clipping are left out."""
    rows: list[Row] = []
    for number, bundle in enumerate(bundles):
        if bundle.trained:
            group = _group(bundle, image)
            table = make_sync_table(sync, (True,) * len(group), bundle.size, sum_bytes(bundle.item))
            begin = len(rows)
            for task in sync_tasks(table, first_root(sync, first + number, len(group)))[0]:
                waits = sorted({wait for holder in task.gradients for wait in bundle.waits[group[holder]]})
                rows.append((
                    -1 if task.step.is_message or task.step.is_collective else group[task.holder],
                    _seconds(prices, rule, task, group, bundle.item), sorted(begin + a for a in task.after), waits,
                ))  # fmt: skip
    return rows


def kind_of_sync(sync: Sync, bundles: Sequence[HeldBundle], first: int, image: Sequence[int] = ()) -> object:
    """Return what `layer_sync`'s tasks depend on, apart from their order: for each bundle its algorithm, its chunks and the
    order of its holders."""
    found: list[object] = []
    for number, bundle in enumerate(bundles):
        if bundle.trained:
            group = _group(bundle, image)
            by = (first + number) % len(group)
            count = chunk_count(sync, len(group), bundle.size, sum_bytes(bundle.item))
            found.append((sync.algorithm, sync.placement, count, *group[by:], *group[:by]) if len(group) > 1 else group[0])
    return tuple(found)


def _group(bundle: HeldBundle, image: Sequence[int]) -> tuple[int, ...]:
    """The holders in the order that they have on renumbered processors."""
    return tuple(sorted(bundle.waits, key=lambda p: image[p] if image else p))


def _seconds(prices: Prices, rule: UpdateRule, task: SyncTask, group: tuple[int, ...], itemsize: int) -> float:
    flops, nbytes = task.work(len(group), itemsize, rule)
    if task.step.is_message:
        return prices.copy(group[task.source], group[task.holder], nbytes)
    if task.step.is_collective:
        return prices.collective(group, nbytes, flops, task.halves)
    return prices.other(Kind.SUM if task.step is SyncStep.ADD else Kind.UPDATE, group[task.holder], flops, nbytes)


ANYWHERE = -2  # the processor of a row that runs on any of them, after the first of what it waits for


def least_sync(ways: Sequence[Sequence[Row]]) -> list[Row]:
    """Return the least of several ways to synchronise a layer: the minimum of what follows each piece, and of the work of all
    processors together."""
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
