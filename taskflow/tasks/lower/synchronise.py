"""Gradient sums, clipping, updates and the sending of new weights: what keeps the copies of a parameter equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from taskflow.mapper import Sync, SyncAlgorithm, UpdatePlacement
from taskflow.partition import even_cuts
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks.lower.backward import collect_weight_gradients, flat_gradient
from taskflow.tasks.lower.reduce import broadcast_all, reduce_all
from taskflow.tasks.lower.state import Lowering
from taskflow.tasks.task import Bundle, Clip, Kind, Norm, Part, Update
from taskflow.tasks.topic import Purpose, Topic

SMALLEST_CHUNK_BYTES = 1 << 20  # below this a message's latency costs more than its bytes
DOUBLE = np.dtype(np.float64)
ONE = Rect((0,), (1,))


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of a bundle's flat buffer that one processor, the root, sums (and updates, unless every holder does)."""

    bundle: Bundle
    sync: Sync
    span: Rect
    order: tuple[int, ...]  # the group, root first

    @property
    def root(self) -> int:
        return self.order[0]

    @property
    def name(self) -> str:
        return f"{self.bundle.name}{self.span}"


def synchronise(state: Lowering, rule: UpdateRule, clip_norm: float | None) -> None:
    """Emit everything between the last backward task and the updated weights."""
    collect_weight_gradients(state)
    divided = [made for bundle in state.layout.bundles if (made := _chunks(state, bundle))]
    chunks = [c for made in divided for c in made]
    # Decided before the first root that has no gradient of its own gets a buffer for the sum.
    givers = set(state.flat_gradients)
    for made in divided:
        if made[0].sync.travel is SyncAlgorithm.COLLECTIVE:
            _collect(state, made[0].bundle, made[0].sync.place, givers)
        else:
            _reduce(state, made, givers)
    scales = _clip(state, chunks, clip_norm) if clip_norm is not None else {}
    for made in divided:
        layer, collective = made[0].bundle.layer, made[0].sync.travel is SyncAlgorithm.COLLECTIVE
        if made[0].sync.place is UpdatePlacement.EVERY:
            if collective:
                continue  # every holder has the sum
            state.emit.topic = Topic(Purpose.WEIGHT_GRADIENTS, layer)
            _send(state, made, "d", flat_gradient)
        else:
            for chunk in made:
                _update(state, rule, chunk.bundle, chunk.span, chunk.root, scales)
            state.emit.topic = Topic(Purpose.NEW_WEIGHTS, layer)
            if collective:
                _all_gather(state, made[0].bundle)
            else:
                _send(state, made, "weights", lambda state, name, p: state.flat_weights[name, p])
    for bundle in {c.bundle.name: c.bundle for c in chunks if c.sync.place is UpdatePlacement.EVERY}.values():
        for processor in bundle.group:
            _update(state, rule, bundle, Rect((0,), (bundle.size,)), processor, scales)


