"""taskflow compare: strategies that people write, beside those that the searches find."""

from __future__ import annotations

import sys
from functools import cached_property
from math import isfinite
from typing import Any

import click

from taskflow.cli import completing
from taskflow.cli.beside import beside
from taskflow.cli.budgets import CommandBudget
from taskflow.cli.constraints import constraint_options, require_target, taken_from, target_option
from taskflow.cli.dealing import dealing
from taskflow.cli.experts import experts_sentence
from taskflow.cli.next_best import grid_barred
from taskflow.cli.options import budget_option, emit, output_options, problem_options, seed_option
from taskflow.cli.problem import Problem, describe, lacking_sentence, make_problem, named_strategy, table
from taskflow.cli.progress import working
from taskflow.cli.searched import run_search
from taskflow.cli.sections import SectionedCommand
from taskflow.cli.tables import tell
from taskflow.export import nearest_within
from taskflow.mapper import HybridParallel, Strategy, map_graph
from taskflow.optimizer import Budget, BudgetExhausted, Deadline, refusal, step_units, target_named
from taskflow.optimizer.evaluate import MOST_PROCESSORS
from taskflow.optimizer.grid import SIMULATED, Allowed, GridResult, best_of_grid, make_grid, no_grid
from taskflow.optimizer.space import Constraints, SpaceOptions
from taskflow.option_types import command_path
from taskflow.runtime.job import INTERRUPTED, say_once

BY_HAND, SEARCHES = ("data", "model", "expert"), ("placement", "optcnn", "mcmc", "guided")
GRID, USUAL = "grid", "usual plans"
SHARES = {"data": 6, GRID: 4, "placement": 2, "optcnn": 2, "mcmc": 2, "guided": 8}
"""Parts of the time that is left: each plan and search gets its share of those that are still to come (1 unless it is here). Data
parallelism comes first, when nothing is known yet, and is what all others are compared with."""
DEALT = "experts: plans that deal them are compared with --expert-imbalance 1 (search looks at them in any case)"
NO_TIME_FOR_IT = "no time to simulate it"


@click.command("compare", cls=SectionedCommand)
@problem_options
@budget_option("1m", "the command (proposals: of each search)")
@seed_option
@click.option("--memory/--no-memory", default=True, show_default=True, help="Refuse plans that do not fit the memory.")
@click.option("--strategy", "--mapper", "strategies", multiple=True, shell_complete=completing.strategies,
              help="Another strategy (a mapper's name, a plan such as 't2 p2 mb1', or FILE.json) to compare; may be given several "
                   "times.")
