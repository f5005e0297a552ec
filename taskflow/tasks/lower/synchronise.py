"""Gradient sums, clipping, updates and the sending of new weights: what keeps the copies of a parameter equal.

Which tasks there are and what each waits for is in sync_table.py; here they get their buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from taskflow.mapper import UpdatePlacement
from taskflow.partition import even_cuts
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks.lower.backward import collect_weight_gradients, flat_gradient
from taskflow.tasks.lower.sharded import send_weights, sharded_bundles, sum_shares
from taskflow.tasks.lower.state import Lowering
from taskflow.tasks.lower.sync_table import (
    SyncPhase,
    SyncStep,
    SyncTask,
    TaskStage,
    first_root,
    make_sync_table,
    sync_tasks,
)
from taskflow.tasks.task import Bundle, Clip, Kind, Norm, Part, Update
from taskflow.tasks.topic import Purpose, Topic

DOUBLE = np.dtype(np.float64)
ONE = Rect((0,), (1,))


@dataclass(frozen=True, slots=True)
class SyncedChunk:
    """A range of a bundle's flat buffer that one processor, the root, sums (and updates, unless every holder does)."""

    bundle: Bundle
    span: Rect
    root: int
    updaters: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.bundle.name}{self.span}"


@dataclass(slots=True)
class SyncedBundle:
    """A bundle that has a gradient, and the tasks that synchronise it."""

    bundle: Bundle
    order: tuple[int, ...]  # the group, the first chunk's root first
    chunks: list[SyncedChunk]
    tasks: list[SyncTask]
    stages: list[TaskStage]
    arrivals: dict[int, Part] = field(default_factory=dict)  # task -> the buffer in which a gradient arrives


def synchronise(state: Lowering, rule: UpdateRule, clip_norm: float | None) -> None:
    """Emit everything between the last backward task and the updated weights."""
    collect_weight_gradients(state)
    # All before the first root that has no gradient of its own gets a buffer for the sum.
    bundles = [
        _divide(state, bundle) for bundle in state.layout.bundles
        if any((bundle.name, p) in state.flat_gradients for p in bundle.group)
    ]
    sharded = sharded_bundles(state)
    scales: dict[int, int] = {}
    for phase in SyncPhase:
        for of in bundles:
            for stage in of.stages:
                if stage.phase is phase:
                    _emit(state, rule, of, stage, scales)
        for bundle in sharded:
            _emit_shares(state, rule, bundle, phase, scales)
        if phase is SyncPhase.SUMS and clip_norm is not None:
            chunks = [chunk for of in bundles for chunk in of.chunks]
            scales = _clip(state, chunks + [chunk for bundle in sharded for chunk in _shares(state, bundle)], clip_norm)


def _emit_shares(state: Lowering, rule: UpdateRule, bundle: Bundle, phase: SyncPhase, scales: Mapping[int, int]) -> None:
    """The same of a bundle whose gradients are kept as shares."""
    if phase is SyncPhase.SUMS:
        sum_shares(state, bundle)
    elif phase is SyncPhase.SENDS:
        for chunk in _shares(state, bundle):
            for processor in chunk.updaters:
                _update(state, rule, bundle, chunk.span, processor, scales)
        send_weights(state, bundle)


def _shares(state: Lowering, bundle: Bundle) -> list[SyncedChunk]:
    return [SyncedChunk(bundle, span, keepers[0], keepers) for span, keepers in state.shards[bundle.name].sharers()]


def _divide(state: Lowering, bundle: Bundle) -> SyncedBundle:
    group, sync = bundle.group, state.strategy.sync(bundle.layer)
    first = first_root(sync, state.layout.rank(bundle), len(group))
    order = group[first:] + group[:first]
    giving = tuple((bundle.name, p) in state.flat_gradients for p in order)
    table = make_sync_table(sync, giving, bundle.size, bundle.dtype.itemsize)
    everywhere = sync.place is UpdatePlacement.EVERY
    chunks = []
    for chunk in table.chunks:
        root = order[chunk.root]
        chunks.append(SyncedChunk(bundle, Rect((chunk.low,), (chunk.high,)), root, group if everywhere else (root,)))
    return SyncedBundle(bundle, order, chunks, *sync_tasks(table, first))


