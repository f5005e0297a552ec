"""taskflow report: a plan as one HTML page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from taskflow.cli.problem import RULES, Problem, emit, make_problem, named_strategy, output_options, writable
from taskflow.cli.search import run_search
from taskflow.mapper import MAPPERS, made_for
from taskflow.optimizer.found import Budget
from taskflow.optimizer.space import SpaceOptions
from taskflow.report import report_data, write_page


@click.command("report")
@click.argument("plan")
@click.option("--model", help="The model (default: the one that the plan file was made for).")
@click.option("--machine", "-m", help="A machine's name or FILE.json (default: the plan file's).")
@click.option("--devices", "-n", type=click.IntRange(1), help="Its first so many devices (default: the plan file's, or all).")
@click.option("--batch", type=click.IntRange(1), help="Samples a step, of all devices (default: the plan file's, or the paper's).")
@click.option("--size", type=click.Choice(["paper", "small"]), help="Default: the plan file's, or paper.")
@click.option("--rule", type=click.Choice(list(RULES)), help="Update rule (default: the plan file's, or momentum).")
@click.option("--search", "budget", help="Search for the plan first, for so long: 30s, 5m, 20000p. PLAN is then `search`.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the search.")
@click.option("--out", type=click.Path(dir_okay=False), default="report.html", show_default=True, help="The page to write.")
@output_options
def report_command(
    plan: str, model: str | None, machine: str | None, devices: int | None, batch: int | None, size: str | None,
    rule: str | None, budget: str | None, seed: int, out: str, as_json: bool, quiet: bool,
) -> None:
    """Write PLAN as one HTML page that needs no network: graph, timeline, memory, search, comparison and machine.

    PLAN is a strategy file, the name of a mapper (data, model, expert, ...), or `search`.

    \b
    taskflow search RNNTC -m k80 -n 8 --budget 10s --out plan.json
    taskflow report plan.json --out report.html
    taskflow report expert --model NMT -m k80 --out expert.html
    taskflow report search --search 30s --model RNNLM -m p100 --out found.html
    """
    writable(out)
    made = made_for(plan) if plan.endswith(".json") else {}
    problem = _problem(plan, made, model, machine, devices, batch, size, rule)
    found: dict[str, Any] | None = made.get("search")
    if plan == "search" or budget is not None:
        if plan != "search":
            raise ValueError(f"--search finds a plan, so PLAN must be `search`, got {plan!r}")
        result = run_search(problem, "guided", Budget.parse(budget or "30s"), seed, quiet or as_json, SpaceOptions(), True)
        strategy, found = result.strategy, result.as_json()
    else:
        strategy = named_strategy(problem, plan)
    live = not quiet and not as_json and sys.stderr.isatty()
    report = report_data(
        problem.evaluator, strategy, search=found,
        say=lambda words: click.echo(f"\r\x1b[K{words} ...", err=True, nl=False) if live else None,
    )
    size_bytes = write_page(report, out)
    if live:
        click.echo("\r\x1b[K", err=True, nl=False)
    if as_json:
        emit({**problem.header(), "out": str(out), "bytes": size_bytes, "plan": report.value["plan"],
              "baselines": report.value["baselines"]})
    else:
        click.echo(f"{Path(out)}: {size_bytes / 1e6:.2f} MB; open it in a browser")


def _problem(
    plan: str, made: dict[str, Any], model: str | None, machine: str | None, devices: int | None, batch: int | None,
    size: str | None, rule: str | None,
) -> Problem:
    """Options win over what the plan file says it was made for."""
    if not plan.endswith(".json") and plan not in MAPPERS and plan != "search":
        raise ValueError(f"no plan {plan!r}; use a strategy file FILE.json, {', '.join(MAPPERS)}, or search")
    model = model or made.get("model")
    if model is None:
        raise ValueError(f"{plan} does not say for which model; add --model NAME (see `taskflow models`)")
    settings = made.get("problem", {})
    other = machine is not None and machine != made.get("machine")
    if devices is None and not other:
        devices = made.get("processors")
    return make_problem(
        model, machine or made.get("machine", "this"), devices, batch or settings.get("batch"),
        size or settings.get("size", "paper"), rule or settings.get("rule", "momentum"),
    )
