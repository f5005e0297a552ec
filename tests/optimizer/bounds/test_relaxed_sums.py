"""Lower bounds of plans whose partial values may be summed by an all-reduce: no completion is faster."""

from __future__ import annotations

from random import Random

import pytest
from core_cases import Odd, shared
from partial_sums import near_config, network
from search_toys import every

import taskflow
from taskflow.mapper import MessageSync, Strategy, SyncAlgorithm
from taskflow.mapper.strategy import SUMS
from taskflow.optimizer.algorithms.exact import exact
from taskflow.optimizer.algorithms.moves import SYNCS
from taskflow.optimizer.budget import Budget
from taskflow.optimizer.evaluate import evaluator as new_evaluator
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.evaluate.evaluator import Evaluator
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.space.space import SpaceOptions
from taskflow.optimizer.space.symmetry import renumbered, renumberings
from taskflow.rules import SGD

relax = pytest.importorskip("taskflow.optimizer.bounds.partial_plan", reason="the compiled bound is not built")
NO_LIMIT = float("inf")


def evaluators(random: Random) -> Evaluator:
    processors = random.randint(2, 5)
    if random.random() < 0.5:
        return new_evaluator(network(), shared(processors), Odd(2), SGD(0.1))
    return make_evaluator(network(), taskflow.load_machine(random.choice(("k80", "p100")), devices=processors), rule=SGD(0.1))


def plans(evaluator: Evaluator, random: Random, count: int):
    """A few configurations for each operator, and plans of them as places in these lists."""
    processors = len(evaluator.machine.processors)
    team = random.sample(range(processors), random.randint(2, processors))
    choices = {
        node.name: list(dict.fromkeys(near_config(node, processors, team, random, 0.05) for _ in range(4)))
        for node in evaluator.graph
    }
    return choices, [{name: random.randrange(len(of)) for name, of in choices.items()} for _ in range(count)]


def excess(evaluator: Evaluator, random: Random, told: SyncAlgorithm) -> float:
    """By how much a bound passes the seconds of a plan that it is one for (a share of these; not above 0 if it is right), where
    partial values are summed by an all-reduce and the bound is ``told`` how."""
    choices, picked = plans(evaluator, random, 4)
    relaxation, most = relax.Relaxation(evaluator, choices, [MessageSync()], sums=told), -1.0
    for picks in picked:
        configs = {name: choices[name][i] for name, i in picks.items()}
        seconds = evaluator.set(Strategy(len(evaluator.machine.processors), configs, sums=SyncAlgorithm.COLLECTIVE))
        order = list(range(len(relaxation.order)))
        if random.random() < 0.5:
            random.shuffle(order)
        bounds = [relaxation.seconds(NO_LIMIT)[0]]
        for op in order:
            relaxation.fix([op], [picks[relaxation.order[op].name]])
            bounds.append(relaxation.seconds(NO_LIMIT)[0])
        relaxation.free(order[::-1])
        most = max(most, max(bounds) / seconds - 1)
    return most


def test_no_completion_is_faster() -> None:
    """And a bound that counted sums by an owner would be wrong, so that this test would find it."""
    found = {told: max(excess(evaluators(Random(seed)), Random(seed), told) for seed in range(12, 24)) for told in SUMS}
    assert found[SyncAlgorithm.COLLECTIVE] <= 1e-9
    assert found[SyncAlgorithm.OWNER] > 1e-3


@pytest.mark.parametrize("seed", range(6))
def test_nor_any_renumbered_one(seed: int) -> None:
    """A ring goes through processors in rising order, so on other numbers it may take another time."""
    random = Random(seed)
    evaluator = make_evaluator(network(), taskflow.load_machine("k80", devices=4), rule=SGD(0.1))
    group = renumberings(evaluator.costs, 4)
    assert len(group) > 1
    choices, picked = plans(evaluator, random, 3)
    relaxation = relax.Relaxation(evaluator, choices, [MessageSync()], group, sums=SyncAlgorithm.COLLECTIVE)
    for picks in picked:
        ops = list(range(len(relaxation.order)))
        relaxation.fix(ops, [picks[relaxation.order[op].name] for op in ops])
        bound = relaxation.seconds(NO_LIMIT)[0]
        relaxation.free(ops[::-1])
        for image in group:
            configs = {name: renumbered(choices[name][i], image) for name, i in picks.items()}
            assert bound <= evaluator.set(Strategy(4, configs, sums=SyncAlgorithm.COLLECTIVE)) * (1 + 1e-9)


@pytest.mark.parametrize("sums", SUMS)
def test_the_fastest_of_all(sums: SyncAlgorithm) -> None:
    """Exact search among plans with partial values finds what enumeration finds."""
    graph, cluster = taskflow.OperatorGraph(name="one layer"), taskflow.load_machine("p100", devices=2)
    x, labels = taskflow.input(graph, (32, 2048), name="x"), taskflow.input(graph, (32,), "int64", name="labels")
    graph.minimize(taskflow.cross_entropy(taskflow.linear(x, 2048, name="fc"), labels, name="loss"))
    evaluator, options = make_evaluator(graph, cluster), SpaceOptions("powers", reduction=True)
    space = every(graph, 2, options)
    seconds = [evaluator.set(Strategy(2, configs, {"fc": way}, sums=sums)) for configs in space for way in SYNCS]
    start = Strategy(2, space[-1], sums=sums)
    found = exact(evaluator, SearchOptions(Budget(proposals=50_000), space=options, starts=(start,)))
    assert found.optimal and found.proof is not None and found.proof.strategies == len(seconds)
    assert found.strategy.sums is sums
    assert found.lower_bound == found.seconds == min(seconds) == evaluator.set(found.strategy)
