"""Calibrating a machine by a run: what operators, units, updates and messages took in its steps replaces what they took alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from taskflow.machine import Cluster, Collectives, Curve, Timed, TimedPoint
from taskflow.mapper import Strategy
from taskflow.operators.operator import computes_in
from taskflow.optimizer.cost import group_of, name_of, parts_of, size_of
from taskflow.optimizer.evaluate import Evaluator
from taskflow.probe.joined import by_kind, owner_of, predicted_parts
from taskflow.probe.kineto import RankTrace, TimeOf
from taskflow.programs import TrainingProgram
from taskflow.rules import Adam
from taskflow.tasks import Compute

LEAST_PART = 0.005
"""Of a step: what is less is not known well enough."""
Key = tuple[str, str, bool, str]


def calibrated(
    machine: Cluster, evaluator: Evaluator, strategy: Strategy, traces: Sequence[RankTrace]
) -> tuple[Cluster, list[str]]:
    """Return a machine with what a run took, and what was changed. Sizes of operators in the step get the times that they had there
    (median of ranks); of units, updates and messages the measured figures change in proportion."""
    paths = frozenset[str]().union(*(trace.paths for trace in traces))
    ratios: dict[TimeOf, list[float]] = {}
    for trace in traces:
        predicted, least = predicted_parts(evaluator, strategy, trace.rank, paths), LEAST_PART * median(trace.seconds)
        kinds = by_kind(trace.known), by_kind(predicted)
        for part, seconds in trace.known.items():
            if part.kind in ("forward", "backward", "loss") and predicted.get(part, 0.0) > 0:
                ratios.setdefault(part, []).append(seconds / predicted[part])
        for kind in ("unit", "update", "gradients", "weights", "activations"):
            if min(kinds[0].get(kind, 0.0), kinds[1].get(kind, 0.0)) > least:
                ratios.setdefault(TimeOf(kind), []).append(kinds[0][kind] / kinds[1][kind])
    factors = {part: median(values) for part, values in ratios.items()}
    device = machine.processors[0].device
    fresh = _points(evaluator, strategy, factors, paths)
    changed = replace(
        device, timed=_with(device.timed, fresh, factors.get(TimeOf("update"), 1.0), evaluator),
        program=None if device.program is None else _program(device.program, factors.get(TimeOf("unit"), 1.0)),
    )  # fmt: skip
    kinds_now = tuple(changed if kind.kind == device.kind else kind for kind in machine.kinds)
    library = machine.collectives
    said = [f"{len(fresh)} kinds of operators"]
    messages = [factors[part] for kind in ("gradients", "weights", "activations") if (part := TimeOf(kind)) in factors]
    if library is not None and messages:
        library = _slower(library, median(messages))
        said.append(f"messages: {median(messages):.2f} of what was predicted")
    others = [(kind, factors[part]) for kind in ("unit", "update") if (part := TimeOf(kind)) in factors]
    said += [f"{kind}: {factor:.2f} of what was predicted" for kind, factor in others]
    return replace(machine, kinds=kinds_now, collectives=library, source=f"{machine.source}; calibrated by a run"), said


def _points(
    evaluator: Evaluator, strategy: Strategy, factors: Mapping[TimeOf, float], paths: frozenset[str]
) -> dict[Key, dict[tuple[float, float], list[float]]]:
    """By operator the sizes that the step has, with the seconds that these took."""
    tasks, _ = evaluator.evaluated(strategy)
    cost, calls = evaluator.costs.pace(tasks, strategy), parts_of(evaluator.graph)
    found: dict[Key, dict[tuple[float, float], list[float]]] = {}
    for task in tasks.tasks:
        work = task.work
        if not isinstance(work, Compute) or work.other is not None:
            continue
        node, call = work.node, calls.get(work.node.name)
        owner = owner_of(node.name, paths)
        direction = "backward" if work.backward else "forward"
        factor = factors.get(TimeOf(direction, owner) if node.name in calls else TimeOf("loss"))
        if factor is None or not (seconds := cost(task)) or (call is not None and not call.leads):
            continue
        name = call.name if call is not None else name_of(node.operator)
        key = name, group_of(name, node.operator), work.backward, str(computes_in(node.operator, node.specs))
        found.setdefault(key, {}).setdefault(size_of(name, node.operator, node.specs, work.piece), []).append(factor * seconds)
    return found


def _with(
    timed: Iterable[Timed], fresh: Mapping[Key, Mapping[tuple[float, float], list[float]]], update: float, evaluator: Evaluator
) -> tuple[Timed, ...]:
    """Timed operators with other times for the sizes that the step has."""
    table = {(one.name, one.group, one.backward, one.dtype): one for one in timed}
    rule = "adam" if isinstance(evaluator.rule, Adam) else "momentum"
    for key, sizes in fresh.items():
        before = table[key].points if key in table else ()
        kept = [point for point in before if (point.flops, point.nbytes) not in sizes]
        made = [TimedPoint(*size, median(seconds)) for size, seconds in sizes.items()]
        table[key] = Timed(*key, tuple([*kept, *made]))
    return tuple(
        replace(one, points=tuple(point._replace(seconds=point.seconds * update) for point in one.points))
        if one.group == "update" and one.name == rule else one for one in table.values()
    )


def _program(program: TrainingProgram, factor: float) -> TrainingProgram:
    return replace(
        program, gather_seconds=program.gather_seconds * factor, sum_seconds=program.sum_seconds * factor,
        scatter_seconds=program.scatter_seconds * factor,
    )  # fmt: skip


def _slower(library: Collectives, factor: float) -> Collectives:
    """A library whose operations take so many times as long; faster links than there are it does not get."""
    def slower(curve: Curve | None) -> Curve | None:
        return None if curve is None else replace(
            curve, start_seconds=curve.start_seconds * factor, ramp_seconds=curve.ramp_seconds * factor,
            link_share=min(1.0, curve.link_share / factor),
        )  # fmt: skip

    changed: dict[str, Any] = {key: slower(getattr(library, key)) for key in ("all_reduce", "halves", "all_to_all")}
    return replace(library, **changed)
