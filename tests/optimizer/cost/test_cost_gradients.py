"""Gradients that are added to: found again from bytes alone, and charged for what they are."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from fast_and_slow import fast_among
from language_model import CONFIG, ONE_STEP, model, random_strategy

from taskflow.graph import OperatorGraph
from taskflow.machine import host, load_machine
from taskflow.mapper import choose
from taskflow.models import build
from taskflow.operators.embedding import Embedding
from taskflow.operators.linear import Linear
from taskflow.operators.operator import Spec, iteration_space
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.cost.accumulated_gradients import added_bytes, adding, target_bytes
from taskflow.optimizer.cost.adapter import ModelCosts
from taskflow.optimizer.cost.analytic import AnalyticCosts
from taskflow.optimizer.cost.measured.cache_state import CacheState
from taskflow.optimizer.cost.measured.model import MeasuredCosts
from taskflow.optimizer.cost.pieces import Pieces
from taskflow.rules import SGD
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.task import Compute

F32 = np.dtype(np.float32)


def test_sets_of_gradients() -> None:
    sizes = (100, 50, 8, 4)  # two inputs, two weights
    assert adding(sizes, 2, 0) == (False,) * 4
    assert adding(sizes, 2, 12) == (False, False, True, True)
    assert adding(sizes, 2, 100) == (True, False, False, False)
    assert adding(sizes, 2, 62) == (False, True, True, True)
    assert adding(sizes, 2, 162) == (True,) * 4
    assert adding(sizes, 2, 8) == (False, False, True, False)
    assert adding(sizes, 2, 99) == (False, True, True, True)  # no set has 99: the largest below
    assert adding((5,) * 30, 30, 150) == (True,) * 30  # and not after 2 ** 30 sets


NETWORKS = ["language model", "steps", "Transformer", "LeNet", "Inception-v3", "NMT"]


def network(name: str) -> OperatorGraph:
    if name in ("language model", "steps"):
        return model("float32", CONFIG if name == "steps" else ONE_STEP)
    return build(name, preset="small")


@pytest.mark.parametrize("name", fast_among(NETWORKS, [name for name in NETWORKS if name != "Inception-v3"]))
def test_bytes_say_which_gradients_are_added_to(name: str) -> None:
    """For every task of random strategies of real networks; and what the search asks before there are tasks is the same."""
    graph, machine = network(name), load_machine("k80", 3)
    costs = AnalyticCosts(machine)
    asked = ModelCosts(costs, graph, machine, SGD(0.1))
    seen = set()
    for seed in range(1 if len(graph) > 200 else 2):
        for task in lower(graph, random_strategy(graph, 3, Random(seed)), SGD(0.1)):
            assert asked.task(task) == costs.seconds(task), task.name
            work = task.work
            if isinstance(work, Compute) and work.backward:
                wanted = [t is not None for t in work.grad_inputs]
                sizes = target_bytes(work.node.operator, work.node.specs, work.piece, wanted)
                found = adding(sizes, len(wanted), added_bytes(work))
                given = tuple(t is not None and t.accumulate for t in (*work.grad_inputs, *work.grad_weights))
                # Sets of equal size cannot be told apart, and cost the same memory.
                assert found == given or sum(s for s, f in zip(sizes, found) if f) == added_bytes(work)
                seen.add(any(given))
    assert seen == {False, True}


def test_a_bound_asks_for_the_least() -> None:
    """`Pieces` gives fewer bytes than any task has; no task of the operator may then cost less."""
    graph, machine = model("float32", CONFIG), load_machine("k80", 3)
    costs = ModelCosts(AnalyticCosts(machine), graph, machine, SGD(0.1))
    pieces = Pieces(graph, costs, True)
    for seed in range(3):
        for task in lower(graph, random_strategy(graph, 3, Random(seed)), SGD(0.1)):
            if isinstance(task.work, Compute):
                least = pieces.seconds(task.work.node, task.work.piece, 0)[task.work.backward]
                assert least <= costs.task(task), task.name


def test_what_is_added_to_is_read_too() -> None:
    operator, specs = Linear(512, bias=False), (Spec((64, 512), F32),)
    costs, space = AnalyticCosts(load_machine("k80-peak")), iteration_space(operator, specs)
    fills = costs.compute_seconds(operator, specs, space, True)
    assert costs.compute_seconds(operator, specs, space, True, added_bytes=512 * 512 * 4) > fills


def test_an_embedding_sets_its_table_to_zero_once(tmp_path: Path) -> None:
    """The first task to reach a table's gradient fills all of it; one that adds to it touches only its rows."""
    operator, specs = Embedding(40_000, 64, F32), (Spec((8, 4), np.dtype(np.int64)),)
    space, table = iteration_space(operator, specs), 40_000 * 64 * 4
    measured = MeasuredCosts(host(1), folder=tmp_path, seconds=0.01, between=CacheState(1 << 20))
    for costs in (AnalyticCosts(load_machine("k80")), measured):
        fills = costs.compute_seconds(operator, specs, space, True)
        adds = costs.compute_seconds(operator, specs, space, True, added_bytes=table)
        assert adds < fills / 5
    assert len(measured.measurements) == 2


@pytest.mark.parametrize("machine", fast_among(["a100", "p100"], ["a100"]))  # a program starts the kernels of the first
def test_two_halves_of_backward_tasks_take_what_the_whole_takes(machine: str) -> None:
    """Zero bubble: each half adds to its own gradients, those of weights to those of the micro-batches before."""
    graph, device = build("GPT-2", 8, preset="small", hidden=8192, steps=1024), load_machine(machine, 2)
    evaluator = make_evaluator(graph, device, rule=SGD(0.1))
    backward, halves = [], 0
    for schedule in ("1f1b", "zb-h1"):
        strategy = choose(f"p2 mb1 schedule={schedule}", graph, device)[0]
        evaluator.set(strategy)
        tasks, spans = evaluator.lowered(), evaluator.timeline().spans
        own = [t for t in tasks if isinstance(t.work, Compute) and t.work.backward]
        halves = sum(t.work.other is not None for t in own)  # type: ignore[union-attr]
        backward.append(sum(spans[t.number].end - spans[t.number].start for t in own))
        costs = AnalyticCosts(device)
        backward.append(sum(costs.seconds(t) for t in own))
    assert halves > 100
    assert backward[2] == pytest.approx(backward[0], rel=1e-6)
    assert backward[3] == pytest.approx(backward[1], rel=1e-9)
