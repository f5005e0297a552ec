"""taskflow compare: strategies that people write, beside those that the searches find."""

from __future__ import annotations

import sys
from typing import Any

import click

from taskflow.cli import completing
from taskflow.cli.beside import beside
from taskflow.cli.constraints import constraint_options, require_target, taken_from, target_option
from taskflow.cli.experts import experts_sentence
from taskflow.cli.next_best import grid_barred
from taskflow.cli.options import budget_option, emit, output_options, problem_options, seed_option
from taskflow.cli.problem import Problem, describe, make_problem, named_strategy, table
from taskflow.cli.progress import working
from taskflow.cli.search import run_search
from taskflow.cli.sections import SectionedCommand
from taskflow.cli.tables import tell
from taskflow.export import nearest_within
from taskflow.optimizer import Budget, Deadline, refusal, step_units, target_named
from taskflow.optimizer.grid import SIMULATED, Allowed, best_of_grid, make_grid
from taskflow.optimizer.space import SpaceOptions
from taskflow.option_types import command_path
from taskflow.runtime.job import INTERRUPTED, say_once

BY_HAND, SEARCHES = ("data", "model", "expert"), ("placement", "optcnn", "mcmc", "guided")


@click.command("compare", cls=SectionedCommand)
@problem_options
@budget_option("10s", "each search")
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
    limit, constraints = Budget.parse(budget), taken_from(asked)
    problem = make_problem(**asked)
    space = SpaceOptions(constraints=constraints)
    if target is not None:
        require_target(problem.graph, target)
    constraints.resolve(problem.graph, len(problem.machine.processors))  # what is wrong with them is wrong for every row
    constraints.syncs(problem.graph)
    rows: list[dict[str, Any]] = []
    with working("simulating"):
        for name in dict.fromkeys((*BY_HAND, *strategies)):
            plan = named_strategy(problem, name, seed)
            try:
                respects = nearest_within(problem.graph, plan, target, constraints) if target is not None else (
                    constraints.repair(plan, problem.graph)
                )
            except ValueError as error:
                if not quiet:
                    click.echo(f"{name}: {error}", err=True)
                continue
            called = name if respects is plan else f"{name} (repaired)" if target is None else f"{name} (for {target})"
            rows.append({**describe(problem, respects), "name": called, "search_seconds": 0.0, "proposals": 0})
    interrupted, grid = False, None
    try:
        grid = grid_barred(problem) or grid_row(problem, limit, space, target, memory, quiet or as_json)
    except KeyboardInterrupt:
        interrupted = True
    if isinstance(grid, dict) and "iteration_seconds" in grid:
        rows.append(grid)
    for algorithm in () if interrupted else SEARCHES:
        alone = algorithm in ("placement", "optcnn")
        try:
            found = run_search(
                problem, algorithm, limit, seed, quiet or as_json, space, memory, alone=alone, workers=1, target=target
            )
        except ValueError as error:  # nothing that this algorithm may answer fits: the others' rows still count
            if not quiet:
                click.echo(f"{algorithm}: {error}", err=True)
            continue
        except KeyboardInterrupt:  # before it had any plan
            interrupted = True
            break
        interrupted = found.stopped == "interrupted"
        rows.append({
            **describe(problem, found.strategy), "name": f"{algorithm} (interrupted)" if interrupted else algorithm,
            "search_seconds": found.search_seconds, "proposals": found.proposals, "seed": seed,
        })
        if interrupted:
            break
    if not interrupted and target is None and not constraints.rules:
        rows += [
            {**row, "name": f"{row['name']}: {row['plan']}"} for row in beside(problem, 0.0, quiet or as_json) if "tasks" in row
        ]
    if as_json:
        emit({
            **problem.header(), "strategies": rows, "constraints": [str(rule) for rule in constraints.rules],
            "no_grid": grid if isinstance(grid, str) else None,
        })
    else:
        batch = step_units(problem.graph, problem.machine, problem.evaluator.rule, 0.0).batch
        tell(f"{problem.heading}; a step is {batch}\n{table(rows)}")
        for sentence in dict.fromkeys(f"{row['name']}: {sentence}" for row in rows if (sentence := experts_sentence(row))):
            tell(sentence)
        if grid is not None:
            tell(f"grid: {grid if isinstance(grid, str) else grid['grid_note']}")
    if interrupted:
        say_once(f"{command_path(click.get_current_context())}: interrupted; what the searches had found until then is above")
        sys.exit(INTERRUPTED)


def grid_row(
    problem: Problem, limit: Budget, space: SpaceOptions, target: str | None, memory: bool, quiet: bool
) -> dict[str, Any]:
    """Return the row of the grid's best plan, of those that a user's constraints and a framework allow. If none was found to fit
    in time, the row holds only the counts of what was tried."""
    graph, machine, evaluator, deadline = problem.graph, problem.machine, problem.evaluator, Deadline(limit.seconds)
    framework = target_named(target, graph) if target is not None else None
    allowed = Allowed(graph, machine, space, framework, lambda: deadline.expired)
    lacks = refusal(problem.memory_check if memory else None, framework)
    grid = make_grid(graph, machine, evaluator.rule, allowed.may_have, framework.all_of_a_layer if framework else "full")
    with working("grid", not quiet):
        found = best_of_grid(
            evaluator, lacks, deadline=deadline, most=int(min(SIMULATED, limit.proposals)), grid=grid, until=limit.seconds,
            make=allowed.strategy,
        )
    sentence = f"{found}" + (f", {found.refused} of them did not fit" if found.refused else "")
    counts = {"grid": found.as_json(), "grid_note": sentence}
    if found.strategy is None:
        return {**counts, "grid_note": "; ".join([sentence, *found.left_out[:1], *([allowed.refused] if allowed.refused else [])])}
    row = {**describe(problem, found.strategy), "name": f"grid: {found.best}"}
    return {**row, "search_seconds": found.search_seconds, "proposals": len(found.simulated), **counts}
