"""No plan is faster than its work: with or without an order, on equal and unequal devices."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import pytest
from random_networks import network

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, load_machine
from taskflow.mapper import DataParallel, HybridParallel, HybridPlan, PipelineSchedule, Strategy, map_graph
from taskflow.models import build
from taskflow.models.gpt import GPTConfig, gpt
from taskflow.models.llama import LlamaConfig, llama
from taskflow.optimizer import make_evaluator, search
from taskflow.optimizer.bounds import lower_bound, work_bound
from taskflow.optimizer.grid import MixedGrid, PlanAxes
from taskflow.optimizer.space import SearchSpace, SpaceOptions, Weigher, unequal
from taskflow.rules import Adam

ROUNDED = 1 + 1e-9  # times are counted in multiples of 2**-40 seconds
SCHEDULES = (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZERO_BUBBLE)


def unlike(scale: float = 1.0, program: bool = True) -> Cluster:
    """4 A100 and 4 V100, of a part of their rates; without a program they start kernels in no time, and small ones fill them."""
    machine = load_machine("a100-v100")
    return replace(machine, kinds=tuple(
        replace(
            kind, program=kind.program if program else None, launch_seconds=kind.launch_seconds if program else 0.0,
            multiprocessors=kind.multiprocessors if program else 1, memory_bytes_per_second=kind.memory_bytes_per_second / scale,
            flops_per_second=tuple((name, rate / scale) for name, rate in kind.flops_per_second),
        ) for kind in machine.kinds
    ))


MACHINES = {
    "h100": load_machine("h100", 4), "p100": load_machine("p100", 4), "unlike": unlike(), "slow": unlike(1000.0),
    "arithmetic": unlike(1e5, False),
}


def decoder(name: str) -> OperatorGraph:
    sizes: dict[str, int] = {"batch": 8, "layers": 4, "steps": 64, "hidden": 64, "vocabulary": 128}
    if name == "llama":
        return llama(replace(LlamaConfig.small(), **sizes), "float16")
    return gpt(replace(GPTConfig.small(), **sizes), "float16")


def plans(graph: OperatorGraph, machine: Cluster, random: Random, count: int) -> list[HybridPlan]:
    """Of the grid, with schedules, recomputation and sharding of single layers that it has not."""
    if unequal(machine):
        every = [one.plan for one in MixedGrid(graph, machine, Adam()).plans()[0]]
    else:
        every = [plan for plan, _ in PlanAxes(graph, machine).plans()]
    found = []
    for plan in random.sample(every, min(count, len(every))):
        if plan.pipeline > 1 and plan.virtual == 1:
            plan = replace(plan, schedule=random.choice(SCHEDULES))
        if random.random() < 0.3:
            plan = replace(plan, recompute_layers=tuple(random.choice(("none", "selective", "full")) for _ in range(4)))
        if random.random() < 0.3 and (plan.data or 1) > 1:
            plan = replace(plan, zero_layers=tuple(random.randint(0, 3) for _ in range(4)))
        found.append(plan)
    return [every[0], *found]  # of unequal devices the one with the best price first


@pytest.mark.parametrize(("name", "where", "count"), [
    ("gpt", "h100", 4), pytest.param("gpt", "unlike", 1, marks=pytest.mark.slow), ("gpt", "arithmetic", 1),
    pytest.param("llama", "slow", 1, marks=pytest.mark.slow),
    *(pytest.param(name, where, 250, marks=pytest.mark.slow) for name in ("gpt", "llama") for where in MACHINES),
])
def test_no_plan_with_an_order_is_faster(name: str, where: str, count: int) -> None:
    graph, machine, random = decoder(name), MACHINES[where], Random(f"{name} {where} {count}")
    evaluator = make_evaluator(graph, machine, rule=Adam())
    bound = work_bound(evaluator)
    assert bound > 0
    nearest = inf
    for plan in plans(graph, machine, random, count):
        try:
            seconds = evaluator.set(map_graph(HybridParallel(plan), graph, machine))
        except ValueError:  # the network cannot be cut so
            continue
        assert bound <= seconds * ROUNDED, f"{plan}: {bound} > {seconds}"
        nearest = min(nearest, seconds / bound)
    assert where != "arithmetic" or nearest < 5  # the test would see a bound that is some times too high


@pytest.mark.parametrize("seed", [*range(13), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(13, 400))])
def test_no_plan_without_an_order_is_faster(seed: int) -> None:
    random = Random(f"work {seed}")
    graph, _, rule, clip_norm = network(seed)
    machine = MACHINES[random.choice(("p100", "unlike", "slow", "arithmetic"))]
    evaluator = make_evaluator(graph, machine, rule=random.choice((rule, None)), clip_norm=clip_norm)
    bound, space = work_bound(evaluator), SearchSpace(graph, len(machine.processors), SpaceOptions(placements="arbitrary"))
    for _ in range(10):
        strategy = Strategy(len(machine.processors), {node.name: space[node].draw(random) for node in graph})
        if random.random() < 0.5:
            strategy = Weigher(graph, [random.randint(0, 4) + (p == 0) for p in range(len(machine.processors))]).strategy(strategy)
        assert bound <= evaluator.set(strategy) * ROUNDED


def one_of_each() -> Cluster:
    machine = unlike(10.0, False)
    node = machine.nodes[0]
    nodes = tuple(
        replace(node, name=of.name, processors=(replace(node.processors[0], device=of.processors[0].device, count=1),))
        for of in machine.nodes
    )
    return replace(machine, nodes=nodes)


@pytest.mark.parametrize("machine", [load_machine("p100", 2), one_of_each()])
def test_nothing_that_is_proved_is_faster(machine: Cluster) -> None:
    graph = build("MLP", batch=8, preset="small")
    evaluator = make_evaluator(graph, machine)
    found = search(graph, machine, algorithm="exact", budget="30s", use=evaluator)
    assert 0 < work_bound(evaluator) <= found.seconds


def test_devices_count_as_they_are() -> None:
    """On one device nothing is left out of a network that fills it. Of unequal ones, the sum of their speeds counts."""
    graph = build("AlexNet", batch=512, dtype="float16")
    both = unlike(1.0, False)

    def alone(name: str) -> float:
        return work_bound(make_evaluator(graph, replace(both, layout=((name, 1),), devices=1)))

    one = replace(both, layout=(("a100-4", 1),), devices=1)
    evaluator = make_evaluator(graph, one)
    assert work_bound(evaluator) > 0.75 * evaluator.set(map_graph(DataParallel(), graph, one))
    quick, slow = alone("a100-4"), alone("v100-4")
    assert slow > 1.5 * quick
    mixed = make_evaluator(graph, both)
    assert work_bound(mixed) == pytest.approx(1 / (4 / quick + 4 / slow), rel=0.06)  # of some operators the memory counts
    assert work_bound(mixed) > 1.25 * quick / 8  # what counting all as fast ones gives
    found = search(graph, both, budget="20p")
    assert max(work_bound(mixed), lower_bound(mixed, uneven=True)) <= found.lower_bound * ROUNDED <= found.seconds * ROUNDED


def test_what_the_search_says_holds_for_plans_with_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskflow.optimizer.grid.plans.MEMORY_SHARE", 0.0)
    graph, machine = decoder("llama"), load_machine("h100", 2)
    found = search(graph, machine, rule=Adam(), budget="30p")
    evaluator = make_evaluator(graph, machine, rule=Adam())
    assert found.lower_bound == work_bound(evaluator) > 0 and found.gap is not None
    ordered = evaluator.set(map_graph(HybridParallel(HybridPlan(pipeline=2, data=1, micro_batch=2)), graph, machine))
    assert found.lower_bound <= ordered