@constraint_options
@target_option
@output_options
def compare_command(
    budget: str, seed: int, memory: bool, strategies: tuple[str, ...], target: str | None, as_json: bool, quiet: bool,
    **asked: Any,
) -> None:
    """Compare the strategies people write with those that the searches find for MODEL.

    With --constraints, --pin, --pin-sync, --forbid or --limit the searches consider only plans that respect them. The other
    plans are repaired to respect them, and their names say so. The row "grid" is the best of a grid over degrees of tensor,
    pipeline and data parallelism (and more); without one, a line says why. For networks that read words, the rows DDP, FSDP and
    Megatron-LM are what people run without a search. Ctrl-C ends the searches and shows the results so far.

    \b
    Examples:
      taskflow compare nmt --machine k80 --devices 4
      taskflow compare inception-v3 -m p100 -n 8 --budget 20000p --json
      taskflow compare lenet -n 4 --strategy plan.json
      taskflow compare alexnet -m k80 -n 4 --pin 'classifier.6=c/4 @ 0-3' --pin-sync 'features.*=ring/every'
    """
    spending, constraints = CommandBudget(budget), taken_from(asked)
    problem, silent = make_problem(**asked), quiet or as_json
    space = SpaceOptions(constraints=constraints)
    if target is not None:
        require_target(problem.graph, target)
    constraints.resolve(problem.graph, len(problem.machine.processors))  # what is wrong with them is wrong for every row
    constraints.syncs(problem.graph)
    cuts_barred = _cuts_barred(problem)
    named = tuple(dict.fromkeys((*(() if cuts_barred else BY_HAND), *strategies)))
    searches = SEARCHES[-1:] if cuts_barred else SEARCHES
    why_no_grid = grid_barred(problem)
    usual = target is None and not constraints.rules
    plans_searched = memory and not (why_no_grid or no_grid(problem.graph, problem.machine, problem.evaluator.rule))
    apart = not (why_no_grid or (plans_searched and isfinite(spending.whole.seconds)))  # else the guided search looks at it anyway
    found = _Comparison(
        problem, spending, memory, plans_searched, [*named, *((USUAL,) if usual else ()), *((GRID,) if apart else ()), *searches]
    )
    if cuts_barred:
        found.left_out[", ".join((*BY_HAND, *SEARCHES[:-1]))] = cuts_barred
    try:
        with working("simulating", not silent):
            for name in named:
                found.add_named(name, named_strategy(problem, name, seed), target, constraints)
        if usual:
            found.add_usual(silent)
        if apart:
            found.add_grid(space, target, silent)
        for algorithm in searches:
            found.add_search(algorithm, seed, silent, space, target)
    except KeyboardInterrupt:
        found.interrupted = True
    rows = found.rows
    if as_json:
        emit({
            **problem.header(), "strategies": rows, "constraints": [str(rule) for rule in constraints.rules],
            "no_grid": why_no_grid or None, "left_out": found.left_out,
        })
    else:
        batch = step_units(problem.graph, problem.machine, problem.evaluator.rule, 0.0).batch
        tell(f"{problem.heading}; a step is {batch}\n{table(rows)}")
        for sentence in dict.fromkeys(f"{row['name']}: {sentence}" for row in rows if (sentence := experts_sentence(row))):
            tell(sentence)
        if sentence := lacking_sentence(rows):
            tell(sentence)
        if why_no_grid or found.grid_note:
            tell(f"grid: {why_no_grid or found.grid_note}")
        for name, why in found.left_out.items():
            tell(f"{name}: {why}")
        if dealing(problem, target) is not None:
            tell(DEALT)
    if found.interrupted:
        say_once(f"{command_path(click.get_current_context())}: interrupted; what the searches had found until then is above")
        sys.exit(INTERRUPTED)


