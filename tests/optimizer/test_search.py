"""Searches: reproducible, never worse than what they started from, in budget, interruptible, and right where it is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp, inf
from random import Random
from time import perf_counter, process_time

import pytest
from fast_and_slow import fast_among
from modules import module_of
from search_toys import Table, every, rugged, tiny

import taskflow
from taskflow.machine import host, load_machine
from taskflow.mapper import Strategy
from taskflow.models import build
from taskflow.optimizer.algorithms.exact import exact
from taskflow.optimizer.algorithms.guided import guided
from taskflow.optimizer.algorithms.initial import known, random_start
from taskflow.optimizer.algorithms.layer_patterns import groups
from taskflow.optimizer.algorithms.mcmc import mcmc
from taskflow.optimizer.bounds.work_and_path import lower_bound
from taskflow.optimizer.budget import Budget
from taskflow.optimizer.cost.analytic import AnalyticCosts
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.evaluate.core_model import unsupported
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.explain.machine_changes import Change, changed
from taskflow.optimizer.memory_check import MemoryCheck
from taskflow.optimizer.memory_estimate import MemoryEstimate
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.result import Progress
from taskflow.optimizer.search import ALGORITHMS, search
from taskflow.optimizer.space.space import SearchSpace, SpaceOptions
from taskflow.rules import SGD, Adam

SMALL = build("RNNLM", batch=8, preset="small", steps=4, steps_per_operator=2)
MACHINE = host(4)


@pytest.mark.parametrize("algorithm", fast_among(ALGORITHMS, [name for name in ALGORITHMS if name != "exact"]))
def test_a_proposal_budget_makes_a_search_reproducible(algorithm: str) -> None:
    # Where there is something to find: on a host the starts are best. Bounds of partial plans on four devices take minutes.
    machine = taskflow.load_machine("p100", devices=2 if algorithm == "exact" else 4)
    results = [search(SMALL, machine, budget="300p", seed=seed, algorithm=algorithm) for seed in (5, 5, 6)]
    first, again, other = results
    assert first.strategy == again.strategy and first.seconds == again.seconds
    assert [(h.proposal, h.seconds) for h in first.history] == [(h.proposal, h.seconds) for h in again.history]
    assert (first.proposals, first.accepted) == (again.proposals, again.accepted)
    assert max(r.proposals for r in results) <= 300
    if algorithm in ("guided", "mcmc"):
        assert [h.proposal for h in first.history] != [h.proposal for h in other.history]


def test_no_seconds_end_a_part_of_a_budget_of_proposals(monkeypatch: pytest.MonkeyPatch) -> None:
    # The exact search lets the default one go first for at most two seconds, which on a busy machine ended it anywhere.
    machine = taskflow.load_machine("p100", devices=2)
    expected = search(SMALL, machine, budget="300p", seed=5, algorithm="exact")
    monkeypatch.setattr(module_of(exact), "FIRST_SECONDS", 1e-6)
    assert search(SMALL, machine, budget="300p", seed=5, algorithm="exact").strategy == expected.strategy


KNOWN = [(algorithm, model) for model in ("RNNLM", "MLP", "LeNet") for algorithm in ALGORITHMS]


@pytest.mark.parametrize(("algorithm", "model"), fast_among(
    KNOWN, [(algorithm, model) for algorithm, model in KNOWN if algorithm != "exact" or model == "MLP"],
))
def test_no_plan_is_slower_than_the_known_ones(algorithm: str, model: str) -> None:
    graph, machine = build(model, preset="small"), taskflow.load_machine("p100", devices=4)
    evaluator = make_evaluator(graph, machine)
    extra = replace(random_start(graph, machine, SearchSpace(graph, 4), Random(1)), name="mine")
    found = search(graph, machine, budget="100p", algorithm=algorithm, starts=[extra], use=evaluator)
    assert set(found.starts) >= {"data", "expert", "model", "mine"}
    for strategy in (*known(graph, machine), extra):
        assert found.starts[strategy.name] == evaluator.set(strategy) >= found.seconds
    assert evaluator.set(found.strategy) == found.seconds  # what it reports is what the plan takes
    found.strategy.verify(graph)
    assert 0 < found.lower_bound <= found.seconds
    assert all(a.seconds > b.seconds for a, b in zip(found.history, found.history[1:]))


@pytest.mark.parametrize("model", ["AlexNet", "RNNLM"])
def test_starts_that_are_equal_are_evaluated_once(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The expert's plan for 2, 8 and 16 processors a node is one plan on AlexNet, and three on RNNLM."""
    graph, machine = build(model, devices=16), taskflow.load_machine("p100", 16)
    evaluator = make_evaluator(graph, machine)
    names: list[str] = []
    plain = type(evaluator).set
    monkeypatch.setattr(type(evaluator), "set", lambda self, strategy: names.append(strategy.name) or plain(self, strategy))
    search(graph, machine, budget="1p", use=evaluator)
    experts = [name for name in names if name.startswith("expert on")]
    assert experts == (["expert on 2"] if model == "AlexNet" else ["expert on 2", "expert on 8", "expert on 16"])


