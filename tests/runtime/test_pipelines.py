"""Micro-batches, stages, schedules and recomputation change no numbers: losses and weights are those of one processor."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from beside_one_processor import STEPS, Result, compare, compare_network, same, trained
from fast_and_slow import fast_among
from language_model import feeds as words
from language_model import model, undivided
from pipelines import GPT, HYBRIDS, fitting, hybrid, random_pipeline, rank_case, rank_cases, small, tokens
from pipelines import decoder as decoder_of
from pipelines import words as some_words
from programs.start import mpirun, rows
from starting import needs_mpi

import taskflow
from taskflow.checkpoint import load_checkpoint, save_checkpoint
from taskflow.graph import OperatorGraph
from taskflow.mapper import (
    HadAgain,
    OpConfig,
    Pipeline,
    PipelineSchedule,
    Strategy,
    in_micro_batches,
    map_graph,
    recomputed,
)
from taskflow.mapper.hybrid import HybridParallel
from taskflow.models import build
from taskflow.models.gpt import gpt
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.explain import alternatives, difference, explain
from taskflow.optimizer.memory import memory_use
from taskflow.rules import SGD, Adam
from taskflow.runtime.executor import Executor
from taskflow.runtime.program import schedule
from taskflow.tasks import Compute, Kind, Placement, roofline, simulate
from taskflow.tasks.lower import lower
from taskflow.tasks.topic import Purpose


def plan(graph: OperatorGraph, random: Random, number: int) -> Strategy:
    return random_pipeline(graph, random.randint(1, 4), random)


def decoder(seed: int, count: int) -> int:
    dtype = ("float64", "float32")[seed % 2]
    batches = [tokens(s) for s in range(STEPS)]
    return compare(lambda: gpt(GPT, dtype), batches, plan, f"gpt {seed}", count, dtype, SGD(0.1, momentum=0.9), 1.0)


def recurrent(seed: int, count: int) -> int:
    batches = [words(s) for s in range(STEPS)]
    return compare(model, batches, plan, f"rnnlm {seed}", count, "float64", SGD(0.3, momentum=0.9), 1.0)


def any_network(seed: int, count: int) -> int:
    return compare_network(seed, plan, "network", count)


@pytest.mark.parametrize(("seed", "count"), [(0, 2), *(pytest.param(s, 5, marks=pytest.mark.slow) for s in range(4))])
def test_a_decoder_in_any_order(seed: int, count: int) -> None:
    assert decoder(seed, count) == count


@pytest.mark.parametrize("count", [2, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", fast_among(["Llama", "MoE", "Mixtral", "Transformer"], ["MoE"]))
def test_networks_of_today_in_any_order(name: str, count: int) -> None:
    def graph() -> OperatorGraph:
        return small(name, "float64", 3 if name != "Transformer" else 1)

    batches = [some_words(graph(), step) for step in range(STEPS)]
    assert compare(graph, batches, plan, name, count, "float64", SGD(0.1, momentum=0.9), 1.0) == count


@pytest.mark.parametrize("seed", fast_among(range(2), [0]))
def test_a_recurrent_network_in_any_order(seed: int) -> None:
    assert recurrent(seed, 5) == 5


def test_random_plans_of_a_recurrent_network_have_micro_batches() -> None:
    """Its loss is a sum, which is divided once all micro-batches are through."""
    graph = model()
    some = [fitting(graph, 3, Random(seed)).pipeline for seed in range(30)]
    assert sum(one is not None and one.micro_batches > 1 and one.count > 1 for one in some) >= 10


@pytest.mark.parametrize(("name", "plan", "devices"), [
    ("RNNLM", "p2 mb1", 2), ("RNNLM", "t2 nosp d2 mb1 schedule=zb-h1 p2", 8), ("NMT", "p2 d2 mb1 zero2", 4),
    ("NMT", "p3 mb1 schedule=gpipe", 3), ("RNNLM", "p2 mb2 schedule=zbv", 2), ("RNNTC", "p2 d2 mb1 zero3", 4),
])
def test_recurrent_networks_train_in_the_notations_pipelines(name: str, plan: str, devices: int) -> None:
    def graph() -> OperatorGraph:
        return build(name, 6, preset="small", dtype="float64")

    random = np.random.default_rng(0)
    inputs = [node for node in graph() if node.operator.kind == "input"]
    batches = [{n.name: random.integers(0, 3, n.space.shape) for n in inputs} for _ in range(STEPS)]
    strategy = map_graph(HybridParallel(plan), graph(), taskflow.host(devices))
    rule = SGD(0.1, momentum=0.9)
    same(
        trained(graph(), strategy, batches, rule, 1.0), trained(graph(), undivided(graph()), batches, rule, 1.0), f"{name} {plan}",
        "float64",
    )


def test_what_is_summed_over_all_samples_is_combined_last() -> None:
    """Losses that are scaled and added: after all forward passes; their gradients begin before all."""
    def graph() -> OperatorGraph:
        graph = OperatorGraph("float64", "two losses")
        x = taskflow.linear(taskflow.input(graph, (6, 4), name="x"), 5, name="first")
        y = taskflow.linear(taskflow.relu(x, name="relu"), 3, name="second")
        one = taskflow.scale(taskflow.mse_loss(y, taskflow.input(graph, (6, 3), name="y"), name="error"), 0.5, name="half")
        other = taskflow.mean(x, name="size")
        graph.minimize(taskflow.add(one, taskflow.scale(other, 0.25, name="quarter"), name="both"))
        return graph

    made = graph()
    stages = {node.name: int(node.number > made.node("relu").number) for node in made}
    configs = {n.name: in_micro_batches(n, OpConfig((1,) * len(n.dims), (stages[n.name],)), 3) for n in made}
    for order in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZERO_BUBBLE):
        strategy = Strategy(2, configs, pipeline=Pipeline(3, stages, 2, order))
        assert {made.nodes[n].name for n in strategy.pipeline.last(made, configs)} == {"half", "quarter", "both"}  # type: ignore[union-attr]
        tasks = lower(made, strategy, SGD(0.1))
        found = [t.work.node.name for t in tasks if t.kind in (Kind.FORWARD, Kind.BACKWARD) and isinstance(t.work, Compute)]
        assert found[:3] == ["both", "quarter", "half"] and found[-3:] == ["half", "quarter", "both"]
        random = np.random.default_rng(0)
        batches = [{"x": random.normal(size=(6, 4)), "y": random.normal(size=(6, 3))} for _ in range(STEPS)]
        one, rule = undivided(made), SGD(0.1)
        same(trained(graph(), strategy, batches, rule, 1.0), trained(graph(), one, batches, rule, 1.0), "both", "float64")


@pytest.mark.parametrize("order", [PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZERO_BUBBLE])
def test_a_mean_over_labels_is_that_of_the_whole_batch(order: PipelineSchedule) -> None:
    """Micro-batches have 3, 0 and 1 labels; PyTorch takes the batch at once. Labels are there before the first pass."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
    graph = OperatorGraph("float64", "labels")
    x, labels = taskflow.input(graph, (6, 4), name="x"), taskflow.input(graph, (6,), "int64", name="labels")
    scores = taskflow.linear(taskflow.relu(taskflow.linear(x, 5, name="first"), name="relu"), 3, name="second")
    graph.minimize(taskflow.per_label(taskflow.cross_entropy(scores, labels, reduction="sum", name="loss"), labels, name="mean"))
    stages = {node.name: int(node.name not in ("x", "first", "relu")) for node in graph}
    configs = {n.name: in_micro_batches(n, OpConfig((1,) * len(n.dims), (stages[n.name],)), 3) for n in graph}
    run = Executor(graph, Strategy(2, configs, pipeline=Pipeline(3, stages, 2, order)), SGD(0.5))
    tasks = run.program("train").graph
    found = [t.name for t in tasks if t.kind in (Kind.FORWARD, Kind.BACKWARD)]
    assert found[:4] == [*(f"labels[{i}] forward" for i in range(3)), "mean[0] backward"] and found[-1] == "mean[0] forward"
    first, second = torch.nn.Linear(4, 5).double(), torch.nn.Linear(5, 3).double()
    layers = torch.nn.ModuleDict({"first": first, "second": second})
    layers.load_state_dict({name: torch.tensor(value) for name, value in run.parameters().items()})
    update, random = torch.optim.SGD(layers.parameters(), 0.5), np.random.default_rng(0)
    for _ in range(4):
        batch = {"x": random.normal(size=(6, 4)), "labels": np.array([2, 0, -100, -100, -100, 1])}
        loss = torch.nn.functional.cross_entropy(
            second(torch.relu(first(torch.tensor(batch["x"])))), torch.tensor(batch["labels"]), ignore_index=-100
        )
        update.zero_grad()
        loss.backward()
        update.step()
        assert run.train(batch) == pytest.approx(loss.item(), rel=1e-12)


