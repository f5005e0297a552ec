"""Partial values that an all-reduce sums, in the compiled core against its definition: the same tasks, order and times, also when
proposals change who reads them, or the way they are summed."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from math import inf
from random import Random

import pytest
from click.testing import CliRunner
from core_cases import Odd, shared
from fast_and_slow import fast_among
from partial_sums import near_config, near_strategy, network, summing
from test_core_equal import same
from test_core_walks import decide

from taskflow.cli.main import main
from taskflow.machine import load_machine
from taskflow.mapper import DataParallel, OpConfig, Strategy, SyncAlgorithm, choose, map_graph
from taskflow.mapper.strategy import SUMS
from taskflow.models import build
from taskflow.optimizer.algorithms.guided import guided
from taskflow.optimizer.algorithms.initial import known
from taskflow.optimizer.budget import Budget
from taskflow.optimizer.cost.task_costs import Roofline
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.evaluate.evaluator import NO_SYNCS, PythonEvaluator
from taskflow.optimizer.explain.difference import difference
from taskflow.optimizer.options import SearchOptions
from taskflow.rules import SGD
from taskflow.tasks.topic import Purpose

core = pytest.importorskip("taskflow.optimizer.evaluate.compiled", reason="the compiled core is not built")


def pair(random: Random, clip: float | None, seed: int):
    graph, processors = network(), random.randint(2, 7)
    machine = with_library(processors, seed)
    costs = random.choice((Roofline(machine), Odd(2)))
    rule = random.choice((SGD(0.1), SGD(0.1), None))
    return PythonEvaluator(graph, machine, costs, rule, clip), core.CompiledEvaluator(graph, machine, costs, rule, clip)


def with_library(processors: int, seed: int):
    """A machine on which links are shared. With every other seed it says how its library performs, so that collectives reach all of
    their links together."""
    if seed % 2 == 0:
        return shared(processors)
    return replace(load_machine("k80", processors), collectives=load_machine("h100", 1).collectives)


def test_any_strategy() -> None:
    forward = backward = 0
    for seed in range(24):
        random = Random(seed)
        reference, compiled = pair(random, random.choice((None, 1.0)), seed)
        for _ in range(2):
            strategy = near_strategy(reference.graph, len(reference.machine.processors), random, SyncAlgorithm.COLLECTIVE)
            assert compiled.set(strategy) == reference.set(strategy)
            same(reference, compiled)
            tasks = reference.lowered()
            forward += len(summing(tasks, Purpose.PARTIAL))
            backward += len(summing(tasks, Purpose.GRADIENT))
    assert forward > 30 and backward > 5, (forward, backward)


@pytest.mark.parametrize("seed", fast_among(range(6), range(3)))
def test_walks(seed: int) -> None:
    walk(seed, 60)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_long_walks(seed: int) -> None:
    walk(seed, 600)


def walk(seed: int, moves: int) -> None:
    """As in test_core_walks.py, where readers and writers of partial values change most of the time. Both ways to
    simulate a proposal against an evaluator that starts anew, and that now and then against the definition."""
    random = Random(seed)
    graph, processors = network(), random.randint(2, 7)
    machine = with_library(processors, seed)
    costs = random.choice((Roofline(machine), Odd(2)))
    ways = [core.CompiledEvaluator(graph, machine, costs, SGD(0.1), None, a) for a in ("full", "delta")]
    here, team = ways[0], random.sample(range(processors), random.randint(2, processors))
    start = near_strategy(graph, processors, random, SyncAlgorithm.COLLECTIVE)
    for each in ways:
        each.set(start)
    nodes, met = list(graph), 0
    for number in range(moves):
        changes = {
            node.name: near_config(node, processors, team, random) for node in random.sample(nodes, random.choice((1, 1, 2)))
        }
        back = here.strategy.sums is SyncAlgorithm.OWNER  # seldom there, and soon back
        sums = SUMS[back] if random.random() < (0.4 if back else 0.07) else None
        fresh = core.CompiledEvaluator(graph, machine, costs, SGD(0.1), None)
        wanted = fresh.set(here.changed(changes, {}, sums))
        if number % 10 == 0:
            reference = PythonEvaluator(graph, machine, costs, SGD(0.1), None)
            assert reference.set(fresh.strategy) == wanted
            same(reference, fresh)
            met += len(summing(reference.lowered(), Purpose.PARTIAL))
        for each in ways if number % 5 == 0 else ways[:1]:
            decide(each, changes, {}, wanted, random, sums)
        if random.random() < 0.6:
            for each in ways:
                assert each.propose(changes, inf, {}, sums) == wanted
                each.accept()
                assert each.strategy.sums is fresh.strategy.sums
            assert here.tasks == fresh.tasks
    assert here.timeline() == definition_at(here).timeline()
    assert met > 0


def definition_at(there) -> PythonEvaluator:
    """The definition at another evaluator's strategy."""
    reference = PythonEvaluator(there.graph, there.machine, there.costs, there.rule, there.clip_norm)
    reference.set(there.strategy)
    return reference