def test_metropolis_hastings_visits_strategies_as_often_as_it_should() -> None:
    graph = tiny(2)
    table = Table(graph, 2, rugged)
    start = Strategy(2, every(graph, 2)[0], {}, "start")
    table.set(start)
    beta, proposals = 12.0, 60_000
    scale = table.seconds / beta
    mcmc(table, SearchOptions(Budget(proposals=proposals * 2), seed=2, starts=(start,)), beta=beta)
    total, states = sum(table.visits.values()), every(graph, 2)
    assert total >= proposals
    weights = {tuple(s[n.name] for n in graph): exp(-rugged(s) / scale) for s in states}
    norm = sum(weights.values())
    assert len(weights) == len(states) > 10 and max(weights.values()) > 2 * min(weights.values())
    statistic = sum(
        (table.visits[s] - total * w / norm) ** 2 / (total * w / norm) for s, w in weights.items()
    )
    # Successive states are correlated: the chain stays put at rejections and changes one of two operators at a time, so the
    # statistic is larger than chi-square's by the autocorrelation time, about 3 here. A wrong rule gives thousands.
    degrees = len(states) - 1
    assert statistic < 5 * (degrees + 4 * (2 * degrees) ** 0.5)
    uniform = sum((table.visits[s] - total / len(states)) ** 2 / (total / len(states)) for s in weights)
    assert uniform > 20 * statistic


def test_mcmc_accepts_every_improvement_and_stops_when_it_stalls() -> None:
    graph = tiny(3, 4)
    found = mcmc(Table(graph, 4, rugged), SearchOptions(Budget(proposals=20_000), seed=1), beta=1e9)
    assert found.stopped == "stalled" and found.proposals < 20_000  # three starts, none of which needs its share
    assert found.accepted < 0.1 * found.proposals  # improvements, and the same configuration again
    hot = mcmc(Table(graph, 4, rugged), SearchOptions(Budget(proposals=2_000), seed=1), beta=1e-9)
    assert hot.accepted == hot.proposals


@pytest.mark.parametrize("seed", fast_among(range(3), [0]))
def test_the_default_search_finds_the_optimum_of_a_rugged_toy(seed: int) -> None:
    graph = tiny(2, 4)
    best = min(map(rugged, every(graph, 4)))
    found = guided(Table(graph, 4, rugged), SearchOptions(Budget(proposals=10_000), seed=seed))
    assert found.seconds <= best  # smaller: it also swaps processors, which leaves the structured placements


def test_a_locally_optimal_plan_has_no_better_neighbour() -> None:
    graph, machine = build("MLP", preset="small"), host(2)
    evaluator = make_evaluator(graph, machine)
    found = search(graph, machine, budget="6000p", seed=1, use=evaluator)
    assert found.local
    evaluator.set(found.strategy)
    space = SearchSpace(graph, 2)
    for node in graph:
        for config in space[node]:
            assert evaluator.propose({node.name: config}) >= found.seconds


