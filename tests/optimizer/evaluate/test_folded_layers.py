"""Layers that are alike are lowered once: the step is the same as if all were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import HadAgain, HybridParallel, Strategy, map_graph, parse_plan, units_of
from taskflow.models.gpt import GPTConfig, gpt
from taskflow.models.llama import LlamaConfig, llama
from taskflow.models.mixtral import MixtralConfig, mixtral
from taskflow.models.moe import MoEConfig, moe
from taskflow.operators.constant import ConstantArray
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.evaluate.folded import folded_step, folded_use
from taskflow.optimizer.evaluate.folded.layers import KEPT, Label, _firsts, fewer_layers
from taskflow.optimizer.evaluate.folded.repeat import TaskPlaces, every_pair, lay_out
from taskflow.optimizer.memory import memory_use
from taskflow.rules import Adam
from taskflow.tasks import Kind, TaskGraph
from taskflow.tasks.lower import NotAlikeError, StepPart, lower
from taskflow.tasks.topic import Purpose, Topic

MACHINE = load_machine("h100", 8)
RULE = Adam()


def network(name: str, layers: int) -> OperatorGraph:
    if name == "table":
        return with_a_table(layers)
    if name == "llama":
        return llama(replace(LlamaConfig.small(), batch=16, layers=layers))
    if name == "moe":  # every other layer has experts
        return moe(replace(MoEConfig.small(), batch=16, layers=layers, steps=64, hidden=64, experts=8))
    if name == "mixtral":  # each layer minimises an uneven load
        return mixtral(replace(MixtralConfig.small(), batch=16, layers=layers, steps=64, hidden=64))
    return gpt(replace(GPTConfig.small(), batch=16, layers=layers))


def with_a_table(layers: int) -> OperatorGraph:
    """A constant has the name of the first layer, and all layers read it, as imported networks have their tables of positions."""
    graph = OperatorGraph()
    x, labels = ops.input(graph, (16, 32), name="x"), ops.input(graph, (16,), "int64", name="labels")
    table = graph.apply(ConstantArray.of(np.full((1, 64), 0.5, np.float32)), (), name="h.0.table")[0]
    for number in range(layers):
        inner = ops.mul(ops.linear(x, 64, name=f"h.{number}.up"), table, name=f"h.{number}.mul")
        x = ops.linear(inner, 32, name=f"h.{number}.down")
    graph.minimize(ops.cross_entropy(x, labels))
    return graph


def planned(text: str, graph: OperatorGraph) -> Strategy:
    """The strategy of a plan. One that names no buckets has none, which would have all of such small layers."""
    plan = parse_plan(text)
    alone = plan.bucket is None and min(plan.zero_layers or (plan.zero,)) < 2
    return map_graph(HybridParallel(replace(plan, bucket=0) if alone else plan), graph, MACHINE)


@pytest.mark.parametrize(("name", "layers", "plan"), [
    ("llama", 7, "d8 mb1 zero3 recompute=full"), ("table", 11, "p2 d4 mb1"), ("table", 7, "d8 mb1 recompute=full"),
    ("llama", 7, "d8 mb1 recompute=whole"),
    pytest.param("llama", 7, "d8 mb1", marks=pytest.mark.slow), pytest.param("gpt", 11, "p2 d4 mb1", marks=pytest.mark.slow),
    pytest.param("mixtral", 7, "d8 mb1 recompute=full", marks=pytest.mark.slow),
    pytest.param("moe", 12, "d8 e8 mb1", marks=pytest.mark.slow),
    pytest.param("moe", 12, "d8 mb1 recompute=full", marks=pytest.mark.slow),
    pytest.param("moe", 12, "d8 e4 mb1 zero1", marks=pytest.mark.slow),
    pytest.param("moe", 12, "d8 mb1 zero3", marks=pytest.mark.slow),
    pytest.param("moe", 24, "p2 d4 mb1", marks=pytest.mark.slow),
    pytest.param("mixtral", 7, "d8 mb1", marks=pytest.mark.slow),
    pytest.param("mixtral", 7, "d8 mb1 zero3 recompute=full", marks=pytest.mark.slow),
    pytest.param("mixtral", 13, "p2 d4 mb1 zero1", marks=pytest.mark.slow),
    pytest.param("mixtral", 21, "p2 d4 mb1 v2", marks=pytest.mark.slow),
    pytest.param("mixtral", 8, "t2 d4 mb1", marks=pytest.mark.slow),
    pytest.param("gpt", 20, "p2 d4 mb1 v2", marks=pytest.mark.slow),
    pytest.param("llama", 20, "p2 d4 mb1 v2 zero3", marks=pytest.mark.slow),
    pytest.param("llama", 11, "p2 d4 mb1 schedule=zb-h1", marks=pytest.mark.slow),
    pytest.param("llama", 21, "p2 d4 mb1 schedule=zbv", marks=pytest.mark.slow),
    pytest.param("llama", 11, "p2 d4 mb1 zero1 recompute=full", marks=pytest.mark.slow),
    pytest.param("llama", 10, "t2 d4 mb1 recompute=selective", marks=pytest.mark.slow),
    pytest.param("gpt", 9, "t2 nosp p2 d2 mb1 recompute=full", marks=pytest.mark.slow),
    pytest.param("gpt", 9, "t2 p2 d2 mb1 recompute=full", marks=pytest.mark.slow),
    pytest.param("gpt", 9, "t2 regather p2 d2 mb1 recompute=selective", marks=pytest.mark.slow),
    pytest.param("gpt", 13, "p2 d4 mb1 stages=6,7", marks=pytest.mark.slow),
])
def test_time_tasks_bytes_and_memory_are_those_of_all_layers(name: str, layers: int, plan: str) -> None:
    graph = network(name, layers)
    evaluator = PythonEvaluator(graph, MACHINE, make_evaluator(graph, MACHINE, rule=RULE).costs, RULE, None)
    strategy = planned(plan, graph)
    fewer = fewer_layers(graph, strategy)
    assert fewer is not None and len(fewer.graph) < len(graph)
    step, seconds = folded_step(graph, strategy, MACHINE, evaluator.costs, RULE, None), evaluator.set(strategy)
    assert step.makespan == pytest.approx(seconds, rel=5e-3 if "regather" in plan else 1e-12)
    assert len(step.lowered) < len(step.whole.origin)
    tasks, timeline = evaluator.current()
    assert (step.transfer_bytes, step.tasks) == (tasks.transfer_bytes, evaluator.tasks)
    assert step.replicas.count == int(plan[plan.index("d") + 1])
    for folded, use in zip(folded_use(step), memory_use(tasks, timeline.begun(tasks))):
        assert (folded.weights, folded.state, folded.packed) == (use.weights, use.state, use.packed)
        assert folded.buffers == pytest.approx(use.buffers, rel=0.01)


@pytest.mark.parametrize(("name", "layers", "plan", "copies"), [
    pytest.param("llama", 23, "d8 mb1 zero1 bucket=1500", (2,), marks=pytest.mark.slow),
    ("gpt", 13, "d8 mb1 zero1 bucket=300", (10,)),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        ("moe", 24, "d8 e4 mb1 bucket=10K", (9,)), ("llama", 23, "d8 mb1 bucket=2K", None),
        ("gpt", 13, "p2 d4 mb1 bucket=300", (4, 3)), ("gpt", 20, "p2 d4 mb1 v2 bucket=400", (2, 2, 2, 2)),
        ("moe", 24, "d8 e4 mb1 zero1 bucket=4K", (9,)), ("llama", 40, "t2 d4 mb1 zero1 bucket=1K", (7,)),
        ("llama", 22, "p2 d4 mb1 zero1 recompute=full*11,light*11 bucket=300", (8, 8)),
        ("llama", 32, "p2 d4 mb1 bucket=1100 schedule=zb-h1", (2,)), ("gpt", 27, "d8 mb2 zero=1*13,0*14 bucket=1700", (3, 4)),
    )),
])
def test_layers_are_left_out_by_whole_buckets(name: str, layers: int, plan: str, copies: tuple[int, ...] | None) -> None:
    """Blocks that share a bucket count as one layer, and the step is that of all. With too few buckets all layers are lowered."""
    graph = network(name, layers)
    evaluator = PythonEvaluator(graph, MACHINE, make_evaluator(graph, MACHINE, rule=RULE).costs, RULE, 1.0)
    strategy = planned(plan, graph)
    fewer, units = fewer_layers(graph, strategy), units_of(graph, strategy)
    assert (None if fewer is None else fewer.copies) == copies
    if fewer is not None:
        assert units_of(fewer.graph, fewer.strategy).items() <= units.items()
    step, seconds = folded_step(graph, strategy, MACHINE, evaluator.costs, RULE, 1.0), evaluator.set(strategy)
    assert step.makespan == seconds and step.replicas.count > 1
    tasks, timeline = evaluator.current()
    assert (step.tasks, step.transfer_bytes) == (evaluator.tasks, tasks.transfer_bytes)
    for folded, use in zip(folded_use(step), memory_use(tasks, timeline.begun(tasks))):
        assert (folded.weights, folded.state, folded.packed) == (use.weights, use.state, use.packed)
        assert folded.buffers == pytest.approx(use.buffers, rel=0.01)


def test_every_other_layer_may_have_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network("moe", 12)
    strategy = planned("d8 e8 mb1", graph)
    fewer = fewer_layers(graph, strategy)
    assert fewer is not None and fewer.copies == (3,)  # of six pairs
    costs = make_evaluator(graph, MACHINE, rule=RULE).costs
    step = folded_step(graph, strategy, MACHINE, costs, RULE, None)
    monkeypatch.setattr("taskflow.optimizer.evaluate.folded.step.fewer_layers", lambda *_: None)
    every = folded_step(graph, strategy, MACHINE, costs, RULE, None)
    assert (step.makespan, step.tasks, step.transfer_bytes) == (every.makespan, every.tasks, every.transfer_bytes)
    assert folded_use(step) == folded_use(every) and len(step.lowered) < len(every.lowered)


@pytest.mark.parametrize(("layers", "plan", "runs"), [
    (14, "p2 d4 mb2 stages=7,7 recompute=full*7,light*7", 2),
    pytest.param(10, "d8 mb2 recompute=full zero=1*5,3*5", 2, marks=pytest.mark.slow),
    pytest.param(13, "d8 mb1 recompute=full*7,whole*6", 2, marks=pytest.mark.slow),
    pytest.param(13, "d8 mb1 recompute=full*7,light*6", 2, marks=pytest.mark.slow),
    pytest.param(13, "d8 mb2 recompute=full*6,light*7 zero=1*1,3*11,1*1", 2, marks=pytest.mark.slow),
    pytest.param(16, "p2 d4 mb1 stages=8,8 recompute=full*8,light*8", 2, marks=pytest.mark.slow),
    pytest.param(13, "d8 mb1 recompute=full*6,light*7 zero=1*1,3*11,1*1", 2, marks=pytest.mark.slow),
    pytest.param(13, "d8 mb1 recompute=full*1,light*11,none*1 zero=1*1,3*11,1*1 prefetch=2", 1, marks=pytest.mark.slow),
    pytest.param(18, "d8 mb1 recompute=full*6,none*6,light*6", 3, marks=pytest.mark.slow),
    pytest.param(13, "d8 mb1 zero3 prefetch=2 recompute=full*6,light*7", 2, marks=pytest.mark.slow),
    pytest.param(13, "d8 mb1 zero3 recompute=full*6,light*7", 2, marks=pytest.mark.slow),
    pytest.param(22, "p2 d4 mb1 zero1 recompute=full*6,light*5,full*5,light*6", 4, marks=pytest.mark.slow),
])
def test_layers_of_one_stage_may_be_alike_in_several_runs(layers: int, plan: str, runs: int) -> None:
    graph = network("llama", layers)
    evaluator = PythonEvaluator(graph, MACHINE, make_evaluator(graph, MACHINE, rule=RULE).costs, RULE, None)
    strategy = planned(plan, graph)
    fewer = fewer_layers(graph, strategy)
    assert fewer is not None and len(fewer.copies) == runs
    step, seconds = folded_step(graph, strategy, MACHINE, evaluator.costs, RULE, None), evaluator.set(strategy)
    assert step.makespan == pytest.approx(seconds, rel=1e-12)
    assert step.tasks == evaluator.tasks and len(step.lowered) < len(step.whole.origin)
    tasks, timeline = evaluator.current()
    assert step.transfer_bytes == tasks.transfer_bytes
    for folded, use in zip(folded_use(step), memory_use(tasks, timeline.begun(tasks))):
        assert (folded.weights, folded.state, folded.packed) == (use.weights, use.state, use.packed)
        assert folded.buffers == pytest.approx(use.buffers, rel=0.01)


def test_where_layers_cannot_be_left_out_one_replica_with_all_layers_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not several replicas with fewer layers: that is more. Weights are gathered further ahead than a layer has operators."""
    graph = network("llama", 7)
    strategy = planned("d8 mb2 zero3 prefetch=12", graph)
    tried: list[tuple[int, int]] = []

    def noted(some: OperatorGraph, *rest: Any, part: StepPart, **more: Any) -> TaskGraph:
        tried.append((len(some), len(part.images)))
        return lower(some, *rest, part=part, **more)

    monkeypatch.setattr("taskflow.optimizer.evaluate.folded.step.lower", noted)
    evaluator = PythonEvaluator(graph, MACHINE, make_evaluator(graph, MACHINE, rule=RULE).costs, RULE, None)
    step = folded_step(graph, strategy, MACHINE, evaluator.costs, RULE, None)
    fewer = fewer_layers(graph, strategy)
    assert fewer is not None and tried == [(len(fewer.graph), 1), (len(graph), 1)]
    assert step.replicas.count == 8 and step.makespan == evaluator.set(strategy)