def test_a_reader_decides_about_its_producer() -> None:
    """One reader's move alone turns an all-reduce into sums by an owner, and another's alone back."""
    graph, machine = network(), load_machine("k80", 4)
    start = replace(map_graph(DataParallel(), graph, machine), sums=SyncAlgorithm.COLLECTIVE)
    here = core.CompiledEvaluator(graph, machine, Roofline(machine), SGD(0.1), None)
    here.set(start)
    before = len(summing(here.lowered(), Purpose.PARTIAL))
    assert before == 2  # of both batch normalisations
    one_place = OpConfig(start["bn1"].degrees, (0,) * len(start["bn1"].processors))
    for config, left in ((one_place, before - 1), (start["bn1"], before)):
        wanted = PythonEvaluator(graph, machine, here.costs, SGD(0.1), None).set(here.changed({"bn1": config}, {}))
        assert here.propose({"bn1": config}) == wanted
        here.accept()
        assert len(summing(here.lowered(), Purpose.PARTIAL)) == left
        assert here.tasks == len(here.lowered())


@pytest.mark.parametrize("name", ["ResNet-101", pytest.param("Inception-v3", marks=pytest.mark.slow)])
def test_of_networks_of_the_paper(name: str) -> None:
    """Data parallelism on GPUs: one all-reduce each way for every batch normalisation, and no other sum of statistics."""
    graph, machine = build(name, preset="small"), load_machine("k80", 4)
    reference, compiled = (
        make(graph, machine, Roofline(machine), SGD(0.1), None) for make in (PythonEvaluator, core.CompiledEvaluator)
    )
    strategy = known(graph, machine)[0]
    assert strategy.sums is SyncAlgorithm.COLLECTIVE
    assert compiled.set(strategy) == reference.set(strategy)
    same(reference, compiled)
    tasks, moments = reference.lowered(), [node.name for node in graph if node.operator.kind == "moments"]
    for purpose in (Purpose.PARTIAL, Purpose.GRADIENT):
        assert sorted(task.topic.name for task in summing(tasks, purpose)) == sorted(moments)
    owner: Strategy = replace(strategy, sums=SyncAlgorithm.OWNER)
    assert compiled.propose({}, sums=SyncAlgorithm.OWNER) == reference.set(owner)
    assert len(reference.lowered()) > len(tasks)


def test_only_two_ways() -> None:
    graph, machine = network(), load_machine("k80", 2)
    evaluator = core.CompiledEvaluator(graph, machine, Roofline(machine), SGD(0.1), None)
    start = known(graph, machine)[0]
    evaluator.set(start)
    with pytest.raises(ValueError, match=r"SyncAlgorithm\.OWNER or SyncAlgorithm\.COLLECTIVE, got .*RING"):
        evaluator.propose({}, sums=SyncAlgorithm.RING)
    with pytest.raises(ValueError, match="partial values are summed by 'owner' or 'collective'"):
        replace(start, sums=SyncAlgorithm.TREE)


