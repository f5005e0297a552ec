"""What-if: a plan simulated on a changed machine, and whether a search would find another plan there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster
from taskflow.mapper import Strategy
from taskflow.optimizer.algorithms import known
from taskflow.optimizer.budget import Budget
from taskflow.optimizer.cost import ANALYTIC
from taskflow.optimizer.evaluate import make_evaluator, too_many_to_show
from taskflow.optimizer.explain.explain import Busy, explain
from taskflow.optimizer.explain.labels import TaskPurpose
from taskflow.optimizer.explain.machine_changes import Change, changed
from taskflow.optimizer.memory_check import MemoryCheck
from taskflow.optimizer.result import Progress, SearchResult
from taskflow.optimizer.search import search
from taskflow.optimizer.space import Constraints
from taskflow.rules import UpdateRule


@dataclass(frozen=True, slots=True)
class Scenario:
    """Changes that are made together."""

    changes: tuple[Change, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.changes))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan on a changed machine. ``speedup``: relative to the machine as it is. ``lacks``: what memory the plan lacks there
    (empty: it fits). ``plans``: this one, data, expert and model; of a large network this one alone. ``now_fit``: those of them
    that fit there but not here; ``no_longer_fit``: the reverse. ``found`` and ``here``: results of searches there and on the
    machine as it is, with the same budget and seed. ``found_fits_here``: whether the plan found there would fit the machine as it
    is. ``none_found``: why no plan was found there. ``interrupted``: the user ended this search or an earlier one, so that there is
    nothing to compare."""

    scenario: Scenario
    seconds: float
    speedup: float
    shares: Mapping[TaskPurpose, float]
    limit: Busy
    lacks: str
    plans: tuple[str, ...]
    now_fit: tuple[str, ...]
    no_longer_fit: tuple[str, ...]
    found: SearchResult | None = None
    here: SearchResult | None = None
    found_fits_here: bool = True
    none_found: str = ""
    interrupted: bool = False


def what_if(
    graph: OperatorGraph, machine: Cluster, strategy: Strategy, scenarios: Sequence[Scenario], *, rule: UpdateRule | None,
    budget: Budget | None = None, seed: int = 0, say: Callable[[str], object] = lambda text: None,
    constraints: Constraints | None = None, costs: str = ANALYTIC,
) -> tuple[Outcome, ...]:
    """Simulate ``strategy`` on the machine as each scenario changes it, with the ``costs`` of this name (`choose_costs`). With
    a ``budget``, also search on each, and once on the machine as it is, for plans that respect the ``constraints``. Ctrl-C ends
    the search in progress and skips the later ones. Raises ValueError if a scenario changes links that do not exist, or device
    speeds when tasks are measured on the devices at hand."""
    if costs != ANALYTIC and (faster := next((s for s in scenarios if any(c.what == "compute" for c in s.changes)), None)):
        raise ValueError(
            f"what-if {faster}: {costs} costs are of the processor at hand, whatever the rates of the machine; leave compute out, "
            f"or use analytic costs (--costs analytic)"
        )
    machines = [changed(machine, scenario.changes) for scenario in scenarios]
    others = () if too_many_to_show(strategy) else known(graph, machine)  # of such a size they would take minutes each
    plans = {strategy.name: strategy, **{s.name: s for s in others}}
    before = _fitting(graph, machine, plans, rule, costs)
    seconds = make_evaluator(graph, machine, rule=rule, costs=costs).set(strategy)
    here = None
    if budget is not None:
        say("search on the machine as it is")
        here = _search(graph, machine, strategy, rule, budget, seed, say, constraints, "as it is", costs)
    interrupted = budget is not None and here is None
    outcomes = []
    for scenario, other in zip(scenarios, machines):
        say(f"simulating with {scenario}")
        evaluator = make_evaluator(graph, other, rule=rule, costs=costs)
        evaluator.set(strategy)
        explained = explain(evaluator)
        after = _fitting(graph, other, plans, rule, costs)
        found, fits_here, none_found = None, True, ""
        if budget is not None and not interrupted:
            try:
                found = _search(graph, other, strategy, rule, budget, seed, say, constraints, str(scenario), costs)
                interrupted = found is None
                fits_here = found is None or not _fitting(graph, machine, {"found": found.strategy}, rule, costs)["found"]
            except ValueError as error:  # nothing fits there
                none_found = str(error)
        outcomes.append(Outcome(
            scenario, explained.seconds, seconds / explained.seconds if explained.seconds > 0 else 1.0, explained.shares,
            explained.limit, after[strategy.name], tuple(plans), tuple(n for n in plans if before[n] and not after[n]),
            tuple(n for n in plans if after[n] and not before[n]), found, here, fits_here, none_found,
            interrupted,
        ))
    return tuple(outcomes)


def _fitting(
    graph: OperatorGraph, machine: Cluster, plans: Mapping[str, Strategy], rule: UpdateRule | None, costs: str
) -> dict[str, str]:
    """Memory that each plan lacks; empty where it fits, or where nothing is trained."""
    evaluator = make_evaluator(graph, machine, rule=rule, costs=costs)
    if rule is None:
        return dict.fromkeys(plans, "")
    check, lacks = MemoryCheck(evaluator), {}
    for name, plan in plans.items():
        evaluator.set(plan)
        lacks[name] = check(plan)
    return lacks


def _search(
    graph: OperatorGraph, machine: Cluster, strategy: Strategy, rule: UpdateRule | None, budget: Budget, seed: int,
    say: Callable[[str], object], constraints: Constraints | None, called: str, costs: str,
) -> SearchResult | None:
    """None if the user ended it: then it is no match for one that was not."""
    def show(progress: Progress) -> None:
        say(f"{called}: {progress}")

    try:
        found = search(
            graph, machine, budget=budget, seed=seed, rule=rule, starts=(strategy,), constraints=constraints, progress=show,
            costs=costs,
        )
    except KeyboardInterrupt:  # before it had any plan
        return None
    return None if found.stopped == "interrupted" else found
