"""What is made of weights alone is computed on several processors, each for what reads it there: training is as on one."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from fast_and_slow import fast_among
from language_model import undivided
from of_weights import NORMAL, feeds, model, with_copies

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.mapper import (
    DataParallel,
    Expert,
    HybridParallel,
    Mapper,
    Megatron,
    OpConfig,
    Strategy,
    gather_units,
    map_graph,
    units_of,
)
from taskflow.tasks import ReduceScatter
from taskflow.tasks.lower import lower
from taskflow.tasks.lower.owners import nearest_copy
from taskflow.tasks.task import Kind

STEPS = 4


def losses(graph: taskflow.OperatorGraph, strategy: Strategy) -> list[float | None]:
    run = taskflow.Executor(graph, strategy, taskflow.Adam(0.02), clip_norm=2.0)
    run.program("train").storage.arena.fill(0x7F)  # what nobody writes must not be read
    return [run.train(feeds(step)) for step in range(STEPS)]


@pytest.fixture(scope="module")
def alone() -> list[float | None]:
    return losses(model(), undivided(model()))


@pytest.mark.parametrize("seed", fast_among(range(60), range(12)))
def test_random_copies_train_as_one_processor(seed: int, alone: list[float | None]) -> None:
    random = Random(seed)
    assert losses(model(), with_copies(model(), random.randint(2, 5), random)) == pytest.approx(alone, rel=1e-9)


PLANS = ("d3", "t2", "t2 d3", "t2 nosp", "d2 mb1 p1", "d3 mb1 zero1", "d3 zero3", "t2 d3 zero2 mb1", "t2 nosp d3", "d2 zero1 mb3",
         "t2 c2", "c2 d3", "t2 d3 zero3 mb1", "t2 d2 bucket=layer")


@pytest.mark.parametrize(
    "mapper", [DataParallel(), Expert(), Megatron(2), *map(HybridParallel, PLANS)], ids=lambda mapper: mapper.name,
)
def test_plans_train_as_one_processor(mapper: Mapper, alone: list[float | None]) -> None:
    graph, count = model(), 6
    if isinstance(mapper, HybridParallel):
        asked = mapper._asked
        count = asked.tensor * asked.context * (asked.data or 1)
    strategy = map_graph(mapper, graph, taskflow.host(count))
    assert losses(graph, strategy) == pytest.approx(alone, rel=1e-9)
    for node in graph:
        if node.of_weights and count > 1:
            assert sorted(strategy[node.name].processors) == list(range(count)), node.name


def test_nothing_but_gradients_of_weights_travels() -> None:
    """Under data parallelism, values of what is made of weights stay where they are computed, and so do its gradients."""
    graph = model(penalty=False)
    strategy = map_graph(DataParallel(), graph, taskflow.load_machine("p100", 3))
    tasks = lower(graph, strategy, taskflow.SGD(0.1))
    moved = {t.topic.name for t in tasks if t.kind in (Kind.COPY, Kind.COLLECTIVE)}
    assert moved == {"loss", *(p.layer for p in graph.parameters)}


def blocks(layers: int = 3) -> OperatorGraph:
    """Blocks of two linear layers and a scale, which is a tanh of weights."""
    graph = OperatorGraph("float64")
    h = taskflow.input(graph, (8, 6), name="x")
    for i in range(layers):
        scale = taskflow.tanh(taskflow.expand_weight(graph, (1, 6), (1, 6), init=NORMAL, name=f"h.{i}.scale"), name=f"h.{i}.tanh")
        h = taskflow.mul(taskflow.linear(h, 6, name=f"h.{i}.up"), scale, name=f"h.{i}.scaled")
        h = taskflow.linear(h, 6, name=f"h.{i}.down")
    graph.minimize(taskflow.cross_entropy(h, taskflow.input(graph, (8,), "int64", name="label"), name="loss"))
    return graph


def test_what_is_of_weights_is_in_no_block() -> None:
    """Its gradients come after all passes: in a block's array, each pass would wait for them or fill them with zeros."""
    graph = blocks()
    strategy = map_graph(HybridParallel("d2 mb1 zero3"), graph, taskflow.host(2))
    units = gather_units(graph, strategy)
    assert set(units) == {f"h.{i}.{name}" for i in range(3) for name in ("up", "down")}
    tasks = lower(graph, strategy, taskflow.SGD(0.1))
    assert not [task for task in tasks if task.kind is Kind.FILL and task.topic.name.startswith("h.")]
    scattered = Counter(task.topic.name for task in tasks if isinstance(task.work, ReduceScatter))
    assert scattered == {**dict.fromkeys(set(units.values()), 4), **{f"h.{i}.scale": 1 for i in range(3)}}


def test_what_is_of_weights_has_buckets_of_its_own() -> None:
    graph = blocks()
    units = units_of(graph, map_graph(HybridParallel("d2 mb1 zero1 bucket=1M"), graph, taskflow.host(2)))
    apart = {units.pop(f"h.{i}.scale") for i in range(3)}
    assert apart == {"h.0.scale..h.2.scale"} and set(units.values()) == {"h.0.up..h.2.down"}


def test_a_mapper_that_places_pieces_itself_has_each_once() -> None:
    class Packed(DataParallel):
        def map_task(self, node, piece, degrees, machine):  # type: ignore[no-untyped-def]
            return piece % 2

    strategy = map_graph(Packed(), model(), taskflow.host(4))
    assert strategy["bounded"] == OpConfig((1, 1), (0, 1), copies=2)


def test_copies_are_given_within_a_group_of_neighbours() -> None:
    """Of groups of two from the second on; who comes behind the last takes from the first, and so on."""
    assert [nearest_copy([2, 4], processor) for processor in (2, 3, 4, 5, 6, 7, 8)] == [2, 2, 4, 4, 2, 2, 4]
    assert [nearest_copy([0, 3, 4], processor) for processor in (1, 2, 5, 7)] == [0, 3, 4, 4]  # most leading digits in common
