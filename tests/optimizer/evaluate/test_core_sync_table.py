"""The compiled core's synchronisation against tasks/lower/gradient_sync.py, row by row: kind, holders, flops, bytes, and what each
row waits for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

import taskflow
from taskflow.floats import sum_bytes
from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper import CollectiveSync, MessageSync, OpConfig, Strategy, Sync, SyncAlgorithm, UpdatePlacement
from taskflow.optimizer.cost.task_costs import Roofline
from taskflow.rules import SGD, Adam, UpdateRule
from taskflow.tasks.lower.emit import apart, distance
from taskflow.tasks.lower.gradient_sync import SyncPhase, SyncStep, SyncTask, first_root, make_sync_table, sync_tasks
from taskflow.tasks.task import Kind

core = pytest.importorskip("taskflow.optimizer.evaluate.compiled", reason="the compiled core is not built")

BATCH, SEEDS = 12, range(120)
ITEM_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}
JOIN = 1 << 31  # as in simulation/full.h
KINDS = {SyncStep.FILL: Kind.FILL, SyncStep.ADD: Kind.SUM, SyncStep.UPDATE: Kind.UPDATE}  # of what stays at a processor


@dataclass(frozen=True)
class Layer:
    """Linear layers of ``width`` x ``width`` weights: one that leads to the loss, in pieces on ``used``, and one that shares its
    weights and leads to nothing, on ``unused``."""

    width: int
    used: tuple[int, ...]
    unused: tuple[int, ...]
    sync: Sync

    @property
    def group(self) -> tuple[int, ...]:
        return tuple(sorted({*self.used, *self.unused}))


def random_sync(random: Random) -> Sync:
    way = random.choice(list(SyncAlgorithm))
    if way is SyncAlgorithm.COLLECTIVE:
        return CollectiveSync(random.choice([place for place in UpdatePlacement if place is not UpdatePlacement.OWNER]))
    return MessageSync(way, random.choice(list(UpdatePlacement)), random.choice((0, 1, 2, 3, 5, 64)))


def random_layers(random: Random, processors: int) -> list[Layer]:
    width = random.choice((1, 2, 3, 600))  # 600: the weights are of several chunks where nobody says how many

    def some(least: int) -> tuple[int, ...]:
        return tuple(random.sample(range(processors), random.randint(least, processors)))

    return [
        Layer(width, some(1), some(0) if random.random() < 0.5 else (), random_sync(random))
        for _ in range(random.randint(1, 3))
    ]


def planned(layers: list[Layer], dtype: str, processors: int) -> tuple[OperatorGraph, Strategy]:
    graph, width = OperatorGraph(dtype), layers[0].width
    first = x = taskflow.input(graph, (BATCH, width), name="x")
    configs = {}
    for number, layer in enumerate(layers):
        x = taskflow.linear(x, width, bias=False, name=f"used {number}")
        configs[f"used {number}"] = OpConfig((len(layer.used), 1, 1), layer.used)
        if layer.unused:
            taskflow.linear(first, width, bias=False, name=f"unused {number}", parameters=graph.parameters_of(x))
            configs[f"unused {number}"] = OpConfig((len(layer.unused), 1, 1), layer.unused)
    graph.minimize(taskflow.mse_loss(x, taskflow.input(graph, (BATCH, width), name="y")))
    rest = {node.name: OpConfig((1,) * len(node.dims), (0,)) for node in graph if node.name not in configs}
    return graph, Strategy(processors, configs | rest, {f"used {n}": layer.sync for n, layer in enumerate(layers)})


def emitted(layer: Layer, number: int, itemsize: int, processors: int) -> list[list[tuple[int, SyncTask]]]:
    """The rows of a layer's only bundle, and their numbers, in the order in which they are emitted, by phase."""
    group, size = layer.group, layer.width**2
    first = first_root(layer.sync, number, len(group))
    giving = tuple(p in layer.used for p in group[first:] + group[:first])
    tasks, stages = sync_tasks(make_sync_table(layer.sync, giving, size, sum_bytes(itemsize)), first)
    found: list[list[tuple[int, SyncTask]]] = [[] for _ in SyncPhase]
    for stage in stages:
        rows = [(row, tasks[row]) for row in stage.tasks]
        if stage.in_rounds:
            ends = {row: (group[task.source], group[task.holder]) for row, task in rows}
            rows.sort(key=lambda one: (distance(*ends[one[0]], processors), apart(ends[one[0]][1], processors)))
        found[stage.phase.value] += rows
    return found