@pytest.mark.parametrize("algorithm", [guided, mcmc])
def test_interruption_returns_the_best_so_far(algorithm) -> None:  # type: ignore[no-untyped-def]
    graph = tiny(3, 4)
    table = Table(graph, 4, rugged)
    table.interrupt_at = 200
    found = algorithm(table, SearchOptions(Budget(seconds=1000)))
    assert found.stopped == "interrupted" and found.proposals == 200
    assert found.seconds == rugged(found.strategy.configs) == found.history[-1].seconds


def test_plans_that_do_not_fit_are_refused() -> None:
    graph = tiny(3, 4)
    whole = lambda strategy: "" if all(len(c.processors) < 4 for c in strategy.configs.values()) else "four pieces"  # noqa: E731
    options = SearchOptions(Budget(proposals=3000), lacks=whole)
    for algorithm in (guided, mcmc):
        found = algorithm(Table(graph, 4, rugged), options)
        assert not whole(found.strategy) and found.refused > 0
    said = r"found no plan for tiny that fits the memory of host-4 \([0-9]+ refused; the last: never\)"
    with pytest.raises(ValueError, match=said):
        guided(Table(graph, 4, rugged), replace(options, budget=Budget(proposals=50), lacks=lambda strategy: "never"))


def test_where_no_placement_fits_a_known_strategy_may() -> None:
    """Adam's arrays of layers that are whole need more than a processor has; in quarters they fit."""
    graph, cluster = build("MLP", devices=4), taskflow.load_machine("p100", devices=4)
    small = replace(cluster, kinds=tuple(replace(kind, memory_bytes=12_000_000) for kind in cluster.kinds))
    found = taskflow.search(graph, small, budget="100p", algorithm="placement", rule=Adam())
    assert found.algorithm == "placement" and found.strategy.name == "expert" and found.seconds == found.starts["expert"]
    smaller = replace(cluster, kinds=tuple(replace(kind, memory_bytes=1_000_000) for kind in cluster.kinds))
    with pytest.raises(ValueError, match="found no plan for MLP that fits the memory"):
        taskflow.search(graph, smaller, budget="100p", algorithm="placement", rule=Adam())
    # `taskflow compare` asks for placements alone: what was refused is said, not that nothing was looked at.
    said = r"\([1-9][0-9]* refused; the last: .* processors lack memory; processor "
    with pytest.raises(ValueError, match=said):
        taskflow.search(graph, smaller, budget="100p", algorithm="placement", rule=Adam(), alone=True)


def test_where_weights_do_not_fit_they_are_shared_in_groups() -> None:
    """Data parallelism needs too much memory on every device; weights cut in groups need less, and beat a layer a device."""
    graph, machine = build("MLP", batch=4096, features=2048, hidden=(8192,) * 4), taskflow.load_machine("a100", 16)
    evaluator = make_evaluator(graph, machine)
    evaluator.set(known(graph, machine)[0])
    needs = {s.name: max(MemoryCheck(evaluator).peaks(s)[0]) for s in (*known(graph, machine), *groups(graph, machine))}
    least = min(n for name, n in needs.items() if name.startswith("groups"))
    assert least < needs["data"] / 2
    small = changed(machine, [Change("memory", 1.05 * least / machine.processors[0].memory_bytes)])
    evaluator = make_evaluator(graph, small)
    found = search(graph, small, budget="1p", seed=0, use=evaluator)  # no time to find it by chance
    room, fitting, lacking = MemoryCheck(evaluator), [], []
    for plan in (*groups(graph, small), *known(graph, small)):
        seconds = evaluator.set(plan)
        (lacking if room(plan) else fitting).append((seconds, plan.name))
    assert "data" in {name for _, name in lacking} and min(fitting)[1].startswith("groups"), (fitting, lacking)
    evaluator.set(found.strategy)
    assert found.refused and not room(found.strategy) and found.seconds <= min(fitting)[0]


