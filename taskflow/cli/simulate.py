"""taskflow simulate: predict the time of one step under a strategy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import click

from taskflow.cli import completing
from taskflow.cli.experts import experts_sentence
from taskflow.cli.options import emit, output_options, problem_options, seed_option, trace_option, writable
from taskflow.cli.problem import (
    Problem,
    describe,
    lacking_sentence,
    make_problem,
    named_strategy,
    table,
    trace_prediction,
)
from taskflow.cli.progress import working
from taskflow.cli.sections import SectionedCommand
from taskflow.cli.tables import tell
from taskflow.cli.trusted import runs_option
from taskflow.collector import paused_collector
from taskflow.floats import sum_bytes
from taskflow.optimizer import failure_costs, step_units
from taskflow.optimizer.evaluate import ALGORITHMS as SIMULATIONS
from taskflow.optimizer.evaluate import timeline_json
from taskflow.option_types import Duration
from taskflow.wording import duration
from taskflow.writing import json_text, replacing

F = TypeVar("F", bound=Callable[..., Any])
_WRITTEN_PER_SECOND = 0.5e9  # bytes: checksum and disk of one core


def _failure_options(command: F) -> F:
    """Options that say what failures cost; they arrive as ``failing``, None without --mtbf."""
    for option in (
        click.option("--slower", type=click.FloatRange(1), help="With --repair-time: the step then, as a multiple (default: 1)."),
        click.option("--repair-time", type=Duration(), help="How long lost devices are away, and a plan for fewer is used."),
        click.option("--restart-time", type=Duration(), help="From a failure to the next step (default: 60s)."),
        click.option("--checkpoint-time", type=Duration(),
                     help="How long a checkpoint holds training up, as `taskflow train` says (default: its bytes at 0.5 GB/s)."),
        click.option("--mtbf", type=Duration(),
                     help="Mean time between failures of the whole machine, such as 8h: say the best time between checkpoints, "
                     "and how much of the time is useful."),
    ):
        command = option(command)
    return command


@click.command("simulate", cls=SectionedCommand)
@problem_options
@_failure_options
@click.option("--strategy", "--mapper", "strategy", default="data", show_default=True, shell_complete=completing.strategies,
              help="data, model, expert, ..., a plan such as 't2 p2 mb1', a strategy FILE.json, or package.module:Class.")
@seed_option
@click.option("--algorithm", type=click.Choice((*SIMULATIONS, "propagate")), default="auto", show_default=True,
              help="full: all of the step; delta: changes task by task (the paper's Algorithm 2; its old name is "
              "propagate). Both give the same times.")
@click.option("--timeline", type=click.Path(dir_okay=False), shell_complete=completing.json_files,
              help="Write every task's times to this file, as JSON.")
@trace_option
@runs_option
@output_options
def simulate_command(
    strategy: str, seed: int, algorithm: str, timeline: str | None, trace: str | None, as_json: bool, quiet: bool,
    mtbf: float | None, checkpoint_time: float | None, restart_time: float | None, repair_time: float | None,
    slower: float | None, **asked: Any,
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
    if mtbf is not None:
        write = _checkpoint_bytes(problem) / _WRITTEN_PER_SECOND if checkpoint_time is None else checkpoint_time
        costs = failure_costs(
            row["iteration_seconds"], mtbf, write=write, restart=60.0 if restart_time is None else restart_time,
            repair=repair_time or 0.0, slower=slower or 1.0,
        )
        row["failures"] = {**asdict(costs), "mtbf": mtbf, "checkpoint": write}
    if as_json:
        emit(row)
        return
    if not quiet:
        tell(f"{problem.graph} on {problem.machine}: {row['tasks']} tasks; {problem.costs}")
    tell(table([row]))
    if not quiet:
        tell(str(step_units(problem.graph, problem.machine, problem.evaluator.rule, row["iteration_seconds"])))
    if sentence := experts_sentence(row):
        tell(sentence)
    if sentence := lacking_sentence([row]):
        tell(sentence)
    if "trust" in row:
        tell(row["trust"]["text"])
    if mtbf is not None:
        tell(
            f"failures every {duration(mtbf)}: with a checkpoint (of {duration(write)}) every {duration(costs.interval)}, "
            f"{costs.steps:,} steps, {costs.useful:.1%} of the time is useful, and a failure costs {duration(costs.lost)}"
        )


def _checkpoint_bytes(problem: Problem) -> int:
    """Bytes of a checkpoint: weights in float32 at least, and the update rule's arrays."""
    graph, rule = problem.graph, problem.evaluator.rule
    state = rule.state_bytes(graph.dtype.itemsize) if rule else 0
    return sum_bytes(graph.dtype.itemsize) * graph.parameter_count + state * graph.trained_count
