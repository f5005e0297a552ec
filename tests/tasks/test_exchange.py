"""What crosses a group that cuts a tensor anew is one collective, of the bytes that Megatron's closed forms have."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fast_and_slow import fast_among

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import Exchange, HybridParallel, OpConfig, Strategy, SyncAlgorithm, alike, load, map_graph, save
from taskflow.models import build
from taskflow.optimizer import make_evaluator, search
from taskflow.optimizer.cost import Roofline
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.explain import difference, explain
from taskflow.optimizer.memory import memory_use
from taskflow.regions import Rect
from taskflow.rules import SGD
from taskflow.runtime.program import schedule
from taskflow.tasks import Placement
from taskflow.tasks.lower import Emitter, lower
from taskflow.tasks.simulate import resources, roofline, simulate
from taskflow.tasks.task import AllGather, AllReduce, AllToAll, Kind, ReduceScatter, Task, TaskGraph
from taskflow.tasks.topic import Purpose

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("Llama", {"key_heads": 4}),
    "Llama, 32 words": ("Llama", {"key_heads": 4, "vocabulary": 32}),  # devices have whole blocks of the loss
    "GPT-2": ("GPT-2", {"heads": 4}),
    "GPT-3": ("GPT-2", {"heads": 4, "vocabulary": 32, "steps": 8, "dropout": 0.0}),
    "Mixtral": ("Mixtral", {"key_heads": 4}),
    "MoE": ("MoE", {"heads": 4}),
}


def planned(name: str, plan: str, devices: int, **settings: Any) -> tuple[OperatorGraph, Strategy]:
    model, more = NETWORKS[name]
    graph = build(model, 8, preset="small", dtype="float64", **more, **settings)
    return graph, map_graph(HybridParallel(plan), graph, taskflow.host(devices))


def gradients_of_weights(task: Task) -> bool:
    return task.topic.purpose in (Purpose.WEIGHT_GRADIENTS, Purpose.NEW_WEIGHTS)


@pytest.mark.parametrize("recompute", fast_among(["none", "full", "selective"], ["full"]))
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("plan", "tensor", "data", "devices"), fast_among(
    [("t2 p2 d2 mb1", 2, 2, 8), ("t2 p2 d2 mb4", 2, 2, 8), ("t4 p2 mb2", 4, 1, 8)],
    [("t2 p2 d2 mb4", 2, 2, 8), ("t4 p2 mb2", 4, 1, 8)],
))
def test_copies_are_between_stages_only(name: str, plan: str, tensor: int, data: int, devices: int, recompute: str) -> None:
    graph, strategy = planned(name, f"{plan} recompute={recompute}", devices)
    tasks = lower(graph, strategy, SGD(0.1), clip_norm=1.0)
    stage = tensor * data
    for task in tasks:
        if task.kind is Kind.COPY:
            assert task.source // stage != task.processor // stage, task
            if task.topic.name not in {loss.name for loss in graph.losses}:  # each to the one in its place
                assert task.source % stage == task.processor % stage, task
        elif task.kind is Kind.COLLECTIVE and not gradients_of_weights(task) and task.topic.purpose is not Purpose.NORM:
            groups = {p // (stage if task.topic.name in {loss.name for loss in graph.losses} else tensor) for p in task.processors}
            assert len(groups) == 1, task  # no replica waits for another
    evaluated = lower(graph, strategy, None)
    assert all(t.source // stage != t.processor // stage for t in evaluated if t.kind is Kind.COPY)


def moved(tasks: TaskGraph, layer: str) -> Counter[tuple[type, Purpose]]:
    """Bytes by kind of collective and purpose, of what a layer's operators make."""
    found: Counter[tuple[type, Purpose]] = Counter()
    for task in tasks:
        if task.kind is Kind.COLLECTIVE and task.topic.name.startswith(layer) and not gradients_of_weights(task):
            found[type(task.work), task.topic.purpose] += task.nbytes
    return found