@pytest.mark.parametrize("here", SUMS)
def test_the_default_search_tries_the_other_way(here: SyncAlgorithm) -> None:
    graph, machine = build("Inception-v3", devices=4), load_machine("p100", 4)
    evaluator = make_evaluator(graph, machine)
    start = replace(known(graph, machine)[0], sums=here)
    both = [evaluator.set(replace(start, sums=sums)) for sums in SUMS]
    assert both[0] != both[1]
    tried, ask = [], evaluator.propose

    def propose(changes, limit=inf, syncs=NO_SYNCS, sums=None):
        tried.append(sums)
        return ask(changes, limit, syncs, sums)

    evaluator.propose = propose
    found = guided(evaluator, SearchOptions(Budget(proposals=3), starts=(start,)))
    assert [sums for sums in tried if sums is not None] == [SUMS[1 - SUMS.index(here)]]
    assert found.seconds <= min(both) and (found.strategy.sums is here) == (both[SUMS.index(here)] == min(both))


def test_plans_that_sum_in_another_way_are_compared() -> None:
    """The way is no layer's, so it comes after all layers; it is no difference where there is nothing to sum."""
    graph, machine = network(), load_machine("k80", 4)
    evaluator = make_evaluator(graph, machine)
    owner = replace(known(graph, machine)[0], sums=SyncAlgorithm.OWNER)
    other = replace(owner, sums=SyncAlgorithm.COLLECTIVE, configs={**owner.configs, "fc3": OpConfig((1, 3, 1), (0, 1, 2))})
    first, last = difference(evaluator, owner, other)
    assert list(first.operators) == ["fc3"] and first.sums is None
    assert last.sums == (SyncAlgorithm.OWNER, SyncAlgorithm.COLLECTIVE) and not last.operators and not last.syncs
    assert first.before == evaluator.set(owner) and first.after == last.before and last.after == evaluator.set(other)
    whole = {node.name: OpConfig((1,) * len(node.dims), (0,)) for node in graph}
    alone = Strategy(4, whole)
    assert difference(evaluator, alone, replace(alone, sums=SyncAlgorithm.COLLECTIVE)) == ()
    assert evaluator.strategy.sums is SyncAlgorithm.COLLECTIVE


def test_plans_show_how_they_sum() -> None:
    graph, asked = build("Inception-v3", devices=4), ["data", "--model", "inception-v3", "-m", "k80", "-n", "4"]
    done = CliRunner().invoke(main, ["strategy", "show", *asked, "--json"])
    assert done.exit_code == 0, done.output
    rows = {row["operator"]: row for row in json.loads(done.stdout)["strategy"]}
    for node in graph:
        assert rows[node.name]["sums"] == ("collective" if node.operator.kind == "moments" or node.name == "loss" else None), node
    assert "partial values: collective" in CliRunner().invoke(main, ["strategy", "show", *asked]).stdout


def test_collectives_that_reach_their_links_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ways to simulate against the definition, on a plan whose seconds are others if links are reached one after another."""
    graph, machine = build("GPT-2", preset="small"), load_machine("h100", 16)
    costs = make_evaluator(graph, machine, rule=SGD(0.1)).costs
    start, plan = (choose(name, graph, machine)[0] for name in ("data", "megatron"))
    reference = PythonEvaluator(graph, machine, costs, SGD(0.1), None)
    wanted = reference.set(plan)
    for algorithm in ("full", "delta"):
        compiled = core.CompiledEvaluator(graph, machine, costs, SGD(0.1), None, algorithm)
        compiled.set(start)
        assert compiled.propose(dict(plan.configs), inf, dict(plan.syncs), plan.sums) == wanted
        compiled.accept()
        assert compiled.reference is None and compiled.timeline() == reference.timeline()
    monkeypatch.setattr(sys.modules["taskflow.tasks.simulate"], "together", lambda *arguments: False)
    assert PythonEvaluator(graph, machine, costs, SGD(0.1), None).set(plan) != wanted
