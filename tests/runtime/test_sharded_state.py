"""Gradients and weights by shares (ZeRO's stages 2 and 3, FSDP, HSDP): the numbers are those of one processor, memory and messages
those of the paper (Rajbhandari et al., arXiv 1910.02054, section 5 and 7)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from beside_one_processor import STEPS, compare, compare_network
from fast_and_slow import fast_among
from language_model import feeds as words
from language_model import model, random_strategy, undivided
from pipelines import GPT, random_pipeline, random_shares, tokens
from pipelines import decoder as decoder_of

import taskflow
from taskflow.checkpoint import load_checkpoint, save_checkpoint
from taskflow.graph import OperatorGraph
from taskflow.mapper import Strategy, choose
from taskflow.mapper.notation import parse_sync
from taskflow.models import build
from taskflow.models.gpt import gpt
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.explain import difference, explain
from taskflow.optimizer.memory import memory_use
from taskflow.rules import SGD, Adam, AdamW, UpdateRule
from taskflow.runtime.executor import Executor
from taskflow.runtime.program import schedule
from taskflow.tasks import Placement, roofline, simulate
from taskflow.tasks.lower import lower
from taskflow.tasks.task import AllGather, AllReduce, Compute, Kind, ReduceScatter, TaskGraph, Transfer, Update
from taskflow.tasks.topic import Purpose


def plan(graph: OperatorGraph, random: Random, number: int) -> Strategy:
    """Every third without micro-batches."""
    processors = random.randint(2, 5)
    return random_shares(graph, (random_pipeline if number % 3 else random_strategy)(graph, processors, random), random)


def decoder(seed: int, count: int) -> int:
    dtype, rule = ("float64", "float32")[seed % 2], (SGD(0.1, momentum=0.9), AdamW(0.003, eps=1e-3))[seed // 2 % 2]
    return compare(lambda: gpt(GPT, dtype), [tokens(s) for s in range(STEPS)], plan, f"shares gpt {seed}", count, dtype, rule, 1.0)


def recurrent(seed: int, count: int) -> int:
    batches = [words(s) for s in range(STEPS)]
    return compare(model, batches, plan, f"shares rnnlm {seed}", count, "float64", SGD(0.3, momentum=0.9), 1.0)


def any_network(seed: int, count: int) -> int:
    return compare_network(seed, plan, "shares network", count)


@pytest.mark.parametrize(("seed", "count"), [(3, 2), *(pytest.param(s, 6, marks=pytest.mark.slow) for s in range(4))])
def test_a_decoder_by_shares(seed: int, count: int) -> None:
    assert decoder(seed, count) == count


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", fast_among(["Llama", "Mixtral"], ["Mixtral"]))
def test_decoders_of_today_by_shares(name: str, count: int) -> None:
    def graph() -> OperatorGraph:
        return build(name, 6, preset="small", dtype="float64", layers=3)

    random = np.random.default_rng(0)
    batches = [{key: random.integers(0, 17, graph().node(key).space.shape) for key in ("tokens", "targets")} for _ in range(STEPS)]
    assert compare(graph, batches, plan, f"shares {name}", count, "float64", SGD(0.1, momentum=0.9), 1.0) == count


def test_a_recurrent_network_by_shares() -> None:
    assert recurrent(0, 6) == 6


def test_random_networks_by_shares() -> None:
    assert sum(any_network(seed, 2) for seed in range(8)) >= 8


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(100, 106))
def test_many_plans_by_shares(seed: int) -> None:
    assert decoder(seed, 40) + recurrent(seed, 20) == 60
    assert sum(any_network(100 * seed + i, 2) for i in range(30)) >= 30


# ---- what is kept, and what is sent ----------------------------------------------------------------------------------
WIDTH, LAYERS = 64, 16
PARAMETERS = LAYERS * WIDTH * WIDTH  # the paper's Psi


def perceptron(batch: int = 8) -> OperatorGraph:
    """Layers of one size, whose activations are small beside their weights."""
    graph = taskflow.OperatorGraph("float32")
    x = taskflow.input(graph, (batch, WIDTH), name="x")
    for i in range(LAYERS):
        x = taskflow.linear(x, WIDTH, bias=False, name=f"fc{i}")
    graph.minimize(taskflow.mse_loss(x, taskflow.input(graph, (batch, WIDTH), name="y")))
    return graph


def lowered(plan: str, rule: UpdateRule, devices: int = 4) -> TaskGraph:
    graph = perceptron()
    return lower(graph, choose(plan, graph, taskflow.host(devices))[0], rule)


def gradient_bytes(tasks: TaskGraph, processor: int) -> int:
    """What holds gradients when weights are updated."""
    read = {
        tasks.buffers[task.work.gradients.buffer] for task in tasks
        if isinstance(task.work, Update) and task.processor == processor
    }
    return sum(buffer.nbytes for buffer in read)


@pytest.mark.parametrize("rule", [SGD(0.1), SGD(0.1, momentum=0.9), Adam()], ids=["sgd", "momentum", "adam"])
@pytest.mark.parametrize("micro_batches", ["", " mb1"])
def test_what_is_kept_is_the_papers_closed_form(rule: UpdateRule, micro_batches: str) -> None:
    """In the paper's units weights, gradients and state take (2 + 2 + K) bytes a parameter; here 4, 4 and K = 4 for each array of
    the rule. Stage 1 divides K by the number of devices N, stage 2 also gradients, stage 3 all."""
    psi, k, n = PARAMETERS, 4 * rule.buffers, 4
    wanted = {
        "d4 zero0": (4 * psi, 4 * psi, k * psi), "d4 zero1": (4 * psi, 4 * psi, k * psi // n),
        "d4 bucket=9K": (4 * psi, 4 * psi, k * psi), "d4 zero1 bucket=9K": (4 * psi, 4 * psi, k * psi // n),
        "d4 zero1 bucket=layer": (4 * psi, 4 * psi, k * psi // n),
        "d4 zero2": (4 * psi, 4 * psi // n, k * psi // n), "d4 zero3": (4 * psi // n, 4 * psi // n, k * psi // n),
        "d4 hsdp2": (4 * psi // 2, 4 * psi // 2, k * psi // 2), "d4 zero2 hsdp2": (4 * psi, 4 * psi // 2, k * psi // 2),
    }
    for plan, parts in wanted.items():
        tasks = lowered(plan + micro_batches, rule)
        uses = memory_use(tasks, range(len(tasks)))
        for processor, use in enumerate(uses):
            assert (use.weights, gradient_bytes(tasks, processor), use.state) == parts, plan


def planned(plan: str, rule: UpdateRule) -> tuple[int, int]:
    """Bytes of a device's peak: as the evaluator plans it, and as the runtime allocates it."""
    graph, machine = perceptron(), taskflow.host(4)
    strategy = choose(plan, graph, machine)[0]
    tasks = lower(graph, strategy, rule, clip_norm=1.0)
    order = simulate(tasks, machine, roofline(machine)).begun(tasks)
    use = memory_use(tasks, order)[0]
    memory = schedule(tasks, order, Placement(4, 4), 0).memory
    assert memory.peak_bytes == use.buffers and memory.nbytes <= 1.1 * use.buffers
    run = Executor(graph, strategy, rule, machine=machine, clip_norm=1.0)
    kept = sum(array.nbytes for name, array in run.kept.arrays.items() if name.endswith("@ 0"))
    assert kept == use.weights + use.state
    return use.nbytes, kept + memory.nbytes