def test_a_large_plan_is_not_lowered_because_the_plan_before_was_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a proposal fits is asked before it is accepted: the evaluator still counts the tasks of the plan before it, by
    which a plan of hundreds of thousands of tasks was lowered in Python, minutes beyond a budget of seconds."""
    monkeypatch.setattr("taskflow.optimizer.memory_check.MOST_TASKS", most := 1000)
    monkeypatch.setattr("taskflow.optimizer.memory_check.MOST_PLANNED", most)
    graph, machine = build("Transformer", preset="small", batch=8), taskflow.load_machine("h100", 8)
    evaluator = make_evaluator(graph, machine)
    data, _, model = known(graph, machine)
    small = make_evaluator(graph, changed(machine, [Change("memory", 1e-7)]))
    small.set(model)
    evaluator.set(data)
    assert small.tasks <= most < evaluator.tasks
    monkeypatch.setattr(type(small), "lowered", lambda self, strategy=None: pytest.fail("lowered"))
    assert "8 of 8 processors may lack memory" in MemoryCheck(small)(data)


@pytest.mark.parametrize("proposals", [1, 2, 3, 7])
def test_a_budget_of_few_proposals_ends(proposals: int) -> None:
    """On 8 processors and more, where attempts at annealing are repeated as long as there is budget for another one."""
    graph, machine = build("MLP", batch=4096, features=2048, hidden=(8192,) * 4), taskflow.load_machine("a100", 16)
    found = search(graph, machine, budget=Budget(proposals=proposals), progress=raises_after(20.0))
    assert found.proposals <= proposals and found.stopped == "budget"


def raises_after(seconds: float) -> Callable[[Progress], None]:
    """A progress that ends a search which does not end itself, after so many of the processor's seconds."""
    begin = process_time()

    def look(progress: Progress) -> None:
        assert process_time() - begin < seconds, f"still in {progress.phase} after {progress.proposals} proposals"

    return look


def test_groups_divide_the_processors() -> None:
    graph, machine = build("RNNLM", batch=12, preset="small"), taskflow.load_machine("p100", 12)
    plans = list(groups(graph, machine))
    assert [plan.name for plan in plans] == ["groups of 4", "groups of 2"]  # a node has 4; 12 is no multiple of 8
    for plan in plans:
        plan.verify(graph)
        assert {p for config in plan.configs.values() for p in config.processors} == set(range(12))


def test_sizes_that_c_has_no_integer_for_are_evaluated_in_python() -> None:
    machine = taskflow.load_machine("p100", 4)
    graph = build("LeNet", batch=2**31)
    reason = unsupported(graph, machine, AnalyticCosts(machine), None)
    assert reason is not None and "31 bits" in reason
    evaluator = make_evaluator(graph, machine)
    assert isinstance(evaluator, PythonEvaluator) and evaluator.set(known(graph, machine)[0]) > 1
    assert unsupported(build("LeNet", batch=2**31 - 1), machine, evaluator.costs, evaluator.rule) is None


@pytest.mark.parametrize("seed", range(6))
def test_quick_memory_estimate_is_above_the_planned_memory(seed: int) -> None:
    from language_model import model, random_strategy

    from taskflow.optimizer.memory.peak import peak_bytes

    graph = model()
    evaluator = make_evaluator(graph, host(3))
    strategy = random_strategy(graph, 3, Random(seed))
    most = MemoryEstimate(evaluator).at_most(strategy)
    assert evaluator.rule is not None
    for use in peak_bytes(graph, strategy, evaluator.rule, machine=evaluator.machine):
        assert use.nbytes <= most[use.processor]


@pytest.mark.parametrize("model", ["AlexNet", "RNNLM", "Transformer", "LeNet"])
def test_memory_in_program_order_is_near_the_planned_memory(model: str) -> None:
    from taskflow.optimizer.memory.peak import peak_bytes

    graph, where = build(model, preset="small"), taskflow.load_machine("k80", devices=4)
    evaluator = make_evaluator(graph, where, rule=SGD(0.1))
    for seed in range(3):
        strategy = random_start(graph, where, SearchSpace(graph, 4), Random(seed))
        estimate = MemoryEstimate(evaluator)
        likely, most = estimate.likely(strategy), estimate.at_most(strategy)
        for use in peak_bytes(graph, strategy, SGD(0.1), machine=where):
            assert 0.8 * use.nbytes <= likely[use.processor] <= most[use.processor] + 64 * len(graph)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["ResNet-101", "Inception-v3"])
