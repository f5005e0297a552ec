"""What to expect of a prediction, from the runs of --runs or from published figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from taskflow.mapper import Strategy
from taskflow.optimizer.cost import ANALYTIC
from taskflow.optimizer.trust import MeasuredRun, read_runs, state_of, trust
from taskflow.option_types import kept

if TYPE_CHECKING:
    from taskflow.cli.problem import Problem

F = TypeVar("F", bound=Callable[..., Any])
RUNS = "taskflow.runs"  # key of a click context's meta
RUNS_FOLDER = "TASKFLOW_RUNS"  # the environment's variable


def runs_option(command: F) -> F:
    """Add --runs, the folder of measured steps that `trusted` looks at."""
    return click.option(
        "--runs", type=click.Path(file_okay=False), envvar=RUNS_FOLDER, expose_value=False, callback=kept(RUNS),
        help=f"Folder of steps that you have measured (`taskflow runs`), by which to judge the prediction (or {RUNS_FOLDER})."
    )(command)


def trusted(problem: Problem, strategy: Strategy, seconds: float) -> dict[str, Any]:
    """Return ``{"trust": ...}``: how far a prediction from analytic costs can be trusted; empty if nothing is known. Runs of --runs
    that another version or machine file predicted are ignored, and counted in ``old_runs``."""
    if problem.made_from.get("costs", ANALYTIC) != ANALYTIC:
        return {}
    runs = _own_runs(click.get_current_context(silent=True))
    machine = problem.machine
    state = state_of(machine) if runs else ""
    fresh = [run for run in runs if not run.stale(machine.name, state)]
    found = trust(problem.graph, strategy, machine, seconds, fresh)
    row = {} if found is None else found.as_json()
    if old := len(runs) - len(fresh):
        text = str(row.get("text", "trust: unknown"))
        old_text = f"{old} of {len(runs)} runs were predicted with another version or machine file: `taskflow runs predict`"
        row |= {"text": f"{text}; {old_text}", "old_runs": old}
    return {"trust": row} if row else {}


def _own_runs(context: click.Context | None) -> list[MeasuredRun]:
    """The runs of --runs, read once."""
    if context is None or not (runs := context.meta.get(RUNS)):
        return []
    if not isinstance(runs, list):
        runs = context.meta[RUNS] = read_runs(runs)
    return runs