@pytest.mark.parametrize("micro_batches", ["", " mb1"])
def test_the_peak_is_planned_and_falls_with_the_stage(micro_batches: str) -> None:
    """Beside what is kept there are the gathered weights of two layers (one without prefetch), whole gradients of two, activations,
    and the weights that a kernel lays out. Clipping needs all gradients at once."""
    rule, layer = Adam(), 4 * WIDTH * WIDTH
    peaks = {plan: planned(f"d4 {plan}{micro_batches}", rule) for plan in ("zero0", "zero1", "zero2", "zero3", "zero3 prefetch=0")}
    for plan, (wanted, allocated) in peaks.items():
        assert abs(allocated - wanted) <= 0.1 * wanted, plan
    plain, one, two, three, narrow = (allocated for _, allocated in peaks.values())
    assert 0 <= plain - 16 * PARAMETERS <= 3 * layer
    assert 0 <= one - (8 + 8 / 4) * PARAMETERS <= 3 * layer
    assert 0 <= two - (4 + 12 / 4) * PARAMETERS <= 4 * layer
    assert 0 <= three - 16 / 4 * PARAMETERS <= 5 * layer
    assert narrow < three < plain / 3 and three < two < one < plain


def test_messages_are_those_of_the_paper() -> None:
    """Of stage 2 as many bytes as of an all-reduce, of stage 3 one and a half times as many; with micro-batches for each pass."""
    plain = lowered("d4 zero0", SGD(0.1)).transfer_bytes
    assert plain == 2 * 3 * 4 * PARAMETERS + (extra := lowered("d4 zero1", SGD(0.1)).transfer_bytes - 2 * 3 * 4 * PARAMETERS)
    half = 3 * 4 * PARAMETERS  # a reduce-scatter, or an all-gather, of all

    def sent(plan: str) -> int:
        tasks = lowered(plan, SGD(0.1))
        return sum(t.nbytes for t in tasks if t.kind is Kind.COLLECTIVE and t.topic.purpose is not Purpose.PARTIAL)

    assert extra < 1000  # the loss
    assert sent("d4 zero0") == sent("d4 zero1") == sent("d4 zero2") == 2 * half
    assert sent("d4 zero3") == sent("d4 fsdp") == 3 * half
    assert sent("d4 zero2 mb1") == (2 + 1) * half  # two micro-batches: each a reduce-scatter; one all-gather
    assert sent("d4 zero3 mb1") == 2 * 3 * half
    zero_bubble = sent("p2 d2 zero3 mb1 schedule=zb-h1")  # weights are not gathered for the gradients of weights
    assert zero_bubble == sent("p2 d2 zero3 mb1") == 4 * 3 * 4 * PARAMETERS
    tasks = lowered("d4 hsdp2", SGD(0.1))
    between = [t for t in tasks if isinstance(t.work, AllReduce) and t.topic.purpose is Purpose.WEIGHT_GRADIENTS]
    assert sum(t.nbytes for t in between) == 2 * (2 * 4 * PARAMETERS // 2)  # the shares of two groups, of half the size
    assert all(set(t.processors) in ({0, 2}, {1, 3}) for t in between)
    within = [t for t in tasks if isinstance(t.work, (AllGather, ReduceScatter))]
    assert within and all(set(t.processors) in ({0, 1}, {2, 3}) for t in within)


def test_weights_that_a_tensor_parallel_group_holds_alike_are_shared_within_replicas() -> None:
    """As FSDP shares them: gathered among neighbours of different replicas; what is added up crosses the group in shares."""
    graph, of_weights = gpt(replace(GPT, batch=8, layers=1), "float64"), (Purpose.UNSHARDED, Purpose.WEIGHT_GRADIENTS)

    def groups(plan: str, kind: type[AllGather | ReduceScatter | AllReduce]) -> set[tuple[int, ...]]:
        tasks = lower(graph, choose(plan, graph, taskflow.host(8))[0], SGD(0.1))
        return {t.processors for t in tasks if isinstance(t.work, kind) and t.topic.purpose in of_weights}

    for half in (AllGather, ReduceScatter):
        assert groups("t2 d4 mb1 zero3", half) == {(0, 2, 4, 6), (1, 3, 5, 7)}
        assert groups("t2 d4 mb1 hsdp2", half) == {(0, 2), (1, 3), (4, 6), (5, 7)}
        of_positions = {(0, 4), (1, 5), (2, 6), (3, 7)}  # a table that t and c cut; others are shared by c, too
        assert groups("t2 c2 d2 mb1 zero3", half) == {(0, 2, 4, 6), (1, 3, 5, 7)} | of_positions
    assert groups("t2 d4 mb1 zero3", AllReduce) >= {(0, 1), (2, 3), (4, 5), (6, 7)}
    said = {str(sync) for sync in choose("t2 d4 mb1 zero3", graph, taskflow.host(8))[0].syncs.values()}
    assert said == {"collective/zero3/replicas4"}


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_weights_are_gathered_so_many_layers_ahead(prefetch: int) -> None:
    """The all-gather of a layer waits for the layer that many and one before it, and so do no more layers live at once."""
    tasks = lowered(f"d4 zero3 prefetch={prefetch}", SGD(0.1))
    before = [set(task.after) for task in tasks]
    for task in tasks:  # all that a task waits for
        before[task.number].update(*(before[other] for other in task.after))
    forward = {
        t.work.node.name: t.number for t in tasks
        if isinstance(t.work, Compute) and t.kind is Kind.FORWARD and t.processor == 0 and t.work.node.name.startswith("fc")
    }
    gathers = [t for t in tasks if isinstance(t.work, AllGather)]
    assert len(gathers) == 2 * LAYERS and [t.topic.name for t in gathers[:LAYERS]] == list(forward)
    for i, gather in enumerate(gathers[:LAYERS]):
        awaited = [name for name, number in forward.items() if number in before[gather.number]]
        assert awaited == list(forward)[: max(0, i - prefetch)]


def test_a_gradient_is_freed_before_the_next_layers_is_complete() -> None:
    """No buffer of a whole gradient outlives its reduce-scatter and what takes the share out of it."""
    tasks = lowered("d4 zero2", SGD(0.1))
    for scatter in (t for t in tasks if isinstance(t.work, ReduceScatter)):
        for part in scatter.work.parts:  # type: ignore[union-attr]
            users = [t for t in tasks if part.buffer in {p.buffer for p in t.reads} and t.number > scatter.number]
            assert [t.kind for t in users] == [Kind.MOVE] and isinstance(users[0].work, Transfer)
            written = tasks.buffers[users[0].work.target.buffer]
            assert written.rect.volume == WIDTH * WIDTH // 4


def test_stages_that_share_weights_gather_for_themselves() -> None:
    """First and last stage of a decoder read one embedding; shares are then among the replicas of each."""
    graph = gpt(replace(GPT, batch=8), "float64")
    strategy = choose("p2 d2 mb1 zero3", graph, taskflow.host(4))[0]
    groups = {task.processors for task in lower(graph, strategy, SGD(0.1)) if isinstance(task.work, (AllGather, ReduceScatter))}
    assert groups == {(0, 1), (2, 3)}


# ---- plans are evaluated and explained -------------------------------------------------------------------------------
def test_the_python_evaluator_takes_over() -> None:
    """Where a plan, or a proposal, keeps gradients or weights as shares; the compiled one goes on afterwards."""
    graph, machine = perceptron(), taskflow.load_machine("p100", 4)
    evaluator = make_evaluator(graph, machine, rule=Adam())
    reference = PythonEvaluator(graph, machine, evaluator.costs, Adam(), None)
    plain = choose("d4 zero1 bucket=layer", graph, machine)[0]
    sharded = replace(plain, syncs=choose("d4 zero3", graph, machine)[0].syncs)
    seconds = [evaluator.set(plan) for plan in (plain, sharded, plain)]
    assert seconds == [reference.set(plan) for plan in (plain, sharded, plain)] and seconds[0] != seconds[1]
    assert evaluator.propose({}, syncs=sharded.syncs) == seconds[1]
    evaluator.accept()
    assert evaluator.strategy.syncs == sharded.syncs and evaluator.seconds == seconds[1]
    told = explain(evaluator)  # verifies that the path has no gap
    tasks = evaluator.lowered()
    assert sum(o.sync_bytes for o in told.operators) == sum(t.nbytes for t in tasks if t.kind is Kind.COLLECTIVE)
    changes = difference(evaluator, plain, sharded)
    assert [change.layer for change in changes] == [f"fc{i}" for i in range(LAYERS)]
    assert changes[-1].after == pytest.approx(seconds[1]) and changes[0].before == seconds[0]


def test_searches_start_from_shares_and_keep_pins_of_them() -> None:
    graph, machine = perceptron(), taskflow.load_machine("p100", 4)
    start = choose("d4 zero2", graph, machine)[0]
    assert taskflow.search(graph, machine, budget="1p", starts=[start]).starts.keys() >= {start.name}
    with pytest.raises(ValueError, match="is pipelined or sharded, and no algorithm starts from such a one by itself"):
        taskflow.search(graph, machine, budget="1p", starts=[start], alone=True)
    found = taskflow.search(graph, machine, budget="1p", constraints={"fc*": {"sync": "collective/zero3/hsdp2"}})
    assert {str(found.strategy.sync(layer)) for layer in ("fc0", "fc1")} == {"collective/zero3/hsdp2"}


def test_ways_are_written_and_read() -> None:
    for text in ("collective/zero2", "collective/zero3", "collective/zero2/hsdp4", "collective/zero3/hsdp2/replicas4/prefetch0"):
        assert str(parse_sync(text, "fc")) == text
    assert parse_sync("collective/fsdp", "fc") == parse_sync("collective/zero3", "fc") == parse_sync("collective/zero3/block", "fc")
    assert str(parse_sync("collective/zero3/prefetch1", "fc")) == "collective/zero3/prefetch1"
    for text, message in (
        ("ring/zero2", "zero 2 goes with algorithm 'collective', placement 'spread' and zero 2 or 3; got 'ring'"),
        ("collective/zero4", "fc: write ALGORITHM/PLACEMENT"), ("collective/zero3/hsdp2/hsdp4", "fc: write ALGORITHM/PLACEMENT"),
        ("collective/zero3/block/prefetch2", "fc: write ALGORITHM/PLACEMENT"),
        ("collective/spread/hsdp2", "shard_group 2 goes with .*zero 2 or 3; got 'collective', 'spread' and zero 1"),
        ("collective/zero3/hsdp1", "two holders or more"),
        ("collective/spread/replicas2", "replicas 2 goes with .*zero 2 or 3; got 'collective', 'spread' and zero 1"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_sync(text, "fc")


# ---- files ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("first", "second"), fast_among([
    ("d3 zero3", "t2 p2 mb2 schedule=gpipe recompute=full"), ("p2 mb1", "d3 fsdp mb1"), ("d3 zero2 mb1", "d2 zero3"),
    ("d6 hsdp2", "d3 zero1"), ("d3 zero3", "d6 hsdp3"),
], [("d3 zero3", "t2 p2 mb2 schedule=gpipe recompute=full"), ("p2 mb1", "d3 fsdp mb1"), ("d6 hsdp2", "d3 zero1")]))
def test_a_checkpoint_goes_on_under_another_plan(first: str, second: str, tmp_path: Path) -> None:
    def devices(plan: str) -> int:
        return int(np.prod([int(word[1:]) for word in plan.split() if word[0] in "tpd"]))

    graph, rule = decoder_of(), Adam(0.01)
    wanted = Executor(graph, undivided(graph), rule)
    losses = [wanted.train(tokens(step)) for step in range(6)]
    weights = wanted.weights()
    before = Executor(graph, choose(first, graph, taskflow.host(devices(first)))[0], rule)
    np.testing.assert_allclose([before.train(tokens(step)) for step in range(3)], losses[:3], rtol=1e-10)
    save_checkpoint(before, tmp_path / "half.safetensors")
    after = Executor(graph, choose(second, graph, taskflow.host(devices(second)))[0], rule)
    load_checkpoint(after, tmp_path / "half.safetensors")
    np.testing.assert_allclose([after.train(tokens(step)) for step in range(3, 6)], losses[3:], rtol=1e-10)
    found = after.weights()
    assert found is not None and weights is not None
    for name, value in weights.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-8, atol=1e-10, err_msg=name)


def test_another_executor_evaluates_with_weights_that_are_shares() -> None:
    graph = decoder_of()
    training = Executor(graph, choose("d3 zero3", graph, taskflow.host(3))[0], SGD(0.1), seed=3)
    whole = Executor(decoder_of(), undivided(graph), weights=training)
    by_shares = Executor(decoder_of(), choose("d2 zero3", graph, taskflow.host(2))[0], weights=training)
    for step in range(2):
        training.train(tokens(step))
        wanted = training.evaluate(tokens(9))
        assert whole.evaluate(tokens(9)) == pytest.approx(wanted, rel=1e-12)
        assert by_shares.evaluate(tokens(9)) == pytest.approx(wanted, rel=1e-12)
