"""taskflow try: writes a program that runs plans for some steps where they will train, and needs PyTorch alone."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from taskflow import __version__
from taskflow.cli import completing
from taskflow.cli.imported import without_weights
from taskflow.cli.model import arguments_of, function_at
from taskflow.cli.options import FAILED, emit, output_options, plan_options
from taskflow.cli.problem import Problem, describe, named_strategy, plan_problem
from taskflow.cli.progress import working
from taskflow.cli.sections import SectionedCommand
from taskflow.cli.tables import nbytes, render, seconds, tell
from taskflow.export import Exported, exported
from taskflow.mapper import Strategy, as_content, paths_of, plan_of, samples, save
from taskflow.trial import PLANS, SCRIPT_NAME, TriedNetwork, looked_at, script_text, tried_network
from taskflow.writing import json_text, path_text, replacing, unwritable

FORMAT = "taskflow-plans 1"
MODULE = "module"  # the function of a model's file that is taken if nobody names one


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan to try. ``name``: as it was given. ``row``: of `describe`, of the plan that PyTorch can express. ``compared``: of
    `looked_at`."""

    name: str
    strategy: Strategy
    found: Exported
    row: Mapping[str, Any]
    compared: str


@click.command("try", cls=SectionedCommand)
@click.argument("plans", nargs=-1, required=True, metavar="PLAN...", shell_complete=completing.strategies)
@click.option("--out", type=click.Path(file_okay=False), required=True, help="The folder to write to; it is made.")
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True, help="Of each plan that are timed.")
@click.option("--top", type=click.IntRange(1), help="Only so many of the plans, the fastest as predicted (default: all).")
@click.option("--module", metavar="FILE.py:FUNCTION",
              help=f"The function that returns the torch.nn.Module (default: {MODULE} in the model's file; of hf: its class).")
@click.option("--nearest", is_flag=True, help="Of a plan that PyTorch cannot express, try the nearest one that it can.")
@plan_options
@output_options
def try_command(
    plans: tuple[str, ...], out: str, steps: int, top: int | None, module: str | None, nearest: bool, as_json: bool, quiet: bool,
    **asked: Any,
) -> None:
    """Write a program that runs some PLANs of a network for some steps each, where they will train.

    The folder then has try.py, which needs PyTorch alone, a module for each plan and plans.json. Start try.py under torchrun
    with as many ranks as the plans have: it runs them in turns, says how long their steps take and how much memory they need
    beside what is predicted, and writes try.json. Network, machine and batch are those of the first strategy file.

    \b
    Examples:
      taskflow try plan.json 'd8 zero3' --out tries
      taskflow try data 't2' --model net.py:graph -m h100 -n 2 --steps 50 --out tries
      torchrun --nproc-per-node 8 tries/try.py --out try.json
    """
    folder = Path(out)
    _require_folder(folder)
    names = list(dict.fromkeys(plans))
    with working("exporting"):
        problem = plan_problem(next((name for name in names if name.endswith(".json")), names[0]), **asked, target="torch")
        function, values = _function(problem, module)
        network = tried_network(problem.graph, str(problem.made_from["rule"]), function, values)
        candidates = [_candidate(problem, name) for name in names]
    _require_equal_ranks(candidates)
    refused = [one for one in candidates if one.found.differences and not nearest]
    kept = sorted(candidates, key=lambda one: float(one.row["iteration_seconds"]))[:top]
    written = [] if refused else _write(problem, network, kept, folder, steps)
    if as_json:
        emit({
            **problem.header(), "written": written, "steps": steps, "ranks": candidates[0].found.ranks,
            "plans": [_entry(problem, number, one) for number, one in enumerate(kept, 1)],
            "refused": [{"name": one.name, "differences": list(map(str, one.found.differences))} for one in refused],
        })
    else:
        _tell(problem, kept, refused, quiet)
        if written:
            ranks = candidates[0].found.ranks
            tell(f"wrote {folder / SCRIPT_NAME}: {len(kept)} plans, {steps} steps each; run it where you train:")
            tell(f"torchrun --nproc-per-node {ranks} {folder / SCRIPT_NAME} --out try.json")
    if refused:
        sys.exit(FAILED)


def _require_folder(folder: Path) -> None:
    """ValueError if nothing can be written to the folder: said before the work."""
    own = folder.resolve() != Path.cwd()
    why = unwritable(str((folder if folder.is_dir() else folder.parent) / PLANS)) if own else "name a folder of its own"
    if why is not None:
        raise ValueError(f"cannot write {folder}: {why}")


def _require_equal_ranks(candidates: Sequence[Candidate]) -> None:
    """ValueError if plans are for several numbers of ranks, which one torchrun cannot start."""
    first = candidates[0]
    for one in candidates:
        if one.found.ranks != first.found.ranks:
            raise ValueError(
                f"{one.name} is for {one.found.ranks} ranks, and {first.name} for {first.found.ranks}; try plans of one number "
                "together"
            )


