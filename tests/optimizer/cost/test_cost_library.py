"""Costs where a training program drives the device: tiles, views, kernels that are started one by one, passes of pipelines."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from taskflow.machine import Cluster, load_machine
from taskflow.mapper import map_graph
from taskflow.mapper.hybrid import HybridParallel
from taskflow.models import build
from taskflow.operators.attention_blocks import AttentionBlocks
from taskflow.operators.flash_attention import FlashAttention
from taskflow.operators.linear import Linear
from taskflow.operators.operator import REGISTRY, Spec, Work, iteration_space
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.cost import AnalyticCosts, ModelCosts
from taskflow.optimizer.cost.library import FILLING, LEAST_SPLIT, tiled
from taskflow.regions import Rect
from taskflow.rules import Adam
from taskflow.tasks import Compute

PEAK, SMS = 312e12, 108
F16 = np.dtype("float16")


def driven(machine: Cluster, host: float, message: float = 0.0) -> Cluster:
    (kind,) = machine.kinds
    return replace(machine, kinds=(replace(kind, program=replace(kind.program, host_seconds=host, message_seconds=message)),))


def test_products_run_in_whole_tiles_and_waves() -> None:
    one = 2 * 256 * 128 * (4096 + FILLING) / (PEAK / SMS)
    assert tiled(256 * 12, 128 * 9, 4096, 1, SMS, PEAK) == pytest.approx(one)  # 108 of the largest tiles
    assert tiled(256 * 12, 128 * 9 + 1, 4096, 1, SMS, PEAK) > 1.2 * one  # a few results more
    assert tiled(256 * 12, 128 * 9, 4096, 10, SMS, PEAK) == pytest.approx(10 * one)
    large = tiled(16384, 16384, 16384, 1, SMS, PEAK)
    assert large == pytest.approx(2 * 16384**3 / PEAK, rel=0.05)
    for axis in range(3):
        sizes = [[640, 640, 640] for _ in range(40)]
        for i, size in enumerate(sizes):
            size[axis] += 97 * i
        seconds = [tiled(*size, 1, SMS, PEAK) for size in sizes]
        assert seconds == sorted(seconds)


def test_long_contractions_are_cut_where_there_are_few_tiles() -> None:
    whole = 2 * 64 * 64 * (65536 + FILLING) / (PEAK / SMS * 0.7)
    assert tiled(64, 64, 65536, 1, SMS, PEAK) < whole / 50
    assert tiled(64, 64, LEAST_SPLIT, 1, SMS, PEAK) == pytest.approx(2 * 64 * 64 * (LEAST_SPLIT + FILLING) / (PEAK / SMS * 0.7))
    assert ceil(65536 / LEAST_SPLIT) > SMS  # the multiprocessors are the limit above


@pytest.mark.parametrize("network", ["Llama-8B", "GPT-3-1.7B", "Mixtral-8x7B", "MoE-600B"])
def test_large_products_come_near_the_peak(network: str) -> None:
    """Forward and backward, whole layers of published sizes, but for products of one word with its own few numbers. What is
    touched counts where it takes longer than the arithmetic."""
    graph, machine = build(network, batch=64, layers=2, dtype="bfloat16"), load_machine("h100", 1)
    costs, device, looked = AnalyticCosts(machine), machine.processors[0].device, set()
    for node in graph:
        if node.operator.work is not Work.CONTRACTION or node.operator.kind == "einsum":
            continue
        space, wanted = iteration_space(node.operator, node.specs), tuple(spec.differentiable for spec in node.specs)
        touched = sum(x.spec.nbytes for x in (*node.inputs, *node.outputs)) + sum(p.spec.nbytes for p in node.parameters)
        for backward in (False, True):
            flops = (node.operator.backward_flops if backward else node.operator.flops)(node.specs, space)
            spent = costs.spent(node.operator, node.specs, space, backward, wanted, 0, device)
            assert spent is not None
            least = max(flops / device.product_rate(node.specs[0].dtype), (1 + backward) * touched / device.memory_bytes_per_second)
            low = 0.3 if node.operator.kind == "flash_attention" else 0.4  # as published: backward, and of words that see few
            assert low < least / spent.device < 1, f"{node.name}: {least / spent.device:.3f} of the peak, backward: {backward}"
        looked.add(node.operator.kind)
    assert len(looked) > 1


def test_choosing_experts_takes_as_long_as_places_for_as_many_words() -> None:
    """Eight experts, of which each word takes two: without a capacity, and with places for exactly so many."""
    machine = load_machine("h100", 1)
    costs, device, half = AnalyticCosts(machine), machine.processors[0].device, np.dtype("float16")
    chosen, placed = REGISTRY["routed_linear"](8, 14_336), REGISTRY["expert_linear"](14_336)
    some = Spec((4, 4096, 4096), half), Spec((4, 4096, 2), np.dtype(np.int64))
    all_of = (Spec((4, 8, 1024, 4096), half),)
    for backward in (False, True):
        one, other = (
            costs.spent(op, specs, iteration_space(op, specs), backward, tuple(s.differentiable for s in specs), 0, device)
            for op, specs in ((chosen, some), (placed, all_of))
        )
        assert one is not None and other is not None
        assert one.device == pytest.approx(other.device, rel=0.1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("blocks", [None, 4])
def test_attention_in_tiles_reaches_what_is_published(causal: bool, blocks: int | None) -> None:
    """FlashAttention-2 on an A100, heads of 128, 16,384 words: 227 TFLOP/s forward, 196 backward (arXiv 2307.08691)."""
    machine = load_machine("a100:bf16", 1)
    costs, device = AnalyticCosts(machine), machine.processors[0].device
    shape = (1, 16384, 16, 128)
    specs = (Spec(shape, F16),) * 3
    operator = FlashAttention(0.1, causal) if blocks is None else AttentionBlocks(0.1, causal, blocks=blocks)
    piece = Rect.of(shape[:3] if blocks is None else (*shape[:3], blocks))
    forward = operator.flops(specs, piece) / costs.compute_seconds(operator, specs, piece, False, device=device)
    wanted = (True, True, True)
    backward = operator.backward_flops(specs, piece)
    backward /= costs.compute_seconds(operator, specs, piece, True, device=device, gradients=wanted)
    assert forward == pytest.approx(227e12, rel=0.1) and backward == pytest.approx(196e12, rel=0.1)


def test_attention_of_a_share_of_the_queries_takes_its_share() -> None:
    """However queries, heads or keys are cut: the products are long enough to fill the device."""
    machine = load_machine("h100:bf16", 1)
    costs, device = AnalyticCosts(machine), machine.processors[0].device
    specs = (Spec((1, 16384, 32, 128), F16),) * 3
    for operator, cuts in (
        (FlashAttention(0.1, False), [(0, 4096, 0, 32), (8192, 12288, 0, 32), (0, 16384, 0, 8)]),
        (FlashAttention(0.1, False, tile=256), [(0, 4096, 0, 32)]),
    ):
        whole = costs.compute_seconds(operator, specs, Rect.of((1, 16384, 32)), False, device=device)
        for low, high, first, last in cuts:
            part = costs.compute_seconds(operator, specs, Rect((0, low, first), (1, high, last)), False, device=device)
            assert part == pytest.approx(whole / 4, rel=0.05)


def test_small_kernels_take_what_starting_them_takes() -> None:
    graph = build("GPT-2", preset="small", dtype="float16")
    node = graph.node("h.0.mlp.c_fc")
    for host in (0.0, 20e-6, 40e-6):
        costs = AnalyticCosts(driven(load_machine("a100", 1), host))
        device = costs.machine.processors[0].device
        gap = device.launch_seconds
        ahead = costs.compute_seconds(node.operator, node.specs, node.space, False)
        back = costs.compute_seconds(node.operator, node.specs, node.space, True)
        if host:
            assert ahead == pytest.approx(host, rel=0.1)
            assert back == pytest.approx(3 * host, rel=0.1)  # both factors' gradients, and the bias's
            continue
        rates, program = device.products_of(F16), device.program
        assert rates is not None and program is not None
        least = rates.start_seconds / program.products  # of a product alone, in a step
        assert least < ahead < gap and 2 * least + gap < back < 3 * gap


BEST = {  # TFLOP/s of the best of a search over bfloat16 products (stas00, ml-engineering, compute/accelerator)
    "a100": 271, "h100": 794, "h200": 794, "gh200": 829, "b200": 1745, "b300": 1769, "gb200": 1822, "mi300x": 668, "mi325x": 785,
    "mi355x": 1565, "l40s": 265,
}


@pytest.mark.parametrize("name", BEST)
def test_no_product_is_faster_than_the_best_that_was_measured(name: str) -> None:
    """In a step products reach part of that; alone the largest reach it."""
    operator, specs, flops = Linear(8192, False), (Spec((8192, 8192), F16),), 2 * 8192**3
    piece = iteration_space(operator, specs)
    machine = load_machine(name, 1)
    assert machine.kinds[0].program is not None
    alone = replace(machine, kinds=tuple(replace(kind, program=None) for kind in machine.kinds))
    rates = [flops / AnalyticCosts(of).compute_seconds(operator, specs, piece, False) / 1e12 for of in (machine, alone)]
    assert rates[0] < BEST[name] and 0.8 * BEST[name] < rates[1] < 1.1 * BEST[name]


def test_views_are_free_and_gradients_are_passed_on() -> None:
    graph = build("GPT-2", preset="small", dtype="float16")
    costs = AnalyticCosts(load_machine("a100", 1))
    for name, backward in (("attn.q_heads", False), ("attn.q_first", True), ("attn.scale", False), ("mlp.add", True)):
        node = graph.node(f"h.0.{name}")
        assert costs.compute_seconds(node.operator, node.specs, node.space, backward) == 0.0
    kept = AnalyticCosts(load_machine("p100", 1))
    node = graph.node("h.0.attn.q_heads")
    assert kept.compute_seconds(node.operator, node.specs, node.space, False) > 0


def test_a_softmax_that_the_fused_kernel_does_not_take_has_more_kernels() -> None:
    costs = AnalyticCosts(load_machine("a100", 1))
    operator = REGISTRY["softmax"](3, True)

    def seconds(heads: int) -> float:
        specs = (Spec((1, heads, 64, 64), F16),)
        return costs.compute_seconds(operator, specs, iteration_space(operator, specs), False)

    assert seconds(2) == pytest.approx(5 * seconds(4)) and seconds(8) == pytest.approx(seconds(4))


def stepped(machine: Cluster, plan: str, batch: int = 8) -> tuple[float, float]:
    """Seconds of a step of a small decoder, and how long its busiest processor computes."""
    graph = build("GPT-2", batch=batch, steps=64, vocabulary=256, hidden=256, heads=4, layers=4, dtype="float16")
    evaluator = make_evaluator(graph, machine, rule=Adam())
    seconds = evaluator.set(map_graph(HybridParallel(plan), graph, machine))
    return seconds, max(evaluator.usage().processor_seconds)


def test_a_pass_takes_what_host_or_device_need_together() -> None:
    """The passes of a pipeline are limited by all their launches, not by each task's."""
    graph = build("GPT-2", batch=4, steps=2048, vocabulary=1024, hidden=2048, heads=8, layers=2, dtype="float16")
    machine = load_machine("a100", 1)
    strategy = map_graph(HybridParallel("mb1 recompute=full"), graph, machine)
    costs = ModelCosts(AnalyticCosts(machine), graph, machine, Adam())
    evaluator = make_evaluator(graph, machine, costs=costs, rule=Adam())
    evaluator.set(strategy)
    tasks = evaluator.lowered(strategy)
    paced = costs.pace(tasks, strategy)
    work = [task for task in tasks if isinstance(task.work, Compute)]
    both = [costs.spent(task) for task in work]
    device, host = sum(s.device for s in both), sum(s.host for s in both)
    together, alone = sum(map(paced, work)), sum(map(costs.task, work))
    assert max(device, host) * (1 - 1e-9) <= together < alone < device + host
    others = [task for task in tasks if not isinstance(task.work, Compute)]
    assert others and [paced(task) for task in others] == [costs.task(task) for task in others]


