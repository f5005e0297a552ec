"""Programs: what drives a machine's devices, and what that does to costs, passes, prices and memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from taskflow.machine import Cluster, load_machine, unparse
from taskflow.machine.machine_file import parse
from taskflow.mapper import map_graph, parse_plan
from taskflow.mapper.hybrid import HybridParallel
from taskflow.models import build
from taskflow.models.llama import LlamaConfig, llama
from taskflow.operators.linear import Linear
from taskflow.operators.operator import REGISTRY, Spec, iteration_space
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.cost import AnalyticCosts
from taskflow.optimizer.cost.products import product_seconds
from taskflow.optimizer.grid import GraphTables, PlanGrid, PlanPrices, PlanSums, bytes_in_program, memory_of_plan
from taskflow.programs import Passes, TrainingProgram, load_program, program_names
from taskflow.rules import Adam
from taskflow.tasks import Compute

BF16 = np.dtype("bfloat16") if "bfloat16" in np.sctypeDict else np.dtype("float16")


def driven(machine: Cluster, **changes: object) -> Cluster:
    (kind,) = machine.kinds
    assert kind.program is not None
    return replace(machine, kinds=(replace(kind, program=replace(kind.program, **changes)),))  # type: ignore[arg-type]


def test_every_preset_reads_and_drives_every_gpu() -> None:
    machine = load_machine("h100", 8)
    assert {"megatron", "torchtitan", "torchtitan-compiled", "fsdp", "nanotron", "deepspeed", "taskflow"} <= set(program_names())
    for name in program_names():
        program = load_program(name)
        assert program.source, name
        (kind,) = machine.driven_by(program).kinds
        assert kind.program is not None and kind.program.name == name and not kind.program.gpus


def test_a_gpu_may_have_figures_of_its_own() -> None:
    program = TrainingProgram(3e-5, name="mine", gpus=(("a100", (("host_seconds", 5e-5), ("memory", 0.5))),))
    assert program.on("h100").host_seconds == 3e-5 and program.on("a100").host_seconds == 5e-5
    assert program.on("a100").memory == 0.5 and not program.on("a100").gpus
    assert program.on("a100-40gb").host_seconds == 5e-5 and program.on("gb200").host_seconds == 3e-5
    of_both = replace(program, gpus=(*program.gpus, ("a100-40gb", (("host_seconds", 6e-5),))))
    assert of_both.on("a100-40gb").host_seconds == 6e-5
    (one,), (other,) = load_machine("p4d", 1).kinds, load_machine("a100", 1).kinds
    assert one.program == other.program


def test_a_machine_file_says_its_program_by_name_or_by_figures() -> None:
    content = unparse(load_machine("a100"))
    assert content["devices"][0]["program"] == "megatron"
    old = {"host_seconds": 4e-5, "message_seconds": 3e-5, "source": "of before"}
    content["devices"][0] |= {"program": old, "efficiency": {"memory": 0.7}}
    machine = parse(content, "old.json")
    (kind,) = machine.kinds
    assert kind.program is not None and kind.program.host_seconds == 4e-5
    assert kind.memory_rate == pytest.approx(0.7 * kind.memory_bytes_per_second)
    assert parse(unparse(machine), "again.json") == machine
    content["devices"][0]["program"] = "nothing"
    with pytest.raises(ValueError, match=r"wrong\.json: no program 'nothing'"):
        parse(content, "wrong.json")


@pytest.mark.parametrize("name", ["a100", "h100"])
def test_products_take_longer_with_every_size_and_never_beat_the_peak(name: str) -> None:
    device = load_machine(name, 1).kinds[0]
    rates = device.products_of("bfloat16")
    assert rates is not None and device.products_of("float16") is rates
    peak = device.rate("bfloat16")
    for axis in range(3):
        sizes = [[512, 512, 512] for _ in range(60)]
        for i, size in enumerate(sizes):
            size[axis] += 128 * i
        took = [product_seconds(device, rates, peak, 2, *size, 1) for size in sizes]
        assert all(b > 0.9 * a for a, b in zip(took, took[1:])) and took[-1] > took[0]
    large = product_seconds(device, rates, peak, 2, 8192, 8192, 8192, 1)
    assert 0.6 < 2 * 8192**3 / large / peak < 1


def test_a_power_limit_slows_products_alone() -> None:
    machine = load_machine("h100", 1)
    limited = replace(machine, kinds=(replace(machine.kinds[0], power=0.5),))
    product, passes = Linear(8192), REGISTRY["relu"]()  # type: ignore[call-arg]
    specs = (Spec((8192, 8192), np.dtype("float16")),)
    for operator, factor in ((product, 2.0), (passes, 1.0)):
        slow, fast = (
            AnalyticCosts(m).compute_seconds(operator, specs, iteration_space(operator, specs), False) for m in (limited, machine)
        )
        assert slow == pytest.approx(factor * fast, rel=0.02)


def test_groups_of_passes_take_as_many_bytes_and_kernels_as_the_program_says() -> None:
    machine = load_machine("h100", 1)
    many = driven(machine, passes=(("activation", Passes(3.0, 4.0)),))
    operator, specs = REGISTRY["relu"](), (Spec((1 << 14, 1 << 12), np.dtype("float16")),)  # type: ignore[call-arg]
    space = iteration_space(operator, specs)
    once, thrice = (AnalyticCosts(m).spent(operator, specs, space, False, (), 0, m.kinds[0]) for m in (machine, many))
    assert once is not None and thrice is not None
    assert thrice.device == pytest.approx(3 * once.device, rel=0.05) and thrice.host == pytest.approx(4 * once.host)


# ---- passes ----------------------------------------------------------------------------------------------------------
GRAPH = build("GPT-2", batch=32, steps=256, hidden=512, heads=8, layers=4, vocabulary=2048, dtype="float16")


def both(machine: Cluster, plan: str) -> tuple[float, float]:
    """Seconds of a step, simulated and by its price."""
    used = machine.prefix(len(machine.processors))
    seconds = make_evaluator(GRAPH, used, rule=Adam()).set(map_graph(HybridParallel(plan), GRAPH, used))
    prices, asked = PlanPrices(PlanSums(GraphTables(GRAPH, machine), Adam())), parse_plan(plan)
    return seconds, prices(asked, 32 // ((asked.data or 1) * (asked.micro_batch or 1)))


@pytest.mark.parametrize("plan", ["d8 mb2 zero3", "d8 mb4 zero3", "d8 mb2 zero2"])
def test_what_a_program_does_not_hide_is_added_to_its_passes(plan: str) -> None:
    """With micro-batches and without: about the time that gathers and sums take, in the simulation and in the price alike."""
    machine = driven(load_machine("h100", 8), host_seconds=0.0)
    hidden, shown = (both(driven(machine, exposed=exposed), plan) for exposed in (0.0, 1.0))
    grown = [b - a for a, b in zip(hidden, shown)]
    assert min(grown) > 0.05 * hidden[0]
    assert shown[0] == pytest.approx(shown[1], rel=0.1) and hidden[0] == pytest.approx(hidden[1], rel=0.1)
    assert grown[0] == pytest.approx(grown[1], rel=0.35)


def test_starting_collectives_holds_pipelines_over_nodes_up() -> None:
    for devices, plan, grows in ((16, "t4 p2 d2 mb4", True), (8, "t4 p2 d1 mb4", False), (16, "t4 p1 d4 mb4", False)):
        machine = load_machine("h100", devices)
        quick, slow = (both(driven(machine, collective_seconds=seconds), plan) for seconds in (0.0, 5e-4))
        if grows:
            assert slow[0] > 1.5 * quick[0] and slow[1] > 1.5 * quick[1]
            assert slow[0] == pytest.approx(slow[1], rel=0.1)
        else:
            assert slow == quick


@pytest.mark.parametrize("plan", ["t4 nosp d2 mb4", "t8 nosp d1 mb8 recompute=whole", "t2 nosp p2 d2 mb2"])
def test_prices_of_plans_without_sequence_parallelism_are_near_simulated_steps(plan: str) -> None:
    seconds, price = both(load_machine("h100", 8), plan)
    assert price == pytest.approx(seconds, rel=0.06)


def test_prices_know_sums_that_hide_behind_nothing() -> None:
    machine = driven(load_machine("a100", 64), host_seconds=0.0)
    prices = PlanPrices(PlanSums(GraphTables(GRAPH, machine), Adam()))
    beside, after = (prices(parse_plan(f"d32 mb1{word}"), 1) for word in ("", " overlap=none"))
    assert after > beside


def test_what_a_program_keeps_and_reserves_counts_in_its_memory_alone() -> None:
    machine, plan = driven(load_machine("h100", 8), reserved_bytes=0), parse_plan("t2 d4 mb4")
    sums = PlanSums(GraphTables(GRAPH, machine), Adam())
    plain = memory_of_plan(sums, plan, 2).nbytes
    assert bytes_in_program(sums, plan, 2) == plain
    more = driven(machine, passes=(("norm", Passes(kept=6.0)), ("loss", Passes(kept=8.0))), reserved_bytes=10**9, gradient_bytes=2)
    kept = PlanSums(GraphTables(GRAPH, more), Adam())
    assert memory_of_plan(kept, plan, 2).nbytes == plain
    norms, scores = 6 * 9 * (4 * 256 * 512 // 2), 8 * 4 * 256 * 2048 // 2
    narrower = sums.weights(plan).gradients.sum() / 2
    assert bytes_in_program(kept, plan, 2) == pytest.approx(plain + 10**9 + norms + scores - narrower, rel=0.001)
    whole = PlanSums(GraphTables(GRAPH, driven(more, whole_scores=True)), Adam())
    assert bytes_in_program(whole, plan, 2) - bytes_in_program(kept, plan, 2) == scores


@pytest.mark.parametrize("text", ["c4 d2 mb2", "c2 t2 d2 mb2"])
def test_a_program_may_balance_causal_attention_along_the_sequence(text: str) -> None:
    """Devices then take the mean of what contiguous parts take: all as long, in the same sum; by price and in the step."""
    sizes = LlamaConfig(batch=4, layers=2, steps=32_768, hidden=2048, inner=4096, vocabulary=4096, heads=16, key_heads=16)
    graph, machine = llama(sizes, "bfloat16"), load_machine("h100", 8)
    (kind,) = machine.kinds
    assert kind.program is not None and kind.program.balances_context and not load_program("fsdp").balances_context
    apart = replace(machine, kinds=(replace(kind, program=replace(kind.program, balances_context=False)),))
    found = []
    for of in (machine, apart):
        strategy = map_graph(HybridParallel(text), graph, of)
        evaluator = make_evaluator(graph, of, rule=Adam())
        seconds = evaluator.set(strategy)
        tasks, timeline = evaluator.current()
        busy = [0.0] * 8
        for task in tasks:
            if isinstance(task.work, Compute) and "attention" in task.topic.name:
                busy[task.processor] += timeline.spans[task.number].end - timeline.spans[task.number].start
        assert strategy.plan is not None
        price = PlanGrid(graph, of, Adam()).prices(strategy.plan, 4 // strategy.plan.samples_a_pass)
        assert price == pytest.approx(seconds, rel=0.1)
        found.append((seconds, busy))
    (balanced, alike), (contiguous, unlike) = found
    assert balanced < 0.9 * contiguous
    assert max(alike) == pytest.approx(min(alike), rel=1e-4) and max(unlike) > 1.3 * min(unlike)
    assert sum(alike) == pytest.approx(sum(unlike), rel=0.01)
