"""Descent over layers: every cut on every team, for each layer and each stretch of layers."""

from __future__ import annotations

from math import inf, prod

import pytest

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.mapper import Strategy
from taskflow.models import build
from taskflow.optimizer.algorithms.guided import guided
from taskflow.optimizer.algorithms.initial import known
from taskflow.optimizer.algorithms.layer_descent import LayerDescent
from taskflow.optimizer.algorithms.moves import SYNCS
from taskflow.optimizer.budget import Budget, BudgetExhausted, BudgetPart, End, Restart
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.session import SearchSession
from taskflow.optimizer.space.constraints import Constraints
from taskflow.optimizer.space.device_groups import on_team, shapes, teams
from taskflow.optimizer.space.layers import layers
from taskflow.optimizer.space.space import SearchSpace, SpaceOptions


def descent(
    graph: OperatorGraph, name: str = "p100", devices: int = 4, proposals: float = 200_000, space: SpaceOptions | None = None
) -> tuple[SearchSession, LayerDescent, list[Strategy]]:
    """A run that stands at data parallelism, and a descent for it."""
    machine = taskflow.load_machine(name, devices)
    options = SearchOptions(Budget(proposals=proposals), 0, space or SpaceOptions())
    run = SearchSession("guided", make_evaluator(graph, machine, rule=taskflow.SGD(0.1, momentum=0.9)), options)
    starts = known(graph, machine)
    run.set(starts[0])
    return run, LayerDescent(run, SearchSpace(graph, devices, run.options.space), layers(graph), shapes(machine)), starts


@pytest.mark.parametrize(("name", "devices"), [("k80", 8), ("p100", 6), ("h100", 16)])
def test_shapes_are_the_teams_by_what_they_look_like(name: str, devices: int) -> None:
    machine = taskflow.load_machine(name, devices)
    found = shapes(machine)
    assert tuple(team for shape in found for team in shape) == teams(machine)
    assert len(found) < len(teams(machine))
    assert ((0,), *((p,) for p in range(1, devices))) in found  # one processor, wherever it is


def test_no_layer_does_better_on_another_team() -> None:
    graph = build("AlexNet", devices=8)
    run, down, _ = descent(graph, devices=8)
    before = run.seconds
    down.descend(BudgetPart(run, 1.0))
    assert run.seconds < 0.9 * before and run.best_seconds == run.seconds
    space = SearchSpace(graph, 8)
    for layer in layers(graph):
        leader = layer.leaders[0]
        for team in (shape[0] for shape in shapes(run.evaluator.machine)):
            for degrees in space[leader].tuples:
                if prod(degrees) != len(team) or sum(d > 1 for d in degrees) > 2:
                    continue
                assert run.evaluator.propose(layer.spread(on_team(degrees, team)), inf) >= run.seconds
    for name in {p.layer for p in graph.parameters}:
        for sync in SYNCS:
            assert run.evaluator.propose({}, inf, {name: sync}) >= run.seconds


def test_it_ends_with_its_share_of_the_budget() -> None:
    run, down, _ = descent(build("AlexNet", devices=4), proposals=100)
    down.descend(BudgetPart(run, 0.5))
    assert run.proposals == 50


def test_it_keeps_to_constraints() -> None:
    only = Constraints.parse({"classifier.*": {"devices": "0-1"}, "features.*": {"forbid": ["c"]}})
    run, down, _ = descent(build("AlexNet", devices=4), space=SpaceOptions(constraints=only))
    down.descend(BudgetPart(run, 1.0))
    assert run.best is not None
    for name, config in run.best.configs.items():
        if name.startswith("classifier."):
            assert set(config.processors) <= {0, 1}


def test_layers_of_a_stretch_have_no_cut_that_they_may_not_have() -> None:
    graph = OperatorGraph(name="two layers")
    x = taskflow.input(graph, (32, 600), name="x")
    narrow = taskflow.linear(taskflow.linear(x, 4096, name="wide"), 6, name="narrow")
    graph.minimize(taskflow.mse_loss(narrow, taskflow.input(graph, (32, 6), name="target")))
    _, down, _ = descent(graph, devices=8, space=SpaceOptions("even"))
    for stretch in down._stretches():
        for shape in down.shapes:
            for degrees in down.cuts(stretch, len(shape[0])):
                for name in ("wide", "narrow"):
                    config = down._on(stretch, degrees, shape[0]).get(name)
                    assert config is None or config.degrees in down.space[graph.node(name)].tuples


def test_a_search_begins_with_it() -> None:
    graph, machine = build("AlexNet", devices=16), taskflow.load_machine("p100", 16)
    told: list[str] = []
    evaluator = make_evaluator(graph, machine, rule=taskflow.SGD(0.1, momentum=0.9))
    options = SearchOptions(Budget(proposals=9000), 1, progress=lambda p: told.append(p.phase), progress_every=0.0)
    found = guided(evaluator, options)
    phases = list(dict.fromkeys(told))
    assert phases.index("descent over layers") < phases.index("layers")
    data = evaluator.set(known(graph, machine)[0])
    assert found.seconds < 0.75 * data  # with annealing alone 0.8 of it and more


def test_restarts_are_each_for_themselves() -> None:
    graph = build("AlexNet", devices=8)
    run, down, starts = descent(graph, devices=8)
    data = run.seconds
    down.descend(BudgetPart(run, 1.0))
    best, found = run.best, run.best_seconds
    assert found < data
    assert run.restart(starts[0], proposals=50) and run.restarted
    assert run.seconds == data and run.best is best
    down.descend(BudgetPart(run, 1.0))
    assert run.seconds > found  # there was no time for more
    run.propose({}, inf, {"classifier.1": SYNCS[0]})
    run.back_to_best()
    assert data >= run.seconds > found and run.best is best
    run.end_restart()
    assert not run.restarted
    run.back_to_best()
    assert run.strategy == best and run.seconds == found


def test_a_restart_keeps_the_faster_plan_and_ends_within_the_budget() -> None:
    first, other = known(build("MLP", preset="small"), taskflow.load_machine("p100", 2))[:2]
    assert End(10.0, inf).within(7.0, 80) == End(7.0, 80) and End(10.0, 40).within(13.0, 80) == End(10.0, 40)
    begun = Restart(first, End(7.0, 80))
    better = begun.after(other, 2.0)
    assert (better.strategy, better.seconds, better.end) == (other, 2.0, begun.end)
    assert better.after(first, 2.0) is better and begun.seconds == inf


def test_a_restart_without_time_does_not_begin() -> None:
    run, _, starts = descent(build("AlexNet", devices=8), devices=8)
    run.deadline.stopped = True
    run.starts["data"] = run.seconds  # the first strategy of all is set in any case
    with pytest.raises(BudgetExhausted):
        run.restart(starts[1])
    assert not run.restarted and run.end == End(run.options.budget.seconds, run.options.budget.proposals)


def test_what_a_restart_finds_is_kept() -> None:
    run, down, starts = descent(build("AlexNet", devices=8), devices=8)
    assert run.restart(starts[0])
    down.descend(BudgetPart(run, 1.0))
    run.end_restart()
    assert run.best is not None and run.best_seconds == run.seconds < run.starts.get("data", inf)


def test_a_budget_of_proposals_gives_the_same_plan_again() -> None:
    graph, machine = build("RNNLM", devices=8), taskflow.load_machine("p100", 8)
    first, second = (taskflow.search(graph, machine, budget="6000p", seed=3) for _ in range(2))
    assert first.strategy == second.strategy and first.proposals == second.proposals
