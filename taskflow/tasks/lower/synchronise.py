"""Synchronisation: gradient sums, clipping, updates and the sending of new weights, which keep the replicas of a parameter
equal.

gradient_sync.py says which tasks there are and what each waits for; here they get their buffers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from typing import Any

import numpy as np

from taskflow.floats import sum_bytes, sums_in
from taskflow.mapper import PassKind, Sync, SyncAlgorithm, UpdatePlacement
from taskflow.partition import even_cuts
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks.lower.gradient_sync import (
    SyncPhase,
    SyncStep,
    SyncTable,
    SyncTask,
    TaskStage,
    first_root,
    make_sync_table,
    sync_tasks,
)
from taskflow.tasks.lower.part import NotAlikeError
from taskflow.tasks.lower.sharded import lowered_of, lowered_sharers, send_weights, sharded_bundles, sum_shares
from taskflow.tasks.lower.state import Lowering
from taskflow.tasks.lower.weight_gradients import collect_weight_gradients, flat_gradient
from taskflow.tasks.task import Bundle, Clip, Kind, Norm, Part, Update
from taskflow.tasks.topic import Purpose, Topic

DOUBLE = np.dtype(np.float64)
ONE = Rect((0,), (1,))
FACTOR = "clip"  # what gradients are multiplied by
MASTER = "master"  # how the name of a float32 copy of weights ends


@dataclass(frozen=True, slots=True)
class SyncedChunk:
    """Range of a bundle's flat buffer that one processor, the root, sums (and updates, unless every holder does). ``summed``:
    the processors that have the sum before any of it is sent on."""

    bundle: Bundle
    span: Rect
    root: int
    updaters: tuple[int, ...]
    summed: tuple[int, ...]


@dataclass(slots=True)
class SyncedBundle:
    """Bundle that has a gradient, and the tasks that synchronise it."""

    bundle: Bundle
    order: tuple[int, ...]  # the group, the first chunk's root first
    table: SyncTable
    tasks: Sequence[SyncTask]
    stages: Sequence[TaskStage]
    arrivals: dict[int, Part] = field(default_factory=dict)  # task -> the buffer in which a gradient arrives


def synchronise(state: Lowering, rule: UpdateRule, clip_norm: float | None, scaled: bool = False) -> None:
    """Emit everything between the last backward task and the updated weights. ``scaled``: gradients may overflow, and every
    processor is told whether some have."""
    collect_weight_gradients(state)
    state.ended.update(state.last)
    # All before the first root that has no gradient of its own gets a buffer for the sum.
    bundles = [
        _divide(state, bundle) for bundle in state.layout.bundles
        if any((bundle.name, p) in state.flat_gradients for p in _lowered(state, bundle))
    ]
    sharded = sharded_bundles(state)
    scales: dict[int, int] = {}
    sent = _sent_to_the_stage_before(state)
    for phase in SyncPhase:
        for of in bundles:
            for stage in of.stages:
                if stage.phase is phase:
                    _emit(state, rule, of, stage, scales, sent)
        for bundle in sharded:
            _emit_shares(state, rule, bundle, phase, scales)
        if phase is SyncPhase.SUMS and (clip_norm is not None or scaled):
            limit = inf if clip_norm is None else clip_norm
            chunks = [chunk for of in bundles for chunk in _chunks(state, of)]
            scales = _clip(
                state, chunks + [chunk for bundle in sharded for chunk in _shares(state, bundle)], limit, scaled
            )


def _sent_to_the_stage_before(state: Lowering) -> Mapping[tuple[int, int], list[int]]:
    """By stage and processor, the gradients that it sends to the stage before in its last backward pass. Sums of gradients over
    replicas wait for these. All stages before wait for such a message, which is short; behind the sums of a whole stage it would
    stay for as long as a pass takes."""
    pipeline, found = state.strategy.pipeline, dict[tuple[int, int], list[int]]()
    if pipeline is None or pipeline.count == 1:
        return found
    for one, first, end in state.emit.graph.passes:
        if one.kind is PassKind.BACKWARD and one.micro_batch == pipeline.micro_batches - 1:
            for task in state.emit.graph.tasks[first:end]:
                if task.kind is Kind.COPY and task.source != task.processor and task.topic.purpose is Purpose.GRADIENT:
                    found.setdefault((one.stage + 1, task.source), []).append(task.number)
    return found


def _emit_shares(state: Lowering, rule: UpdateRule, bundle: Bundle, phase: SyncPhase, scales: Mapping[int, int]) -> None:
    """The same of a bundle whose gradients are kept as shares."""
    if phase is SyncPhase.SUMS:
        sum_shares(state, bundle)
    elif phase is SyncPhase.SENDS:
        for chunk in _shares(state, bundle):
            for processor in lowered_of(state, bundle, chunk.updaters):
                _update(state, rule, bundle, chunk.span, processor, scales)
        send_weights(state, bundle)


def _shares(state: Lowering, bundle: Bundle) -> list[SyncedChunk]:
    return [SyncedChunk(bundle, span, keepers[0], keepers, keepers) for span, keepers in lowered_sharers(state, bundle)]


def _lowered(state: Lowering, bundle: Bundle) -> Sequence[int]:
    """Return the holders whose tasks are lowered."""
    return bundle.group if state.part is None else state.part.here(bundle.group)


def _divide(state: Lowering, bundle: Bundle) -> SyncedBundle:
    group, sync = bundle.group, state.strategy.sync(bundle.layer)
    first = first_root(sync, state.layout.rank(bundle), len(group))
    order = group[first:] + group[:first]
    places: tuple[int, ...] | None = None
    state.checkpoint()
    if state.part is None:
        giving = tuple([(bundle.name, p) in state.flat_gradients for p in order])
    else:
        lowered, known = state.part.here(group), state.part.known
        gives = {p: (bundle.name, p) in state.flat_gradients for p in lowered}
        giving = (True,) * len(order) if all(gives.values()) else tuple([gives[known[p]] for p in order])
        places = tuple([bisect_left(group, p) for p in lowered])
    table, tasks, stages = _written_out(sync, giving, bundle.size, sum_bytes(bundle.dtype.itemsize), first, places)
    return SyncedBundle(bundle, order, table, tasks, stages)


def _chunks(state: Lowering, of: SyncedBundle) -> list[SyncedChunk]:
    group, sync, chunks = of.bundle.group, state.strategy.sync(of.bundle.layer), []
    everywhere = sync.placement is UpdatePlacement.REPLICATED
    at_once = everywhere and sync.algorithm is SyncAlgorithm.COLLECTIVE
    for chunk in of.table.chunks:
        (root,) = alone = (of.order[chunk.root],)
        span = Rect((chunk.low,), (chunk.high,))
        chunks.append(SyncedChunk(of.bundle, span, root, group if everywhere else alone, group if at_once else alone))
    return chunks


@lru_cache(maxsize=128)
def _written_out(
    sync: Sync, giving: tuple[bool, ...], size: int, itemsize: int, first: int, places: tuple[int, ...] | None
) -> tuple[SyncTable, tuple[SyncTask, ...], tuple[TaskStage, ...]]:
    """Return how a bundle is synchronised, and its tasks: the same for all bundles of a size, of which a large network has
    hundreds. ``places``: the holders whose updates and fills are lowered; None: all."""
    table = make_sync_table(sync, giving, size, itemsize)
    tasks, stages = sync_tasks(table, first)
    if places is not None:
        alone, lowered = (SyncStep.UPDATE, SyncStep.FILL), set(places)
        stages = [
            replace(stage, tasks=tuple(n for n in stage.tasks if tasks[n].step not in alone or tasks[n].holder in lowered))
            for stage in stages
        ]
    return table, tuple(tasks), tuple(stages)


def _emit(
    state: Lowering, rule: UpdateRule, of: SyncedBundle, stage: TaskStage, scales: Mapping[int, int],
    sent: Mapping[tuple[int, int], list[int]],
) -> None:
    tasks = [(number, of.tasks[number]) for number in stage.tasks]
    if any(task.step is SyncStep.SEND_SUM for _, task in tasks):
        for processor in of.order:  # those that had no gradient of their own
            flat_gradient(state, of.bundle, processor)
    if stage.in_rounds:
        state.emit.topic = _topic(of.bundle.unit, tasks[0][1]) if tasks else state.emit.topic
        state.emit.transfers([_copy(state, of, number, task) for number, task in tasks])
        return
    for number, task in tasks:
        state.emit.topic = _topic(of.bundle.unit, task)
        if state.part is not None and not task.step.is_collective and task.step not in (SyncStep.UPDATE, SyncStep.FILL):
            raise NotAlikeError(f"weights of {of.bundle.unit} are not synchronised by collectives")
        if task.step.is_message:
            state.emit.transfer(*_copy(state, of, number, task))
        elif task.step is SyncStep.UPDATE:
            span = Rect((task.low,), (task.high,))
            _update(state, rule, of.bundle, span, of.bundle.group[task.holder], scales)
        elif task.step is SyncStep.ALL_GATHER and of.bundle.name in state.gathers.late:
            continue  # the next step begins with it
        elif task.step.is_collective:
            _collective(state, of.bundle, task, sent)
        else:
            _sum(state, of, task)


def _topic(layer: str, task: SyncTask) -> Topic:
    news = task.step in (SyncStep.SEND_WEIGHTS, SyncStep.ALL_GATHER)
    return Topic(Purpose.NEW_WEIGHTS if news else Purpose.WEIGHT_GRADIENTS, layer)


def _name(bundle: Bundle, task: SyncTask) -> str:
    what = "weights" if task.step in (SyncStep.SEND_WEIGHTS, SyncStep.ALL_GATHER) else "d"
    return f"{what} {bundle.name}" + ("" if task.chunk is None else str(Rect((task.low,), (task.high,))))


def _gradient(state: Lowering, bundle: Bundle, task: SyncTask, holder: int) -> Part:
    return Part(flat_gradient(state, bundle, bundle.group[holder]), Rect((task.low,), (task.high,)))


def _copy(state: Lowering, of: SyncedBundle, number: int, task: SyncTask) -> tuple[str, Part, Part]:
    """Name, source and target of a message."""
    bundle, name = of.bundle, _name(of.bundle, task)
    if task.step is SyncStep.SEND_WEIGHTS:
        span = Rect((task.low,), (task.high,))
        giver, taker = (state.flat_weights[bundle.name, bundle.group[holder]] for holder in (task.source, task.holder))
        return name, Part(giver, span), Part(taker, span)
    source = _gradient(state, bundle, task, task.source)
    if task.step is SyncStep.SEND_SUM:
        return name, source, _gradient(state, bundle, task, task.holder)
    rect = Rect((0,), (task.high - task.low,))
    buffer = state.emit.buffer(f"{name} arriving", rect, bundle.group[task.holder], sums_in(bundle.dtype))
    of.arrivals[number] = state.emit.whole(buffer)
    return name, source, of.arrivals[number]


def _sum(state: Lowering, of: SyncedBundle, task: SyncTask) -> None:
    target, name = _gradient(state, of.bundle, task, task.holder), _name(of.bundle, task)
    if task.step is SyncStep.FILL:
        state.emit.fill(name, target, 0.0)
    else:
        state.emit.sum(name, [of.arrivals[a] for a in task.after if a in of.arrivals], target)


def _collective(state: Lowering, bundle: Bundle, task: SyncTask, sent: Mapping[tuple[int, int], list[int]]) -> None:
    emit, name, holders = state.emit, _name(bundle, task), len(bundle.group)
    lowered = _lowered(state, bundle)
    if task.step is SyncStep.ALL_GATHER:
        parts = [emit.whole(state.flat_weights[bundle.name, p]) for p in lowered]
        emit.all_gather(name, parts, _cuts(bundle.size, holders), bundle.group)
        return
    parts = [emit.whole(state.flat_gradients[bundle.name, p]) for p in lowered]
    if state.strategy.sync(bundle.layer).overlap:
        stage = state.strategy.pipeline.stage(bundle.layer) if sent and state.strategy.pipeline is not None else 0
        after = [number for p in lowered for number in sent.get((stage, p), ())]
    else:
        after = [state.ended[p] for p in lowered if p in state.ended]
    if task.step is SyncStep.ALL_REDUCE:
        emit.all_reduce(name, parts, bundle.group, after)
    else:
        emit.reduce_scatter(name, parts, _cuts(bundle.size, holders), bundle.group, after)


@lru_cache(maxsize=64)
def _cuts(size: int, holders: int) -> tuple[int, ...]:
    return even_cuts(size, holders)


def _clip(state: Lowering, chunks: Sequence[SyncedChunk], limit: float, scaled: bool) -> dict[int, int]:
    """The factor that keeps the global gradient norm below ``limit``, on every processor that updates. ``scaled``: on all, kept for
    the end of the step, and not a number if the norm is not finite."""
    emit = state.emit
    squares = _squares(state, chunks)
    if not squares:
        return {}
    emit.topic = Topic(Purpose.NORM, "")
    updaters = set(range(emit.graph.processors)) if scaled else {p for chunk in chunks for p in chunk.updaters}
    if state.by_collectives and len(updaters | squares.keys()) > 1:
        return _clip_by_collectives(state, squares, updaters, limit, scaled)
    if state.part is not None:
        raise NotAlikeError("the norm of gradients comes together at one processor")
    first = min(squares)
    arrived = []
    for processor in sorted(squares):
        part = emit.whole(squares[processor])
        if processor != first:
            staging = emit.buffer("sum of squares arriving", ONE, first, DOUBLE)
            emit.transfer("sum of squares", part, emit.whole(staging))
            part = emit.whole(staging)
        arrived.append(part)
    factor = _factor(state, first, arrived, limit, scaled)
    scales = {first: factor}
    for processor in sorted(updaters - {first}):
        scales[processor] = emit.buffer(FACTOR, ONE, processor, DOUBLE, kept=scaled)
        emit.transfer("clip", emit.whole(factor), emit.whole(scales[processor]))
    return scales


def _squares(state: Lowering, chunks: Sequence[SyncedChunk]) -> dict[int, int]:
    """By processor, the buffer of its sum of squares. Of a chunk whose sum several have, each squares an equal part where norms
    come together by an all-reduce; else the root does."""
    emit, part = state.emit, state.part
    squares: dict[int, int] = {}
    for chunk in chunks:
        emit.topic = Topic(Purpose.NORM, chunk.bundle.unit)
        for processor, span in _norm_spans(chunk, state.by_collectives):
            if part is not None and processor not in part.images:
                continue
            accumulate = processor in squares
            if not accumulate:
                squares[processor] = emit.buffer("sum of squares", ONE, processor, DOUBLE)
            target = squares[processor]
            source = emit.part(state.flat_gradients[chunk.bundle.name, processor], span)
            whole = emit.whole(target)
            emit.emit(
                Kind.NORM, f"norm {chunk.bundle.name}{span}", processor, Norm(source, target, accumulate),
                (source, whole) if accumulate else (source,), (whole,), flops=2 * span.volume,
            )
        if part is not None and part.replicas > 1 and chunk.bundle.size < len(chunk.bundle.group):
            raise NotAlikeError(f"not every replica has a part of the norm of {chunk.bundle.name}")
    return squares


def _norm_spans(chunk: SyncedChunk, by_collectives: bool) -> list[tuple[int, Rect]]:
    """Return who squares which elements of a chunk."""
    count, (low,) = len(chunk.summed), chunk.span.lo
    if not by_collectives or count == 1 or chunk.span.volume < count:
        return [(chunk.root, chunk.span)]
    cuts = even_cuts(chunk.span.volume, count)
    return [(p, Rect((low + a,), (low + b,))) for p, a, b in zip(chunk.summed, cuts, cuts[1:])]


def _clip_by_collectives(
    state: Lowering, squares: dict[int, int], updaters: set[int], limit: float, scaled: bool
) -> dict[int, int]:
    """The same by one all-reduce of everyone's sum of squares, after which each that updates has the norm itself."""
    emit, part = state.emit, state.part
    everybody = None if part is None else part.everywhere(squares)
    if part is not None:
        updaters = {p for p in updaters if p in part.images}
    for processor in sorted(updaters - squares.keys()):
        squares[processor] = emit.buffer("sum of squares", ONE, processor, DOUBLE)
        emit.fill("sum of squares", emit.whole(squares[processor]), 0.0)
    parts = {processor: emit.whole(buffer) for processor, buffer in squares.items()}
    emit.all_reduce("sum of squares", list(parts.values()), everybody)
    return {processor: _factor(state, processor, [parts[processor]], limit, scaled) for processor in sorted(updaters)}


