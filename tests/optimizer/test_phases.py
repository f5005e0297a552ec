"""Phases of a search: options, constraints, starts and frameworks restrict plans in notation, and switch none of them off."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from click.testing import CliRunner

from taskflow.cli.main import main
from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.machine.cluster import Cluster
from taskflow.mapper import DataParallel, HybridParallel, Strategy, map_graph, parse_plan, plan_of
from taskflow.models.llama import LlamaConfig, llama
from taskflow.operators.operator import Soap
from taskflow.optimizer import MemoryCheck, NothingFits, PhaseReport, SearchResult, make_evaluator, search
from taskflow.optimizer.grid import Allowed, NotAllowedError, PlanGrid
from taskflow.optimizer.grid.bound_work import LayerWorks
from taskflow.optimizer.grid.plan_bound import least_unordered_bytes
from taskflow.optimizer.space import Constraints, SpaceOptions
from taskflow.rules import Adam

RULE = Adam()
SHARDED = "collective/zero3"


def network(layers: int = 2) -> OperatorGraph:
    """So wide that stages pay on slow links."""
    sizes = replace(LlamaConfig.small(), batch=4, layers=layers, steps=64, hidden=64, inner=160, vocabulary=512)
    return llama(sizes, "bfloat16")


def machine(devices: int = 2, memory: int | None = None) -> Cluster:
    made = load_machine("h100", devices)
    if memory is None:
        return made
    return replace(made, kinds=tuple(replace(kind, memory_bytes=memory) for kind in made.kinds))


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small networks searched as large ones are."""
    monkeypatch.setattr("taskflow.optimizer.grid.plans.MEMORY_SHARE", 0.0)


def searched(devices: int = 2, **options: Any) -> SearchResult:
    return search(network(), machine(devices), rule=RULE, **{"budget": "20p", **options})


def phase(found: SearchResult, name: str) -> PhaseReport:
    return next(one for one in found.phases if one.name == name)


def strategy_of(words: str, devices: int = 2) -> Strategy:
    return map_graph(HybridParallel(parse_plan(words)), network(), machine(devices))


# ---- what is allowed -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("space", [
    SpaceOptions(degrees="even"), SpaceOptions(degrees="powers"), SpaceOptions(reduction=False), SpaceOptions(uneven=False),
    SpaceOptions(placements="contiguous"),
    SpaceOptions(constraints=Constraints.parse({"*": {"max_degree": 1}})),
])  # fmt: skip
def test_options_and_limits_restrict_plans_in_notation(space: SpaceOptions) -> None:
    graph = network()
    found = search(graph, machine(), rule=RULE, budget="20p", space=space)
    report = phase(found, "plans in notation")
    assert not report.barred and report.proposals > 0 and "grid" in found.starts
    for node in graph:
        config = found.strategy[node.name]
        for dim, degree in zip(node.dims, config.degrees):
            assert degree == 1 or not space.constraints.rules
            assert degree == 1 or dim.soap is not Soap.REDUCTION or space.reduction
            assert space.degrees == "any" or dim.size % degree == 0


def test_a_degree_that_no_plan_may_have_is_known_without_its_strategy() -> None:
    graph = network()
    allowed = Allowed(graph, machine(4), SpaceOptions(reduction=False))
    assert allowed.may_have(parse_plan("p2 d2 mb1")) and not allowed.may_have(parse_plan("t2 d2 mb1"))
    assert "contracted" in allowed.refused
    limited = Allowed(graph, machine(4), SpaceOptions(constraints=Constraints.parse({"*": {"max_degree": {"n": 2}}})))
    assert limited.may_have(parse_plan("t2 d2 mb1")) and not limited.may_have(parse_plan("d4 mb1"))


def test_pinned_operators_are_pinned_in_plans_too() -> None:
    graph = network()
    name = "layers.0.self_attn.q_proj"
    found = search(graph, machine(), rule=RULE, budget="20p", constraints={name: {"pin": "whole @ 0"}})
    assert found.strategy[name].processors == (0,) and phase(found, "plans in notation").proposals > 0
    allowed = Allowed(graph, machine(), SpaceOptions(constraints=Constraints.parse({name: {"pin": "whole @ 1"}})))
    with pytest.raises(NotAllowedError, match="q_proj"):  # of the first stage, which is processor 0
        allowed.strategy(parse_plan("p2 d1 mb1"))
    made = allowed.strategy(parse_plan("d2 mb2 zero3"))
    assert made[name].processors == (1,) and plan_of(graph, made) is None and made.ordered
    assert make_evaluator(graph, machine(), rule=RULE).set(made) > 0


def test_weights_that_constraints_shard_are_sharded() -> None:
    layer = "layers.1.mlp.gate_proj"
    found = searched(constraints={layer: {"sync": SHARDED}})
    assert found.strategy.sync(layer).zero == 3
    assert "shard the weights" in phase(found, "operators").barred and any("shard the weights" in one for one in found.left_out)
    with pytest.raises(ValueError, match=r"shard the weights of .*one algorithm's alone"):
        searched(constraints={layer: {"sync": SHARDED}}, algorithm="mcmc")


