"""report_data: a plan and everything that is known about it, as one value of JSON and columns of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskflow import __version__
from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import Strategy
from taskflow.optimizer import MemoryCheck
from taskflow.optimizer.evaluate import Evaluator, ShownStep, piece_color, shown_step
from taskflow.optimizer.evaluate.folded import folded_profile
from taskflow.optimizer.memory import MemoryProfile, memory_profile
from taskflow.regions import Rect
from taskflow.report.machine import machine_value
from taskflow.report.operators import operator_values, shared_layers
from taskflow.report.pipeline import pipeline_value
from taskflow.report.plans import baseline_values, known_as, plan_value
from taskflow.report.spans import CATEGORIES, Spans, spans_of
from taskflow.report.split import PARTS, occupied
from taskflow.report.thin import MOST_ROWS, Rows, thin
from taskflow.rules import UpdateRule
from taskflow.tasks import Compute, Kind

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
    memory_check = memory_check or MemoryCheck(evaluator)
    plan = plan_value(known_as(strategy), spans, step.shown, memory_check, strategy, evaluator)
    peers = np.setdiff1d(spans.source[spans.message], step.shown.processors).tolist()
    baselines, same = baseline_values(evaluator, memory_check, beside_seconds, lambda name: say(f"beside it: {name}"))
    value = {
        "format": "taskflow-report",
        "version": 1,
        "taskflow": __version__,
        "model": _model(graph),
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


def _model(graph: OperatorGraph) -> dict[str, Any]:
    return {
        "name": graph.name, "operators": len(graph), "parameters": graph.parameter_count, "dtype": str(graph.dtype),
        "fingerprint": graph.fingerprint(),
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


NONE = -1


def operator_of(step: ShownStep, graph: OperatorGraph) -> NDArray[np.int64]:
    """Return for each task the number of its operator. A message or sum belongs to the operator that made the tensor, or to the
    layer's (or block's) first operator; a task that serves all layers (clipping) has NONE."""
    numbers = {node.name: node.number for node in graph}
    for bundle in step.lowered.bundles:  # of a block
        units, layers = (step.stands_for.get(name, (name,)) for name in (bundle.unit, bundle.layer))
        for unit, layer in zip(units, layers):
            numbers.setdefault(unit, numbers.get(layer, NONE))
    return np.array([numbers.get(name, NONE) for name in step.names], np.int64)


def piece_of(step: ShownStep, strategy: Strategy, micro: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each task the piece of its operator; 0 for tasks that belong to no piece. ``micro``: their micro-batches, from 1
    on, 0 for none: the task that was lowered may be of another one."""
    known: dict[tuple[int, Rect, int], int] = {}
    found = np.zeros(len(step.tasks), np.int64)
    for number, (task, batch) in enumerate(zip(step.tasks, micro.tolist())):
        if isinstance(task.work, Compute):
            key = task.work.node.number, task.work.piece, batch
            if key not in known:
                color, degrees = piece_color(task.work.node, *key[1:], strategy), strategy[task.work.node.name].degrees
                known[key] = int(np.ravel_multi_index(color, degrees)) if degrees else 0
            found[number] = known[key]
    return found


def path_value(path: Sequence[int], spans: Spans, operator: NDArray[np.int64]) -> dict[str, Any]:
    """Return the critical path. ``stretches``: [category, operator, seconds, tasks] of neighbours of one category and operator,
    in order. ``seconds``: by category. Each task of the path starts when the one before ends, so they add up to the makespan."""
    stretches: list[list[Any]] = []
    by_category = np.zeros(len(CATEGORIES))
    for task in path:
        category, of = int(spans.category[task]), int(operator[task])
        seconds = float(spans.end[task] - spans.start[task])
        by_category[category] += seconds
        if stretches and stretches[-1][:2] == [category, of]:
            stretches[-1][2] += seconds
            stretches[-1][3] += 1
        else:
            stretches.append([category, of, seconds, 1])
    return {"stretches": stretches, "seconds": by_category.tolist(), "tasks": len(path)}


POINTS = 600  # of one device's curve


def memory_values(profiles: Sequence[MemoryProfile], machine: Machine) -> list[dict[str, Any]]:
    """Return for each device what it needs, by kind, and how much it has, in bytes."""
    return [
        {
            "weights": p.use.weights, "state": p.use.state, "buffers": p.use.buffers, "packed": p.use.packed,
            "holes": p.use.holes, "peak_bytes": p.use.nbytes, "limit_bytes": machine.processors[p.use.processor].memory_bytes,
        }
        for p in profiles
    ]


def memory_columns(profiles: Sequence[MemoryProfile], tick: float) -> dict[str, NDArray[np.int64]]:
    """Return the curves of all devices one after the other: times in ticks, bytes, and the number of points of each curve."""
    curves = [_thin(np.round(p.seconds / tick).astype(np.int64), p.nbytes) for p in profiles]
    return {
        "memory_points": np.array([len(t) for t, _ in curves], np.int64),
        "memory_time": np.concatenate([t for t, _ in curves]),
        "memory_bytes": np.concatenate([n for _, n in curves]),
    }


def _thin(times: NDArray[np.int64], nbytes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Points to draw; if there are more than `POINTS`, the highest of each part of the step."""
    if len(times) <= POINTS:
        return times, nbytes
    stretch = times * POINTS // (int(times[-1]) + 1)
    first = np.flatnonzero(np.diff(stretch, prepend=-1))
    return times[first], np.maximum.reduceat(nbytes, first)
