"""taskflow simulate: predict the time of one step under a strategy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from taskflow.cli.problem import (
    describe,
    emit,
    make_problem,
    named_strategy,
    output_options,
    problem_options,
    table,
    writable,
)
from taskflow.optimizer.evaluator import ALGORITHMS as SIMULATIONS
from taskflow.optimizer.evaluator import timeline_json


@click.command("simulate")
@problem_options
@click.option("--strategy", default="data", show_default=True, help="data, model, expert, ... or a strategy FILE.json.")
@click.option("--algorithm", type=click.Choice(SIMULATIONS), default="auto", show_default=True)
@click.option("--timeline", type=click.Path(dir_okay=False), help="Write every task's times to this file, as JSON.")
@output_options
def simulate_command(
    model: str, machine: str, devices: int | None, batch: int | None, size: str, rule: str, strategy: str,
    algorithm: str, timeline: str | None, as_json: bool, quiet: bool,
) -> None:
    """Predict the time of one step of MODEL under a strategy."""
    writable(timeline)
    problem = make_problem(model, machine, devices, batch, size, rule, algorithm)
    chosen = named_strategy(problem, strategy)
    row = {**problem.header(), "algorithm": algorithm, **describe(problem, chosen)}
    if timeline:
        judge = problem.evaluator
        content = timeline_json(judge.lowered(), judge.timeline(), problem.machine)
        temporary = Path(f"{timeline}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(content))
        os.replace(temporary, timeline)
    if as_json:
        emit(row)
    else:
        about = f"{problem.graph} on {problem.machine}: {row['tasks']} tasks; costs: {row['costs']}"
        click.echo("" if quiet else about, nl=not quiet)
        click.echo(table([row]))
