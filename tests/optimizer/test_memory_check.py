"""What a device needs: the check of memory says what the runtime plans, for steps that are lowered whole, folded or estimated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import Any

import pytest
from drawn_plans import drawn
from fast_and_slow import fast_among
from language_model import random_strategy

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, host, load_machine
from taskflow.mapper import HybridParallel, Strategy, choose, map_graph
from taskflow.models import build
from taskflow.optimizer import MemoryCheck, make_evaluator
from taskflow.optimizer.evaluate import Evaluator, ordered
from taskflow.optimizer.explain.machine_changes import Change, changed
from taskflow.optimizer.memory import kept_bytes
from taskflow.optimizer.memory_estimate import MemoryEstimate
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.session import SearchSession
from taskflow.rules import SGD, Adam, UpdateRule
from taskflow.runtime.program import schedule
from taskflow.tasks import Placement, TaskGraph

DECODERS = ("GPT-2", "Llama", "Mixtral", "MoE")
OTHERS = ("NMT", "RNNLM", "Transformer", "AlexNet", "ResNet-101", "LeNet", "MLP", "Inception-v3")
MACHINES = ("h100", "a100", "p100", "k80")
RULES: tuple[UpdateRule, ...] = (Adam(), SGD(0.1, momentum=0.9), SGD(0.1))


@dataclass(frozen=True, slots=True)
class Case:
    """A network, a plan for it and a machine; the plan's devices do the same (``folds``) or not."""

    graph: OperatorGraph
    strategy: Strategy
    evaluator: Evaluator
    said: str


def decoder(random: Random) -> Case:
    """A decoder under a plan in the notation, of all words mixed."""
    name, dtype, batch = random.choice(DECODERS), random.choice(("float32", "bfloat16")), random.choice((8, 16))
    sizes: dict[str, Any] = {"layers": random.choice((4, 6, 8))}
    if name != "MoE":
        sizes |= random.choice(({}, {"steps": 64}, {"hidden": 256}, {"steps": 128, "hidden": 128}))
    graph = build(name, batch, preset="small", dtype=dtype, **sizes)
    while True:
        text, devices = drawn(name, random)
        try:
            strategy = map_graph(HybridParallel(text), graph, host(devices))
            strategy.verify(graph)
        except ValueError:
            continue
        return case(graph, strategy, random.choice(("h100", "a100")), random.choice(RULES), f"{name} {dtype} {sizes} {text}")


def other(random: Random) -> Case:
    """Any network under a rule's plan, or with random cuts on random processors."""
    name, devices, dtype = random.choice(OTHERS), random.choice((2, 4)), random.choice(("float32", "bfloat16"))
    graph = build(name, random.choice((8, 16)), preset="small", dtype=dtype)
    rule = random.choice(("data", "expert", "megatron", "random", "random"))
    machine = random.choice(MACHINES)
    made = random_strategy(graph, devices, random) if rule == "random" else choose(rule, graph, load_machine(machine, devices))[0]
    return case(graph, made, machine, random.choice(RULES), f"{name} {dtype} {rule}")


def case(graph: OperatorGraph, strategy: Strategy, machine: str, rule: UpdateRule, said: str) -> Case:
    on = load_machine(machine, strategy.processors)
    return Case(graph, strategy, make_evaluator(graph, on, rule=rule), f"{said} on {strategy.processors} {machine}, {rule}")


def cases(count: int, most: int) -> Iterator[Case]:
    """Random cases of at most so many pieces."""
    seed = 0
    while count:
        random = Random(seed)
        one = (decoder if seed % 3 else other)(random)
        if sum(len(config.processors) for config in one.strategy.configs.values()) <= most:
            count -= 1
            yield one
        seed += 1


def planned(tasks: TaskGraph, order: Sequence[int], kept: Sequence[int], rank: int) -> int:
    """Bytes of one rank of the runtime: what is kept, and the arena of its schedule."""
    return kept[rank] + schedule(tasks, order, Placement(tasks.processors, tasks.processors), rank).memory.nbytes


