"""Options of layers for bounds: what each computes again, and how its weights are shared, with what that takes and needs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from taskflow.mapper import HybridPlan, node_size
from taskflow.optimizer.grid.bound_program import LayerKinds
from taskflow.optimizer.grid.bound_work import LayerWork, LayerWorks
from taskflow.optimizer.grid.node_table import Array
from taskflow.optimizer.grid.weight_groups import WeightGroups

FINE = 1e10  # parts of a second, to which seconds that differ by rounding alone are made equal


def layer_kinds(works: LayerWorks, plan: HybridPlan, count: int, update: float, adding: float) -> LayerKinds:
    """Return the layers of a network with their options, for one device of each rank. ``update``: seconds of an updated byte;
    ``adding``: the part of the micro-batches whose gradients are added to earlier ones. Raises ValueError if the network cannot
    be cut so."""
    work = works.of(plan)
    ahead, back = pass_seconds(works, plan)
    shared = _shared(works, plan, work, count)
    more = work.touched * update / max(1, (plan.data or 1) // plan.experts) / count
    levels, ways = len(back), len(shared)

    def of_levels(values: Array) -> Array:
        return np.repeat(values, ways, axis=0)

    def of_ways(i: int) -> Array:
        return np.tile(np.array([way[i] for way in shared]), (levels, 1))

    same = np.ones((levels * ways, 1))
    backward = of_levels(back + more) + of_ways(3) * adding
    through, last = delays(work, ahead, back)
    each = np.stack([
        same * ahead, backward, same * through, same * last, of_levels(work.kept),
        of_ways(0), of_ways(1), of_ways(2),
    ])  # fmt: skip
    alike = Counter(column.tobytes() for column in np.ascontiguousarray(each.reshape(-1, each.shape[2]).T))
    columns = np.array([np.frombuffer(one) for one in alike])
    return LayerKinds(np.array(list(alike.values()), float), *columns.T.reshape(len(each), levels * ways, -1))


def pass_seconds(works: LayerWorks, plan: HybridPlan) -> tuple[Array, Array]:
    """Return the seconds of a micro-batch by layer, forward, and (levels, layers) backward. It is the least of two ways. A
    micro-batch as a whole waits for exchanges; parts that take turns wait only for those that are made again."""
    key = plan.passes_alike
    if key not in works.pass_seconds:
        works.pass_seconds[key] = _pass_seconds(works, plan)
    return works.pass_seconds[key]


def _pass_seconds(works: LayerWorks, plan: HybridPlan) -> tuple[Array, Array]:
    work, size = works.of(plan), plan.micro_batch or 1
    ahead, back = work.passes[0], np.maximum(work.passes[1], work.backward + work.again + work.waits)
    if plan.tensor * plan.context * plan.experts == 1:
        return ahead, back
    for parts in (k for k in range(2, size + 1) if size % k == 0):
        try:
            part = works.of(replace(plan, micro_batch=size // parts))
        except ValueError:  # the network cannot be cut so
            continue
        ahead = np.minimum(ahead, parts * part.forward)
        back = np.minimum(back, parts * (part.backward + part.again + part.waits))
        if works.whole:
            ahead, back = np.minimum(ahead, work.forward), np.minimum(back, work.backward + work.again)
    return ahead, back


def delays(work: LayerWork, ahead: Array, back: Array) -> tuple[Array, Array]:
    """Return by how many seconds each layer delays the first micro-batch, and the last one's gradients: no more than its passes
    take."""
    found = []
    for ends, most in ((work.begins, ahead), (work.ends, back.min(axis=0))):
        rises = np.diff(ends, append=ends[-1])
        found.append(np.maximum(0.0, np.floor(np.minimum(rises, most) * FINE) / FINE))
    return found[0], found[1]


def _shared(works: LayerWorks, plan: HybridPlan, work: LayerWork, count: int) -> list[tuple[Array, Array, Array, Array]]:
    """By layer, bytes of weights with the rule's state, bytes of gradients, and seconds for which a step's collectives of them
    occupy a link. The last are seconds of adding gradients up. Three ways: with whole weights and gradients, with shares of
    gradients, and with shares of both."""
    share = max(1, (plan.data or 1) // plan.experts)
    state, whole, none = work.state / share, work.whole, np.zeros(len(work.state))
    key = plan.tensor, plan.context, plan.data or 1, plan.experts
    if key not in works.link_seconds:
        works.link_seconds[key] = _link_seconds(works, plan, work)
    once, sums, gathers = works.link_seconds[key]
    return [
        (whole[0] + state, whole[1], once, work.adds),
        (whole[0] + state, work.gradients / share, count * sums + gathers, none),
        (work.weights / share + state, work.gradients / share, count * (sums + 2 * gathers), none),
    ]


def _link_seconds(works: LayerWorks, plan: HybridPlan, work: LayerWork) -> Array:
    """(3, layers): seconds for which links are busy with whole sums of gradients, with sums of which each device gets a share, and
    with gathers of weights. These do not depend on micro-batches. Whole sums may be in buckets with those of other layers, so that
    latencies are left out."""
    groups, busy = _groups(works, plan), np.zeros((3, len(work.state)))
    for name, moved in work.moved.items():
        if groups is None:
            break
        step = {"all": 1, "tensor": plan.tensor, "expert": plan.tensor * plan.context * plan.experts}[name]
        shares = max(step, plan.tensor)  # of what a tensor-parallel group holds alike: among replicas
        sizes, alike = np.unique(moved, axis=1, return_inverse=True)  # of many layers there are a few kinds
        found = np.array([
            (min(groups.seconds_in_bulk(step, g, 2), groups.seconds_in_bulk(step, g, 1) + groups.seconds_in_bulk(step, w, 1)),
             groups.seconds(shares, g, 1), groups.seconds(shares, w, 1)) for w, g in sizes.T
        ])[alike.ravel()]  # fmt: skip
        busy = np.maximum(busy, found.T)
    return busy


def _groups(works: LayerWorks, plan: HybridPlan) -> WeightGroups | None:
    """The groups of the first rank's devices that hold the same weights; None if those of other ranks lie otherwise in nodes."""
    machine = works.sums.tables.machine
    devices, node = plan.tensor * plan.context * (plan.data or 1), node_size(machine)
    if devices % node and node % devices:
        return None
    return WeightGroups(machine, range(devices), plan)
