"""taskflow runs: keeps steps that a user has measured, beside their predictions; trust is computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import UNSET

from taskflow.cli import completing
from taskflow.cli.options import emit, output_options, plan_options, seed_option
from taskflow.cli.problem import Problem, make_problem, named_strategy, plan_problem
from taskflow.cli.progress import working
from taskflow.cli.sections import SectionedCommand
from taskflow.cli.tables import nbytes, render, seconds, tell
from taskflow.cli.trusted import RUNS_FOLDER
from taskflow.mapper import Strategy, from_content, paths_of
from taskflow.optimizer.trust import MeasuredRun, RunFile, free_name, read_run, read_runs, run_file, write_run
from taskflow.option_types import Duration
from taskflow.reading import path_here
from taskflow.trial import TriedFile, read_tried
from taskflow.wording import milliseconds


def folder_option(command: Any) -> Any:
    """Add --runs, the folder."""
    return click.option(
        "--runs", "folder", default="runs", envvar=RUNS_FOLDER, show_default=True, type=click.Path(file_okay=False),
        help=f"The folder of runs (also by the variable {RUNS_FOLDER}).",
    )(command)


@click.group("runs")
def runs_group() -> None:
    """Keep steps that you have measured, each a file in a folder.

    `simulate`, `search` and `explain` with --runs FOLDER (or the variable TASKFLOW_RUNS) then say what to expect of a plan
    from your own runs, before any published figure. `taskflow rank` says how often their order was predicted right.
    """


# ---- add -------------------------------------------------------------------------------------------------------------
@runs_group.command("add", cls=SectionedCommand, short_help="Keep measured steps of plans.")
@click.argument("plan", shell_complete=completing.strategies)
@plan_options
@click.option("--measured", type=Duration(), help="How long a step took, such as 2.31s or 480ms.")
@click.option("--steps", type=click.IntRange(1), default=1, show_default=True, help="How many steps that is the median of.")
@click.option("--torch", "traces", multiple=True, type=click.Path(dir_okay=False),
              help="Instead of --measured: a trace of PyTorch's profiler, of one rank of the exported module; may be given several "
              "times.")
@click.option("--when", type=click.DateTime(), help="Date and time of the run (default: now).")
@click.option("--memory-gb", type=click.FloatRange(0, min_open=True), help="Memory that the fullest device needed.")
@click.option("--note", default="", help="Anything to remember of it.")
@folder_option
@seed_option
@output_options
def add_command(
    plan: str, measured: float | None, steps: int, traces: tuple[str, ...], when: datetime | None, memory_gb: float | None,
    note: str, folder: str, seed: int, as_json: bool, quiet: bool, **asked: Any,
) -> None:
    """Keep the time of a step of PLAN that you have measured, with what is predicted for it.

    The options say what was run, as for `taskflow simulate`; what is not given is taken from the plan's file. Say the program
    that ran it (--program), since a prediction is for one. PLAN may also be what try.py of `taskflow try` has written: then
    all plans are kept that ran.

    \b
    Examples:
      taskflow runs add plan.json --measured 2.31s --program megatron
      taskflow runs add 't2 d4 mb1' --model llama -m mine.json -n 8 --dtype bf16 --rule adam --measured 480ms --steps 50
      taskflow runs add plan.json --torch rank0.json --torch rank1.json
      taskflow runs add try.json
    """
    with working("simulating"):
        tried = read_tried(plan) if plan.endswith(".json") else None
        if tried is not None:
            if measured is not None or traces:
                raise ValueError(f"runs add {plan}: it has measured times; leave out --measured and --torch")
            runs = _tried(Path(plan), tried, note)
        elif (measured is None) == (not traces):
            raise ValueError("runs add: give either --measured SECONDS or --torch TRACE")
        else:
            problem = plan_problem(plan, **asked)
            strategy = named_strategy(problem, plan, seed)
            if measured is None:
                strategy, measured = _traced(problem, strategy, traces)
            memory = None if memory_gb is None else round(memory_gb * 1e9)
            runs = [_predicted(problem, strategy, measured, steps, when.astimezone() if when else None, memory, note)]
    kept = [_keep(run, Path(folder)) for run in runs]
    if as_json:
        emit({"runs": [{"path": str(run.path), **_row(run)} for run in kept]})
        return
    for run in kept:
        text = f": {seconds(run.seconds)} a step, predicted {seconds(run.predicted)}, {run.predicted / run.seconds:.3g} of measured"
        tell(f"{run.path}{'' if quiet else text}")


def _keep(run: RunFile, folder: Path) -> MeasuredRun:
    folder.mkdir(parents=True, exist_ok=True)
    path = free_name(run, folder)
    write_run(run, path)
    return MeasuredRun(path, run)


def _traced(problem: Problem, strategy: Strategy, traces: Sequence[str]) -> tuple[Strategy, float]:
    """The plan that the exported module ran, and the median step of its traces."""
    from taskflow.export import nearest_plan
    from taskflow.models.pytorch import origin_of
    from taskflow.probe import joined, read_kineto

    if origin_of(problem.graph) is not None:
        strategy = nearest_plan(problem.graph, strategy, "torch")
    problem.evaluator.set(strategy)
    return strategy, joined(problem.evaluator, strategy, [read_kineto(path) for path in traces]).measured_seconds


def _tried(path: Path, tried: TriedFile, note: str) -> list[RunFile]:
    """The plans of `try.py` that ran. Raises ValueError if there are none."""
    runs, problems = [], dict[str, Problem]()
    for plan in tried.plans:
        if plan.error is not None or plan.median_seconds is None:
            continue
        made_from = msgspec.to_builtins(plan.made_from)
        if (key := str(made_from)) not in problems:
            problems[key] = problem_again(made_from, str(path))
        problem = problems[key]
        if plan.plan is not None:
            strategy = named_strategy(problem, plan.plan)
        else:
            strategy = from_content(plan.contents or {}, problem.graph, f"{path}: plan {plan.name}")
        runs.append(_predicted(
            problem, strategy, plan.median_seconds, len(plan.step_seconds), tried.about.when.astimezone(), plan.memory_bytes, note
        ))  # fmt: skip
    if not runs:
        raise ValueError(f"{path}: none of its {len(tried.plans)} plans ran")
    return runs


def _predicted(
    problem: Problem, strategy: Strategy, measured: float, steps: int, when: datetime | None, memory: int | None, note: str
) -> RunFile:
    """The record of a step, with its prediction."""
    predicted = problem.evaluator.set(strategy)
    return run_file(
        problem.graph, strategy, problem.machine, dict(problem.made_from), measured, predicted, steps=steps, when=when,
        memory=memory, note=note, predicted_memory=max(problem.memory_check.peaks(strategy)[0]),
    )


# ---- list ------------------------------------------------------------------------------------------------------------
@runs_group.command("list", short_help="List the runs of a folder.")
@folder_option
@output_options
def list_command(folder: str, as_json: bool, quiet: bool) -> None:
    """List the runs of a folder, the oldest first.

    \b
    Examples:
      taskflow runs list
      taskflow runs list --runs ../runs --json
    """
    runs = read_runs(folder)
    if as_json:
        emit({"runs": [{"path": str(run.path), **_row(run)} for run in runs]})
        return
    if not runs:
        tell(f"{folder}: no runs; `taskflow runs add` keeps one")
        return
    lines = [
        [f"{run.file.when:%Y-%m-%d}", run.file.model, run.file.plan, f"{run.file.devices} {run.file.machine}", run.program,
         milliseconds(run.seconds), milliseconds(run.predicted), f"{run.predicted / run.seconds:.3g}",
         "" if run.file.memory_bytes is UNSET else nbytes(run.file.memory_bytes), run.file.note]
        for run in runs
    ]
    headings = ["when", "model", "plan", "machine", "program", "measured ms", "predicted ms", "of measured", "memory", "note"]
    used = [i for i in range(len(headings)) if any(line[i] for line in lines)]
    tell(render([headings[i] for i in used], [[line[i] for i in used] for line in lines], words=[
        used.index(i) for i in (0, 1, 2, 3, 4, 9) if i in used
    ]))  # fmt: skip


def _row(run: MeasuredRun) -> dict[str, Any]:
    file = run.file
    return {
        "when": file.when.isoformat(), "model": file.model, "plan": file.plan, "machine": file.machine, "devices": file.devices,
        "program": file.program, "samples": file.samples, "measured_seconds": file.measured_seconds, "steps": file.steps,
        "predicted_seconds": file.predicted_seconds, "ratio": file.predicted_seconds / file.measured_seconds,
        "memory_bytes": None if file.memory_bytes is UNSET else file.memory_bytes, "note": file.note,
    }  # fmt: skip


# ---- predict ---------------------------------------------------------------------------------------------------------
@runs_group.command("predict", short_help="Predict the runs of a folder again.")
@folder_option
@output_options
def predict_command(folder: str, as_json: bool, quiet: bool) -> None:
    """Predict the runs of a folder again, with the machines' files as they are now, and keep the new predictions.

    After `taskflow profile --calibrate` or another version of taskflow the predictions in the folder are no longer those of
    today. Until they are made again, such runs do not count for trust.

    \b
    Examples:
      taskflow runs predict
      taskflow runs predict --runs ../runs --json
    """
    rows = []
    for run in read_runs(folder):
        with working(f"predicting {run.path.name}"):
            problem, strategy = problem_of(run)
            before = run.file
            fresh = run_file(
                problem.graph, strategy, problem.machine, dict(problem.made_from), before.measured_seconds,
                problem.evaluator.set(strategy), predicted_memory=max(problem.memory_check.peaks(strategy)[0]),
            )
            write_run(msgspec.structs.replace(
                fresh, when=before.when, steps=before.steps, note=before.note, memory_bytes=before.memory_bytes, plan=before.plan
            ), run.path)  # fmt: skip
        rows.append((run, read_run(run.path)))
    if as_json:
        emit({"runs": [{"path": str(now.path), "before_seconds": was.predicted, **_row(now)} for was, now in rows]})
        return
    if not rows:
        tell(f"{folder}: no runs; `taskflow runs add` keeps one")
        return
    lines = [
        [now.path.name, milliseconds(now.seconds), milliseconds(was.predicted), milliseconds(now.predicted),
         f"{now.predicted / now.seconds:.3g}"] for was, now in rows
    ]
    tell(render(["run", "measured ms", "predicted before", "now", "of measured"], lines))


def problem_of(run: MeasuredRun) -> tuple[Problem, Strategy]:
    """Make the problem of a run again, and its strategy. Raises ValueError that names the file if one of them no longer exists
    or differs from what was run."""
    problem = problem_again(msgspec.to_builtins(run.file.made_from), str(run.path))
    try:
        content = run.file.strategy
        if content is UNSET:
            strategy = named_strategy(problem, run.file.plan)
        else:
            strategy = from_content(content, problem.graph, "strategy")
    except ValueError as error:
        raise ValueError(f"{run.path}: cannot be predicted again: {error}") from error
    if problem.graph.fingerprint() != run.file.graph:
        raise ValueError(
            f"{run.path}: {run.file.model} is another network than the one that was run; restore the file that builds it, or "
            "remove the run"
        )
    return problem, replace(strategy, name=run.file.plan) if strategy.plan is None else strategy


def problem_again(made_from: Mapping[str, Any], where: str) -> Problem:
    """Make a problem from the options that a file has recorded. Raises ValueError that begins with ``where`` if that cannot be."""
    made_from = paths_of(made_from, path_here)
    if not made_from.get("model") or not made_from.get("machine"):
        raise ValueError(f"{where}: made_from: model and machine are missing, so that it cannot be predicted")
    try:
        return make_problem(
            made_from["model"], made_from["machine"], made_from.get("devices"), made_from.get("batch"),
            made_from.get("size") or "paper", made_from.get("rule"), settings=made_from.get("set") or {},
            recorded_program=made_from.get("program"),
            imbalance=made_from.get("expert_imbalance"),
        )
    except (ValueError, OSError, ImportError) as error:
        raise ValueError(f"{where}: cannot be predicted: {error}") from error