@pytest.mark.parametrize(("name", "layer"), [("Llama, 32 words", "layers.1."), ("GPT-3", "h.1.")])
@pytest.mark.parametrize("plan", ["t4 mb8", "t4 mb2", "t4 mb4 recompute=selective", "t4 mb2 recompute=full"])
def test_a_layer_moves_what_megatron_moves(name: str, layer: str, plan: str) -> None:
    """Korthikanti et al., section 4.2.2: two all-gathers and two reduce-scatters of b s h forward, and as many backward. With full
    recomputation the first three are done once more; what the last one gives, nobody reads again."""
    graph, strategy = planned(name, plan, 4)
    tasks = lower(graph, strategy, SGD(0.1))
    b, s, h = graph.node(f"{layer}mlp.add").space.shape
    each = 3 * b * s * h * 8  # of all four together: each gets, or gives, three quarters
    again = 2 if "full" in plan else 1
    assert moved(tasks, layer) == {
        (AllGather, Purpose.OUTPUT): 2 * again * each, (ReduceScatter, Purpose.PARTIAL): (1 + again) * each,
        (AllGather, Purpose.GRADIENT): 2 * each, (ReduceScatter, Purpose.GRADIENT): 2 * each,
    }
    assert not any(task.kind is Kind.COPY for task in tasks)


@pytest.mark.parametrize(("plan", "groups"), [
    ("d4 e4 mb2", [(0, 1, 2, 3)]), ("d4 e2 mb2", [(0, 1), (2, 3)]), ("d4 e4 mb1", [(0, 1, 2, 3)] * 2),
    ("p2 d2 e2 mb1 recompute=full", [(2, 3)] * 4),
])
def test_experts_cost_two_all_to_alls_each_way(plan: str, groups: list[tuple[int, ...]]) -> None:
    """GShard: the re-split from groups to experts and back, and the same for gradients; tokens go in no other message."""
    graph, strategy = planned("MoE", plan, 4)
    tasks = lower(graph, strategy, SGD(0.1))
    losses = {loss.name for loss in graph.losses}
    stage = [t for t in tasks if t.topic.name.startswith("layers.1") and t.topic.name not in losses]
    found = Counter((t.topic.name[9:], t.topic.purpose, t.processors) for t in stage if isinstance(t.work, AllToAll))
    times = 2 if "full" in plan else 1  # what experts made is read in the backward pass too
    made = [(name, group) for name in ("moe.dispatch", "moe.wo") for group in groups]
    wanted = Counter((name, Purpose.GRADIENT, group) for name, group in made)
    wanted += Counter((name, Purpose.OUTPUT, group) for name, group in made * times)
    assert found == wanted
    assert not any(t.kind.travels and not isinstance(t.work, AllToAll) and not gradients_of_weights(t) for t in stage)
    size, count = graph.node("layers.1.moe.dispatch").space.volume * 8, len(groups[0])
    assert {t.nbytes for t in stage if isinstance(t.work, AllToAll)} == {size // len(groups) * (count - 1) // count}


def two_operators(read: OpConfig, wrote: OpConfig, operator: str, processors: int = 4) -> tuple[OperatorGraph, Strategy]:
    """A layer of (4, 8, 8) outputs, and an operator that reads it in another cut."""
    graph = OperatorGraph("float64", "two operators")
    x = taskflow.input(graph, (4, 8, 8), name="x")
    y = taskflow.linear(x, 8, name="wrote")
    y = taskflow.relu(y, name="read") if operator == "relu" else taskflow.linear(y, 8, name="read")
    graph.minimize(taskflow.mean(y, name="loss"))
    configs = {"x": wrote, "wrote": wrote, "read": read, "loss": OpConfig((1, 1, 1), (0,))}
    configs["x"] = OpConfig((1, 1, 1), (0,))
    return graph, Strategy(processors, configs, {}, "two", SyncAlgorithm.COLLECTIVE, exchange=Exchange.COLLECTIVES)


WORDS, OUTPUTS, INPUTS = (OpConfig(degrees, (0, 1, 2, 3)) for degrees in ((1, 4, 1, 1), (1, 1, 4, 1), (1, 1, 1, 4)))


@pytest.mark.parametrize(("wrote", "read", "operator", "forward", "backward"), [
    (WORDS, OUTPUTS, "linear", [AllGather], [ReduceScatter]),
    (INPUTS, OpConfig((1, 4, 1), (0, 1, 2, 3)), "relu", [ReduceScatter], [AllGather]),
    (INPUTS, OpConfig((1, 1, 4), (3, 2, 1, 0)), "relu", [ReduceScatter], [AllGather]),  # each another's share, in no order
    (INPUTS, OUTPUTS, "linear", [AllReduce], [AllReduce]),
    (WORDS, OpConfig((1, 1, 4), (0, 1, 2, 3)), "relu", [AllToAll], [AllToAll]),
    (OpConfig((1, 1, 1, 1), (2,)), OUTPUTS, "linear", [AllGather], [ReduceScatter]),  # one has all: a broadcast, and a sum there
    (WORDS, OpConfig((1, 1, 1), (1,)), "relu", [AllToAll], [AllToAll]),
    (WORDS, OpConfig((4, 1, 1), (0, 0, 1, 1)), "relu", [AllToAll], [AllToAll]),
])
def test_a_new_cut_is_one_collective(
    wrote: OpConfig, read: OpConfig, operator: str, forward: list[type], backward: list[type]
) -> None:
    graph, strategy = two_operators(read, wrote, operator)
    tasks = lower(graph, strategy, SGD(0.1))
    about = [task for task in tasks if task.topic.name == "wrote" and task.kind.travels and not gradients_of_weights(task)]
    there = (Purpose.OUTPUT, Purpose.PARTIAL)
    assert [type(task.work) for task in about if task.topic.purpose in there] == forward
    assert [type(task.work) for task in about if task.topic.purpose is Purpose.GRADIENT] == backward
    plain = replace(strategy, exchange=Exchange.COPIES, sums=SyncAlgorithm.OWNER)
    batch = {"x": np.random.default_rng(0).normal(size=(4, 8, 8))}
    runs = [taskflow.Executor(graph, one, SGD(0.1)) for one in (strategy, plain)]
    losses = [[run.train(batch) for _ in range(3)] for run in runs]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-12)