# ---- the module ------------------------------------------------------------------------------------------------------
def _function(problem: Problem, where: str | None) -> tuple[str | None, dict[str, Any]]:
    """The function that makes the module, and what it is called with; None for a module of transformers. Raises ValueError if it
    makes another module than the one that was planned."""
    from taskflow.models.pytorch import require_origin

    origin, model = require_origin(problem.graph), str(problem.made_from["model"])
    if where is None:
        file = model.rpartition(":")[0]
        if type(origin.module).__module__.startswith("transformers.") or not file.endswith(".py"):
            return None, {}
        where = f"{file}:{MODULE}"
        try:
            function_at(where)
        except ValueError:
            return None, {}
    elif ":" not in where:
        raise ValueError(f"--module {where}: write FILE.py:FUNCTION")
    function = function_at(where)
    settings = {**problem.made_from["set"], **({"batch": str(problem.made_from["batch"])} if problem.made_from["batch"] else {})}
    values = arguments_of(f"--module {where}", function, settings)
    try:
        answer = without_weights(function, values)
    except Exception as error:  # the user's own code
        raise ValueError(f"--module {where}: the function raised {type(error).__name__}: {error}") from error
    answer = answer[0] if isinstance(answer, tuple) and answer else answer
    _require_same(where, answer, origin.module)
    return where, values


def _require_same(where: str, answer: Any, planned: Any) -> None:
    if not hasattr(answer, "named_parameters"):
        raise ValueError(f"--module {where}: must return a torch.nn.Module, got {type(answer).__name__}")
    ours, theirs = (
        {name: (tuple(p.shape), str(p.dtype).removeprefix("torch.")) for name, p in module.named_parameters()}
        for module in (planned, answer)
    )
    for name in [*ours, *theirs]:
        if ours.get(name) != theirs.get(name):
            has = " ".join(map(str, theirs[name])) if name in theirs else "not there"
            wanted = " ".join(map(str, ours[name])) if name in ours else "not there"
            raise ValueError(f"--module {where}: makes another module than was planned: {name} is {has}, and in the plan {wanted}")


# ---- plans -----------------------------------------------------------------------------------------------------------
def _candidate(problem: Problem, name: str) -> Candidate:
    try:
        strategy = named_strategy(problem, name)
        found = exported(problem.graph, strategy, "torch", "plan.py")
        compared = looked_at(problem.graph, found, "torch")
    except ValueError as error:
        raise ValueError(f"{name}: {str(error).removeprefix(f'{name}: ')}") from error
    return Candidate(name, found.nearest, found, describe(problem, found.nearest), compared)


def _entry(problem: Problem, number: int, of: Candidate) -> dict[str, Any]:
    """What plans.json and try.json say of a plan."""
    plan = plan_of(problem.graph, of.strategy)
    return {
        "name": of.name, "file": f"plan_{number}.py", "strategy_file": f"plan_{number}.json", "strategy": of.strategy.name,
        "plan": None if plan is None else str(plan), "made_from": paths_of(dict(problem.made_from), path_text),
        "model": problem.graph.name, "machine": problem.machine.name, "devices": len(problem.machine.processors),
        "batch": samples(problem.graph), "dtype": problem.graph.dtype.name, "rule": problem.made_from["rule"],
        **({} if plan is not None else {"contents": as_content(of.strategy, problem.graph, problem.machine.name)}),
        "program": problem.made_from.get("program"), "costs": problem.evaluator.costs.name,
        "predicted_seconds": of.row["iteration_seconds"],
        "predicted_memory_bytes": of.row["peak_memory_bytes"] + of.found.more_bytes,
    }


def _write(problem: Problem, network: TriedNetwork, plans: Sequence[Candidate], folder: Path, steps: int) -> list[str]:
    folder.mkdir(exist_ok=True)
    ranks = plans[0].found.ranks
    files = {SCRIPT_NAME: script_text(ranks)}
    for number, one in enumerate(plans, 1):
        for name, text in one.found.files.items():
            assert isinstance(text, str), "modules for PyTorch are texts"
            files[name.replace("plan", f"plan_{number}", 1)] = text
    trial = {
        "format": FORMAT, "taskflow": __version__, "ranks": ranks, "steps": steps, "network": network.as_json(),
        "plans": [_entry(problem, number, one) for number, one in enumerate(plans, 1)],
    }
    files[PLANS] = json_text(trial, 1) + "\n"
    for old in folder.glob("plan_*"):  # of plans that were tried before
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    for name, text in files.items():
        with replacing(folder / name) as file:
            file.write_text(text, encoding="utf-8")
    for number, one in enumerate(plans, 1):
        save(one.strategy, problem.graph, problem.machine.name, folder / f"plan_{number}.json", problem.made_from)
    return [str(folder / name) for name in sorted([*files, *(f"plan_{number}.json" for number in range(1, len(plans) + 1))])]


def _tell(problem: Problem, kept: Sequence[Candidate], refused: Sequence[Candidate], quiet: bool) -> None:
    if not quiet:
        tell(problem.heading)
        rows = [
            [one.name, seconds(one.row["iteration_seconds"]), nbytes(one.row["peak_memory_bytes"] + one.found.more_bytes)]
            for one in kept
        ]
        tell(render(["plan", "predicted", "memory"], rows))
        for one in kept:
            tell(f"{one.name}: {one.compared}")
    for one in refused:
        count, first = len(one.found.differences), one.found.differences[0]
        tell(f"{one.name}: PyTorch cannot express {count} of {len(problem.graph)} operators as planned, first {first}")
    if refused:
        tell("nothing was written; --nearest tries the nearest plans that PyTorch can express")