def _chunks(state: Lowering, bundle: Bundle) -> list[Chunk]:
    """How a bundle is divided; none if it has no gradient."""
    group = bundle.group
    if not any((bundle.name, p) in state.flat_gradients for p in group):
        return []
    sync = state.strategy.sync(bundle.layer)
    many = sync.place is UpdatePlacement.SPREAD or (sync.place is UpdatePlacement.EVERY and sync.travel is SyncAlgorithm.RING)
    wanted = sync.chunks or max(1, bundle.size * bundle.dtype.itemsize // SMALLEST_CHUNK_BYTES)
    if sync.travel is SyncAlgorithm.COLLECTIVE:
        wanted = len(group)  # the library wants one share a holder, in the holders' order
    count = min(len(group), wanted, bundle.size) if many else 1
    # Roots differ from layer to layer and bundle to bundle, so that one processor does not own everything. Nothing but
    # the layer's own bundles matters, so that an evaluator can keep what it knows of the layers that did not change.
    first = state.layout.rank(bundle)
    roots = [i if sync.travel is SyncAlgorithm.COLLECTIVE else first + i * len(group) // count for i in range(count)]
    cuts = even_cuts(bundle.size, count)
    return [
        Chunk(bundle, sync, Rect((low,), (high,)), _rotate(group, root))
        for root, low, high in zip(roots, cuts, cuts[1:])
    ]


def _rotate(group: tuple[int, ...], by: int) -> tuple[int, ...]:
    by %= len(group)
    return group[by:] + group[:by]


def _collect(state: Lowering, bundle: Bundle, place: UpdatePlacement, givers: set[tuple[str, int]]) -> None:
    """Sum the holders' gradients of a bundle on all of them at once, or a share on each; those without one of their own give
    zeros."""
    state.emit.topic = Topic(Purpose.WEIGHT_GRADIENTS, bundle.layer)
    parts = []
    for processor in bundle.group:
        parts.append(state.emit.whole(flat_gradient(state, bundle.name, processor)))
        if (bundle.name, processor) not in givers:
            state.emit.fill(f"d {bundle.name}", parts[-1], 0.0)
    if len(parts) < 2:
        return
    if place is UpdatePlacement.EVERY:
        state.emit.all_reduce(f"d {bundle.name}", parts)
    else:
        state.emit.reduce_scatter(f"d {bundle.name}", parts, even_cuts(bundle.size, len(parts)))


def _all_gather(state: Lowering, bundle: Bundle) -> None:
    """Every holder gets the weights that the others have updated."""
    parts = [state.emit.whole(state.flat_weights[bundle.name, p]) for p in bundle.group]
    if len(parts) > 1:
        state.emit.all_gather(f"weights {bundle.name}", parts, even_cuts(bundle.size, len(parts)))


def _reduce(state: Lowering, chunks: list[Chunk], givers: set[tuple[str, int]]) -> None:
    """Sum the holders' gradients of a bundle's chunks at their roots. A holder whose tasks made no gradient, and so is not
    among the ``givers``, sends nothing."""
    groups = []
    state.emit.topic = Topic(Purpose.WEIGHT_GRADIENTS, chunks[0].bundle.layer)
    for chunk in chunks:
        name, bundle = f"d {chunk.name}", chunk.bundle.name
        with_gradient = [p for p in chunk.order if (bundle, p) in givers]
        parts = [(p, Part(state.flat_gradients[bundle, p], chunk.span)) for p in with_gradient]
        if parts[0][0] != chunk.root:
            root = Part(flat_gradient(state, bundle, chunk.root), chunk.span)
            state.emit.fill(name, root, 0.0)
            parts.insert(0, (chunk.root, root))
        groups.append((name, parts))
    reduce_all(state.emit, groups, chunks[0].sync.travel)


def _send(
    state: Lowering, chunks: list[Chunk], what: str, buffer: Callable[[Lowering, str, int], int]
) -> None:
    """Send what the roots of a bundle's chunks hold to its other holders."""
    groups = [
        (f"{what} {c.name}", [(p, Part(buffer(state, c.bundle.name, p), c.span)) for p in c.order]) for c in chunks
    ]
    broadcast_all(state.emit, groups, chunks[0].sync.travel)


def _clip(state: Lowering, chunks: list[Chunk], limit: float) -> dict[int, int]:
    """The factor that keeps the global gradient norm below ``limit``, on every processor that updates."""
    emit = state.emit
    squares: dict[int, int] = {}
    for chunk in chunks:
        accumulate = chunk.root in squares
        if not accumulate:
            squares[chunk.root] = emit.buffer("sum of squares", ONE, chunk.root, DOUBLE)
        target = squares[chunk.root]
        source = Part(state.flat_gradients[chunk.bundle.name, chunk.root], chunk.span)
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
    updaters = {
        p for c in chunks for p in (c.bundle.group if c.sync.place is UpdatePlacement.EVERY else (c.root,))
    }
    for processor in sorted(updaters - {first}):
        scales[processor] = emit.buffer("clip", ONE, processor, DOUBLE)
        emit.transfer("clip", emit.whole(factor), emit.whole(scales[processor]))
    return scales


def _update(
    state: Lowering, rule: UpdateRule, bundle: Bundle, span: Rect, processor: int, scales: dict[int, int]
) -> None:
    emit = state.emit
    weights = Part(state.flat_weights[bundle.name, processor], span)
    gradients = Part(state.flat_gradients[bundle.name, processor], span)
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