def test_a_gradient_that_is_added_in_two_steps_loses_none() -> None:
    """Two readers' gradients of both samples go by one reduce-scatter, whose share is of the Rect that another reader's
    gradients go by in the next."""
    graph = OperatorGraph("float64")
    x, label = taskflow.input(graph, (2, 3), name="x"), taskflow.input(graph, (2, 4), name="y")
    h = taskflow.linear(x, 5, name="h")
    sums = taskflow.add(taskflow.linear(h, 4, name="a"), taskflow.linear(h, 4, name="b"), name="sums")
    graph.minimize(taskflow.mse_loss(sums, label, name="loss"))
    cuts = {"h": OpConfig((2, 1, 1), (0, 1)), "a": OpConfig((1, 2, 1), (0, 1)), "b": OpConfig((2, 2, 1), (0, 0, 0, 1))}
    batch = {name: np.random.default_rng(0).normal(size=shape) for name, shape in (("x", (2, 3)), ("y", (2, 4)))}

    def trained(some: dict[str, OpConfig], exchange: Exchange) -> dict[str, Any]:
        configs = {node.name: some.get(node.name, OpConfig((1,) * len(node.dims), (0,))) for node in graph}
        strategy = replace(Strategy(2, configs), exchange=exchange)
        collectives = [t for t in lower(graph, strategy, SGD(1.0)) if t.kind is Kind.COLLECTIVE and t.name.startswith("d h[")]
        assert len(collectives) == (2 if some and exchange is not Exchange.COPIES else 0)
        run = taskflow.Executor(graph, strategy, SGD(1.0))
        run.train(batch)
        return run.parameters() or {}

    wanted = trained({}, Exchange.COPIES)
    for exchange in Exchange:
        for name, value in trained(cuts, exchange).items():
            np.testing.assert_allclose(value, wanted[name], rtol=1e-12, err_msg=f"{exchange} {name}")


