"""Runs: in how many stretches of memory a task finds what it moves, adds or sends, and what that costs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import taskflow
from taskflow.machine import Cluster, host, load_machine
from taskflow.models import build
from taskflow.optimizer.cost.adapter import ModelCosts
from taskflow.optimizer.cost.measured.bench import ARRAYS, GROUP, memory_action, runs_of
from taskflow.optimizer.cost.measured.cache_state import TYPICAL
from taskflow.optimizer.cost.measured.model import PART_BYTES, RUN_BYTES, SIZES, MeasuredCosts
from taskflow.optimizer.cost.measured.store import CostStore, Measurement
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.evaluate.compiled import CompiledEvaluator
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.regions import Rect
from taskflow.rules import SGD
from taskflow.tasks.lower.contiguous import runs
from taskflow.tasks.lower.emit import Emitter
from taskflow.tasks.task import Kind

F32 = np.dtype(np.float32)


def stretches(part: Rect, shape: tuple[int, ...]) -> int:
    """As numpy counts: gaps between the positions of a part's elements."""
    positions = np.arange(int(np.prod(shape))).reshape(shape)[tuple(slice(a, b) for a, b in zip(part.lo, part.hi))].reshape(-1)
    return 1 + int((np.diff(positions) != 1).sum()) if positions.size else 1


def test_runs_are_counted_as_they_lie_in_memory() -> None:
    for shape in ((), (5,), (2, 3), (3, 1, 4), (2, 3, 1, 2)):
        spans = [[(a, b) for a in range(n + 1) for b in range(a, n + 1)] for n in shape]
        for span in product(*spans):
            part = Rect(tuple(a for a, _ in span), tuple(b for _, b in span))
            assert runs(part, shape) == stretches(part, shape), (part, shape)


def test_tasks_know_the_runs_of_both_ends() -> None:
    emit = Emitter(2)
    whole, other = (emit.buffer("x", Rect((0, 0), (6, 8)), p, F32) for p in (0, 1))
    flat = emit.buffer("flat", Rect((0, 0), (6, 2)), 1, F32)
    columns = Rect((0, 2), (6, 4))
    emit.transfer("packed", emit.part(whole, columns), emit.whole(flat))
    emit.transfer("both", emit.part(whole, columns), emit.part(other, columns))
    emit.transfer("rows", emit.part(whole, Rect((1, 0), (3, 8))), emit.part(other, Rect((1, 0), (3, 8))))
    emit.transfer("moved", emit.whole(flat), emit.part(other, columns))
    emit.sum("added", [emit.whole(flat), emit.part(other, columns)], emit.whole(flat))
    assert [task.runs for task in emit.graph] == [(6, 1), (6, 6), (1, 1), (1, 6), (6, 1)]


def stored(folder: Path, machine: Cluster) -> MeasuredCosts:
    """Costs of which the file already has all: a byte of a move takes 1 s, of a sum 2 s, and a run of n bytes 1 / n s more."""
    store = CostStore(folder, dict(MeasuredCosts(machine, folder=folder).identity))
    for kind, rate in ((Kind.MOVE, 1.0), (Kind.SUM, 2.0)):
        for size in SIZES:
            store.put(f"{kind.value} {size} beside {TYPICAL.nbytes}", Measurement(rate * size, 0.0, 5))
        for n in RUN_BYTES:
            many = runs_of(kind, PART_BYTES, n)
            seconds = rate * ARRAYS[kind] * many * n + many / n
            store.put(f"{kind.value} {PART_BYTES} in runs of {n} beside {TYPICAL.nbytes}", Measurement(seconds, 0.0, 5))
    return MeasuredCosts(machine, folder=folder)


