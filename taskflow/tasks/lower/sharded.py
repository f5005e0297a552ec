"""Sharded gradients: gradients that are kept as shares (ZeRO's stages 2 and 3).

Each backward pass ends in a reduce-scatter. At the end of the step follow sums between the groups of hybrid sharding, updates
of shares, and with stage 2 an all-gather of new weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from taskflow.floats import sums_in
from taskflow.graph import Node
from taskflow.regions import Rect
from taskflow.tasks.lower.shards import Shards
from taskflow.tasks.lower.state import Lowering
from taskflow.tasks.lower.weight_gathers import ADDED, SUMMED
from taskflow.tasks.lower.weight_gradients import collect_weight_gradients, flat_gradient
from taskflow.tasks.task import Bundle, Part, Turn
from taskflow.tasks.topic import Purpose, Topic


def layers_ending(state: Lowering, nodes: Iterable[Node]) -> dict[int, list[str]]:
    """Return, for a pass whose backward tasks come in the order of ``nodes``, by node the layers (or blocks) whose gradients it
    completes, among those with gradients kept as shares."""
    found: dict[int, list[str]] = {}
    last = {
        unit: node.number for node in nodes for unit in map(state.layout.unit, node.parameters)
        if unit in state.sharded_layers and node.number in state.active
    }
    for layer, number in last.items():
        found.setdefault(number, []).append(layer)
    return found


def scatter_gradients(state: Lowering, layers: Sequence[str]) -> None:
    """Sum the gradients of layers that are complete in this pass: each holder gets a share, and the rest is freed."""
    for layer in layers:
        collect_weight_gradients(state, layer)
        freed: set[int] = set()
        ends: dict[int, int] = {}
        for bundle in state.sharded_layers[layer]:
            for group in state.shards[bundle.name].groups:
                if any((bundle.name, p) in state.flat_gradients for p in group):
                    freed.update(_scatter(state, bundle, state.shards[bundle.name], group, ends))
        for processor, task in ends.items():
            state.scattered.setdefault(processor, []).append(task)
            if state.gathers.turns is not None:
                state.gathers.turns.append(Turn(SUMMED, processor, task))
        buffers = state.emit.graph.buffers
        for key, number in list(state.weight_gradients.items()):
            base = buffers[number].base
            if base in freed or (base is None and state.layout.cells[key[0]][0][0].unit == layer):
                del state.weight_gradients[key]


def end_pass(state: Lowering, over: bool = True) -> None:
    """Forget the weights that were gathered for a pass, which the next one cannot use. ``over``: False between the two passes of a
    step without micro-batches, of which the second may wait for the first."""
    for use in state.gathers.end_pass(over):
        state.weight_uses.pop(use, None)
    if state.gathers.turns is not None and over:
        state.scattered.clear()


def _scatter(state: Lowering, bundle: Bundle, shards: Shards, group: Sequence[int], ends: dict[int, int]) -> list[int]:
    """Returns the buffers that nobody needs any more; ``ends`` gets, by processor, the task after which that is so."""
    emit, name = state.emit, f"d {bundle.name}"
    emit.topic = Topic(Purpose.WEIGHT_GRADIENTS, bundle.unit)
    lowered = lowered_of(state, bundle, group)
    for processor in lowered:
        if (bundle.name, processor) not in state.flat_gradients:
            emit.fill(name, emit.whole(flat_gradient(state, bundle, processor)), 0.0)
    flat = [state.flat_gradients.pop((bundle.name, processor)) for processor in lowered]
    ends.update(dict.fromkeys(lowered, emit.reduce_scatter(name, [emit.whole(buffer) for buffer in flat], shards.cuts, group)))
    for processor, buffer in zip(lowered, flat):
        state.filled_cells.pop((bundle.name, processor), None)
        span = shards.span(processor)
        if span.empty:
            continue
        key = bundle.name, processor
        first = key not in state.gradient_shares
        if first:
            state.gradient_shares[key] = emit.buffer(name, span, processor, sums_in(bundle.dtype))
        share = emit.whole(state.gradient_shares[key])
        ends[processor] = emit.transfer(f"{name}{span}", Part(buffer, span), share, add=not first)
        if state.gathers.turns is not None and bundle.unit in state.across:
            kind = f"{ADDED} {bundle.name}"
            state.gathers.turns += [Turn(kind, processor, ends[processor], back) for back in ((0,) if first else (1, 0))]
    return flat


# ---- the end of a step -----------------------------------------------------------------------------------------------
def sharded_bundles(state: Lowering) -> list[Bundle]:
    """Return the bundles of which some pass computed gradients."""
    given = {name for name, _ in state.gradient_shares}
    return [bundle for bundle in state.layout.bundles if bundle.name in given]


def sum_shares(state: Lowering, bundle: Bundle) -> None:
    """Sum a bundle's gradients between groups, so that all that keep the same share have the same sum. From now on the flat
    buffers are those of shares."""
    emit = state.emit
    emit.topic = Topic(Purpose.WEIGHT_GRADIENTS, bundle.unit)
    for span, keepers in lowered_sharers(state, bundle):
        lowered = lowered_of(state, bundle, keepers)
        for processor in lowered:
            key = bundle.name, processor
            if key not in state.gradient_shares:
                state.gradient_shares[key] = emit.buffer(f"d {bundle.name}", span, processor, sums_in(bundle.dtype))
                emit.fill(f"d {bundle.name}{span}", emit.whole(state.gradient_shares[key]), 0.0)
            state.flat_gradients[key] = state.gradient_shares[key]
            if bundle.name in state.gathers:
                state.flat_weights[key] = state.gathers.shares[key]
        if len(keepers) > 1:
            parts = [emit.whole(state.gradient_shares[bundle.name, p]) for p in lowered]
            emit.all_reduce(f"d {bundle.name}{span}", parts, keepers)


def send_weights(state: Lowering, bundle: Bundle) -> None:
    """Give each holder, with stage 2, the new weights of the others in its group."""
    emit, shards = state.emit, state.shards[bundle.name]
    if shards.zero == 2 and bundle.name not in state.gathers.late:
        emit.topic = Topic(Purpose.NEW_WEIGHTS, bundle.unit)
        for group in shards.groups:
            if lowered := lowered_of(state, bundle, group):
                parts = [emit.whole(state.flat_weights[bundle.name, p]) for p in lowered]
                emit.all_gather(f"weights {bundle.name}", parts, shards.cuts, group)


def lowered_sharers(state: Lowering, bundle: Bundle) -> list[tuple[Rect, tuple[int, ...]]]:
    """Return the shares of a bundle and the holders of each; of a part of a step, those that a lowered processor holds."""
    return [
        (span, keepers) for span, keepers in state.shards[bundle.name].sharers() if lowered_of(state, bundle, keepers)
    ]


def lowered_of(state: Lowering, bundle: Bundle, group: Sequence[int]) -> Sequence[int]:
    """Return those of some holders of a bundle whose tasks are lowered."""
    return group if state.part is None else state.part.lowered(group, bundle.name, bundle.group)