def test_between_other_processors_copies_stay_copies() -> None:
    graph, strategy = two_operators(OpConfig((1, 2, 1), (2, 3)), OpConfig((1, 1, 2, 1), (0, 1)), "relu")
    about = [task for task in lower(graph, strategy, SGD(0.1)) if task.topic.name == "wrote" and task.kind.travels]
    assert [task.kind for task in about if not gradients_of_weights(task)] == 8 * [Kind.COPY]


def test_partial_values_that_one_other_reads_are_added_at_one() -> None:
    assert shares_for_others(OpConfig((1, 1, 1), (2,))) == [8, 0]


def test_partial_values_that_as_many_others_read_are_left_to_them_by_shares() -> None:
    assert shares_for_others(OpConfig((1, 2, 1), (2, 3))) == [4, 4]


def shares_for_others(readers: OpConfig) -> list[int]:
    """The positions of the sum that each of the processors 0 and 1 gets, whose partial values others read. Gradients go back as
    copies, and to both by an all-gather."""
    graph, strategy = two_operators(readers, OpConfig((1, 1, 1, 2), (0, 1)), "relu")
    tasks = lower(graph, strategy, SGD(0.1))
    (added,) = [task for task in tasks if task.topic.purpose is Purpose.PARTIAL and task.topic.name == "wrote"]
    back = [t for t in tasks if t.topic.purpose is Purpose.GRADIENT and t.topic.name == "wrote" and t.kind.travels]
    assert [t.kind for t in back] == [Kind.COPY] * len(readers.processors) + [Kind.COLLECTIVE]
    assert isinstance(back[-1].work, AllGather) and isinstance(added.work, ReduceScatter)
    return [0 if share.rect.empty else share.rect.shape[1] for share in added.work.shares]


def test_a_mapper_that_picks_sources_gets_copies() -> None:
    graph, strategy = two_operators(OUTPUTS, WORDS, "linear")
    tasks = lower(graph, strategy, SGD(0.1), select_source=lambda request: request.candidates[0])
    assert not any(isinstance(task.work, AllGather) for task in tasks)


def test_shares_that_follow_each_other_are_not_packed() -> None:
    for batch, packs in ((1, False), (2, True)):
        emit = Emitter(2)
        parts = [emit.whole(emit.buffer("y", Rect.of((batch, 4, 3)), p, np.dtype(np.float32))) for p in range(2)]
        places = [Rect((0, 2 * p, 0), (batch, 2 * p + 2, 3)) for p in range(2)]
        shares = [emit.whole(emit.buffer("y", place, p, np.dtype(np.float32))) for p, place in enumerate(places)]
        emit.gather_shares("gather", parts, shares, places)
        emit.reduce_shares("sum", parts, shares, places)
        for task in emit.graph:
            assert isinstance(task.work, (AllGather, ReduceScatter)) and bool(task.work.packed) is packs
            assert task.nbytes == batch * 4 * 3 * 4 and len(task.writes) == 2 + 2 * packs