def test_recorded_steps_are_not_limited_by_the_host() -> None:
    machine = load_machine("a100", 2)
    slow, fast, none = (stepped(driven(machine, host), "p2 mb1") for host in (80e-6, 40e-6, 0.0))
    assert slow[0] > 1.7 * fast[0] and fast[0] > 2 * none[0]
    silent = replace(machine, kinds=tuple(replace(kind, program=None) for kind in machine.kinds))
    assert stepped(silent, "p2 mb1")[0] > 0


def test_a_program_waits_for_a_message_by_its_bytes() -> None:
    (kind,) = load_machine("a100", 1).kinds
    assert kind.program is not None
    slow = replace(kind.program, message_seconds=1e-3, message_bytes_per_second=1e9)
    assert slow.waits(2e6) == pytest.approx(3e-3)
    assert replace(slow, message_bytes_per_second=float("inf")).waits(2e6) == 1e-3


def test_stages_wait_for_messages_once_a_pass_and_direction() -> None:
    """Of 8 micro-batches on 2 stages each stage has 16 passes, each with one message."""
    machine = load_machine("a100", 2)
    without, waiting = (stepped(driven(machine, 0.0, message), "p2 mb1")[1] for message in (0.0, 1e-3))
    assert waiting - without == pytest.approx(16e-3, rel=0.01)
    assert stepped(driven(load_machine("a100", 1), 0.0, 1e-3), "mb1")[0] == stepped(driven(load_machine("a100", 1), 0.0), "mb1")[0]
