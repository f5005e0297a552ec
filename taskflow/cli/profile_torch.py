"""Traces of PyTorch's profiler beside the predicted step: the part of `taskflow profile` for exported modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from taskflow.cli.options import emit, writable
from taskflow.cli.problem import named_strategy, plan_problem
from taskflow.cli.tables import percent, render, seconds, tell
from taskflow.export import nearest_plan
from taskflow.machine import load_machine, save
from taskflow.models.pytorch import origin_of
from taskflow.probe import Joined, calibrated, joined, read_kineto

OPTIONS = ("machine", "devices", "batch", "size", "rule", "costs")


def profile_torch(
    plan: str, files: tuple[str, ...], model: str | None, calibrate: str | None, step_seconds: float | None, top: int,
    as_json: bool, quiet: bool,
) -> None:
    """Show the traces of a plan's ranks beside its prediction, and, with ``calibrate``, update that machine file from them.
    ``step_seconds``: what its step takes without a profiler. Raises ValueError if the prediction is of another machine."""
    context = click.get_current_context()
    typed = {name for name in OPTIONS if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
    given = {name: context.params[name] if name in typed else None for name in OPTIONS}
    if calibrate is not None:
        writable(calibrate)
        asked = given["machine"]
        if asked is not None and Path(asked).resolve() != Path(calibrate).resolve():
            raise ValueError(
                f"--calibrate updates the machine that the prediction is made for: got --machine {asked} and --calibrate "
                f"{calibrate}; leave --machine out, or name the same file"
            )
        given["machine"] = calibrate
    traces = [read_kineto(path) for path in files]
    problem = plan_problem(plan, model, **given)
    strategy = named_strategy(problem, plan)
    if origin_of(problem.graph) is not None:
        strategy = nearest_plan(problem.graph, strategy, "torch")
    problem.evaluator.set(strategy)
    found = joined(problem.evaluator, strategy, traces)
    changes: list[str] = []
    if calibrate is not None:
        machine, changes = calibrated(load_machine(calibrate), problem.evaluator, strategy, traces, step_seconds)
        save(machine, Path(calibrate))
    if as_json:
        emit({**problem.header(), "plan": plan, **_as_json(found, top), "calibrated": changes})
        return
    if not quiet:
        many = f"{len(traces)} trace{'s' if len(traces) > 1 else ''}"
        tell(f"{problem.graph} under {strategy.name}; costs: {problem.header()['costs']}; {many}\n")
        tell(_rows(found, top))
        tell(f"\nwhat explains the difference\n{_causes(found, top)}\n")
        tell(_ranks(found))
    if calibrate is not None:
        tell(f"took into {calibrate}: {'; '.join(changes)}")
    tell(
        f"step: predicted {seconds(found.predicted_seconds)}, measured {seconds(found.measured_seconds)}, "
        f"ratio {_ratio(found.predicted_seconds, found.measured_seconds)}"
    )


def _as_json(found: Joined, top: int) -> dict[str, Any]:
    return {
        "step_seconds": found.measured_seconds, "predicted_step_seconds": found.predicted_seconds, "rank": found.rank,
        "named": found.named, "ranks_seconds": {str(rank): dict(parts) for rank, parts in found.ranks.items()},
        "parts": [{"kind": row.kind, "module": row.owner, "predicted_seconds": row.predicted_seconds,
                   "measured_seconds": row.measured_seconds} for row in found.rows],
        "causes": [{"what": cause.what, "seconds": cause.seconds} for cause in found.causes[:top]],
    }  # fmt: skip


def _rows(found: Joined, top: int) -> str:
    rows = [
        (row.owner, row.kind, seconds(row.predicted_seconds), seconds(row.measured_seconds), _ratio(row.predicted_seconds,
                                                                                                    row.measured_seconds))
        for row in found.rows[: 2 * top]
    ]  # fmt: skip
    return render(("module", "part", "predicted", "measured", "ratio"), rows, words=(0, 1))


def _ratio(predicted: float, measured: float) -> str:
    return f"{measured / predicted:.2f}" if predicted > 0 else ""


def _causes(found: Joined, top: int) -> str:
    difference = found.measured_seconds - found.predicted_seconds
    rows = [(cause.what, _signed(cause.seconds)) for cause in found.causes[:top]]
    rows.append(("all together", _signed(difference)))
    return render(("cause", "seconds"), rows, words=(0,))


def _signed(value: float) -> str:
    return f"{'-' if value < 0 else '+'}{seconds(abs(value))}"


def _ranks(found: Joined) -> str:
    lines = []
    for rank, parts in sorted(found.ranks.items()):
        whole = sum(parts.values())
        text = ", ".join(f"{kind} {seconds(value)} ({percent(value, whole)})" for kind, value in sorted(
            parts.items(), key=lambda pair: -pair[1]) if value > 0.005 * whole)  # fmt: skip
        lines.append(f"rank {rank}: {text}")
    return "\n".join(lines)
