"""What is computed again is computed when the backward pass needs it, not as soon as it could be."""

from __future__ import annotations

from collections import Counter
from math import prod

import pytest

from taskflow.machine import host, load_machine
from taskflow.mapper import HybridParallel, PassKind, level_again, map_graph
from taskflow.models import build
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.memory import memory_use
from taskflow.rules import Adam
from taskflow.tasks import Kind, Purpose
from taskflow.tasks.lower import gradient_flow, lower


def peak(recompute: str, batch: int = 8) -> int:
    """Bytes of buffers on the fullest of two devices in the order in which tasks begin."""
    graph, machine = build("llama", batch, 2, preset="small"), load_machine("h100", 2)
    evaluator = make_evaluator(graph, machine, rule=Adam())
    evaluator.set(map_graph(HybridParallel(f"d2 recompute={recompute}"), graph, machine))
    tasks, timeline = evaluator.current()
    return max(use.buffers for use in memory_use(tasks, timeline.begun(tasks)))


def test_computing_again_saves_memory_in_a_step_without_micro_batches() -> None:
    kept = peak("none")
    assert peak("full") < 0.8 * kept


@pytest.mark.parametrize("plan", ["d2 recompute=full", "t2 recompute=full", "d2 mb1 recompute=full"])
def test_it_begins_after_the_backward_pass_of_later_operators_has(plan: str) -> None:
    graph, machine = build("llama", 4, 2, preset="small"), load_machine("h100", 2)
    evaluator = make_evaluator(graph, machine, rule=Adam())
    evaluator.set(map_graph(HybridParallel(plan), graph, machine))
    spans = evaluator.timeline().spans
    last: dict[int, float] = {}  # by processor the end of its operators' task before
    again = 0
    for task in evaluator.lowered():
        if task.kind in (Kind.FORWARD, Kind.BACKWARD):
            if task.topic.purpose is Purpose.RECOMPUTED:
                again += 1
            assert spans[task.number].start >= last.get(task.processor, 0.0)
            last[task.processor] = spans[task.number].end
    assert again


@pytest.mark.parametrize("plan", ["p2 mb1", "d2 mb1", "t2 recompute=full"])
def test_ones_and_zeros_come_after_the_operators_before_them(plan: str) -> None:
    """They need nothing, but a gradient that is begun with the step lies there all the time."""
    graph, machine = build("llama", 4, 2, preset="small"), load_machine("h100", 2)
    tasks = make_evaluator(graph, machine, rule=Adam()).lowered(map_graph(HybridParallel(plan), graph, machine))
    fills = [task for task in tasks if task.kind is Kind.FILL and task.topic.purpose is Purpose.GRADIENT]
    assert fills
    for task in fills:
        before = [tasks.tasks[number] for number in task.after]
        assert any(one.kind in (Kind.FORWARD, Kind.BACKWARD) and one.processor == task.processor for one in before), task


@pytest.mark.parametrize("network,plan", [
    ("llama", "d2 mb1"), ("llama", "t2 nosp mb2"), ("llama", "t2 p2 mb1"), ("gpt-2", "t2 regather mb2"), ("llama", "d2 mb1 zero3"),
    ("llama", "t2 mb2 split=2"), ("moe", "d2 e2 mb1"), ("llama", "p2 mb1 schedule=zb-h1"), ("mixtral", "p2 d2 mb1"),
])
def test_a_whole_layer_runs_again_piece_by_piece_once_and_a_full_one_without_what_nothing_reads(network: str, plan: str) -> None:
    graph, counts = build(network, 4, 4, preset="small"), []
    for word in ("full", "whole"):
        count = prod(int(one[1:]) for one in plan.split() if one[0] in "tpd" and one[1:].isdecimal())
        strategy = map_graph(HybridParallel(f"{plan} recompute={word}"), graph, host(count))
        tasks = [task for task in lower(graph, strategy, Adam()) if task.kind is Kind.FORWARD]
        first = Counter(task.topic.name for task in tasks if task.topic.purpose is not Purpose.RECOMPUTED)
        counts.append(Counter(task.topic.name for task in tasks if task.topic.purpose is Purpose.RECOMPUTED))
    full, whole = counts
    trained, _, _ = gradient_flow(graph)
    rerun = level_again(graph, "whole").rerun
    assert {name for name in rerun if graph.node(name).number in trained} <= whole.keys() <= rerun
    assert whole == {name: first[name] for name in whole}
    more = set(whole) - set(full)
    assert more and all(whole[name] == full[name] for name in full) and full.keys() <= whole.keys()
    if network == "llama":  # of each layer the last product, and the sum after it
        assert more == {f"layers.{i}.mlp.{last}" for i in range(2) for last in ("down_proj", "add")}


@pytest.mark.parametrize("plan", ["p2 mb1", "p2 d2 mb1 zero3", "t2 p2 mb1"])
def test_a_whole_layer_runs_again_once_the_gradient_of_its_result_has_arrived(plan: str) -> None:
    """As in a program whose backward pass of a layer begins with its forward pass. What ends early may begin before."""
    graph, machine = build("llama", 4, 4, preset="small", layers=2), load_machine("h100", 4)
    evaluator = make_evaluator(graph, machine, rule=Adam())
    evaluator.set(map_graph(HybridParallel(f"{plan} recompute=whole"), graph, machine))
    tasks, spans = evaluator.lowered(), evaluator.timeline().spans
    seen = 0
    for one, first, end in tasks.passes:
        some = [task for task in tasks.tasks[first:end] if task.topic.purpose in (Purpose.RECOMPUTED, Purpose.GRADIENT)]
        again = [task for task in some if task.topic.purpose is Purpose.RECOMPUTED and task.kind is Kind.FORWARD]
        arrives = [task for task in some if task.topic.purpose is Purpose.GRADIENT and task.kind is Kind.COPY]
        if one.kind is PassKind.BACKWARD and one.stage == 0:
            seen += 1
            assert arrives and min(spans[t.number].start for t in again) >= min(spans[t.number].end for t in arrives)
    assert seen


def test_a_whole_layer_takes_longer_and_no_more_memory() -> None:
    graph, machine = build("llama", 8, 2, preset="small"), load_machine("h100", 2)
    seconds = [
        make_evaluator(graph, machine, rule=Adam()).set(map_graph(HybridParallel(f"d2 recompute={word}"), graph, machine))
        for word in ("none", "full", "whole")
    ]
    assert seconds == sorted(seconds) and len(set(seconds)) == 3
    assert peak("whole") <= 1.02 * peak("full")
