"""Plans: the report's plan beside the strategies that people write, each simulated on the same machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taskflow.machine import Machine
from taskflow.mapper import MAPPERS, Strategy, choose
from taskflow.optimizer import MemoryCheck
from taskflow.optimizer.evaluate import Evaluator
from taskflow.report.spans import CATEGORIES, Spans, spans_at
from taskflow.report.split import PARTS, device_split

BASELINES = ("data", "model", "expert")
LABELS = {"data": "data parallel", "model": "model parallel", "expert": "expert"}


def plan_value(
    name: str, spans: Spans, machine: Machine, samples: int, room: MemoryCheck, strategy: Strategy
) -> dict[str, Any]:
    """One row of the comparison. ``split``: mean seconds of a device by `PARTS`; ``bytes``: moved by category. ``lacks``: what
    memory is missing, as ``room`` judges it, whose evaluator is at ``strategy``: by one rule with the search and all commands."""
    seconds = spans.makespan
    peaks, planned = room.peaks(strategy)
    lacks = room(strategy)
    return {
        "name": name,
        "seconds": seconds,
        "samples_per_second": samples / seconds if seconds > 0 else None,
        "split": dict(zip(PARTS, device_split(spans, machine).mean(axis=0).tolist())),
        "bytes": {
            CATEGORIES[c]: int(spans.nbytes[spans.message & (spans.category == c)].sum())
            for c in range(len(CATEGORIES)) if c in set(spans.category[spans.message].tolist())
        },
        "transfer_bytes": spans.transfer_bytes,
        "tasks": int(spans.first.sum()),
        "peak_memory_bytes": max(peaks),
        "peak_memory_is": "planned" if planned else "estimate",
        "fits_memory": not lacks,
        "lacks": lacks,
    }


def baseline_values(evaluator: Evaluator, samples: int, room: MemoryCheck | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of data, model and expert parallelism, less those that are the plan itself, whose names come second. Their
    memory is as ``room``, by default one of its own, judges it. The evaluator is back at its strategy afterwards."""
    here, room = evaluator.strategy, room or MemoryCheck(evaluator)
    rows, same = [], []
    for name in BASELINES:
        strategy = choose(name, evaluator.graph, evaluator.machine)[0]
        if replace(strategy, name=here.name) == here:
            same.append(LABELS[name])
            continue
        evaluator.set(strategy)
        rows.append(plan_value(LABELS[name], spans_at(evaluator), evaluator.machine, samples, room, strategy))
    evaluator.set(here)
    return rows, same


def samples_of(evaluator: Evaluator) -> int:
    """The batch: samples that one step trains on."""
    return evaluator.graph.nodes[0].space.shape[0]


def known_as(strategy: Strategy) -> str:
    """What the page calls a plan."""
    return LABELS.get(strategy.name, strategy.name) if strategy.name in MAPPERS else strategy.name
