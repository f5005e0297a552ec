"""How copies share links: the order in which lowering numbers them, and what the simulator makes of it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import taskflow
from taskflow.machine import Cluster, Group, NodeTemplate, Wire, load_machine
from taskflow.machine.host import CPU
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.regions import Rect
from taskflow.tasks.lower.emit import Emitter, apart
from taskflow.tasks.simulate import simulate, stays
from taskflow.tasks.task import Kind


def star(processors: int) -> Cluster:
    """Processors around a switch: to each and from each a link of its own."""
    wire = Wire(("cpu*", "bus"), 1e9, 0.0)
    return Cluster("star", (CPU,), (NodeTemplate("box", (Group("cpu", CPU.kind, processors),), ("bus",), (wire,)),), (("box", 1),))


def copies(*pairs: tuple[int, int]):
    """A task graph of copies of one kilobyte that wait for nothing, and how to emit them."""
    emit = Emitter(4)
    rect, dtype = Rect((0,), (250,)), np.dtype(np.float32)
    parts = [
        (f"{a} to {b}", emit.whole(emit.buffer("x", rect, a, dtype)), emit.whole(emit.buffer("x", rect, b, dtype)))
        for a, b in pairs
    ]
    return emit, parts


def test_a_copy_that_waits_keeps_nobody_from_a_link_that_it_has_not_reached():
    emit, parts = copies((0, 1), (0, 2), (3, 2))
    for part in parts:
        emit.transfer(*part)
    timeline = simulate(emit.graph, star(4), lambda task: 1.0)
    # The second waits a second for what leads from 0; meanwhile what leads to 2 serves the third.
    assert [(span.start, span.end) for span in timeline.spans] == [(0.0, 1.0), (1.0, 2.0), (0.0, 1.0)]
    assert timeline.spans[1].starts == (1.0, 1.0)
    emit, parts = copies((0, 2), (1, 2), (1, 3))
    for part in parts:
        emit.transfer(*part)
    timeline = simulate(emit.graph, star(4), lambda task: 1.0)
    # The second is on its first link when the third comes, and waits for the other one alone.
    assert timeline.spans[1].starts == (0.0, 1.0)
    assert timeline.spans[2].starts == (1.0, 1.0)
    there = stays(emit.graph, timeline, star(4))
    assert Counter(len(stay) for stay in there.values()) == {1: 2, 2: 2}


def test_copies_go_in_rounds():
    every = [(a, b) for b in range(4) for a in range(4) if a != b]
    emit, parts = copies(*every)
    emit.transfers(parts)
    rounds = [[(t.source, t.processor) for t in emit.graph.tasks[k : k + 4]] for k in range(0, 12, 4)]
    for of_round in rounds:
        assert {a for a, _ in of_round} == {b for _, b in of_round} == {0, 1, 2, 3}
    assert simulate(emit.graph, star(4), lambda task: 1.0).makespan == 3.0
    assert [sorted(range(6), key=lambda i: apart(i, 6)), apart(3, 8)] == [[0, 4, 2, 1, 5, 3], 6]


@pytest.mark.parametrize("name, devices", [("k80", 16), ("p100", 16), ("p100", 12), ("h100", 16)])
def test_where_all_exchange_with_all_the_links_are_busy(name: str, devices: int):
    """A layer cut by outputs after one cut by samples: forward everybody needs everything, backward everybody adds to
    everybody's gradient. Exchange must not take much longer than the busiest link's share of it."""
    graph = taskflow.OperatorGraph()
    x = taskflow.input(graph, (48 * devices, 2048), name="x")
    label = taskflow.input(graph, (48 * devices,), "int64", name="label")
    first = taskflow.linear(x, 2048, bias=False, name="first")
    second = taskflow.linear(first, 48 * devices, bias=False, name="second")
    graph.minimize(taskflow.cross_entropy(second, label))
    machine = load_machine(name, devices)
    strategy = taskflow.Strategy(devices, {
        node.name: taskflow.OpConfig((devices,) + (1,) * (len(node.space.shape) - 1), tuple(range(devices)))
        if node.name != "second" else taskflow.OpConfig((1, devices, 1), tuple(range(devices)))
        for node in graph
    })
    evaluator = make_evaluator(graph, machine, rule=None)
    evaluator.set(strategy)
    tasks, timeline = evaluator.lowered(), evaluator.timeline()
    exchange = [t.number for t in tasks if t.kind is Kind.COPY and t.name.startswith("first")]
    assert len(exchange) == devices * (devices - 1)
    begin = min(timeline.spans[n].ready for n in exchange)
    took = max(timeline.spans[n].end for n in exchange) - begin
    busiest = max(
        sum(stay.end - stay.start for stay in there if stay.task in set(exchange))
        for there in stays(tasks, timeline, machine).values()
    )
    assert took < 1.05 * busiest