def test_what_depends_on_a_sum_of_all_samples_is_refused() -> None:
    product = taskflow.OperatorGraph("float64", "squared")
    x = taskflow.input(product, (6, 4), name="x")
    error = taskflow.mse_loss(taskflow.linear(x, 4, name="first"), taskflow.input(product, (6, 4), name="y"), name="error")
    product.minimize(taskflow.mul(error, error, name="square"))
    squared = {n.name: in_micro_batches(n, OpConfig((1,) * len(n.dims), (0,)), 3) for n in product}
    with pytest.raises(ValueError, match=r"operator square .mul. takes several of the 3 micro-batches of error together"):
        Strategy(1, squared, pipeline=Pipeline(3, {})).verify(product)


def test_random_networks_in_any_order() -> None:
    assert sum(any_network(seed, 2) for seed in range(12)) >= 12


@cache
def alone(name: str, dtype: str) -> Result:
    """Losses and weights of one processor."""
    graph = small(name, dtype, 2)
    return trained(graph, undivided(graph), [some_words(graph, step) for step in range(STEPS)], SGD(0.1, momentum=0.9), 1.0)


@pytest.mark.parametrize("text", fast_among(
    TEXTS := [text for texts in HYBRIDS.values() for text in texts],
    [*TEXTS[::2], "NMT p2 d2 mb1 zero2", "MoE d2 e2 mb3 split=3", "MoE d2 e2 p2 mb1", "RNNLM p2 mb3 schedule=zb-h1"],
))
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_plans_of_groups_train_as_one_processor_does(text: str, dtype: str) -> None:
    name = text.split()[0]
    graph = small(name, dtype, 2)
    batches = [some_words(graph, step) for step in range(STEPS)]
    same(trained(graph, hybrid(text)[1], batches, SGD(0.1, momentum=0.9), 1.0), alone(name, dtype), text, dtype)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(100, 106))
