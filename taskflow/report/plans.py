"""Plans: the report's plan beside the strategies that people write, each simulated on the same machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Any

from taskflow.mapper import MAPPERS, Strategy, choose
from taskflow.optimizer import Deadline, MemoryCheck, has_usual_plans, step_units, usual_plans
from taskflow.optimizer.evaluate import Evaluator, Shown, TooManyTasksError, too_many_to_show
from taskflow.report.spans import CATEGORIES, Spans, spans_at
from taskflow.report.split import PARTS, device_split

BASELINES = ("data", "model", "expert")
LABELS = {"data": "data parallel", "model": "model parallel", "expert": "expert"}


def plan_value(
    name: str, spans: Spans, shown: Shown, memory_check: MemoryCheck, strategy: Strategy, evaluator: Evaluator
) -> dict[str, Any]:
    """Return one row of the comparison. ``split``: mean seconds of a device by `PARTS`. ``bytes``: moved, by category.
    ``lacks``: what memory is missing by the judgement of ``memory_check``; searches and all commands use the same rule.
    ``evaluator`` is at ``strategy``. ``units``: as `StepUnits` has them."""
    seconds = spans.makespan
    peaks, planned = memory_check.peaks(strategy)
    lacks = memory_check(strategy)
    return {
        "name": name,
        "seconds": seconds,
        "split": dict(zip(PARTS, device_split(spans, shown).mean(axis=0).tolist())),
        "bytes": {
            CATEGORIES[c]: int(spans.nbytes[spans.message & (spans.category == c)].sum()) * shown.replicas
            for c in range(len(CATEGORIES)) if c in set(spans.category[spans.message].tolist())
        },
        "transfer_bytes": spans.transfer_bytes if shown.replicas == 1 else evaluator.usage().transfer_bytes,
        "tasks": evaluator.tasks,
        "peak_memory_bytes": max(peaks),
        "peak_memory_is": "planned" if planned else "estimate",
        "fits_memory": not lacks,
        "lacks": lacks,
        "units": step_units(memory_check.graph, shown.machine, evaluator.rule, seconds).as_json(),
    }


def baseline_values(
    evaluator: Evaluator, memory_check: MemoryCheck | None = None, seconds: float = inf,
    say: Callable[[str], None] = lambda words: None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of data, model and expert parallelism (unless the plan has too many pieces), and of the usual plans of
    networks with layers (`usual_plans`). Also return the names of those that equal the plan and so have no row. ``memory_check``,
    by default one of its own, judges their memory. After so many ``seconds`` no other is begun. ``say`` is told which one is.
    Afterwards the evaluator is back at its strategy."""
    here, memory_check, deadline = evaluator.strategy, memory_check or MemoryCheck(evaluator), Deadline(seconds)
    rows, same = [], []
    for name, strategy in _baselines(evaluator, memory_check, lambda: deadline.expired):
        if replace(strategy, name=here.name) == here:
            same.append(name)
            continue
        say(name)
        try:
            evaluator.set(strategy)
        except TooManyTasksError:  # its replicas differ: nobody can tell what it takes
            continue
        rows.append(plan_value(name, *spans_at(evaluator), memory_check, strategy, evaluator))
        if deadline.expired:
            break
    evaluator.set(here)
    return rows, same


def _baselines(evaluator: Evaluator, memory_check: MemoryCheck, over: Callable[[], bool]) -> Iterator[tuple[str, Strategy]]:
    for name in () if too_many_to_show(evaluator.strategy) else BASELINES:  # of such a size they would take minutes each
        yield LABELS[name], choose(name, evaluator.graph, evaluator.machine)[0]
    yield from _usual(evaluator, memory_check, over)


def _usual(evaluator: Evaluator, memory_check: MemoryCheck, over: Callable[[], bool]) -> Iterator[tuple[str, Strategy]]:
    graph, machine, rule = evaluator.graph, evaluator.machine, evaluator.rule
    if rule is None or evaluator.costs.measures or not has_usual_plans(graph, machine, rule):
        return
    for plan in usual_plans(graph, machine, memory_check.for_search(), rule, over):
        if plan.strategy is not None:
            yield f"{plan.name} ({plan.plan})", plan.strategy


def known_as(strategy: Strategy) -> str:
    """Return the page's name for a plan."""
    return LABELS.get(strategy.name, strategy.name) if strategy.name in MAPPERS else strategy.name