def _factor(state: Lowering, processor: int, squares: Sequence[Part], limit: float, scaled: bool) -> int:
    """Return what a processor's gradients are to be multiplied by, from sums of squares that are there."""
    emit = state.emit
    factor = emit.buffer(FACTOR, ONE, processor, DOUBLE, kept=scaled)
    emit.emit(
        Kind.CLIP, "clip", processor, Clip(tuple(part.buffer for part in squares), factor, limit), squares,
        (emit.whole(factor),), flops=len(squares),
    )
    return factor


def _update(
    state: Lowering, rule: UpdateRule, bundle: Bundle, span: Rect, processor: int, scales: Mapping[int, int]
) -> None:
    emit = state.emit
    weights = emit.part(state.flat_weights[bundle.name, processor], span)
    gradients = emit.part(state.flat_gradients[bundle.name, processor], span)
    kind = sums_in(bundle.dtype)

    def kept(what: str, dtype: np.dtype[Any]) -> int:
        return emit.buffer(f"{bundle.name}.{what}", span, processor, dtype, kept=True)

    buffers = tuple(kept(f"{type(rule).__name__.lower()}{i}", rule.state_type(bundle.dtype)) for i in range(rule.buffers))
    master = None if kind == bundle.dtype else kept(MASTER, kind)
    scale = scales.get(processor)
    state_parts = tuple(emit.whole(b) for b in (*buffers, *(() if master is None else (master,))))
    emit.emit(
        Kind.UPDATE,
        f"update {bundle.name}{span}",
        processor,
        Update(rule, weights, gradients, buffers, scale, master),
        (*((weights,) if master is None else ()), gradients, *state_parts, *((emit.whole(scale),) if scale is not None else ())),
        (weights, *state_parts),
        flops=rule.flops(span.volume),
        topic=Topic(Purpose.UPDATE, bundle.unit),
    )