def test_runs_add_to_what_as_many_bytes_in_one_take(tmp_path: Path) -> None:
    costs = stored(tmp_path, host(2))
    assert costs.by_runs and costs.memory_seconds(Kind.MOVE, 7200, 0) == pytest.approx(7200)
    assert costs.memory_seconds(Kind.MOVE, 7200, 0, runs=100) == pytest.approx(7200 + 100 / 36)
    assert costs.memory_seconds(Kind.SUM, 10800, 0, runs=100) == pytest.approx(21600 + 100 / 36)
    between = (1 / 12 + 1 / 36) / 2  # runs of 24 bytes
    assert costs.memory_seconds(Kind.MOVE, 4800, 0, runs=100) == pytest.approx(4800 + 100 * between)
    assert costs.memory_seconds(Kind.MOVE, 80_000, 0, runs=2) == pytest.approx(80_000 + 2 / RUN_BYTES[-1])  # longer than measured
    assert costs.memory_seconds(Kind.MOVE, 400, 0, runs=100) == pytest.approx(400 + 100 / 4)  # shorter
    assert costs.measured == 0


@pytest.mark.parametrize(("ends", "share"), [("sender", 1), ("receiver", 1), (True, 0.5), (False, 1)])
def test_messages_are_packed_and_unpacked(tmp_path: Path, ends: object, share: float) -> None:
    plain_host = host(2)
    (node,) = plain_host.nodes
    wire = replace(node.wires[0], occupies_endpoints=ends)
    machine = replace(plain_host, nodes=(replace(node, wires=(wire,)),))
    costs = stored(tmp_path, machine)
    plain = costs.transfer_seconds(0, 1, 3600)
    assert plain == taskflow.machine.transfer_seconds(machine.route(0, 1), 3600)
    packing = 7200 + 100 / 36
    assert costs.transfer_seconds(0, 1, 3600, (100, 1)) == pytest.approx(plain + share * packing)
    assert costs.transfer_seconds(0, 1, 3600, (100, 100)) == pytest.approx(plain + share * 2 * packing)


@pytest.mark.parametrize("kind", [Kind.MOVE, Kind.SUM])
@pytest.mark.parametrize("run", [4, 36, 2916])
def test_what_is_measured_is_a_part_of_many_runs(kind: Kind, run: int) -> None:
    from taskflow.kernels import default_kernels

    action, (source,) = memory_action(kind, PART_BYTES, None, default_kernels(), run)
    target = action.args[1]  # type: ignore[attr-defined]
    assert source.flags.c_contiguous and target.shape == source.shape and source.nbytes == run * runs_of(kind, PART_BYTES, run)
    whole = target.base
    lo = Rect((0, 0, 0), target.shape)
    assert runs(lo, whole.shape) == runs_of(kind, PART_BYTES, run) and target.shape[1:] == (GROUP, run // 4)
    action()
    assert whole.sum() == whole.size + (target.size if kind is Kind.SUM else 0)


def test_both_evaluators_count_runs(tmp_path: Path) -> None:
    """A cut by columns and by rows of images: with costs of runs it takes longer, and both evaluators agree."""
    graph, machine = build("LeNet", preset="small"), host(2)
    strategy, _ = taskflow.choose("expert", graph, machine)
    halves = {
        node.name: taskflow.OpConfig((1,) * (len(node.dims) - 1) + (2,), (0, 1))
        for node in graph if len(node.dims) >= 3 and node.dims[-1].divisible and node.dims[-1].size >= 8
    }
    assert halves
    strategy = replace(strategy, configs={**strategy.configs, **halves}, name="halves")
    costs = ModelCosts(stored(tmp_path, machine), graph, machine, SGD(0.1))
    evaluators = [kind(graph, machine, costs, SGD(0.1), None) for kind in (PythonEvaluator, CompiledEvaluator)]
    for evaluator in evaluators:
        evaluator.set(strategy)
    assert evaluators[0].seconds == evaluators[1].seconds
    tasks = evaluators[0].lowered(strategy)
    assert {max(task.runs) > 1 for task in tasks if task.kind is Kind.COPY} >= {True}


def test_described_machines_do_not_ask_for_runs() -> None:
    graph = build("LeNet", preset="small")
    assert not make_evaluator(graph, load_machine("p100", devices=4)).costs.by_runs
