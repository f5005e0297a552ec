"""Topics: lowering says of every task what it is for, and that agrees with the task's memory and work."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from fast_and_slow import fast_among

from taskflow.machine import load_machine
from taskflow.mapper import MessageSync, choose
from taskflow.models import build
from taskflow.optimizer.algorithms.initial import random_start
from taskflow.optimizer.space.space import SearchSpace
from taskflow.rules import SGD
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.task import Compute, Kind
from taskflow.tasks.topic import SYNCHRONISATION, Purpose


@pytest.mark.parametrize(("model", "mapper"), fast_among(
    [(model, mapper) for model in ("rnnlm", "nmt", "transformer", "inception-v3") for mapper in ("data", "expert", "random")],
    [("rnnlm", "data"), ("rnnlm", "random"), ("nmt", "expert"), ("nmt", "random"), ("transformer", "expert"),
     ("transformer", "random"), ("inception-v3", "data")],
))
@pytest.mark.parametrize("clip_norm", fast_among([None, 1.0], [1.0]))
def test_every_task_has_a_topic(model: str, mapper: str, clip_norm: float | None) -> None:
    graph, machine = build(model, preset="small"), load_machine("k80", 4)
    strategy = (
        random_start(graph, machine, SearchSpace(graph, 4), Random(5)) if mapper == "random" else choose(mapper, graph, machine)[0]
    )
    if mapper == "random":  # one that sends new weights
        strategy = replace(strategy, syncs={p.layer: MessageSync() for p in graph.parameters})
    tasks = lower(graph, strategy, SGD(lr=0.1), clip_norm=clip_norm)
    nodes = {node.name: node for node in graph}
    layers = {p.layer for p in graph.parameters}
    flat = {number for number in tasks.weights.values()}
    of_layer = {bundle.name: bundle.layer for bundle in tasks.bundles}
    last = max(t.number for t in tasks if isinstance(t.work, Compute))
    seen = set()
    for task in tasks:
        topic, purpose = task.topic, task.topic.purpose
        seen.add(purpose)
        assert purpose not in (Purpose.OTHER, Purpose.CALL, Purpose.ELEMENTS)
        if isinstance(task.work, Compute):
            assert (topic.name, purpose) == (
                task.work.node.name, Purpose.BACKWARD if task.work.backward else Purpose.FORWARD
            )
            continue
        assert purpose not in (Purpose.FORWARD, Purpose.BACKWARD)
        # What makes new weights comes after all backward tasks, and its layer is that of the weights that it touches.
        assert (purpose in SYNCHRONISATION) == (task.number > last and purpose not in (Purpose.CARRIED, Purpose.OUTPUT))
        regions = {tasks.buffers[part.buffer].region.partition("[")[0].removeprefix("d ") for part in task.reads}
        if purpose is Purpose.NORM and not topic.name:
            assert clip_norm is not None
        elif purpose in (*SYNCHRONISATION, Purpose.GATHERED):
            assert topic.name in layers
            assert {of_layer[region] for region in regions if region in of_layer} <= {topic.name}
        else:
            outputs = {t.name for t in nodes[topic.name].outputs}
            held = {region.removeprefix("sum ").removeprefix("lasting:").partition(" arriving")[0] for region in regions}
            if purpose is Purpose.CARRIED:  # what the state becomes is another operator's
                outputs |= {t.name for node in graph for t in node.outputs}
            assert held <= outputs, (task.name, topic)
        assert (task.kind is Kind.UPDATE) == (purpose is Purpose.UPDATE)
        if purpose is Purpose.NEW_WEIGHTS:
            assert task.kind is Kind.COPY and task.work.target.buffer in flat  # type: ignore[union-attr]
    assert {Purpose.FORWARD, Purpose.BACKWARD, Purpose.GRADIENT, Purpose.UPDATE} <= seen
    assert mapper != "random" or {Purpose.OUTPUT, Purpose.WEIGHT_GRADIENTS, Purpose.NEW_WEIGHTS} <= seen
    assert (Purpose.NORM in seen) == (clip_norm is not None)
