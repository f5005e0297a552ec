"""taskflow search: find a fast strategy."""

from __future__ import annotations

import sys

import click

from taskflow.cli.problem import Problem, describe, emit, make_problem, output_options, problem_options, writable
from taskflow.mapper import save
from taskflow.optimizer.found import Budget, Found, Progress
from taskflow.optimizer.search import ALGORITHMS, search
from taskflow.optimizer.space import DEGREES, PLACEMENTS, SpaceOptions


@click.command("search")
@problem_options
@click.option("--budget", default="30s", show_default=True, help="30s, 5m, or 20000p for proposals (reproducible).")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--algorithm", type=click.Choice(list(ALGORITHMS)), default="guided", show_default=True)
@click.option("--degrees", type=click.Choice(DEGREES), default="any", show_default=True)
@click.option("--placements", type=click.Choice(PLACEMENTS), default="structured", show_default=True)
@click.option("--reduction/--no-reduction", default=True, show_default=True, help="Whether contracted dimensions may be cut.")
@click.option("--memory/--no-memory", default=True, show_default=True, help="Refuse plans that do not fit the memory.")
@click.option("--out", type=click.Path(dir_okay=False), help="Write the strategy to this file.")
@output_options
def search_command(
    model: str, machine: str, devices: int | None, batch: int | None, size: str, rule: str, budget: str, seed: int,
    algorithm: str, degrees: str, placements: str, reduction: bool, memory: bool, out: str | None, as_json: bool,
    quiet: bool,
) -> None:
    """Find a fast strategy for MODEL."""
    limit = Budget.parse(budget)
    writable(out)
    problem = make_problem(model, machine, devices, batch, size, rule)
    space = SpaceOptions(degrees, placements, reduction)
    found = run_search(problem, algorithm, limit, seed, quiet, space, memory)
    if out:
        save(
            found.strategy, problem.graph, problem.machine.name, out, search=found.as_json(),
            problem={"batch": batch, "size": size, "rule": rule},
        )
    row = {**problem.header(), **describe(problem, found.strategy), **found.as_json()}
    if as_json:
        emit(row)
        return
    click.echo(f"{problem.graph} on {problem.machine}\n{found}")
    click.echo(f"{row['transfer_bytes'] / 1e6:.1f} MB moved a step, {row['peak_memory_bytes'] / 1e9:.2f} GB at most on a device")
    if not quiet:
        click.echo(found.strategy.describe(problem.graph))


def run_search(
    problem: Problem, algorithm: str, budget: Budget, seed: int, quiet: bool, space: SpaceOptions, memory: bool,
    *, alone: bool = False,
) -> Found:
    """Search with progress on stderr."""
    live = not quiet and sys.stderr.isatty()

    def show(progress: Progress) -> None:
        click.echo(f"\r\x1b[K{progress}", err=True, nl=False)

    found = search(
        problem.graph, problem.machine, budget=budget, seed=seed, algorithm=algorithm, space=space, memory=memory,
        progress=show if live else None, use=problem.evaluator, alone=alone,
    )
    if live:
        click.echo("", err=True)
    return found