# ---- starts ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("algorithm", ["guided", "mcmc"])
def test_the_result_is_not_slower_than_a_start_with_an_order(algorithm: str) -> None:
    fast = searched(budget="60p").strategy
    start = strategy_of("p2 d1 mb2")
    found = searched(starts=[start], algorithm=algorithm, budget="4p")
    assert found.starts[start.name] == make_evaluator(network(), machine(), rule=RULE).set(start)
    assert found.seconds <= min(found.starts.values())
    if fast.ordered:
        assert searched(starts=[fast], algorithm=algorithm, budget="1p").seconds <= make_evaluator(
            network(), machine(), rule=RULE
        ).set(fast)


def test_a_search_climbs_from_a_start_that_is_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    search_of = import_module("taskflow.optimizer.grid.plan_search")._PlanSearch
    begun, climb = [], search_of._from
    monkeypatch.setattr(search_of, "_from", lambda self, trial, plan, *more: begun.append(plan) or climb(self, trial, plan, *more))
    searched(starts=[strategy_of("p2 d1 mb2")], budget="400p")
    assert parse_plan("t1 p2 d1 mb2") in begun


def test_an_algorithm_by_itself_does_not_start_from_a_plan() -> None:
    with pytest.raises(ValueError, match=r"strategy t1 p2 d1 mb1 is pipelined or sharded"):
        searched(starts=[strategy_of("p2 d1 mb1")], alone=True)


def test_a_start_that_does_not_fit_is_said_to_lack_memory() -> None:
    start, evaluator = strategy_of("p2 d1 mb4"), make_evaluator(network(), machine(), rule=RULE)
    need = max(MemoryCheck(evaluator).peaks(start)[0])
    found = search(network(), machine(2, need - 1), rule=RULE, budget="20p", starts=[start])
    assert start.name in found.lacking and start.name in found.starts
    assert found.strategy != start


# ---- what is left out because it cannot be ---------------------------------------------------------------------------
def test_operators_are_not_searched_where_no_plan_without_an_order_fits() -> None:
    """Recomputation halves the memory here, and only plans with an order have it."""
    sizes = replace(LlamaConfig.small(), batch=16, layers=8, steps=128, hidden=64, inner=160, vocabulary=512)
    graph = llama(sizes, "bfloat16")
    least = least_unordered_bytes(LayerWorks(PlanGrid(graph, machine(), RULE).sums))
    small, data = machine(2, int(least / 2) - 1), map_graph(DataParallel(), graph, machine())
    found = search(graph, small, rule=RULE, budget="20p", starts=[data])
    assert phase(found, "operators").barred == "none fits the memory of all devices together"
    assert found.strategy.ordered and found.lacking == ("data",) and found.lower_bound > 0
    assert not any("neither pipelined" in one for one in found.left_out)
    assert max(MemoryCheck(make_evaluator(graph, small, rule=RULE)).peaks(data)[0]) > small.processors[0].memory_bytes
    large = search(graph, machine(2, int(4 * least)), rule=RULE, budget="20p")
    assert phase(large, "operators").barred == "" and "data" in large.starts


# ---- where nothing is found ------------------------------------------------------------------------------------------
def test_no_error_says_that_a_plan_would_fit_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no phase has found a plan, the one that would fit in closed form is simulated, and is the answer."""
    phases = import_module("taskflow.optimizer.phases")

    def nothing(run: Any) -> None:
        raise NothingFits("search: found no plan")

    some = tuple(replace(one, run=nothing) if one.name in ("plans in notation", "operators") else one for one in phases.PHASES)
    monkeypatch.setattr(phases, "PHASES", some)
    found = searched()
    assert found.strategy.plan is not None and found.seconds > 0 and "no other that fits" in found.left_out[0]
    with pytest.raises(ValueError, match=r"found no plan; .*would fit"):  # only said: the algorithm has no such plans
        searched(algorithm="mcmc")
    with pytest.raises(ValueError, match=r"found no plan; plan .* needs less, and does not fit|the plan that needs least"):
        search(network(), machine(2, 100_000), rule=RULE, budget="20p")


@pytest.mark.parametrize("whole", [True, False])
def test_nobody_waits_for_data_parallelism_that_cannot_fit(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no plan was found in time, the first strategy of the next phase is evaluated to its end, but not if a device cannot
    hold all weights: that may take minutes, and leaves none for a plan that fits."""
    phases, searching, seen = import_module("taskflow.optimizer.phases"), import_module("taskflow.optimizer.search"), list[bool]()

    def no_plans(run: Any) -> None:
        run.whole, run.error = whole, NothingFits("search: found no plan")

    def spy(evaluator: Any, options: Any) -> SearchResult:
        seen.append(options.answered)
        raise NothingFits("search: found no plan")

    some = tuple(replace(one, run=no_plans) if one.name == "plans in notation" else one for one in phases.PHASES)
    monkeypatch.setattr(phases, "PHASES", some)
    monkeypatch.setitem(searching.ALGORITHMS, "guided", spy)
    assert searched().strategy.plan is not None and seen == [not whole]


