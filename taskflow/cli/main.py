"""The commands."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from taskflow.cli.machine import machine_group
from taskflow.cli.problem import (
    Problem,
    describe,
    emit,
    make_problem,
    named_strategy,
    output_options,
    problem_options,
    table,
)
from taskflow.machine import load_machine, preset_names
from taskflow.mapper import save
from taskflow.models import MODELS
from taskflow.optimizer.evaluator import ALGORITHMS as SIMULATIONS
from taskflow.optimizer.evaluator import timeline_json
from taskflow.optimizer.found import Budget, Found, Progress
from taskflow.optimizer.search import ALGORITHMS, search
from taskflow.optimizer.space import DEGREES, PLACEMENTS, SpaceOptions


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="soap-taskflow", prog_name="taskflow")
def main() -> None:
    """Find, predict and compare parallelisation strategies for deep networks."""


@main.command("search")
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
    _writable(out)
    problem = make_problem(model, machine, devices, batch, size, rule)
    space = SpaceOptions(degrees, placements, reduction)
    found = _search(problem, algorithm, limit, seed, quiet, space, memory)
    if out:
        save(found.strategy, problem.graph, problem.machine.name, out)
    row = {**problem.header(), **describe(problem, found.strategy), **found.as_json()}
    if as_json:
        emit(row)
        return
    click.echo(f"{problem.graph} on {problem.machine}\n{found}")
    click.echo(f"{row['transfer_bytes'] / 1e6:.1f} MB moved a step, {row['peak_memory_bytes'] / 1e9:.2f} GB at most on a device")
    if not quiet:
        click.echo(found.strategy.describe(problem.graph))


@main.command("simulate")
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
    _writable(timeline)
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


@main.command("compare")
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
            found = _search(problem, algorithm, limit, seed, quiet, SpaceOptions(), memory, alone=alone)
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


@main.command("models")
@output_options
def models_command(as_json: bool, quiet: bool) -> None:
    """The networks that there are."""
    rows = []
    for name, model in MODELS.items():
        graph = model.builder(model.paper, "float32")
        rows.append({
            "name": name, "operators": len(graph), "parameters": graph.parameter_count, "batch_per_device": model.paper.batch
        })
    if as_json:
        emit({"models": rows})
    else:
        for row in rows:
            click.echo(
                f"{row['name']:<14}{row['operators']:>5} operators {row['parameters']:>14,} parameters, "
                f"batch {row['batch_per_device']} a device"
            )


@main.command("machines")
@output_options
def machines_command(as_json: bool, quiet: bool) -> None:
    """The machines that there are; any other is a JSON file."""
    rows: list[dict[str, Any]] = []
    for name in preset_names():
        machine = load_machine(name)
        first = machine.processors[0]
        rows.append({
            "name": name, "devices": len(machine.processors), "kind": first.kind,
            "memory_bytes": first.memory_bytes, "flops_per_second": first.flops_per_second,
        })
    if as_json:
        emit({"machines": rows})
    else:
        for row in rows:
            click.echo(
                f"{row['name']:<12}{row['devices']:>5} x {row['kind']:<24}{row['memory_bytes'] / 2**30:>7.4g} GiB "
                f"{row['flops_per_second'] / 1e12:>9.3g} TFLOP/s"
            )


main.add_command(machine_group)


def _search(
    problem: Problem, algorithm: str, budget: Budget, seed: int, quiet: bool, space: SpaceOptions, memory: bool,
    *, alone: bool = False,
) -> Found:
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


def _writable(path: str | None) -> None:
    """Better to fail before the work than after it. ValueError if the file's folder is not there or closed to us."""
    if path is not None and not os.access(Path(path).resolve().parent, os.W_OK):
        raise ValueError(f"cannot write {path}: no such folder, or no permission")
