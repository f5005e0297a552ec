"""taskflow rank: how often plans that were measured came in the order in which they were predicted."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

import click

from taskflow.cli import completing
from taskflow.cli.options import emit, output_options
from taskflow.cli.problem import named_strategy, plan_problem
from taskflow.cli.progress import working
from taskflow.cli.tables import render, tell
from taskflow.cli.trusted import RUNS_FOLDER
from taskflow.optimizer.trust import MeasuredRun, PlanOrder, RunFile, order_of, read_runs, run_file
from taskflow.wording import milliseconds


@dataclass(frozen=True, slots=True)
class RankedPlan:
    """A plan of a task, with the median of its measured steps."""

    plan: str
    predicted: float
    measured: float
    runs: int

    @property
    def pair(self) -> tuple[float, float]:
        return self.predicted, self.measured


Tasks = dict[str, list[RankedPlan]]  # the plans of each task, the fastest prediction first


@click.command("rank")
@click.argument("plans", nargs=-1, shell_complete=completing.strategies)
@click.option("--measured", default="runs", envvar=RUNS_FOLDER, show_default=True, type=click.Path(file_okay=False),
              help=f"The folder of runs (`taskflow runs`; also by the variable {RUNS_FOLDER}).")
@output_options
def rank_command(plans: tuple[str, ...], measured: str, as_json: bool, quiet: bool) -> None:
    """Say how often measured plans came in the order in which they were predicted.

    Runs of one network, batch, machine and program can be compared with each other. With PLANS, strategy files, only runs of
    these plans count, and they are predicted anew.

    \b
    Examples:
      taskflow rank
      taskflow rank plans/*.json --measured runs/
      taskflow rank --measured runs/ --json
    """
    runs = read_runs(measured)
    unmeasured: list[str] = []
    if plans:
        with working("predicting"):
            tasks, unmeasured = _of_plans(plans, runs)
    else:
        tasks = _of_runs(runs)
    order = order_of([one.pair for one in some] for some in tasks.values())
    if as_json:
        emit({"tasks": [_as_json(of, some) for of, some in tasks.items()], "unmeasured": unmeasured, **_order_json(order)})
        return
    if not quiet:
        for of, some in tasks.items():
            tell(f"{of}\n{_table(some)}\n")
    for plan in unmeasured:
        tell(f"{plan}: not measured; `taskflow runs add {plan} --measured TIME` keeps its step")
    tell(_summary(order, measured))


def _of_runs(runs: list[MeasuredRun]) -> Tasks:
    """All plans of a folder by task. The newest prediction of a plan counts."""
    found: dict[object, dict[str, list[MeasuredRun]]] = {}
    for run in runs:
        found.setdefault(run.file.task, {}).setdefault(run.file.which, []).append(run)
    return {
        _task_heading(next(iter(of.values()))[0].file): _sorted([
            RankedPlan(some[-1].file.plan, some[-1].predicted, median(run.seconds for run in some), len(some))
            for some in of.values()
        ]) for of in found.values()
    }  # fmt: skip


def _of_plans(plans: tuple[str, ...], runs: list[MeasuredRun]) -> tuple[Tasks, list[str]]:
    """The measured ones of some strategy files by task, and the others."""
    found: dict[object, list[RankedPlan]] = {}
    titles: dict[object, str] = {}
    unmeasured = []
    for path in plans:
        if not path.endswith(".json"):
            raise ValueError(f"rank {path}: give strategy files (plan.json), as `taskflow search --out` writes them")
        problem = plan_problem(path, None, None, None, None, None, None)
        strategy = named_strategy(problem, path)
        predicted = problem.evaluator.set(strategy)
        here = run_file(problem.graph, strategy, problem.machine, dict(problem.made_from), 1.0, predicted)
        own = [run for run in runs if run.file.task == here.task and run.file.which == here.which]
        if not own:
            unmeasured.append(path)
            continue
        titles[here.task] = _task_heading(here)
        found.setdefault(here.task, []).append(
            RankedPlan(here.plan, predicted, median(run.seconds for run in own), len(own))
        )
    return {titles[task]: _sorted(some) for task, some in found.items()}, unmeasured


def _sorted(plans: list[RankedPlan]) -> list[RankedPlan]:
    return sorted(plans, key=lambda one: one.predicted)


def _task_heading(file: RunFile) -> str:
    by = f", {file.program}" if file.program else ""
    return f"{file.model} ({file.graph[:6]}), {file.samples:,} samples on {file.devices} {file.machine}{by}"


def _places(plans: list[RankedPlan]) -> list[int]:
    """The place of each plan by its measured time, from 1 on."""
    by_time = sorted(range(len(plans)), key=lambda i: plans[i].measured)
    return [by_time.index(i) + 1 for i in range(len(plans))]


def _table(plans: list[RankedPlan]) -> str:
    lines = [
        [str(i + 1), str(place), one.plan, milliseconds(one.predicted), milliseconds(one.measured),
         f"{one.predicted / one.measured:.3g}", str(one.runs)] for i, (one, place) in enumerate(zip(plans, _places(plans)))
    ]
    headings = ["predicted", "measured", "plan", "predicted ms", "measured ms", "of measured", "runs"]
    return render(headings, lines, words=(2,))


def _as_json(of: str, plans: list[RankedPlan]) -> dict[str, Any]:
    return {
        "task": of, "plans": [
            {"plan": one.plan, "predicted_seconds": one.predicted, "measured_seconds": one.measured, "runs": one.runs,
             "predicted_place": i + 1, "measured_place": place} for i, (one, place) in enumerate(zip(plans, _places(plans)))
        ],
    }  # fmt: skip


def _order_json(order: PlanOrder) -> dict[str, Any]:
    return {
        "compared_tasks": order.tasks, "pairs": order.pairs, "pairs_in_order": order.in_order, "tau": order.tau,
        "median_regret": order.regret[0] if order.regret else None, "mean_regret": order.regret[1] if order.regret else None,
    }


def _summary(order: PlanOrder, folder: str) -> str:
    if order.regret is None:
        return f"{folder}: no two plans of one network, batch, machine and program were measured"
    pairs = (
        f"{order.in_order} of {order.pairs} pairs that differ by a tenth came in the order predicted" if order.pairs
        else "no two plans differ by a tenth"
    )
    tasks = "" if order.tasks == 1 else f" (median of {order.tasks} tasks; {order.regret[1]:.1%} in the mean)"
    late = f"the plan predicted to be the fastest took {order.regret[0]:.1%} longer than the fastest{tasks}"
    return "; ".join([pairs, *([f"tau {order.tau:.2f}"] if order.tau is not None else []), late])