def test_operators_are_not_begun_without_time_for_data_parallelism(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskflow.optimizer.phases.PIECE_SECONDS", 1e3)
    found = searched(budget="3s")
    assert phase(found, "operators").barred == "no budget left" and found.strategy.plan is not None
    assert phase(searched(), "operators").barred == ""  # proposals are no time


def test_each_phase_says_why_it_did_not_run() -> None:
    reports = {one.name: one.barred for one in searched().phases}
    assert reports == {
        "starts": "no start has an order of passes", "plans in notation": "", "operators": "",
        "a plan that fits": "a plan was found",
    }
    assert phase(searched(memory=False), "plans in notation").barred == "memory does not count"
    assert phase(searched(algorithm="mcmc"), "plans in notation").barred == "the search is one algorithm's alone"
    assert phase(searched(devices=1), "plans in notation").barred == ""
    (said,) = [one for one in searched().as_json()["phases"] if one["name"] == "starts"]
    assert said["not_run"] == "no start has an order of passes" and said["best_seconds"] is None


def test_an_interrupted_search_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while starts are simulated: the first of them is the answer, and no other phase begins."""
    starts, asked = [strategy_of("p2 mb2"), strategy_of("d2 zero3")], list[str]()
    evaluator = make_evaluator(network(), machine(), rule=RULE)
    simulated = evaluator.set

    def second(strategy: Strategy) -> float:
        asked.append(strategy.name)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return simulated(strategy)

    monkeypatch.setattr(evaluator, "set", second)
    found = search(evaluator.graph, evaluator.machine, use=evaluator, budget="20p", starts=starts)
    assert found.stopped == "interrupted" and found.strategy.name == asked[0] and found.seconds > 0
    assert [one.barred for one in found.phases] == ["", "interrupted", "interrupted", "interrupted"] and len(asked) == 2


def test_plans_in_notation_have_one_bound_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of plans with an order holds for all, so none is computed for plans without one."""
    module, asked = import_module("taskflow.optimizer.search"), list[str]()
    monkeypatch.setattr(module, "unordered_bound", lambda *_, **__: asked.append("operators") or 0.0)
    assert searched().lower_bound > 0 and not asked
    searched(memory=False)
    assert asked == ["operators"]


# ---- frameworks ------------------------------------------------------------------------------------------------------
def test_a_framework_restricts_a_search_in_python_too() -> None:
    graph = network()
    found = search(graph, machine(), rule=RULE, budget="20p", target="jax")
    from taskflow.export import nearest_plan

    assert nearest_plan(graph, found.strategy, "jax") is found.strategy
    with pytest.raises(ValueError, match=r"target must be one of .*torch.*, got 'tensorflow'"):
        searched(target="tensorflow")


def test_a_framework_s_program_drives_a_machine_that_names_none() -> None:
    """Its kernels take more time than those of no program."""
    from taskflow.export import target

    graph = network()
    driven = target("megatron", graph).driven(machine())
    assert {kind.program.name for kind in driven.kinds if kind.program} == {"megatron"}
    assert target("megatron", graph).driven(driven) is driven and target("jax", graph).driven(machine()) == machine()


def test_the_command_starts_from_plans_too() -> None:
    words = ["search", "mlp", "--size", "small", "-m", "h100", "-n", "2", "--batch", "8", "--budget", "3p", "--json"]
    done = CliRunner().invoke(main, [*words, "--start", "p2 d1 mb4", "--start", "data"], catch_exceptions=False)
    found = json.loads(done.stdout)
    starts = found["starts_iteration_seconds"]
    assert "t1 p2 d1 mb4" in starts and found["iteration_seconds"] <= min(starts.values())


def test_no_plan_beside_the_found_one_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that had time for a slow plan alone answers with the plan beside it."""
    slow = search(network(), machine(), rule=RULE, budget="1p", algorithm="mcmc", alone=True)
    monkeypatch.setattr("taskflow.cli.searched.search", lambda *_, **__: replace(slow, seconds=1.0))
    words = ["search", "llama", "--size", "small", "--batch", "4", "-m", "h100", "-n", "2", "--rule", "adam", "--json"]
    found = json.loads(CliRunner().invoke(main, words, catch_exceptions=False).stdout)
    fitting = [row["iteration_seconds"] for row in found["beside"] if row.get("fits_memory")]
    assert found["iteration_seconds"] == min(fitting) < 1.0 and found["name"].startswith("t1 p1 d2")