class _Comparison:
    """Rows of plans of one problem, found within a budget. ``plans_searched``: whether the guided search looks at plans in
    notation. ``to_come``: the names of all plans and searches that share the budget. ``rows`` are in this order; ``left_out``: why
    others are not there."""

    def __init__(
        self, problem: Problem, spending: CommandBudget, memory: bool, plans_searched: bool, to_come: list[str]
    ) -> None:
        self.problem, self.spending, self.memory, self.to_come = problem, spending, memory, to_come
        self.plans_searched, self.grid_note = plans_searched, ""
        self.rows: list[dict[str, Any]] = []
        self.left_out: dict[str, str] = {}
        self.interrupted = False
        self.start: tuple[float, Strategy] | None = None  # the fastest that the guided search may begin with

    def part(self, name: str) -> Budget:
        """The budget of the next one to come."""
        share = SHARES.get(name, 1) / sum(SHARES.get(one, 1) for one in self.to_come)
        self.to_come.remove(name)
        return self.spending.part(share)

    def add(self, strategy: Strategy, name: str, **more: object) -> dict[str, Any]:
        """Add the row of a strategy. Return it."""
        self.rows.append({**describe(self.problem, strategy), "search_seconds": 0.0, "proposals": 0, "name": name, **more})
        return self.rows[-1]

    def begin_with(self, strategy: Strategy, row: dict[str, Any]) -> None:
        """Note a strategy as a start if it fits."""
        if row["fits_memory"] and strategy.ordered and (self.start is None or row["iteration_seconds"] < self.start[0]):
            self.start = row["iteration_seconds"], strategy

    def add_named(self, name: str, plan: Strategy, target: str | None, constraints: Constraints) -> None:
        """Add a strategy that somebody wrote, or the nearest that the constraints and a framework allow."""
        graph, deadline = self.problem.graph, Deadline(self.part(name).seconds)
        try:
            respects = constraints.repair(plan, graph) if target is None else nearest_within(graph, plan, target, constraints)
            called = name if respects is plan else f"{name} (repaired)" if target is None else f"{name} (for {target})"
            with self.problem.evaluator.interruptible(deadline.check):
                self.add(respects, called)
        except BudgetExhausted:
            self.left_out[name] = NO_TIME_FOR_IT
        except ValueError as error:
            self.left_out[name] = str(error)

    def add_usual(self, quiet: bool) -> None:
        """Add the plans that people run without a search."""
        problem = self.problem
        for row in beside(problem, self.part(USUAL).seconds, quiet):
            name = ": ".join(filter(None, (row["name"], row["plan"])))
            if "tasks" not in row:
                self.left_out[name] = row["why"]
                continue
            self.rows.append({**row, "name": name, "search_seconds": 0.0, "proposals": 0})
            if row["fits_memory"]:
                self.begin_with(map_graph(HybridParallel(row["plan"]), problem.graph, problem.machine), row)

    def add_grid(self, space: SpaceOptions, target: str | None, quiet: bool) -> None:
        """Search the grid, of the plans that a user's constraints and a framework allow, and add its best plan."""
        problem, limit = self.problem, self.part(GRID)
        graph, evaluator, deadline = problem.graph, problem.evaluator, Deadline(limit.seconds)
        framework = target_named(target, graph) if target is not None else None
        allowed = Allowed(graph, problem.machine, space, framework, lambda: deadline.expired)
        takes, levels = allowed.may_have, framework.all_of_a_layer if framework else "full"
        with working("grid", not quiet):
            found = best_of_grid(
                evaluator, refusal(problem.memory_check if self.memory else None, framework), deadline=deadline,
                most=int(min(SIMULATED, limit.proposals)), grid=make_grid(graph, problem.machine, evaluator.rule, takes, levels),
                until=limit.seconds, make=allowed.strategy,
            )
        self.add_best(found, allowed.refused)

    def add_best(self, found: GridResult, refused: str = "") -> None:
        """Add the best plan of the grid, and say what was tried of it. ``refused``: why a plan is not allowed."""
        self.grid_note = f"{found}" + (f", {found.refused} of them did not fit" if found.refused else "")
        if found.strategy is None:
            self.grid_note = "; ".join(filter(None, [self.grid_note, *found.left_out[:1], refused]))
            return
        row = self.add(
            found.strategy, f"grid: {found.best}", search_seconds=found.search_seconds, proposals=len(found.simulated),
            grid=found.as_json(), grid_note=self.grid_note,
        )
        self.begin_with(found.strategy, row)

    def add_search(self, algorithm: str, seed: int, quiet: bool, space: SpaceOptions, target: str | None) -> None:
        """Add what a search finds. The guided one begins with the fastest plan so far, where it searches such plans at all."""
        problem, part = self.problem, self.part(algorithm)
        alone, last = algorithm in ("placement", "optcnn"), algorithm == "guided"
        if self.plans_searched and not last and not self.may_fit_unordered:
            self.left_out[algorithm] = "no plan of cuts alone fits the memory of all devices together"
            return
        starts = [self.start[1]] if last and self.plans_searched and self.start is not None else []
        try:
            found = run_search(
                problem, algorithm, part, seed, quiet, space, self.memory, alone=alone, workers=1, target=target,
                starts=starts, answered=bool(self.rows) and not last,
            )
        except ValueError as error:  # nothing that this algorithm may answer fits: the others' rows still count
            self.left_out[algorithm] = str(error)
            return
        if algorithm == "optcnn" and found.left_out:  # then the plan is not its own
            self.left_out[algorithm] = "; ".join(found.left_out)
            return
        self.interrupted = found.stopped == "interrupted"
        if found.best_of_grid is not None and not self.grid_note:
            self.add_best(found.best_of_grid)
        self.add(
            found.strategy, f"{algorithm} (interrupted)" if self.interrupted else algorithm, search_seconds=found.search_seconds,
            proposals=found.proposals, seed=seed,
        )
        if self.interrupted:
            raise KeyboardInterrupt

    @cached_property
    def may_fit_unordered(self) -> bool:
        """False if no plan without an order fits the devices, however it is cut and placed."""
        return make_grid(self.problem.graph, self.problem.machine, self.problem.evaluator.rule).may_fit_unordered


def _cuts_barred(problem: Problem) -> str:
    """Why plans of cuts alone are not looked at, as in `search`; empty if they are."""
    graph, machine = problem.graph, problem.machine
    many = len(machine.processors) > MOST_PROCESSORS and not no_grid(graph, machine, problem.evaluator.rule)
    return f"not on more than {MOST_PROCESSORS:,} devices, where all of such a step is lowered" if many else ""