def _emit(state: Lowering, rule: UpdateRule, of: SyncedBundle, stage: TaskStage, scales: Mapping[int, int]) -> None:
    tasks = [(number, of.tasks[number]) for number in stage.tasks]
    if any(task.step is SyncStep.SEND_SUM for _, task in tasks):
        for processor in of.order:  # those that had no gradient of their own
            flat_gradient(state, of.bundle, processor)
    if stage.in_rounds:
        state.emit.topic = _topic(of.bundle.layer, tasks[0][1]) if tasks else state.emit.topic
        state.emit.transfers([_copy(state, of, number, task) for number, task in tasks])
        return
    for number, task in tasks:
        state.emit.topic = _topic(of.bundle.layer, task)
        if task.step.is_message:
            state.emit.transfer(*_copy(state, of, number, task))
        elif task.step is SyncStep.UPDATE:
            span = Rect((task.low,), (task.high,))
            _update(state, rule, of.bundle, span, of.bundle.group[task.holder], scales)
        elif task.step.is_collective:
            _collective(state, of.bundle, task)
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
    buffer = state.emit.buffer(f"{name} arriving", rect, bundle.group[task.holder], bundle.dtype)
    of.arrivals[number] = state.emit.whole(buffer)
    return name, source, of.arrivals[number]


def _sum(state: Lowering, of: SyncedBundle, task: SyncTask) -> None:
    target, name = _gradient(state, of.bundle, task, task.holder), _name(of.bundle, task)
    if task.step is SyncStep.FILL:
        state.emit.fill(name, target, 0.0)
    else:
        state.emit.sum(name, [of.arrivals[a] for a in task.after if a in of.arrivals], target)


def _collective(state: Lowering, bundle: Bundle, task: SyncTask) -> None:
    emit, name, holders = state.emit, _name(bundle, task), len(bundle.group)
    if task.step is SyncStep.ALL_GATHER:
        parts = [emit.whole(state.flat_weights[bundle.name, p]) for p in bundle.group]
        emit.all_gather(name, parts, even_cuts(bundle.size, holders))
        return
    parts = [emit.whole(state.flat_gradients[bundle.name, p]) for p in bundle.group]
    if task.step is SyncStep.ALL_REDUCE:
        emit.all_reduce(name, parts)
    else:
        emit.reduce_scatter(name, parts, even_cuts(bundle.size, holders))


def _clip(state: Lowering, chunks: Sequence[SyncedChunk], limit: float) -> dict[int, int]:
    """The factor that keeps the global gradient norm below ``limit``, on every processor that updates."""
    emit = state.emit
    squares: dict[int, int] = {}
    for chunk in chunks:
        accumulate = chunk.root in squares
        if not accumulate:
            squares[chunk.root] = emit.buffer("sum of squares", ONE, chunk.root, DOUBLE)
        target = squares[chunk.root]
        source = emit.part(state.flat_gradients[chunk.bundle.name, chunk.root], chunk.span)
        whole = emit.whole(target)
        emit.topic = Topic(Purpose.NORM, chunk.bundle.layer)
        emit.emit(
            Kind.NORM, f"norm {chunk.name}", chunk.root, Norm(source, target, accumulate),
            (source, whole) if accumulate else (source,), (whole,), flops=2 * chunk.span.volume,
        )
    if not squares:
        return {}
    first = min(squares)
    arrived = []
    emit.topic = Topic(Purpose.NORM, "")
    for processor in sorted(squares):
        part = emit.whole(squares[processor])
        if processor != first:
            staging = emit.buffer("sum of squares arriving", ONE, first, DOUBLE)
            emit.transfer("sum of squares", part, emit.whole(staging))
            part = emit.whole(staging)
        arrived.append(part)
    factor = emit.buffer("clip", ONE, first, DOUBLE)
    emit.emit(
        Kind.CLIP, "clip", first, Clip(tuple(p.buffer for p in arrived), factor, limit), arrived,
        (emit.whole(factor),), flops=len(arrived),
    )
    scales = {first: factor}
    updaters = {p for chunk in chunks for p in chunk.updaters}
    for processor in sorted(updaters - {first}):
        scales[processor] = emit.buffer("clip", ONE, processor, DOUBLE)
        emit.transfer("clip", emit.whole(factor), emit.whole(scales[processor]))
    return scales


def _update(
    state: Lowering, rule: UpdateRule, bundle: Bundle, span: Rect, processor: int, scales: Mapping[int, int]
) -> None:
    emit = state.emit
    weights = emit.part(state.flat_weights[bundle.name, processor], span)
    gradients = emit.part(state.flat_gradients[bundle.name, processor], span)
    buffers = tuple(
        emit.buffer(f"{bundle.name}.{type(rule).__name__.lower()}{i}", span, processor, bundle.dtype, kept=True)
        for i in range(rule.buffers)
    )
    scale = scales.get(processor)
    state_parts = tuple(emit.whole(b) for b in buffers)
    emit.emit(
        Kind.UPDATE,
        f"update {bundle.name}{span}",
        processor,
        Update(rule, weights, gradients, buffers, scale),
        (weights, gradients, *state_parts, *((emit.whole(scale),) if scale is not None else ())),
        (weights, *state_parts),
        flops=rule.flops(span.volume),
        topic=Topic(Purpose.UPDATE, bundle.layer),
    )