def test_copies_are_the_layers_that_are_left_out_and_the_third() -> None:
    graph = network("gpt", 11)
    fewer = fewer_layers(graph, planned("p2 d4 mb1", graph))
    assert fewer is not None
    assert sorted(fewer.copies) == [2, 3]  # 5 and 6 layers
    left = {name.split(".")[1] for name in fewer.labels}
    assert len(left) == 2 * KEPT
    assert {node.name for node in graph if not node.name.startswith("h.")} <= {node.name for node in fewer.graph}
    assert [node.name for node in fewer.whole] == [node.name for node in fewer.graph]


def test_a_layer_that_is_cut_in_another_way_is_not_left_out() -> None:
    graph = network("llama", 8)
    strategy = planned("t2 d4 mb2", graph)
    other = planned("t4 d2 mb2", graph)
    name = "layers.4.mlp.down_proj"
    assert fewer_layers(graph, strategy) is not None
    assert fewer_layers(graph, replace(strategy, configs={**strategy.configs, name: other[name]})) is None
    assert fewer_layers(graph, replace(strategy, again=HadAgain(recompute=frozenset({name})))) is None
    assert fewer_layers(graph, replace(strategy, again=HadAgain(recompute=frozenset({"layers.0.mlp.down_proj"})))) is not None


