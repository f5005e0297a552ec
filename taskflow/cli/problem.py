"""What the commands share: options, one-line errors, output, and the row that describes a plan."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, load_machine
from taskflow.mapper import MAPPERS, Strategy, choose
from taskflow.models import build
from taskflow.optimizer.evaluator import Evaluator
from taskflow.optimizer.memory import memory_use
from taskflow.optimizer.room import Room
from taskflow.optimizer.search import make_evaluator
from taskflow.optimizer.where import where_time_goes
from taskflow.rules import SGD, Adam, UpdateRule

MOST_TASKS = 8000
F = TypeVar("F", bound=Callable[..., Any])
RULES: Mapping[str, UpdateRule | None] = {"sgd": SGD(lr=0.1), "momentum": SGD(lr=0.1, momentum=0.9), "adam": Adam(), "none": None}


@dataclass(frozen=True, slots=True)
class Problem:
    """A model on a machine, as the command line names them, and what judges its plans."""

    graph: OperatorGraph
    machine: Cluster
    evaluator: Evaluator

    def header(self) -> dict[str, Any]:
        """The fields that every command's JSON starts with."""
        model = getattr(self.evaluator.costs, "model", None)
        return {
            "model": self.graph.name,
            "operators": len(self.graph),
            "parameters": self.graph.parameter_count,
            "machine": self.machine.name,
            "devices": len(self.machine.processors),
            "costs": model.name if model is not None else type(self.evaluator.costs).__name__,
        }


def problem_options(command: F) -> F:
    """MODEL and the options that make a `Problem`."""
    for option in (
        click.argument("model"),
        click.option("--machine", "-m", default="this", show_default=True,
                     help="A machine's name (see `taskflow machines`) or FILE.json."),
        click.option("--devices", "-n", type=click.IntRange(1), help="Its first so many devices (default: all)."),
        click.option("--batch", type=click.IntRange(1), help="Samples a step, of all devices (default: the paper's)."),
        click.option("--size", type=click.Choice(["paper", "small"]), default="paper", show_default=True),
        click.option("--rule", type=click.Choice(list(RULES)), default="momentum", show_default=True,
                     help="Update rule; none: forward only."),
    ):
        command = option(command)
    return command


def output_options(command: F) -> F:
    """--json and --quiet, and errors that the user can mend on one line, with exit code 2."""

    @click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
    @click.option("--quiet", "-q", is_flag=True, help="Nothing but the result.")
    @functools.wraps(command)
    def checked(*args: Any, **options: Any) -> Any:
        try:
            return command(*args, **options)
        except (ValueError, OSError) as error:
            name = click.get_current_context().info_name
            click.echo(f"taskflow {name}: {' '.join(str(error).split())}", err=True)
            sys.exit(2)

    return checked  # type: ignore[return-value]


def make_problem(
    model: str, machine: str, devices: int | None, batch: int | None, size: str, rule: str, algorithm: str = "auto"
) -> Problem:
    """ValueError or FileNotFoundError if there is no such model or machine."""
    cluster = load_machine(machine, devices)
    graph = build(model, batch, len(cluster.processors), preset=size)
    return Problem(graph, cluster, make_evaluator(graph, cluster, rule=RULES[rule], algorithm=algorithm))


def named_strategy(problem: Problem, name: str, seed: int = 0) -> Strategy:
    """A strategy by a mapper's name or from a file."""
    if not name.endswith(".json") and name not in MAPPERS:
        raise ValueError(f"no strategy {name!r}; use {', '.join(MAPPERS)} or a strategy file FILE.json")
    return choose(name, problem.graph, problem.machine, seed=seed)[0]


def describe(problem: Problem, strategy: Strategy) -> dict[str, Any]:
    """A plan's row: its predicted time, where that goes, and memory (of a step with more than MOST_TASKS tasks an
    estimate, since planning takes minutes there). The evaluator is at ``strategy`` afterwards."""
    judge = problem.evaluator
    seconds = judge.set(strategy)
    usage = where_time_goes(judge)
    row: dict[str, Any] = {
        "name": strategy.name,
        "iteration_seconds": seconds,
        "samples_per_second": problem.graph.nodes[0].space.shape[0] / seconds if seconds > 0 else None,
        "transfer_bytes": usage.transfer_bytes,
        "compute_seconds": sum(usage.processor_seconds),
        "busiest_processor_seconds": max(usage.processor_seconds),
        "busiest_link_seconds": max(usage.link_seconds.values(), default=0.0),
        "tasks": judge.tasks,
    }
    if judge.tasks <= MOST_TASKS:
        peaks = [use.nbytes for use in memory_use(judge.lowered(), judge.timeline().order)]
    else:
        peaks = Room(judge).in_order(strategy)
    row["peak_memory_bytes"] = max(peaks)
    row["peak_memory_is"] = "planned" if judge.tasks <= MOST_TASKS else "estimate"
    row["fits_memory"] = all(n <= p.memory_bytes for n, p in zip(peaks, problem.machine.processors))
    return row


def emit(value: dict[str, Any]) -> None:
    """Print JSON on stdout."""
    click.echo(json.dumps(value))


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of `describe` for people."""
    lines = [f"{'':<16}{'step ms':>11}{'against data':>14}{'moved MB':>11}{'compute s':>11}{'memory GB':>11}{'search s':>10}"]
    data = next((row["iteration_seconds"] for row in rows if row["name"] == "data"), None)
    for row in rows:
        speedup = f"{data / row['iteration_seconds']:.2f}x" if data else ""
        most = "~" if row["peak_memory_is"] == "estimate" else ""
        memory = f"{most}{row['peak_memory_bytes'] / 1e9:.2f}{'' if row['fits_memory'] else '!'}"
        took = f"{row['search_seconds']:.1f}" if row.get("search_seconds") else ""
        lines.append(
            f"{row['name']:<16}{row['iteration_seconds'] * 1e3:>11.4g}{speedup:>14}{row['transfer_bytes'] / 1e6:>11.1f}"
            f"{row['compute_seconds']:>11.3g}{memory:>11}{took:>10}"
        )
    if not all(row["fits_memory"] for row in rows):
        lines.append("! may need more memory than a device has")
    return "\n".join(lines)


def writable(path: str | None) -> None:
    """Better to fail before the work than after it. ValueError if the file's folder is not there or closed to us."""
    if path is not None and not os.access(Path(path).resolve().parent, os.W_OK):
        raise ValueError(f"cannot write {path}: no such folder, or no permission")
