"""The plans that people would run without a search, beside the one that was found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taskflow.cli.problem import Problem, describe
from taskflow.cli.progress import working
from taskflow.cli.tables import nbytes, render
from taskflow.mapper import HybridParallel, map_graph
from taskflow.optimizer import (
    NO_TIME,
    BudgetExhausted,
    Deadline,
    SearchResult,
    has_usual_plans,
    refusal,
    target_named,
    usual_plans,
)
from taskflow.optimizer.evaluate import TooManyTasksError
from taskflow.wording import a_second


def beside(problem: Problem, seconds: float, quiet: bool) -> list[dict[str, Any]]:
    """Return a row for each usual plan (`usual_plans`), as `describe` has it with ``plan``, its notation; where there is none, only
    ``name``, ``plan`` and ``why``. None for networks without layers, and with costs that have to be measured. ``seconds``: for all
    of them."""
    graph, machine, evaluator = problem.graph, problem.machine, problem.evaluator
    rule = evaluator.rule
    if rule is None or evaluator.costs.measures or not has_usual_plans(graph, machine, rule):
        return []
    deadline = Deadline(seconds)
    rows: list[dict[str, Any]] = []
    with working("plans beside it", not quiet), evaluator.interruptible(deadline.check):
        for usual in usual_plans(graph, machine, problem.memory_check.for_search(), rule, lambda: deadline.expired):
            row: dict[str, Any] = {"name": usual.name, "plan": usual.plan, "why": usual.why or None}
            if usual.strategy is not None:
                try:
                    row = {**describe(problem, usual.strategy), **row}
                except BudgetExhausted:
                    row["why"] = NO_TIME
                except (TooManyTasksError, ValueError) as error:
                    row["why"] = str(error)
            rows.append(row)
    return rows


def better(problem: Problem, found: SearchResult, rows: list[dict[str, Any]], target: str | None = None) -> SearchResult:
    """Return what a search found, or the fastest plan beside it if that fits and is faster: a search that had little time has not
    come to it. ``target``: the framework that must be able to express it."""
    refuses = refusal(problem.memory_check, target_named(target, problem.graph)) if target is not None else None
    faster = [row for row in rows if row.get("fits_memory") and row["iteration_seconds"] < found.seconds]
    for row in sorted(faster, key=lambda row: float(row["iteration_seconds"])):
        strategy, seconds = map_graph(HybridParallel(row["plan"]), problem.graph, problem.machine), row["iteration_seconds"]
        if refuses is not None and refuses(strategy):
            continue
        return replace(
            found, strategy=strategy, seconds=seconds, starts={**found.starts, row["name"]: seconds}, optimal=False,
            optimal_among="", local=False, lower_bound=min(found.lower_bound, seconds),
        )
    return found


def beside_table(found: dict[str, Any], found_plan: str, rows: list[dict[str, Any]]) -> str:
    """Return these rows as text, below the found plan's; empty without any. ``found_plan``: its notation, empty if it has none."""
    if not rows:
        return ""
    counted, lines = "tokens" if found["tokens_per_second"] else "samples", []
    for row in [{**found, "name": "found", "plan": found_plan}, *rows]:
        if "iteration_seconds" not in row:
            continue
        each = row[f"{counted}_per_second_per_device"]
        most = "~" if row["peak_memory_is"] == "estimate" else ""
        lines.append([
            f"{row['name']} {row.get('plan', '')}".strip(), f"{row['iteration_seconds']:.4g}",
            f"{row['iteration_seconds'] / found['iteration_seconds']:.2f}x", a_second(each) if each else "",
            f"{row['mfu']:.1%}" if row["mfu"] else "", f"{most}{nbytes(row['peak_memory_bytes'])}",
            "yes" if row["fits_memory"] else "no",
        ])
    heads = ["plan", "step s", "takes", f"{counted}/s a device", "MFU", "memory", "fits"]
    used = [i for i in range(len(heads)) if i in (0, 6) or any(line[i] for line in lines)]
    text = render([heads[i] for i in used], [[line[i] for i in used] for line in lines], words=(0, len(used) - 1))
    missing = [
        ": ".join([" ".join(filter(None, (row["name"], row["plan"]))), row["why"]])
        for row in rows if "iteration_seconds" not in row
    ]
    return "\n".join([text, *missing])