def test_few_layers_are_all_lowered() -> None:
    graph = network("llama", KEPT)
    assert fewer_layers(graph, planned("d8 mb1", graph)) is None


def test_a_plan_that_does_not_fit_says_so() -> None:
    graph = network("llama", 8)
    strategy = planned("d8 mb1", graph)
    configs = {name: config for name, config in strategy.configs.items() if name != "layers.0.mlp.up_proj"}
    evaluator = make_evaluator(graph, MACHINE, rule=RULE)
    with pytest.raises(ValueError, match=r"no configuration for: layers\.0\.mlp\.up_proj"):
        evaluator.set(Strategy(8, configs, pipeline=strategy.pipeline))


# ---- lists of tasks, without a network -------------------------------------------------------------------------------
def task(layer: int | None, what: int) -> Any:
    name = "outside" if layer is None else f"h.{layer}"
    return SimpleNamespace(
        kind=Kind.FORWARD, processor=what, source=what, flops=what, nbytes=what, runs=(1, 1), topic=Topic(Purpose.FORWARD, name),
    )


Name = tuple[int | None, int]  # layer, and which of its tasks


def names(layers: int, each: int, down: bool) -> list[Name]:
    order = range(layers - 1, -1, -1) if down else range(layers)
    return [(None, 0), *((layer, what) for layer in order for what in range(each)), (None, 1)]