def test_many_plans(seed: int) -> None:
    assert decoder(seed, 40) + recurrent(seed, 20) == 60
    assert sum(any_network(100 * seed + i, 2) for i in range(30)) >= 30


def two_stages(options: str) -> tuple[OperatorGraph, Strategy]:
    graph = gpt(replace(GPT, layers=4), "float64")
    return graph, map_graph(HybridParallel(f"p2 mb1 {options}"), graph, taskflow.host(2))


@pytest.mark.parametrize("schedule", list(PipelineSchedule))
def test_each_processor_runs_its_tasks_in_the_order_of_the_schedule(schedule: PipelineSchedule) -> None:
    graph, strategy = two_stages(f"schedule={schedule.value}")
    tasks = lower(graph, strategy, SGD(0.1))
    timeline = simulate(tasks, taskflow.host(2), lambda task: 1.0 / (1 + task.number % 7))
    pipeline = strategy.pipeline
    assert pipeline is not None
    for rank in range(2):
        mine = [t for t in tasks if t.processor == rank and t.kind in (Kind.FORWARD, Kind.BACKWARD)]
        begun = sorted(mine, key=lambda t: timeline.spans[t.number].start)
        assert begun == mine  # in program order, which is the schedule's:
        micro = [pipeline.micro_batch(t.work.node, strategy[t.work.node.name], _piece(t)) for t in mine]  # type: ignore[union-attr]
        passes = [(t.kind.value[0].upper(), m) for t, m in zip(mine, micro)]
        seen = [one for i, one in enumerate(passes) if not i or passes[i - 1] != one]
        wanted = [(one.kind.value, one.micro_batch) for one in pipeline.passes() if pipeline.schedule.rank(one.stage, 2) == rank]
        wanted = [("B" if phase == "W" else phase, m) for phase, m in wanted]
        assert seen == [one for i, one in enumerate(wanted) if not i or wanted[i - 1] != one]


def _piece(task: Any) -> int:
    return int(task.name.partition("[")[2].partition("]")[0])


