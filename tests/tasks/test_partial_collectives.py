"""Where lowering sums partial values, and their readers' gradients, by an all-reduce; and that nothing else changes by it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from partial_sums import near_strategy, network, summing
from test_lower_is_the_analysis import Definition, flows, reduction, without

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.machine import ring_bytes
from taskflow.mapper import OpConfig, Strategy, SyncAlgorithm, alike, load, save
from taskflow.rules import SGD
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.task import Kind, TaskGraph
from taskflow.tasks.topic import Purpose


def two_layers(reader: str) -> OperatorGraph:
    """A layer whose contracted dimension can be cut, and a ``reader`` of its scores."""
    graph = taskflow.OperatorGraph("float64", "two layers")
    x = taskflow.input(graph, (4, 6), name="x")
    labels = taskflow.input(graph, (4,), "int64", name="labels")
    y = taskflow.linear(taskflow.linear(x, 6, name="first"), 4, name="rows")
    y = taskflow.relu(y, name="reader") if reader == "relu" else taskflow.linear(y, 4, name="reader")
    graph.minimize(taskflow.cross_entropy(y, labels, name="loss"))
    return graph


def planned(graph: OperatorGraph, **configs: OpConfig) -> Strategy:
    """Whole on processor 0, but for these."""
    whole = {node.name: OpConfig((1,) * len(node.dims), (0,)) for node in graph}
    return Strategy(4, {**whole, **configs}, {}, "planned", SyncAlgorithm.COLLECTIVE)


def collectives(tasks: TaskGraph, purpose: Purpose) -> list[tuple[int, ...]]:
    return [task.processors for task in summing(tasks, purpose)]


ROWS = OpConfig((1, 1, 3), (2, 0, 3))  # three parts of what is contracted: everyone has partial values of all scores


def test_every_writer_reads_and_puts_one_gradient_of_all() -> None:
    """Megatron's row-parallel layer: one all-reduce forward; back, of the gradients that the readers put for the same scores."""
    graph = two_layers("linear")
    outputs = OpConfig((1, 3, 1), (0, 2, 3))  # columns of the next layer, which needs all scores
    tasks = lower(graph, planned(graph, rows=ROWS, reader=outputs), SGD(0.1))
    assert collectives(tasks, Purpose.PARTIAL) == collectives(tasks, Purpose.GRADIENT) == [(0, 2, 3)]
    for purpose in (Purpose.PARTIAL, Purpose.GRADIENT):
        (task,) = summing(tasks, purpose)
        assert task.topic.name == "rows" and task.nbytes == ring_bytes(3, 4 * 4 * 8) and task.flops == 2 * 16
        # Nothing else is done about these values: no copy, no sum, no fill.
        assert [t for t in tasks if t.topic == task.topic] == [task]


def test_readers_of_parts_need_the_sum_too() -> None:
    """Cut by samples, readers look at parts of what they have; their gradients come together at an owner."""
    graph = two_layers("relu")
    tasks = lower(graph, planned(graph, rows=ROWS, reader=OpConfig((3, 1), (3, 2, 0))), SGD(0.1))
    assert collectives(tasks, Purpose.PARTIAL) == [(0, 2, 3)] and not collectives(tasks, Purpose.GRADIENT)
    outputs = [t for t in tasks if t.topic.purpose is Purpose.OUTPUT and t.topic.name == "rows"]
    assert not outputs  # they read in place
    back = [t for t in tasks if t.topic.purpose is Purpose.GRADIENT and t.topic.name == "rows" and t.kind is Kind.COPY]
    assert len(back) == 2 + 2  # to the owner, and from there to the other two