def waits(some: Sequence[Name], relative: Sequence[tuple[int, int, int]], layers: int) -> list[tuple[int, int]]:
    """Pairs of places: by layer offset, task and what it waits for; all wait for the first, and the last waits for all."""
    place = {name: i for i, name in enumerate(some)}
    found = []
    for layer in range(layers):
        found += [
            (place[layer, a], place[layer + offset, b]) for offset, a, b in relative if 0 <= layer + offset < layers
        ]
        found += [(place[layer, 0], place[None, 0]), (place[None, 1], place[layer, 0])]
    return found


@pytest.mark.parametrize("seed", range(40))
def test_pairs_are_those_of_all_layers(seed: int) -> None:
    random = Random(seed)
    each, layers, down = random.randint(1, 4), random.randint(5, 9), random.random() < 0.5
    relative = sorted({
        (random.choice((-1, 0, 1)), random.randrange(each), random.randrange(each)) for _ in range(random.randint(1, 8))
    })
    every = names(layers, each, down)
    expected = waits(every, relative, layers)
    lowered = names(KEPT, each, down)
    labels: dict[str, Label] = {f"h.{kept}": (0, kept) for kept in range(KEPT)}
    layout = lay_out([task(layer, what) for layer, what in lowered], labels, (layers - KEPT + 1,))
    pairs = np.array(waits(lowered, relative, KEPT))
    a, i, b, k = every_pair(layout, pairs[:, 0], layout, pairs[:, 1])
    assert layout.count == len(every)
    assert [lowered[o][1] for o in layout.origin] == [what for _, what in every]
    assert sorted(zip(layout.place(a, i).tolist(), layout.place(b, k).tolist())) == sorted(expected)


