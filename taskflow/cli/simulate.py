"""taskflow simulate: predict the time of one step under a strategy."""

from __future__ import annotations

from typing import Any

import click

from taskflow.cli import completing
from taskflow.cli.problem import (
    describe,
    emit,
    make_problem,
    named_strategy,
    output_options,
    problem_options,
    seed_option,
    table,
    trace_option,
    trace_prediction,
    writable,
)
from taskflow.cli.progress import working
from taskflow.cli.sections import SectionedCommand
from taskflow.cli.tables import tell
from taskflow.collector import paused_collector
from taskflow.optimizer import step_units
from taskflow.optimizer.evaluate import ALGORITHMS as SIMULATIONS
from taskflow.optimizer.evaluate import timeline_json
from taskflow.writing import json_text, replacing


@click.command("simulate", cls=SectionedCommand)
@problem_options
@click.option("--strategy", "--mapper", "strategy", default="data", show_default=True, shell_complete=completing.strategies,
              help="data, model, expert, ..., a plan such as 't2 p2 mb1', a strategy FILE.json, or package.module:Class.")
@seed_option
@click.option("--algorithm", type=click.Choice((*SIMULATIONS, "propagate")), default="auto", show_default=True,
              help="full: all of the step; delta: changes task by task (the paper's Algorithm 2; its old name is "
              "propagate). Both give the same times.")
@click.option("--timeline", type=click.Path(dir_okay=False), shell_complete=completing.json_files,
              help="Write every task's times to this file, as JSON.")
@trace_option
@output_options
def simulate_command(
    strategy: str, seed: int, algorithm: str, timeline: str | None, trace: str | None, as_json: bool, quiet: bool, **asked: Any
) -> None:
    """Predict the time of one step of MODEL under a strategy.

    \b
    Examples:
      taskflow simulate alexnet --machine p100 --devices 8 --strategy expert
      taskflow simulate nmt -m k80 -n 4 --strategy plan.json --timeline times.json
      taskflow simulate llama --size small -m h100 -n 4 --strategy 'p4 mb1' --trace step.json.gz
      taskflow simulate my_model.py:build --set width=512 -m my_machine.json --json
    """
    for path in (timeline, trace):
        writable(path)
    with working("simulating"), paused_collector():
        problem = make_problem(**asked, algorithm=algorithm)
        chosen = named_strategy(problem, strategy, seed)
        row = {**problem.header(), "algorithm": algorithm, **describe(problem, chosen)}
        if timeline:
            evaluator = problem.evaluator
            content = timeline_json(*evaluator.current(), problem.machine)
            text = json_text(content)
            with replacing(timeline) as file:
                file.write_text(text, encoding="utf-8")
        if trace:
            trace_prediction(problem, chosen.name, trace)
    if as_json:
        emit(row)
        return
    if not quiet:
        tell(f"{problem.graph} on {problem.machine}: {row['tasks']} tasks; {problem.costs}")
    tell(table([row]))
    if not quiet:
        tell(str(step_units(problem.graph, problem.machine, problem.evaluator.rule, row["iteration_seconds"])))
    if "trust" in row:
        tell(row["trust"]["said"])