def test_what_is_recomputed_is_not_kept() -> None:
    def most(recompute: str) -> tuple[int, int]:
        graph, strategy = two_stages(f"recompute={recompute}")
        run = Executor(graph, strategy, SGD(0.1))
        again = sum(t.topic.purpose is Purpose.RECOMPUTED for t in run.program("train").graph)
        return run.program("train").plan.memory.nbytes, again

    kept, selective, full = most("none"), most("selective"), most("full")
    assert kept[1] == 0 < selective[1] < full[1]
    assert full[0] < selective[0] < kept[0]


def test_recomputation_of_attention_is_what_grows_with_the_square_of_the_sequence() -> None:
    graph = gpt(GPT)
    grows = {f"h.{i}.attn.{name}" for i in range(GPT.layers) for name in ("scores", "softmax", "drop")}
    assert recomputed(graph, "selective") == grows
    full = recomputed(graph, "full")
    assert not any(name.endswith("mlp.add") for name in full) and "h.1.ln_1" in full and "ln_f" not in full


def test_a_strategy_that_recomputes_what_has_no_inputs_is_refused() -> None:
    graph = gpt(GPT)
    base = undivided(graph)
    for names, message in (
        ({"tokens"}, "operator tokens .input. has no inputs"), ({"h.9"}, "recompute names unknown operators: h.9"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(base, again=HadAgain(recompute=frozenset(names))).verify(graph)


def test_gradients_accumulate_and_weights_travel_once_a_step() -> None:
    graph = gpt(GPT)
    one, four = (map_graph(HybridParallel(f"d2 mb{n}"), graph, taskflow.host(2)) for n in (3, 1))
    assert one.pipeline is None and four.pipeline == Pipeline(3, four.pipeline.stages)  # type: ignore[union-attr]
    counted = [
        [t for t in lower(graph, s, SGD(0.1)) if t.kind is Kind.COLLECTIVE or t.kind is Kind.UPDATE] for s in (one, four)
    ]
    assert [t.name for t in counted[0]] == [t.name for t in counted[1]]


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize(("ranks", "cases"), [
    (3, rank_cases(3, random=0, shares=1, hybrids=1)),  # random plans: those that shares and buckets are put on
    pytest.param(2, rank_cases(2, random=2, shares=2, hybrids=3), marks=pytest.mark.slow),
    pytest.param(3, rank_cases(3, random=2, shares=2, hybrids=3), marks=pytest.mark.slow),
    *(pytest.param(n, rank_cases(n, random=8, shares=6), marks=pytest.mark.slow) for n in (2, 3, 4, 8)),
])
def test_ranks_train_as_virtual_processors_do(ranks: int, cases: list[str]) -> None:
    """Pipelines and shares in one job, since ranks take seconds to start."""
    found = rows(ranks, "train_pipelines.py", *cases, limit=400)
    assert [row["case"] for row in found] == cases
    for row in found:
        graph, strategy, batch = rank_case(row["case"], ranks)
        run = Executor(graph, strategy, SGD(0.1, momentum=0.9), seed=3, clip_norm=1.0)
        losses = [run.train(batch(step)) for step in range(STEPS)]
        weights = run.weights()
        assert weights is not None
        np.testing.assert_allclose(row["losses"], losses, rtol=1e-12)  # MPI's collectives add in an order of their own
        assert row["parameters"] == pytest.approx(sum(float(abs(v).sum()) for v in weights.values()), rel=1e-12)


@pytest.mark.mpi
@needs_mpi
@pytest.mark.skipif(sys.platform != "linux", reason="the watcher is for Linux")
def test_a_rank_killed_in_the_middle_of_a_pipeline_is_named() -> None:
    ended = mpirun(3, "train_pipelines.py", "kill", since="training\n")
    assert ended.code != 0 and ended.seconds < 10, ended
    lines = [line for line in ended.text.splitlines() if line.startswith("taskflow: rank")]
    assert len(lines) == 1 and "rank 2 of 3: killed by signal 9 (SIGKILL)" in lines[0], ended.text


def test_planned_memory_is_what_is_allocated() -> None:
    machine = taskflow.host(4)
    graph = decoder_of()
    for plan in ("p4 mb1", "p2 d2 mb1 schedule=zb-h1 recompute=selective", "t2 p2 mb2 recompute=full", "d4 mb1 zero1"):
        if plan.startswith("d4"):
            graph = gpt(replace(GPT, batch=8), "float64")
        strategy = map_graph(HybridParallel(plan), graph, machine)
        tasks = lower(graph, strategy, SGD(0.1))
        order = simulate(tasks, machine, roofline(machine)).begun(tasks)
        placement = Placement(4, 4)
        for use in memory_use(tasks, order):
            planned = schedule(tasks, order, placement, use.processor).memory
            assert planned.peak_bytes == use.buffers > 0
            assert planned.nbytes <= 1.1 * use.buffers  # what lies between arrays that live at different times


def test_a_checkpoint_goes_on_under_another_plan(tmp_path: Path) -> None:
    graph, rule = gpt(replace(GPT, layers=3), "float64"), Adam(0.01)
    wanted = Executor(graph, undivided(graph), rule)
    losses = [wanted.train(tokens(step)) for step in range(6)]
    first = Executor(graph, map_graph(HybridParallel("p3 mb1"), graph, taskflow.host(3)), rule)
    np.testing.assert_allclose([first.train(tokens(step)) for step in range(3)], losses[:3], rtol=1e-10)
    save_checkpoint(first, tmp_path / "half.safetensors")
    plan = map_graph(HybridParallel("t2 p2 mb2 schedule=gpipe recompute=full"), graph, taskflow.host(4))
    second = Executor(graph, plan, rule)
    load_checkpoint(second, tmp_path / "half.safetensors")
    np.testing.assert_allclose([second.train(tokens(step)) for step in range(3, 6)], losses[3:], rtol=1e-10)


@pytest.mark.parametrize("plan", ["t2 p2 mb1 v2", "t2 p2 mb1 v3"])
def test_more_stages_than_layers_give_the_same_numbers(plan: str) -> None:
    """Sums of partial values are left to the next stage by shares: of words alone (v2), and within layers (v3)."""
    graph, rule = gpt(replace(GPT, layers=2), "float64"), Adam(0.01)
    wanted = Executor(graph, undivided(graph), rule)
    found = Executor(graph, map_graph(HybridParallel(plan), graph, taskflow.host(4)), rule)
    steps = [tokens(step) for step in range(3)]
    np.testing.assert_allclose([found.train(of) for of in steps], [wanted.train(of) for of in steps], rtol=1e-10)


def test_the_explanation_has_the_bubble() -> None:
    graph = gpt(replace(GPT, layers=4, batch=8), "float64")
    machine = taskflow.load_machine("p100", 2)
    evaluator = make_evaluator(graph, machine, rule=SGD(0.1))
    evaluator.set(map_graph(HybridParallel("p2 mb1"), graph, machine))
    found = explain(evaluator).bubble
    assert found is not None and found.closed_form == 1 / 9 < found.share < 1
    assert found.seconds < evaluator.seconds and set(found.idle) == {0, 1}
    evaluator.set(map_graph(HybridParallel("d2 mb1"), graph, machine))
    assert explain(evaluator).bubble is None


def test_alternatives_for_an_operator_fit_the_order_of_passes() -> None:
    graph = gpt(replace(GPT, layers=4, batch=8), "float64")
    machine = taskflow.load_machine("p100", 2)
    evaluator = make_evaluator(graph, machine, rule=SGD(0.1))
    strategy = map_graph(HybridParallel("p2 mb2"), graph, machine)
    evaluator.set(strategy)
    found = alternatives(evaluator, "h.0.ln_1", most=4)
    assert {"data parallel", "other devices"} <= {other.reason for other in found}
    for other in found:
        replace(strategy, configs={**strategy.configs, "h.0.ln_1": other.config}).verify(graph)
    assert evaluator.strategy is strategy


def test_plans_with_other_orders_are_not_told_to_be_the_same() -> None:
    graph = gpt(replace(GPT, layers=4, batch=8), "float64")
    machine = taskflow.load_machine("p100", 2)
    evaluator = make_evaluator(graph, machine, rule=SGD(0.1))
    one, again = (map_graph(HybridParallel(f"p2 mb2{more}"), graph, machine) for more in ("", " recompute=full"))
    assert difference(evaluator, one, one) == ()
    with pytest.raises(ValueError, match="differ in the order of passes or in what is recomputed"):
        difference(evaluator, one, again)
