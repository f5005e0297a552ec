"""report_data: a plan and everything that is known about it, as one value of JSON and columns of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskflow import __version__
from taskflow.graph import OperatorGraph
from taskflow.mapper import Strategy
from taskflow.optimizer import MemoryCheck
from taskflow.optimizer.evaluate import Evaluator, ShownStep, shown_step
from taskflow.optimizer.evaluate.folded import folded_profile
from taskflow.optimizer.memory import MemoryProfile, memory_profile
from taskflow.report.belongs import operator_of, piece_of
from taskflow.report.machine import machine_value
from taskflow.report.memory import memory_columns, memory_values
from taskflow.report.operators import operator_values, shared_layers
from taskflow.report.path import path_value
from taskflow.report.pipeline import pipeline_value
from taskflow.report.plans import baseline_values, known_as, plan_value, samples_of
from taskflow.report.spans import CATEGORIES, Spans, spans_of
from taskflow.report.split import PARTS, occupied
from taskflow.report.thin import MOST_ROWS, Rows, thin
from taskflow.rules import UpdateRule
from taskflow.tasks import Kind

MOST_TICKS = 2**31


@dataclass(frozen=True, slots=True)
class Report:
    """Contents of a report. ``value``: JSON-able, with units in the keys (seconds, bytes). ``columns``: the timeline's rows
    (see `taskflow.report.thin.Rows`) and memory curves, with times in ticks of ``value["tick_seconds"]``."""

    value: dict[str, Any]
    columns: dict[str, NDArray[np.int64]]


def report_data(
    evaluator: Evaluator,
    strategy: Strategy,
    *,
    search: Mapping[str, Any] | None = None,
    most_rows: int = MOST_ROWS,
    memory_check: MemoryCheck | None = None,
    beside_seconds: float = inf,
    say: Callable[[str], None] = lambda words: None,
) -> Report:
    """Return everything that the report's page shows.

    ``evaluator``: predicts the step, and is at ``strategy`` afterwards. ``search``: how the plan was found, as
    `SearchResult.as_json` gives it. ``most_rows``: more tasks than this are joined in the timeline (totals stay). ``memory_check``:
    says whether plans fit the memory; by default one is made here. Of a step with too many pieces for a timeline of all tasks the
    first replica is shown (`shown_step`), and sums are of all replicas. The devices' memory curves are of this step as the runtime
    plans it, even where ``memory_check`` estimates. ``beside_seconds``: after which no other plan is simulated to be beside it.
    ``say`` is told about progress, since this may take seconds on many devices. Raises ValueError if the strategy does not suit
    the graph.
    """
    graph, machine = evaluator.graph, evaluator.machine
    say("simulate")
    seconds = evaluator.set(strategy)
    say("lower")
    step = shown_step(evaluator)
    spans = spans_of(step)
    operator = operator_of(step, graph)[spans.task]
    say("critical path")
    path = np.searchsorted(spans.task, [lap.task for lap in step.path()]).tolist()
    say("memory")
    profiles = _profiles(step)
    tick = _tick(seconds)
    micro = step.micro_batches()
    pieces = piece_of(step, strategy, micro)[spans.task]
    rows, joined = thin(_rows(spans, operator, pieces, micro[spans.task], path, tick), most_rows)
    samples = samples_of(evaluator)
    memory_check = memory_check or MemoryCheck(evaluator)
    plan = plan_value(known_as(strategy), spans, step.shown, samples, memory_check, strategy, evaluator)
    peers = np.setdiff1d(spans.source[spans.message], step.shown.processors).tolist()
    baselines, same = baseline_values(evaluator, samples, memory_check, beside_seconds, lambda name: say(f"beside it: {name}"))
    value = {
        "format": "taskflow-report",
        "version": 1,
        "taskflow": __version__,
        "model": _model(graph, samples),
        "machine": machine_value(step.shown, spans, peers),
        "costs": evaluator.costs.name,
        "rule": _rule(evaluator.rule),
        "plan": plan,
        "baselines": baselines,
        "same_as": [name for name in same if name != plan["name"]],
        "parts": list(PARTS),
        "categories": list(CATEGORIES),
        "operators": operator_values(graph, strategy, spans, operator, step),
        "recurrent": shared_layers(graph),
        "pipeline": pipeline_value(strategy, step),
        "critical_path": path_value(path, spans, operator),
        "memory": memory_values(profiles, machine),
        "search": dict(search) if search is not None else None,
        "tick_seconds": tick,
        "joined_below_seconds": joined * tick,
    }
    columns = rows.columns()
    first = columns.pop("task")
    columns["lag"] = _lags(first, columns["count"], step, tick, (columns["source"], columns["processor"]))
    at = np.zeros(len(machine.processors), np.int64)
    at[[*step.shown.processors, *peers]] = np.arange(len(step.shown.processors) + len(peers))
    columns |= {end: at[columns[end]] for end in ("source", "processor")}
    return Report(value, {**columns, **memory_columns(profiles, tick)})


def _profiles(step: ShownStep) -> tuple[MemoryProfile, ...]:
    if step.folded is not None:
        return folded_profile(step.folded)
    assert step.timeline is not None
    return memory_profile(step.lowered, step.timeline)


def _model(graph: OperatorGraph, samples: int) -> dict[str, Any]:
    return {
        "name": graph.name, "operators": len(graph), "parameters": graph.parameter_count, "dtype": str(graph.dtype),
        "samples": samples, "fingerprint": graph.fingerprint(),
    }


def _rule(rule: UpdateRule | None) -> str | None:
    """``SGD(lr=0.1, momentum=0.9)``: what was set, not what was left at its default."""
    if rule is None or not is_dataclass(rule):
        return str(rule) if rule is not None else None
    given = [f"{f.name}={getattr(rule, f.name)!r}" for f in fields(rule) if getattr(rule, f.name) != f.default]
    return f"{type(rule).__name__}({', '.join(given)})"


def _tick(seconds: float) -> float:
    """The smallest power of ten, from a nanosecond on, of which the step has fewer than 2^31."""
    tick = 1e-9
    while seconds / tick >= MOST_TICKS:
        tick *= 10
    return tick


def _lags(
    first: NDArray[np.int64], count: NDArray[np.int64], step: ShownStep, tick: float,
    ends: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> NDArray[np.int64]:
    """Return, of every message, in order of rows and for each thing of its route in order of `resources`: how many ticks before its
    start there it was (0 for joined ones, and those of collectives). A message goes over its route one thing after another."""
    lags: list[int] = []
    for number, many, source, target in zip(first.tolist(), count.tolist(), *(end.tolist() for end in ends)):
        task = step.tasks[number]
        if task.kind.travels:
            starts = step.on.starts[step.on.place[number] : step.on.place[number + 1]].tolist()
            things = len(occupied(step.shown, source, target))
            alone = many == 1 and len(starts) == things and task.kind is Kind.COPY
            lags += [round((step.on.start[number] - start) / tick) for start in starts] if alone else [0] * things
    return np.array(lags, np.int64)


def _rows(
    spans: Spans, operator: NDArray[np.int64], piece: NDArray[np.int64], micro: NDArray[np.int64], path: list[int], tick: float
) -> Rows:
    start, end = (np.round(times / tick).astype(np.int64) for times in (spans.start, spans.end))
    critical = np.zeros(len(spans), np.int64)
    critical[path] = 1
    return Rows(
        spans.category, spans.processor, spans.source, operator + 1, piece, start, end, end - start, spans.nbytes,
        np.ones(len(spans), np.int64), critical, spans.task, micro,
    )