@pytest.mark.parametrize("processors", [(2, 0, 0), (0, 0, 0), (3, 3, 1)])
def test_a_writer_that_does_not_read_leaves_it_to_the_owner(processors: tuple[int, ...]) -> None:
    graph = two_layers("linear")
    tasks = lower(graph, planned(graph, rows=ROWS, reader=OpConfig((1, 3, 1), processors)), SGD(0.1))
    assert not collectives(tasks, Purpose.PARTIAL) and not collectives(tasks, Purpose.GRADIENT)
    assert any(t.topic.purpose is Purpose.PARTIAL and t.kind is Kind.SUM for t in tasks)


def test_another_reader_fetches_from_the_owner() -> None:
    graph = two_layers("linear")
    outputs = OpConfig((1, 4, 1), (0, 2, 3, 1))
    tasks = lower(graph, planned(graph, rows=ROWS, reader=outputs), SGD(0.1))
    assert collectives(tasks, Purpose.PARTIAL) == [(0, 2, 3)]
    fetched = [t for t in tasks if t.topic.purpose is Purpose.OUTPUT and t.topic.name == "rows"]
    assert [(t.source, t.processor) for t in fetched] == [(2, 1)]  # the first writer's
    assert not collectives(tasks, Purpose.GRADIENT)  # one that did not compute any of it has put one too


def test_parts_of_one_processor_are_added_there_first() -> None:
    graph = two_layers("linear")
    rows = OpConfig((1, 1, 4), (1, 0, 1, 0))
    tasks = lower(graph, planned(graph, rows=rows, reader=OpConfig((1, 2, 1), (0, 1))), SGD(0.1))
    about = [t for t in tasks if t.topic.purpose is Purpose.PARTIAL]
    assert [(t.kind, t.processors) for t in about] == [(Kind.SUM, (1,)), (Kind.SUM, (0,)), (Kind.COLLECTIVE, (0, 1))]
    assert collectives(tasks, Purpose.GRADIENT) == [(0, 1)]


def test_of_a_loss_the_owner_has_the_sum() -> None:
    graph = two_layers("relu")
    tasks = lower(graph, planned(graph, loss=OpConfig((4,), (0, 1, 2, 3))), SGD(0.1))
    assert not collectives(tasks, Purpose.PARTIAL)


@pytest.mark.parametrize("seed", range(30))
def test_values_flow_as_the_analysis_says(seed: int) -> None:
    """The same launches pass values to each other as with sums by an owner, which is what the dependence analysis says."""
    random, graph = Random(seed), network()
    strategy = near_strategy(graph, random.randint(2, 5), random, SyncAlgorithm.COLLECTIVE)
    wanted = without(without(Definition(graph, strategy).flows, "start"), "fetch")
    tasks = lower(graph, strategy, SGD(0.1))
    assert reduction(flows(tasks)) == reduction(wanted)
    owned = lower(graph, replace(strategy, sums=SyncAlgorithm.OWNER), SGD(0.1))
    assert not collectives(owned, Purpose.PARTIAL) and len(owned) >= len(tasks)


def test_plans_keep_it(tmp_path: Path) -> None:
    graph = two_layers("linear")
    strategy = planned(graph, rows=ROWS)
    assert strategy.partial(graph.node("rows")) and not strategy.partial(graph.node("reader"))
    save(strategy, graph, "k80", tmp_path / "plan.json")
    assert load(tmp_path / "plan.json", graph, 4) == strategy
    text = (tmp_path / "plan.json").read_text()
    assert '"sums": "collective"' in text
    (tmp_path / "old.json").write_text(text.replace(' "sums": "collective"', ' "problem": {}'))
    assert load(tmp_path / "old.json", graph, 4).sums is SyncAlgorithm.OWNER  # files of before say nothing
    for wrong in ("ring", "sometimes"):
        (tmp_path / "wrong.json").write_text(text.replace('"sums": "collective"', f'"sums": "{wrong}"'))
        with pytest.raises(ValueError, match=f"wrong.json: sums: must be 'collective' or 'owner', got '{wrong}'"):
            load(tmp_path / "wrong.json", graph, 4)
    assert alike(strategy, graph, two_layers("linear")).sums is SyncAlgorithm.COLLECTIVE
