"""taskflow export: writes a plan for another framework, which then trains it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from taskflow.cli import completing
from taskflow.cli.options import FAILED, emit, output_options, plan_options, seed_option, writable
from taskflow.cli.problem import Problem, describe, named_strategy, plan_problem
from taskflow.cli.progress import working
from taskflow.cli.sections import SectionedCommand
from taskflow.cli.tables import nbytes, seconds, tell
from taskflow.export import TARGETS, Exported, exported, kept_gradients
from taskflow.mapper import Strategy
from taskflow.trial import looked_at
from taskflow.writing import replacing

MOST_LISTED = 20  # operators that differ
OF_ADAM = ("megatron", "torchtitan")  # targets that have an update rule of their own


@click.command("export", cls=SectionedCommand)
@click.argument("plan", shell_complete=completing.strategies)
@click.option("--to", "target", type=click.Choice(TARGETS), required=True, help="Framework to write for.")
@click.option("--out", type=click.Path(dir_okay=False), required=True, help="The file to write.")
@click.option("--nearest", is_flag=True, help="If the framework cannot express the plan, write the nearest one that it can.")
@plan_options
@seed_option
@output_options
def export_command(
    plan: str, target: str, out: str, nearest: bool, seed: int, as_json: bool, quiet: bool, **asked: Any
) -> None:
    """Write PLAN as a program or as flags for the framework that trains it, or as an ONNX file.

    For torch the model must have been made by taskflow.from_torch. An ONNX file can hold any plan, as device configurations of
    its nodes. Operators whose cut the framework cannot express are listed, with the nearest plan that it can express and that
    plan's cost. The exit code is then 1, and nothing is written unless --nearest is given.

    \b
    Examples:
      taskflow export plan.json --to torch --out parallel.py
      taskflow export 't2 d2' --model minigpt.py:graph -m a100 -n 4 --to torch --out parallel.py
      taskflow export plan.json --to jax --out parallel_jax.py --nearest
      taskflow export plan.json --to onnx --out plan.onnx
    """
    writable(out)
    with working("exporting"):
        problem = plan_problem(plan, **asked)
        strategy = named_strategy(problem, plan, seed)
        found = exported(problem.graph, strategy, target, Path(out).name, problem.machine.kinds[0].program)
        after = _row(problem, found.nearest)
        before = _row(problem, strategy) if found.differences else after
        kept = kept_gradients(target, problem.graph, problem.memory_check, found.nearest)
        stays = f"{target} keeps gradients until the update: {nbytes(kept)} more than predicted, since the plan has one micro-batch"
        found = replace(found, notes=(*found.notes, *_of_rule(str(problem.made_from.get("rule")), target), *[stays] * (kept > 0)))
        fine = nearest or not found.differences
        compared = looked_at(problem.graph, found, target) if fine else ""
    written = _write(found, Path(out)) if fine else []
    if as_json:
        emit({
            **problem.header(), "plan": plan, "to": target, "written": written,
            "iteration_seconds": before["iteration_seconds"], "nearest_iteration_seconds": after["iteration_seconds"],
            "differences": [{"operator": d.operator, "cut": d.cut, "why": d.why} for d in found.differences],
            "notes": list(found.notes), "ranks": found.ranks, "more_bytes": found.more_bytes, "compared": compared,
        })
    else:
        _tell(problem, found, plan, target, before, after, quiet)
        for path in written:
            tell(f"wrote {path}: {found.ranks} {'ranks' if found.ranks > 1 else 'rank'}")
        if compared and not quiet:
            tell(compared)
        if not fine:
            tell("nothing was written; --nearest writes the nearest plan")
    if not fine:
        sys.exit(FAILED)


def _of_rule(rule: str, target: str) -> list[str]:
    """What to say of a plan's update rule to a target that trains with Adam unless it is told otherwise."""
    if target not in OF_ADAM or rule in ("adam", "adamw"):
        return []
    return [f"seconds and memory are of --rule {rule}; {target} trains with Adam (two float32 numbers a weight) by default"]


def _row(problem: Problem, strategy: Strategy) -> dict[str, Any]:
    return describe(problem, strategy)


def _write(found: Exported, out: Path) -> list[str]:
    written = []
    for name, text in found.files.items():
        path = out.with_name(name)
        with replacing(path) as file:
            file.write_bytes(text if isinstance(text, bytes) else text.encode())
        written.append(str(path))
    return written


def _tell(
    problem: Problem, found: Exported, plan: str, target: str, before: dict[str, Any], after: dict[str, Any], quiet: bool
) -> None:
    if quiet:
        return
    tell(problem.heading)
    memory = nbytes(before["peak_memory_bytes"])
    tell(f"{plan}: {seconds(before['iteration_seconds'])} a step predicted, {memory} at most on a device")
    for note in found.notes:
        tell(f"note: {note}")
    if not found.differences:
        return
    tell(f"{target} cannot express {len(found.differences)} of {len(problem.graph)} operators as planned:")
    for difference in found.differences[:MOST_LISTED]:
        tell(f"  {difference}")
    if (left := len(found.differences) - MOST_LISTED) > 0:
        tell(f"  and {left} more (--json lists all)")
    change = after["iteration_seconds"] / before["iteration_seconds"] - 1
    tell(f"the nearest plan that it can: {seconds(after['iteration_seconds'])} a step predicted ({change:+.1%}), "
         f"{nbytes(after['peak_memory_bytes'])} at most on a device")  # fmt: skip
