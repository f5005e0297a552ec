"""taskflow compare: what people write beside what the searches find."""

from __future__ import annotations

from typing import Any

import click

from taskflow.cli.problem import describe, emit, make_problem, named_strategy, output_options, problem_options, table
from taskflow.cli.search import run_search
from taskflow.optimizer.found import Budget
from taskflow.optimizer.search import ALGORITHMS
from taskflow.optimizer.space import SpaceOptions


@click.command("compare")
@problem_options
@click.option("--budget", default="10s", show_default=True, help="Of each search: 10s, 5m, or 20000p for proposals.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--memory/--no-memory", default=True, show_default=True, help="Refuse plans that do not fit the memory.")
@output_options
def compare_command(
    model: str, machine: str, devices: int | None, batch: int | None, size: str, rule: str, budget: str, seed: int,
    memory: bool, as_json: bool, quiet: bool,
) -> None:
    """Compare the strategies people write with those that the searches find for MODEL."""
    limit = Budget.parse(budget)
    problem = make_problem(model, machine, devices, batch, size, rule)
    rows: list[dict[str, Any]] = []
    for name in ("data", "model", "expert"):
        rows.append({**describe(problem, named_strategy(problem, name)), "search_seconds": 0.0, "proposals": 0})
    for algorithm in ("placement", "optcnn", "mcmc", "guided"):
        if algorithm not in ALGORITHMS:
            continue
        alone = algorithm in ("placement", "optcnn")
        try:
            found = run_search(problem, algorithm, limit, seed, quiet, SpaceOptions(), memory, alone=alone)
        except ValueError as error:  # nothing that this algorithm may answer fits: the others' rows still count
            if not quiet:
                click.echo(f"{algorithm}: {error}", err=True)
            continue
        rows.append({
            **describe(problem, found.strategy), "name": algorithm, "search_seconds": found.search_seconds,
            "proposals": found.proposals, "seed": seed,
        })
    if as_json:
        emit({**problem.header(), "strategies": rows})
    else:
        click.echo(f"{problem.graph} on {problem.machine}; costs: {problem.header()['costs']}\n{table(rows)}")