def test_data_parallelism_of_deep_networks_fits_the_machines_of_the_paper(model: str) -> None:
    for machine in ("p100", "k80"):
        where = taskflow.load_machine(machine, devices=4)
        graph = build(model, devices=4)
        evaluator = make_evaluator(graph, where, rule=SGD(0.1))
        data = known(graph, where)[0]
        evaluator.set(data)
        assert not MemoryCheck(evaluator)(data)


@pytest.mark.parametrize(("model", "machine"), [("RNNLM", "host"), ("LeNet", "k80"), ("MLP", "p100"), ("RNNTC", "k80")])
def test_no_strategy_is_faster_than_the_lower_bound(model: str, machine: str) -> None:
    graph, where = build(model, preset="small"), taskflow.load_machine(machine, devices=3)
    evaluator = make_evaluator(graph, where)
    options = SpaceOptions(placements="arbitrary")
    bound, space = lower_bound(evaluator, options), SearchSpace(graph, 3, options)
    assert bound > 0
    for i in range(60):
        assert evaluator.set(random_start(graph, where, space, Random(i))) >= bound
    for strategy in known(graph, where):
        assert evaluator.set(strategy) >= bound


def test_budgets() -> None:
    assert Budget.parse("30s") == Budget.parse(30) == Budget.parse("0.5m") == Budget(seconds=30)
    assert Budget.parse("2e3p, 1h") == Budget(3600, 2000)
    assert Budget.parse("250ms").seconds == 0.25
    for wrong in ("soon", "-1s", "0s", "", "5 parsecs", "nan"):
        with pytest.raises(ValueError, match="budget"):
            Budget.parse(wrong)
    for algorithm in (guided, mcmc):
        with pytest.raises(ValueError, match="budget"):
            algorithm(Table(tiny(), 2, rugged), SearchOptions(Budget(inf, inf)))
    with pytest.raises(ValueError, match="no algorithm 'magic'; use guided"):
        search(SMALL, MACHINE, algorithm="magic")


def test_seconds_are_kept_and_progress_is_told() -> None:
    told = []
    begin, cpu = perf_counter(), process_time()
    found = search(SMALL, MACHINE, budget=1.0, progress=told.append)
    assert 0.5 < found.search_seconds <= perf_counter() - begin and process_time() - cpu < 3
    assert told and told[-1].best == found.seconds
    assert "proposals" in str(told[-1]) and "ms a step" in str(found)
    row = found.as_json()
    assert row["iteration_seconds"] == found.seconds and row["proposals"] == found.proposals


def test_where_time_goes_is_the_usage() -> None:
    from taskflow.optimizer.evaluate.usage import where_time_goes

    evaluator = make_evaluator(SMALL, MACHINE)
    for seed in range(4):
        evaluator.set(random_start(SMALL, MACHINE, SearchSpace(SMALL, 4), Random(seed)))
        exact, quick = evaluator.usage(), where_time_goes(evaluator)
        assert (exact.seconds, exact.transfer_bytes) == (quick.seconds, quick.transfer_bytes)
        assert quick.processor_seconds == pytest.approx(exact.processor_seconds)
        assert dict(quick.link_seconds) == pytest.approx(dict(exact.link_seconds))
        assert quick.critical and set(quick.critical) <= {node.name for node in SMALL}
        totals = where_time_goes(evaluator, path=False)
        assert totals.processor_seconds == quick.processor_seconds and not totals.critical
        assert (totals.seconds, totals.transfer_bytes) == (quick.seconds, quick.transfer_bytes)
        assert dict(totals.link_seconds) == pytest.approx(dict(quick.link_seconds))


@pytest.mark.parametrize("devices", [2, 64])
def test_placement_says_what_the_last_refused_plan_lacks(devices: int) -> None:
    machine = load_machine("k80", devices)
    poor = replace(machine, kinds=tuple(replace(kind, memory_bytes=20_000) for kind in machine.kinds))
    with pytest.raises(ValueError, match=r"\([1-9]\d* refused; the last: .*lacks? memory.* and has 2e-05\)"):
        search(build("LeNet", preset="small", batch=64), poor, budget="20p", algorithm="placement", alone=True)
