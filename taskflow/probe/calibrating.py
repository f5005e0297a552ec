"""Calibrating a machine by a run: what operators, units, updates and messages took in its steps replaces what they took alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from math import sqrt
from statistics import median
from typing import Any

from taskflow.machine import Cluster, Collectives, Device, Timed, TimedPoint
from taskflow.mapper import Strategy
from taskflow.operators.operator import computes_in
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.cost import group_of, name_of, of_weights, parts_of, size_of, unit_message
from taskflow.optimizer.evaluate import Evaluator
from taskflow.probe.joined import COMPUTE, by_kind, owner_of, predicted_parts
from taskflow.probe.kineto import RankTrace
from taskflow.probe.kineto_gpu import TimeOf
from taskflow.programs import TrainingProgram
from taskflow.rules import Adam
from taskflow.tasks import Compute, Kind

LEAST_PART = 0.005
"""Of a step: what is less is not known well enough."""
CURVES = ("all_to_all", "halves", "all_reduce")
"""Of a library, by the halves of an all-reduce that an operation is."""
LEAST_MESSAGES = 0.1
"""Of a step: messages that are less are not known by it."""
MOST_SLOWER, HALVINGS = 4.0, 7
"""Times as long, or as short, as messages may become; how often the range is cut in half, to 2 %."""
OF_RUN = 2 / 3
"""Of the (logarithm of the) factor between a step and its prediction, what a network's other plans share; the rest is this run's
own (docs/benchmarks.md, "Read back")."""
LEAST_ALONE = 0.25
"""Of what an operator took alone: less is not believed."""
Key = tuple[str, str, bool, str]


def calibrated(
    machine: Cluster, evaluator: Evaluator, strategy: Strategy, traces: Sequence[RankTrace], step_seconds: float | None = None
) -> tuple[Cluster, list[str]]:
    """Return a machine with what a run took, and what was changed. ``step_seconds``: what its step takes without a profiler, which
    slows all parts down alike.

    Sizes of operators in the step get the times that they had there (median of ranks), and the update's figures change in
    proportion. Then the figures of messages and units that the plan has change together, so that the step takes what it took: a
    trace does not tell what of them is waiting for another rank. Where processors wait for collectives, whose threads make all
    modules slower, only what modules took beside each other counts, and all figures change together by `OF_RUN` of what the step
    took longer."""
    paths = frozenset[str]().union(*(trace.paths for trace in traces))
    ratios: dict[TimeOf, list[float]] = {}
    levels = []
    for trace in traces:
        predicted, least = predicted_parts(evaluator, strategy, trace.rank, paths), LEAST_PART * median(trace.seconds)
        known, scale = trace.known, 1.0 if step_seconds is None else step_seconds / median(trace.seconds)
        for part, seconds in known.items():
            if part.kind in COMPUTE and predicted.get(part, 0.0) > 0:
                ratios.setdefault(part, []).append(scale * seconds / predicted[part])
        levels.append(scale * _computing(known) / (_computing(predicted) or 1.0))
        updates = [by_kind(parts).get("update", 0.0) for parts in (known, predicted)]
        if min(updates) > least:
            ratios.setdefault(TimeOf("update"), []).append(scale * updates[0] / updates[1])
    factors = {part: median(values) for part, values in ratios.items()}
    if blocks := machine.collectives is not None and machine.collectives.blocks:  # a slower step counts as a whole
        level = median(levels)
        factors = {part: factor / level for part, factor in factors.items()}
    fresh, update = _points(evaluator, strategy, factors, paths), factors.get(TimeOf("update"), 1.0)
    device = machine.processors[0].device
    machine = _of_device(machine, replace(device, timed=_with(device.timed, fresh, update, evaluator)))
    measured = step_seconds or median(max(steps) for steps in zip(*(trace.seconds for trace in traces)))
    lines = [f"{len(fresh)} kinds of operators", f"update: {update:.2f} of what was predicted"]
    if blocks:
        slower = (measured / _seconds(machine, evaluator, strategy)) ** OF_RUN
        machine = _all_slower(machine, slower)
        lines.append(f"everything: {slower:.2f}")
    else:
        machine, messages = _with_messages(machine, evaluator, strategy, measured)
        lines.append(f"messages and what comes with them: {messages:.2f}")
    return replace(machine, source=f"{machine.source}; calibrated by a run"), lines


def _seconds(machine: Cluster, evaluator: Evaluator, strategy: Strategy) -> float:
    """The seconds of the step on another machine."""
    there = make_evaluator(evaluator.graph, machine, rule=evaluator.rule)
    there.set(strategy)
    return there.seconds


def _computing(parts: Mapping[TimeOf, float]) -> float:
    return sum(seconds for part, seconds in parts.items() if part.kind in COMPUTE)


def _of_device(machine: Cluster, device: Device) -> Cluster:
    return replace(machine, kinds=tuple(device if kind.kind == device.kind else kind for kind in machine.kinds))


def _with_messages(machine: Cluster, evaluator: Evaluator, strategy: Strategy, measured: float) -> tuple[Cluster, float]:
    """A machine whose messages take so many times as long that the step takes what was measured, as nearly as
    `MOST_SLOWER` allows, and how many times; as before where messages are few."""
    tasks = [task for task in evaluator.evaluated(strategy)[0].tasks if task.kind is Kind.COLLECTIVE]

    def slower(factor: float) -> Cluster:
        device, library = machine.processors[0].device, machine.collectives
        used = {unit_message(task) if of_weights(task) else "change" for task in tasks}
        program = None if device.program is None else _slower_program(device.program, factor, used)
        halves = {getattr(task.work, "halves", 0) or 0 for task in tasks}
        result = _of_device(machine, replace(device, program=program))
        return result if library is None else replace(result, collectives=_slower(library, halves, factor))

    def seconds(factor: float) -> float:
        return _seconds(slower(factor), evaluator, strategy)

    low, high = 1 / MOST_SLOWER, MOST_SLOWER
    if seconds(1.0) - seconds(low) < LEAST_MESSAGES * measured:  # they cannot explain the rest of the step
        return machine, 1.0
    for _ in range(HALVINGS):
        middle = sqrt(low * high)
        low, high = (middle, high) if seconds(middle) < measured else (low, middle)
    return slower(sqrt(low * high)), sqrt(low * high)


def _all_slower(machine: Cluster, factor: float) -> Cluster:
    """A machine on which what was timed, messages and what its program needs for them take so many times as long. Peak rates stay:
    they say what part of them a step reaches."""
    device, library = machine.processors[0].device, machine.collectives
    timed = tuple(
        replace(one, points=tuple(
            point._replace(seconds=point.seconds * factor, host_seconds=point.host_seconds * factor) for point in one.points
        )) for one in device.timed
    )  # fmt: skip
    program = None if device.program is None else _slower_program(device.program, factor)
    result = _of_device(machine, replace(device, timed=timed, program=program))
    return result if library is None else replace(result, collectives=_slower(library, set(range(len(CURVES))), factor))


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
        alone = evaluator.costs.task(task)  # what a cut layer takes beside it is added wherever the size is asked for
        took = max(LEAST_ALONE * alone, factor * seconds - (seconds - alone))
        found.setdefault(key, {}).setdefault(size_of(name, node.operator, node.specs, work.piece), []).append(took)
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
        result = [TimedPoint(*size, median(seconds)) for size, seconds in sizes.items()]
        table[key] = Timed(*key, tuple([*kept, *result]))
    return tuple(
        replace(one, points=tuple(point._replace(seconds=point.seconds * update) for point in one.points))
        if one.group == "update" and one.name == rule else one for one in table.values()
    )


def _slower_program(program: TrainingProgram, factor: float, of: Collection[str] | None = None) -> TrainingProgram:
    """A program whose thread takes so many times as long, for all that it does or beside messages ``of`` these kinds."""
    changed: dict[str, float] = {}
    for name in (one.name for one in fields(program)):
        what = name.removesuffix("_bytes_per_second").removesuffix("_seconds")
        if what != name and (of is None or what in of):
            value = getattr(program, name)
            changed[name] = value * factor if name.endswith("_seconds") else value / factor
    return replace(program, **changed)  # type: ignore[arg-type]


def _slower(library: Collectives, of: set[int], factor: float) -> Collectives:
    """A library whose operations (as `Collectives.curve` counts them) take so many times as long; faster links than there are it
    does not get."""
    changed: dict[str, Any] = {}
    for name in {CURVES[halves] for halves in of}:
        if (curve := getattr(library, name)) is not None:
            changed[name] = replace(
                curve, start_seconds=curve.start_seconds * factor, ramp_seconds=curve.ramp_seconds * factor,
                link_share=min(1.0, curve.link_share / factor),
            )  # fmt: skip
    return replace(library, **changed)
