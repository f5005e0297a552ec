"""least_of_plans: seconds that no plan in notation takes less than, whatever its stages, recomputation and sharding.

Degrees and micro-batches are gone through one by one (`_shapes`), and the least of their bounds counts. Of one shape:

- A device computes the kernels of its layers for each micro-batch (`LayerWork`). It waits for exchanges within layers unless
  parts of a micro-batch take turns.
- The links of its rank carry gradients and weights as often as ZeRO's stage wants (`layer_kinds`).
- A step takes as long as each path through the passes of a schedule (`LayerPlaces`).
- At moments when a rank keeps the most micro-batches, what it keeps of them, the weights, their gradients and the update rule's
  state fit its memory. State counts as if shared as widely as possible.

Which layer is where, computes what again and has which stage of ZeRO is chosen by a linear program (`LeastProgram`), in which
layers may be divided. If ranks have one stage each, whole layers count, too: ranks take layers in order, each as many as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf

import numpy as np

from taskflow.mapper import HybridPlan, samples
from taskflow.optimizer.cost.measured import blas_threads
from taskflow.optimizer.grid.bound_options import delays, layer_kinds, pass_seconds
from taskflow.optimizer.grid.bound_places import Kind, ScheduleKind, kind_of, kinds_of, places_of
from taskflow.optimizer.grid.bound_program import LeastProgram
from taskflow.optimizer.grid.bound_work import LayerWorks
from taskflow.optimizer.grid.node_table import Array
from taskflow.optimizer.grid.plans import PlanAxes, powers
from taskflow.optimizer.grid.stages import PlanSums

MANY = 1e3
"""Times the dearest byte that recomputation saves: at this price a rank that lacks memory takes longer than any plan."""
CLOSE = 1e-4  # of the seconds, to which the least for contiguous stages is found


@dataclass(frozen=True, slots=True)
class _LayerSums:
    """What layers of a shape take at several prices of a byte. ``each``: the prices. ``device`` (prices, layers + 1): sums over
    the first layers of the seconds of a micro-batch, with what is computed again at that price and the update. ``weights``
    (layers + 1): of bytes of weights, gradients and state. ``waits`` (layers + 1): seconds of a step in which a rank does nothing
    because layers before its first are with others."""

    each: Array
    device: Array
    weights: Array
    waits: Array


def least_of_plans(works: LayerWorks, memory_bytes: int, over: Callable[[], bool] = lambda: False) -> float:
    """Return the seconds; infinite if no plan fits devices of ``memory_bytes``. If ``over`` returns true before, what is known by
    then: each shape's seconds without regard to memory; 0 if these are not known of all."""
    graph, found = works.sums.graph, inf
    left: list[tuple[float, int, HybridPlan]] = []
    for plan in _shapes(works):
        if over():
            return 0.0
        with suppress(ValueError):  # the network cannot be cut so
            ahead, back = pass_seconds(works, plan)
            passes = samples(graph) // plan.samples_a_pass / plan.pipeline
            left.append((passes * float(ahead.sum() + back.min(axis=0).sum()), len(left), plan))
    with blas_threads(1):  # matrices are so small that threads would mostly wait for each other
        for quick, _, shape in sorted(left, key=lambda one: one[:2]):
            if quick >= found:
                break
            for kind in kinds_of(shape, samples(graph) // shape.samples_a_pass, works.sums.layers):
                if over():
                    return quick  # of all shapes that are left the least, and less than was found
                found = min(found, least_of(works, shape, memory_bytes, found, kind))
    return found


def least_of(works: LayerWorks, plan: HybridPlan, memory_bytes: int, most: float = inf, kind: Kind | None = None) -> float:
    """Return the seconds that plans with these degrees and micro-batch take at least, with a ``kind`` of schedule, or with the
    plan's own; ``most`` if that is less. Raises ValueError if the network cannot be cut so."""
    count, kind = samples(works.sums.graph) // plan.samples_a_pass, kind or kind_of(plan)
    update = 1 / _memory_rate(works.sums)
    if plan.pipeline > max(1, works.sums.layers):
        return works.of_stages(plan, count, most)
    found = 0.0
    if kind in (ScheduleKind.ALONE, ScheduleKind.IN_TURN, ScheduleKind.APART):
        layers = _priced(plan, count, works, update, kind)
        alive = np.array([float(min(count, plan.pipeline - rank)) for rank in range(plan.pipeline)])
        found = _of_all(plan, count, layers, alive, memory_bytes)
        if found < most and plan.pipeline > 1:
            found = _of_stages(count, layers, alive, memory_bytes, found, most)
    if found >= most:
        return most
    places = places_of(kind, plan.pipeline, count)
    options = layer_kinds(works, plan, count, update if places.updates else 0.0, places.adding)
    least = float(((options.forward + options.backward).min(axis=0) * options.many).sum())
    scale = most if most < inf else max(found, count * least / plan.pipeline)
    waits = np.cumsum(np.append(0.0, np.add(*delays(works.of(plan), *pass_seconds(works, plan)))))
    program = LeastProgram(options, places, memory_bytes, scale, waits[places.ahead])
    key = kind, plan.pipeline, len(places.kept)
    if key in works.weights and program.seconds(works.weights[key]) >= most:  # of a shape before
        return most
    found = max(found, program.solve(most))
    works.weights[key] = program.weights
    return min(most, found)


def least_unordered_bytes(works: LayerWorks) -> float:
    """Return the bytes of all devices together that a plan without an order needs at least, however it is cut and placed: what a
    whole batch keeps from forward to backward, weights and state. 0 if that is not known."""
    try:
        work = works.of(HybridPlan(micro_batch=samples(works.sums.graph), data=1))
    except ValueError:  # the network cannot be cut so
        return 0.0
    return float(work.kept[0].sum() + work.weights.sum() + work.state.sum())


def _memory_rate(sums: PlanSums) -> float:
    device = sums.tables.device
    return device.memory_rate


def _shapes(works: LayerWorks) -> Iterator[HybridPlan]:
    """All degrees and micro-batches that searches may look at, and more: any divisors as p and micro-batches."""
    graph, axes = works.sums.graph, works.axes
    batch = samples(graph)
    devices, operators = axes.devices, sum(bool(node.inputs) for node in graph)
    for t in powers(axes.node):
        for c, by_heads in _contexts(axes, t):
            for p in (p for p in range(1, devices // (t * c) + 1) if devices % (t * c * p) == 0):
                if p > 1 and (p > max(axes.layers, operators) or not axes.divided):
                    continue
                d = devices // (t * c * p)
                for e in (e for e in axes.experts if d % e == 0):
                    for count in (k for k in range(1, batch // d + 1) if batch % (d * k) == 0 and (k == 1 or axes.divided)):
                        yield HybridPlan(
                            tensor=t, context=c, ulysses=by_heads, pipeline=p, data=d, experts=e, micro_batch=batch // (d * count)
                        )


def _contexts(axes: PlanAxes, tensor: int) -> Iterator[tuple[int, bool]]:
    """How many tensor groups share a sequence, and whether they share attention by heads."""
    for c in dict.fromkeys((*powers(axes.node // tensor), *axes.contexts(tensor))):
        yield c, False
        if 1 < c <= axes.heads // tensor:
            yield c, True


def _priced(plan: HybridPlan, count: int, works: LayerWorks, update: float, kind: Kind) -> _LayerSums:
    """The sums over layers at the prices at which a layer changes its level, without a price, and at one that is too high."""
    work, (ahead, back) = works.of(plan), pass_seconds(works, plan)
    share = max(1, (plan.data or 1) // plan.experts)
    own = ahead + (0.0 if kind is ScheduleKind.IN_TURN else work.touched * update / share / count)
    held = (work.weights + work.state + (work.gradients if count > max(1, plan.pipeline) else 0.0)) / share
    saved, takes = work.kept.max(axis=1), back.max(axis=1)
    slopes = {0.0}
    for i in range(len(saved)):
        for j in range(len(saved)):
            if saved[i] > saved[j] and takes[j] > takes[i]:
                slopes.add(float((takes[j] - takes[i]) / (saved[i] - saved[j])))
    whole = max(1.0, float(work.kept.sum() + held.sum()))
    slopes.add(MANY * max(max(slopes), float((own + back[0]).sum()) / whole))
    each = np.array(sorted(slopes))
    least = np.array([(back + price * work.kept).min(axis=0) for price in each])
    device = np.cumsum(np.pad(own + least, ((0, 0), (1, 0))), axis=1)
    through, last = delays(work, ahead, back)
    waits = through if kind is ScheduleKind.APART else through + last
    return _LayerSums(each, device, np.cumsum(np.pad(held, (1, 0))), np.cumsum(np.pad(waits, (1, 0))))


def _of_all(plan: HybridPlan, count: int, layers: _LayerSums, alive: Array, memory: float) -> float:
    """Seconds that the ranks together need, divided by their number: at least what the slowest one takes."""
    device = layers.device[:, -1] + layers.each * layers.weights[-1] / alive.max()
    waiting = 0.0
    if plan.pipeline < len(layers.waits):  # a rank has no layer before those of the ranks before it
        waiting = float(layers.waits[: plan.pipeline].sum())
    seconds = (count * (device - layers.each * memory * (1 / alive).sum()) + waiting) / plan.pipeline
    return float(seconds.max())


def _of_stages(count: int, layers: _LayerSums, alive: Array, memory: float, least: float, most: float) -> float:
    """Seconds that a plan with one stage a rank needs, between ``least`` and ``most``. Ranks take layers in order, each as many
    as it can in the time."""
    high = most if most < inf else least * MANY
    if not _enough(count, layers, alive, memory, high):
        return most
    low = min(least, high)
    while high > low * (1 + CLOSE):
        middle = (low + high) / 2
        low, high = (low, middle) if _enough(count, layers, alive, memory, middle) else (middle, high)
    return low


def _enough(count: int, layers: _LayerSums, alive: Array, memory: float, seconds: float) -> bool:
    """Whether the ranks take all layers in so many seconds. A rank that takes more leaves no less time to the next, which begins
    later by at most what it need not compute; so each takes as many as it can, and may leave none to the next."""
    last, at = layers.device.shape[1] - 1, 0
    for one in alive:
        left = (seconds - layers.waits[at]) / count
        sums = layers.device + (layers.each / one)[:, None] * layers.weights
        room = sums[:, at] + left + layers.each * memory / one
        at = max(at, min(int(np.searchsorted(row, limit, "right")) - 1 for row, limit in zip(sums, room)))
        if at >= last:
            return True
    return False
