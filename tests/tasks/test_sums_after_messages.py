"""Sums of gradients over replicas do not keep the stages before waiting for their message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import HybridParallel, PassKind, map_graph, parse_plan
from taskflow.models.llama import LlamaConfig, llama
from taskflow.optimizer import make_evaluator
from taskflow.rules import Adam
from taskflow.tasks import Collective, Kind
from taskflow.tasks.lower import lower
from taskflow.tasks.topic import Purpose

RULE = Adam()


def decoder(layers: int, hidden: int = 64, batch: int = 16) -> OperatorGraph:
    sizes = replace(LlamaConfig.small(), batch=batch, layers=layers, steps=16, vocabulary=64, hidden=hidden, inner=2 * hidden)
    return llama(sizes, "bfloat16")


@pytest.mark.parametrize("plan", ["p2 d2 mb1", "p2 d2 mb1 zero1", "p2 d2 mb2 v2", "p4 d2 mb2 schedule=zb-h1"])
def test_sums_of_a_stage_wait_for_what_it_sends_last_to_the_stage_before(plan: str) -> None:
    parsed, graph = parse_plan(plan), decoder(4)
    machine = load_machine("h100", parsed.pipeline * (parsed.data or 1))
    strategy = map_graph(HybridParallel(plan), graph, machine)
    pipeline = strategy.pipeline
    assert pipeline is not None
    tasks, looked = lower(graph, strategy, RULE), 0
    last = {  # by stage that gets it and processor that sends it
        (one.stage, task.source): task.number for one, first, end in tasks.passes
        for task in tasks.tasks[first:end]
        if one.kind is PassKind.BACKWARD and one.micro_batch == pipeline.micro_batches - 1
        and task.kind is Kind.COPY and task.topic.purpose is Purpose.GRADIENT and task.source != task.processor
    }
    assert len({stage for stage, _ in last}) == pipeline.count - 1
    layers = {bundle.unit: bundle.layer for bundle in tasks.bundles}
    for task in tasks:
        if isinstance(task.work, Collective) and task.topic.purpose is Purpose.WEIGHT_GRADIENTS:
            stage = pipeline.stage(layers[task.topic.name])
            before = {last[key] for p in task.work.group if (key := (stage - 1, p)) in last}
            assert before <= set(task.after)
            looked += bool(before)
    assert looked


@pytest.mark.slow
def test_sums_beside_passes_delay_no_stage() -> None:
    """Sums of a stage, over replicas on other nodes, take about as long as a pass. A step that waited for them in each stage would
    take 0.96 of the time with sums after all passes."""
    graph, machine = decoder(16, hidden=4096, batch=8), load_machine("a3-high", 64)
    evaluator = make_evaluator(graph, machine, rule=RULE)
    beside, after = (
        evaluator.set(map_graph(HybridParallel(f"t8 p4 d2 mb1 v2 zero1 {words}"), graph, machine)) for words in ("", "overlap=none")
    )
    assert beside < 0.7 * after