def test_an_all_to_all_takes_as_long_as_its_busiest_link() -> None:
    machine = load_machine("p100", 4)
    emit, members = Emitter(4), range(4)
    rows = [emit.buffer("x", Rect((2 * p, 0), (2 * p + 2, 8)), p, np.dtype(np.float64)) for p in members]
    columns = [emit.buffer("x", Rect((0, 2 * p), (8, 2 * p + 2)), p, np.dtype(np.float64)) for p in members]
    blocks = [(Rect((2 * p, 2 * q), (2 * p + 2, 2 * q + 2)), p, q) for p in members for q in members]
    emit.all_to_all("turn", [(emit.part(rows[p], block), emit.part(columns[q], block)) for block, p, q in blocks])
    (task,) = emit.graph
    assert task.processors == (0, 1, 2, 3) and task.nbytes == 12 * 4 * 8
    assert len(task.reads) == 16 and len(task.writes) == 20  # and what is packed
    routes = [machine.route(p, q) for p in members for q in members if p != q]
    load: Counter[int] = Counter(link.number for route in routes for link in route)
    rate = {link.number: link.bytes_per_second for route in routes for link in route}
    latency = max(sum(link.latency_seconds for link in route) for route in routes)
    seconds = 3 * latency + max(4 * 8 * load[link] / rate[link] for link in load)
    assert roofline(machine)(task) == pytest.approx(seconds, rel=1e-12)
    assert set(resources(task, machine)) == {4 + number for number in load}
    assert simulate(emit.graph, machine, roofline(machine)).makespan >= seconds


def test_plans_keep_it_and_searches_start_from_it(tmp_path: Path) -> None:
    graph, strategy = two_operators(OUTPUTS, WORDS, "linear")
    machine = load_machine("p100", 4)
    save(strategy, graph, "p100", tmp_path / "plan.json")
    assert load(tmp_path / "plan.json", graph, 4) == strategy and alike(strategy, graph, graph).exchange is Exchange.COLLECTIVES
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "old.json").write_text(text.replace(',\n "exchange": "collectives"', ""))
    plain = load(tmp_path / "old.json", graph, 4)  # files of before say nothing
    assert plain == replace(strategy, exchange=Exchange.COPIES) and not plain.ordered
    (tmp_path / "wrong.json").write_text(text.replace('"collectives"', '"messages"'))
    with pytest.raises(ValueError, match=r"wrong.json: exchange: must be 'copies', 'collectives' or 'ring', got 'messages'"):
        load(tmp_path / "wrong.json", graph, 4)
    evaluator = make_evaluator(graph, machine, rule=SGD(0.1))
    reference = PythonEvaluator(graph, machine, Roofline(machine), SGD(0.1), None)
    assert evaluator.set(strategy) == PythonEvaluator(graph, machine, evaluator.costs, SGD(0.1), None).set(strategy)
    assert reference.set(strategy) == simulate(lower(graph, strategy, SGD(0.1)), machine, roofline(machine)).makespan
    assert evaluator.set(plain) != evaluator.set(strategy)
    with pytest.raises(ValueError, match=r"how tensors are cut anew .exchange."):
        difference(evaluator, plain, strategy)
    found = search(graph, machine, budget="1p", starts=[strategy])
    assert found.starts["two"] == make_evaluator(graph, machine).set(strategy) >= found.seconds
    with pytest.raises(ValueError, match=r"strategy two is pipelined or sharded, and no algorithm starts from such a one"):
        search(graph, machine, budget="1p", starts=[strategy], alone=True)


@pytest.mark.parametrize("plan", ["t2 p2 mb2", "t2 d2 e2 mb1 recompute=full", "t2 c2 mb2"])
def test_explanations_traffic_and_memory_know_it(plan: str) -> None:
    graph = build("MoE", 8, preset="small", dtype="float64", heads=4)
    machine = load_machine("p100", 4)
    strategy = map_graph(HybridParallel(plan), graph, machine)
    evaluator = make_evaluator(graph, machine, rule=SGD(0.1))
    evaluator.set(strategy)
    tasks = lower(graph, strategy, SGD(0.1))
    use = evaluator.usage()
    assert use.transfer_bytes == tasks.transfer_bytes and use.link_seconds
    assert explain(evaluator).seconds == evaluator.seconds
    order = simulate(tasks, machine, roofline(machine)).begun(tasks)
    for one in memory_use(tasks, order):
        assert schedule(tasks, order, Placement(4, 4), one.processor).memory.peak_bytes == one.buffers > 0