def of_runtime(one: Case) -> list[int]:
    tasks, timeline = one.evaluator.evaluated(one.strategy)
    order = timeline.begun(tasks)
    kept = [sum(of) for of in zip(*kept_bytes(tasks))]
    return [planned(tasks, order, kept, rank) for rank in range(tasks.processors)]


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("count", "most"), fast_among([(30, 200), (300, 4000)], [(30, 200)]))
def test_the_check_says_what_the_runtime_plans(count: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 10 %, and at most 2 % below it; whether the step is folded or not, as far as it can be."""
    folded = 0
    for one in cases(count, most):
        one.evaluator.set(one.strategy)
        needed = of_runtime(one)
        said, exactly = MemoryCheck(one.evaluator).peaks(one.strategy)
        assert exactly
        near(said, needed, one.said)
        with monkeypatch.context() as patched:
            patched.setattr(ordered, "MOST_WHOLE", 0)
            if one.evaluator.folded(one.strategy) is None:
                continue
            folded += 1
            near(MemoryCheck(one.evaluator).peaks(one.strategy)[0], needed, f"{one.said}, folded")
    assert folded >= count / 3  # of the networks that are no decoders, a third, none is


def near(said: Sequence[int], needed: Sequence[int], what: str) -> None:
    for processor, (a, b) in enumerate(zip(said, needed)):
        assert 0.98 * b <= a <= 1.1 * b, f"{what}: processor {processor} is said to need {a:,}, the runtime plans {b:,}"


@pytest.mark.parametrize("plan", fast_among(
    ["data", "d8 zero1", "d8 zero3", "t2 d4", "d8 zero1 recompute=full"], ["data", "d8 zero3", "d8 zero1 recompute=full"],
))
def test_more_samples_never_need_less(plan: str) -> None:
    """A step of few tasks, one of many and one that is folded are planned alike."""
    machine, peaks = load_machine("h100", 8), []
    for batch in (8, 16, 32):
        graph = build("Llama", batch, preset="small", dtype="bfloat16", layers=8, steps=64, hidden=64)
        strategy = choose(plan, graph, machine)[0]
        peaks.append(max(MemoryCheck(make_evaluator(graph, machine, rule=Adam())).peaks(strategy)[0]))
    assert peaks == sorted(peaks) and peaks[-1] < 8 * peaks[0]


def test_regathering_and_recomputing_need_less() -> None:
    graph, machine = build("Llama", 8, preset="small", layers=6, steps=128, hidden=64), load_machine("h100", 8)
    check = MemoryCheck(make_evaluator(graph, machine, rule=SGD(0.1)))
    plans = ("t4 d2", "t4 d2 regather", "t4 d2 recompute=light", "t4 d2 recompute=full")
    plain, regathered, light, full = (max(check.peaks(choose(plan, graph, machine)[0])[0]) for plan in plans)
    assert regathered < 0.95 * plain and light < 0.95 * plain and full < 0.5 * plain


# ---- what decides in a search ------------------------------------------------------------------------------------------
PLANS = ("data", "expert", "megatron")


@pytest.mark.parametrize(("name", "dtype"), fast_among(
    [(name, dtype) for name in (*OTHERS, "GPT-2", "Llama") for dtype in ("float32", "bfloat16")],
    [("NMT", "float32"), ("AlexNet", "bfloat16"), ("ResNet-101", "float32"), ("GPT-2", "bfloat16")],
))
def test_estimates_of_rules_are_near_the_plan(name: str, dtype: str) -> None:
    for machine, rule, plan in zip(("h100", "p100", "h100"), RULES, PLANS):
        graph, on = build(name, 16, preset="small", dtype=dtype), load_machine(machine, 4)
        one = case(graph, choose(plan, graph, on)[0], machine, rule, f"{name} {plan}")
        estimate, needed = MemoryEstimate(one.evaluator), max(of_runtime(one))
        most = max(estimate.likely(one.strategy))
        assert most <= max(estimate.at_most(one.strategy)) + 64 * len(graph)
        assert 0.85 * needed <= most <= 1.7 * needed, f"{one.said}: {most:,} are estimated, {needed:,} planned"


def limited(machine: Cluster, nbytes: float) -> Cluster:
    return changed(machine, [Change("memory", nbytes / machine.processors[0].memory_bytes)])


@pytest.mark.parametrize("share", [0.98, 1.02])
def test_a_search_s_check_plans_what_is_near_the_limit(share: float) -> None:
    graph, machine = build("ResNet-101", 16, preset="small"), load_machine("p100", 4)
    strategy = choose("data", graph, machine)[0]
    needed = max(MemoryCheck(make_evaluator(graph, machine, rule=SGD(0.1))).peaks(strategy)[0])
    evaluator = make_evaluator(graph, limited(machine, share * needed), rule=SGD(0.1))
    evaluator.set(strategy)
    check, other = MemoryCheck(evaluator).for_search(), replace(strategy, name="again")
    check(other)  # the second time with a scale
    assert bool(check(strategy)) == (share < 1)
    assert check.peaks(strategy) == MemoryCheck(make_evaluator(graph, machine, rule=SGD(0.1))).peaks(strategy)


def test_a_search_s_check_scales_its_estimate_by_what_it_planned() -> None:
    graph, machine = build("ResNet-101", 16, preset="small"), load_machine("p100", 4)
    strategy, other = (choose(name, graph, machine)[0] for name in ("data", "model"))
    evaluator = make_evaluator(graph, machine, rule=SGD(0.1))
    evaluator.set(strategy)
    check = MemoryCheck(evaluator).for_search()
    first, exactly = check.peaks(strategy)
    assert exactly
    again, exactly = check.peaks(replace(strategy, name="again"))
    assert not exactly and max(again) == max(first)
    assert not check.peaks(other)[1] and not check(other)


def test_a_search_falls_back_to_a_plan_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its estimates let a plan pass that the runtime's plan of memory does not fit."""
    graph, machine = build("LeNet", 16, preset="small"), load_machine("p100", 4)
    data, whole = (choose(name, graph, machine)[0] for name in ("data", "model"))
    peaks = [max(MemoryCheck(make_evaluator(graph, machine, rule=SGD(0.1))).peaks(plan)[0]) for plan in (data, whole)]
    assert peaks[0] != peaks[1]
    fits, lacks = (data, whole) if peaks[0] < peaks[1] else (whole, data)
    evaluator = make_evaluator(graph, limited(machine, sum(peaks) / 2), rule=SGD(0.1))
    monkeypatch.setattr(MemoryCheck, "__call__", lambda check, plan: "" if check._quick else check._lacks(plan))
    monkeypatch.setattr(MemoryCheck, "_surely_fits", lambda check, plan: False)
    session = SearchSession("test", evaluator, SearchOptions(lacks=MemoryCheck(evaluator).for_search()))

    def body() -> str:
        session.set(fits, start=True)
        session.best_seconds = inf  # so that the other one counts as better, whatever it takes
        session.set(lacks, start=True)
        return "finished"

    found = session.conduct(body)
    assert found.strategy == fits and found.refused == 1 and found.lacking == (lacks.name,)