def ancestors(table: dict[str, Any]) -> list[set[int]]:
    """All that each task of the core waits for, by way of others too."""
    found: list[set[int]] = []
    offsets, joins = table["after_offset"].tolist(), table["join_offset"].tolist()
    after, join_after = table["after"].tolist(), table["join_after"].tolist()
    for low, high in zip(offsets, offsets[1:]):
        direct: set[int] = set()
        for one in after[low:high]:
            direct |= set(join_after[joins[j] : joins[j + 1]]) if (j := one - JOIN) >= 0 else {one}
        found.append(direct.union(*(found[one] for one in direct)))
    return found


def case(seed: int) -> tuple[list[Layer], int, str, UpdateRule]:
    random = Random(seed)
    processors, dtype = random.randint(1, 7), random.choice(sorted(ITEM_BYTES))
    return random_layers(random, processors), processors, dtype, random.choice((SGD(0.1), SGD(0.1, momentum=0.9), Adam()))


def test_the_cases_have_rows_of_all_kinds() -> None:
    counts = Counter[object]()
    for seed in SEEDS:
        layers, processors, dtype, _ = case(seed)
        for number, layer in enumerate(layers):
            rows = [row for phase in emitted(layer, number, ITEM_BYTES[dtype], processors) for row in phase]
            counts.update(task.step for _, task in rows)
            counts["several chunks"] += len({task.low for _, task in rows}) > 1
            counts["no gradient"] += not set(layer.group) <= set(layer.used)
            counts["another order"] += [row for row, _ in rows] != sorted(row for row, _ in rows)
    for kind in (*SyncStep, "several chunks", "no gradient", "another order"):
        assert counts[kind] >= 5, (kind, counts)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_row_is_the_tables(seed: int) -> None:
    layers, processors, dtype, rule = case(seed)
    graph, strategy = planned(layers, dtype, processors)
    machine, itemsize = host(processors), ITEM_BYTES[dtype]
    evaluator = core.CompiledEvaluator(graph, machine, Roofline(machine), rule, None)
    evaluator.set(strategy)
    table = evaluator.task_table()
    rows = [emitted(layer, number, itemsize, processors) for number, layer in enumerate(layers)]
    wanted = [(n, *row) for phase in SyncPhase for n, of in enumerate(rows) for row in of[phase.value]]
    begin = len(table["kind"]) - len(wanted)
    number = {(layer, row): begin + place for place, (layer, row, _) in enumerate(wanted)}

    def of(name: str, kind: Kind, processor: int) -> set[int]:
        """The tasks of an operator on a processor."""
        columns = zip(table["node"].tolist(), table["kind"].tolist(), table["processor"].tolist())
        there = (graph.node(name).number, core.KINDS.index(kind), processor)
        return {task for task, found in enumerate(columns) if found == there}

    before, waits = ancestors(table), dict[int, set[int]]()
    for task, (n, row, stated) in enumerate(wanted, begin):
        layer = layers[n]
        holder, source = layer.group[stated.holder], layer.group[stated.source]
        members = evaluator.groups[table["source"][task]] if stated.step.is_collective else (source, holder)
        columns = ("kind", "processor", "source", "flops", "nbytes")
        kind, processor, sender, flops, nbytes = (table[column].tolist()[task] for column in columns)
        where = f"row {row} of layer {n}, {stated}"
        if stated.step.is_collective:
            assert (core.KINDS[kind], members) == (Kind.COLLECTIVE, layer.group), where
        elif stated.step.is_message:
            assert (core.KINDS[kind], sender, processor) == (Kind.COPY, source, holder), where
        else:
            assert (core.KINDS[kind], processor) == (KINDS[stated.step], holder), where
        assert (flops, nbytes) == stated.work(len(layer.group), itemsize, rule), where
        direct = {number[n, a] for a in stated.after}
        for place in stated.gradients:
            direct |= of(f"used {n}", Kind.BACKWARD, layer.group[place])
        for place in stated.readers:
            direct |= of(f"used {n}", Kind.FORWARD, layer.group[place]) | of(f"used {n}", Kind.BACKWARD, layer.group[place])
            if layer.unused:
                direct |= of(f"unused {n}", Kind.FORWARD, layer.group[place])
        waits[task] = direct.union(*(waits.get(one, before[one]) for one in direct))
        assert before[task] == waits[task], where
