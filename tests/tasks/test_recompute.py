"""What is computed again is computed when the backward pass needs it, not as soon as it could be."""

from __future__ import annotations

import pytest

from taskflow.machine import load_machine
from taskflow.mapper import HybridParallel, map_graph
from taskflow.models import build
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.memory import memory_use
from taskflow.rules import Adam
from taskflow.tasks import Kind, Purpose


def peak(recompute: str, batch: int = 8) -> int:
    """Bytes of buffers on the fullest of two devices in the order in which tasks begin."""
    graph, machine = build("llama", batch, 2, preset="small"), load_machine("h100", 2)
    evaluator = make_evaluator(graph, machine, rule=Adam())
    evaluator.set(map_graph(HybridParallel(f"d2 recompute={recompute}"), graph, machine))
    tasks = evaluator.lowered()
    return max(use.buffers for use in memory_use(tasks, evaluator.timeline().begun(tasks)))


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
