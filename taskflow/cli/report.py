"""taskflow report: a plan as one HTML page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from taskflow.cli import completing
from taskflow.cli.budgets import CommandBudget
from taskflow.cli.options import budget_option, emit, output_options, plan_options, seed_option, trace_option, writable
from taskflow.cli.problem import named_strategy, plan_problem, trace_prediction
from taskflow.cli.progress import working
from taskflow.cli.searched import run_search
from taskflow.cli.sections import SectionedCommand
from taskflow.cli.tables import tell
from taskflow.mapper import search_of
from taskflow.optimizer.space import SpaceOptions
from taskflow.report import report_data, write_page
from taskflow.runtime.job import INTERRUPTED

FIND = "search"  # as PLAN: find one first
BESIDE_SECONDS = 5.0  # in which other plans are simulated, of a large network perhaps not all


@click.command("report", cls=SectionedCommand)
@click.argument("plan", shell_complete=completing.strategies)
@plan_options
@budget_option("30s")
@seed_option
@click.option("--out", type=click.Path(dir_okay=False), default="report.html", show_default=True, help="The page to write.")
@trace_option
@output_options
def report_command(
    plan: str, budget: str, seed: int, out: str, trace: str | None, as_json: bool, quiet: bool, **asked: Any
) -> None:
    """Write PLAN as one HTML page: operators on devices, timeline, memory, search, comparison and machine.

    PLAN is a strategy file, which knows its model, its machine and how it was found. With --model, PLAN is a mapper's name, a
    plan such as 't2 p2 mb1', or `search`, which finds a plan first. The page is one file that loads nothing from a network.

    \b
    Examples:
      taskflow search rnntc -m k80 -n 8 --budget 10s --out plan.json
      taskflow report plan.json --out report.html
      taskflow report expert --model nmt -m k80 -n 8 --out expert.html
      taskflow report search --model rnnlm -m p100 --budget 20s --out found.html
    """
    spending = CommandBudget(budget)
    for path in (out, trace):
        writable(path)
    found: dict[str, Any] | None = None
    interrupted = False
    problem = plan_problem(plan, **asked)
    if plan == FIND:
        result = run_search(problem, "guided", spending.search, seed, quiet or as_json, SpaceOptions(), True)
        strategy, found, interrupted = result.strategy, result.as_json(), result.stopped == "interrupted"
    else:
        strategy = named_strategy(problem, plan, seed)
        found = search_of(plan) if plan.endswith(".json") else None
    with working("report") as display:
        report = report_data(
            problem.evaluator, strategy, search=found, memory_check=problem.memory_check, beside_seconds=BESIDE_SECONDS,
            say=lambda words: display.say(f"report: {words}")
        )
        size = write_page(report, out)
        if trace:
            display.say("report: trace")
            problem.evaluator.set(strategy)
            trace_prediction(problem, strategy.name, trace)
    if as_json:
        emit({
            **problem.header(), "out": str(out), "bytes": size, "plan": report.value["plan"],
            "baselines": report.value["baselines"],
        })
    else:
        tell(f"{Path(out)}: {size / 1e6:.2f} MB; open it in a browser; costs: {problem.header()['costs']}")
    if interrupted:  # the page has the best plan until then
        sys.exit(INTERRUPTED)