def simple() -> TaskPlaces:
    labels: dict[str, Label] = {f"h.{kept}": (0, kept) for kept in range(KEPT)}
    return lay_out([task(layer, what) for layer, what in names(KEPT, 1, False)], labels, (3,))


@pytest.mark.parametrize(("pair", "says"), [
    ((3, 1), "others than the next"), ((1, 3), "others than the next"), ((4, 2), "others than the next"),
    ((3, 0), "another one does not wait for"), ((5, 3), "another one does not wait for"),
    ((3, 3), "another one does not wait for"),
])
def test_pairs_that_only_some_layers_have_are_refused(pair: tuple[int, int], says: str) -> None:
    layout = simple()
    with pytest.raises(NotAlikeError, match=says):
        every_pair(layout, np.array([pair[0]]), layout, np.array([pair[1]]))


def test_layers_with_other_tasks_are_refused() -> None:
    labels: dict[str, Label] = {f"h.{kept}": (0, kept) for kept in range(KEPT)}
    tasks = [task(layer, what) for layer, what in names(KEPT, 2, False)]
    tasks[3].flops += 1
    with pytest.raises(NotAlikeError, match="differ"):
        lay_out(tasks, labels, (3,))


@pytest.mark.parametrize(("read", "folded"), [(None, True), (0, True), (1, True), (2, False), (3, False), (5, False)])
def test_a_layer_that_more_than_the_next_reads_is_not_left_out(read: int | None, folded: bool) -> None:
    """Of seven, the first two and the last stay; the head reads another one, too."""
    graph, results = OperatorGraph(), []
    h = ops.input(graph, (16, 8), name="x")
    for i in range(7):
        h = ops.add(h, ops.relu(ops.linear(h, 8, name=f"layers.{i}.fc"), name=f"layers.{i}.relu"), name=f"layers.{i}.add")
        results.append(h)
    if read is not None:
        h = ops.add(h, results[read], name="again")
    label = ops.input(graph, (16,), "int64", name="label")
    graph.minimize(ops.cross_entropy(ops.linear(h, 4, name="head"), label, name="loss"))
    assert (fewer_layers(graph, planned("d8 mb2", graph)) is not None) == folded


def test_layers_alike_share_their_buckets_in_the_same_way() -> None:
    """Two buckets of three weights: which two are in one tells layers apart."""
    names = ("a", "b", "c")
    one, other = (_firsts(names, dict(zip(names, units))) for units in (("u", "u", "v"), ("u", "v", "v")))
    assert one == {"a": 0, "b": 0, "c": 2} and other == {"a": 0, "b": 1, "c": 1}
    assert _firsts(names, {"b": "u"}) == {"b": 1}
