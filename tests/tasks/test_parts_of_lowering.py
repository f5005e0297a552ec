"""What no whole step shows at once: views of views, seconds of a route, halves of backward tasks, copies of gradients."""

from __future__ import annotations

import numpy as np
import pytest

import taskflow
from taskflow.mapper import choose
from taskflow.models import build
from taskflow.regions import Rect
from taskflow.rules import SGD
from taskflow.tasks.lower.emit import Emitter
from taskflow.tasks.lower.exchange import exchange_gradients
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.simulate import roofline
from taskflow.tasks.task import AllToAll, Compute, Kind, TaskGraph


def test_a_view_is_of_an_instance_and_not_of_another_view() -> None:
    emit = Emitter(1)
    base = emit.buffer("x", Rect((0, 0), (4, 6)), 0, np.dtype("float32"))
    rows = emit.view(base, "x", Rect((1, 0), (3, 6)))
    assert rows is not None and rows != base and emit.graph.buffers[rows].base == base
    assert emit.view(base, "x", Rect((0, 0), (4, 6))) == base and emit.view(rows, "x", Rect((1, 0), (3, 6))) == rows
    assert emit.view(base, "x", Rect((0, 1), (4, 2))) is None, "a column is not contiguous"
    assert emit.view(rows, "x", Rect((1, 0), (2, 6))) is None


def test_a_copy_takes_its_slowest_link_and_the_latencies_of_all() -> None:
    graph, machine = build("mlp", preset="small"), taskflow.load_machine("p100", 8)
    tasks, seconds, routes = lower(graph, choose("data", graph, machine)[0], SGD(0.1)), roofline(machine), set[int]()
    for task in (task for task in tasks if task.kind is Kind.COPY):
        route = machine.route(task.source, task.processor)
        rates, latencies = sorted(link.bytes_per_second for link in route), [link.latency_seconds for link in route]
        assert seconds(task) == pytest.approx(sum(latencies) + task.nbytes / rates[0])
        routes.add(len(set(rates)))
    assert max(routes) > 1, "a route must have links of unequal rates"


def backward(tasks: TaskGraph) -> dict[tuple[str, str, int], list[tuple[int, int | None]]]:
    """By operator, piece and processor: the bytes of its backward tasks, and those that each leaves to its other half."""
    found: dict[tuple[str, str, int], list[tuple[int, int | None]]] = {}
    for task in tasks:
        if isinstance(work := task.work, Compute) and work.backward:
            left = None if work.other is None else work.other.nbytes
            found.setdefault((work.node.name, str(work.piece), task.processor), []).append((task.nbytes, left))
    return found


def test_half_of_a_backward_task_and_what_it_leaves_out_are_the_whole() -> None:
    graph, machine = build("mlp", preset="small"), taskflow.load_machine("h100", 2)
    whole, halves = (
        backward(lower(graph, choose(f"p2 mb2{words}", graph, machine)[0], SGD(0.1))) for words in ("", " schedule=zb-h1")
    )
    split = {place: sizes for place, sizes in halves.items() if len(sizes) == 2}
    assert len(split) > 3
    for place, sizes in split.items():
        both = {nbytes + (left or 0) for nbytes, left in sizes}
        assert max(both) == whole[place][0][0], place
        if place[1].startswith("[0:"):  # in later micro-batches the half for weights alone reads the gradients that it adds to
            assert len(both) == 1, place


def test_of_gradients_that_are_copies_each_owner_adds_the_one_that_it_takes() -> None:
    """Processors 2 and 3 have the same gradient: the owner of a half adds that of the nearer one, and never both."""
    whole, low, high = Rect((0,), (4,)), Rect((0,), (2,)), Rect((2,), (4,))
    emit = Emitter(4)
    own, two, three = ((p, whole, emit.buffer("d x", whole, p, np.dtype("float32"))) for p in (0, 2, 3))
    tensor = taskflow.input(taskflow.OperatorGraph(), (4,), name="x")
    found = exchange_gradients(emit, tensor, {low: 0, high: 3}, {low: [own, two], high: [own, three]})
    assert {rect: [p for p, *_ in parts] for rect, parts in found.items()} == {low: [0, 0], high: [3, 3]}
    assert own in found[low] and three in found[high]
    (task,) = emit.graph.tasks
    assert isinstance(task.work, AllToAll)
    group = task.work.group
    assert sorted((group[b.giver], group[b.taker], b.source.rect) for b in task.work.blocks) == [(0, 3, high), (2, 0, low)]
