"""Backward pass of lowering: backward reduces into what forward reads, and reads what forward writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from taskflow.floats import sums_in
from taskflow.graph import Node
from taskflow.operators.operator import Keeps
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect
from taskflow.tasks.lower.again import AHEAD, have_again
from taskflow.tasks.lower.exchange import exchange_gradients, gather
from taskflow.tasks.lower.in_shares import bring_in_shares, can_bring
from taskflow.tasks.lower.owner_gradients import Arriving, gather_local, owner_gradient, seed_of
from taskflow.tasks.lower.owners import nearest_copy
from taskflow.tasks.lower.part import NotAlikeError
from taskflow.tasks.lower.recut import recut_gradients
from taskflow.tasks.lower.ring_pass import as_they_arrive
from taskflow.tasks.lower.state import Given, Lowering, Piece
from taskflow.tasks.lower.weight_gathers import SUMMED
from taskflow.tasks.lower.weight_gradients import weight_target
from taskflow.tasks.task import Compute, GradientTo, Kind, OtherHalf, Part, Turn
from taskflow.tasks.topic import Purpose, Topic

Copies = Mapping[tuple[Rect, tuple[int, ...]], Mapping[int, int]]
"""Gradients that several processors have: of a Rect and its processors, the buffer of each."""


class Gives(Enum):
    """Results of the backward tasks of a pass: all gradients, or only those of inputs or of weights."""

    ALL = "all"
    INPUTS = "inputs"
    WEIGHTS = "weights"


def backward(
    state: Lowering, node: Node, pieces: Sequence[Piece] | None = None, gives: Gives = Gives.ALL
) -> None:
    """Emit the backward tasks of an active node's pieces (None: of all), preceded by what they need again
    (`Strategy.again`). The backward tasks of every piece that reads what these pieces write must have
    been emitted before."""
    some, forget = state.pieces[node.number] if pieces is None else pieces, pieces is not None
    if gives is not Gives.WEIGHTS:  # for which it is there since the pass for inputs
        have_again(state, node, some, lambda: _bring_gradients(state, node, some, forget))
    put_gradients(state, node, some, gives, forget)


def put_gradients(state: Lowering, node: Node, some: Sequence[Piece], gives: Gives, forget: bool = False) -> None:
    """Emit the backward tasks of pieces, after what brings the gradients of their outputs; all else that they read is there.
    ``forget``: these gradients are not looked at again."""
    _bring_gradients(state, node, some, forget)
    tables = [state.gathered.get((node.number, tensor.index)) for tensor in node.outputs]
    if all(table is None for table in tables):
        return
    state.emit.topic = Topic(Purpose.BACKWARD, node.name)
    for piece in as_they_arrive(state, some, last_first=True) if state.ring else some:
        _task(state, piece, tuple(
            None if table is None else table[rect, piece.processor] for table, rect in zip(tables, piece.writes)
        ), gives)


def _bring_gradients(state: Lowering, node: Node, some: Sequence[Piece], forget: bool) -> None:
    state.emit.topic = Topic(Purpose.GRADIENT, node.name)
    fresh = [_gather(state, tensor, some, forget) for tensor in node.outputs]
    for tensor, table in zip(node.outputs, fresh):
        if table is not None:
            _share(state, node, tensor, table)
            state.gathered.setdefault((node.number, tensor.index), {}).update(table)


def _share(state: Lowering, node: Node, tensor: Tensor, table: dict[tuple[Rect, int], int]) -> None:
    """Bring the owners' gradients to the other processors that computed partial values of the same Rects."""
    if state.by_collectives:
        _gather_shares(state, tensor, table)
        return
    emit = state.emit
    owned = {rect: buffer for (rect, _), buffer in table.items()}
    if all(len(state.writers[node.number, tensor.index][rect]) == 1 for rect in owned):
        return
    copies: list[tuple[str, Part, Part]] = []
    for piece in state.pieces[node.number]:
        rect = piece.writes[tensor.index]
        if rect in owned and (rect, piece.processor) not in table:
            copy = emit.buffer(f"d {tensor.name}", rect, piece.processor, tensor.dtype)
            table[rect, piece.processor] = copy
            copies.append((f"d {tensor.name}{rect}", emit.whole(owned[rect]), emit.whole(copy)))
    emit.transfers(copies)


def _gather_shares(state: Lowering, tensor: Tensor, table: dict[tuple[Rect, int], int]) -> None:
    """Give the gradient of each Rect to all that computed partial values of it: an all-gather of what its owners have."""
    emit, key = state.emit, (tensor.node, tensor.index)
    owners, writers = state.owners[key], state.writers[key]
    for written in dict.fromkeys(owners.written(rect) for rect, _ in table):
        computed = dict.fromkeys(piece.processor for piece in writers[written])
        missing = [processor for processor in computed if (written, processor) not in table]
        if not missing:
            continue
        name = f"d {tensor.name}"
        shares = {p: (rect, p, table[rect, p]) for rect, p in owners.of(written)}
        into = {p: emit.buffer(name, written, p, tensor.dtype) for p in missing}
        if written.ndim:
            gather(emit, f"{name}{written}", written, shares, into, owners.places(written))
        else:  # no shares, but one that has it
            (source,) = shares.values()
            emit.all_to_all(f"{name}{written}", [(emit.whole(source[2]), emit.whole(buffer)) for buffer in into.values()])
        table.update({(written, p): buffer for p, buffer in into.items()})


def _gather(
    state: Lowering, tensor: Tensor, pieces: Sequence[Piece], forget: bool
) -> dict[tuple[Rect, int], int] | None:
    """The gradient of each owning piece that ``pieces`` write, if it has not come together before: the sum of what its readers put;
    None if nobody put anything. Where the processors that computed partial values, and nobody else, put one gradient each,
    every one of them gets the sum. ``forget``: what was put is not looked at again."""
    key = (tensor.node, tensor.index)
    seed = key in state.losses
    put = state.gradients.get(key, {})
    if key not in state.needs_gradient or not (put or seed):
        return None
    owners, gathered_before = state.owners[key], state.gathered.get(key, {})
    if pieces[0].local:
        return gather_local(state, tensor, pieces, seed, forget)
    asked = {  # owning pieces, in their order
        rect: owner for written in dict.fromkeys(piece.writes[tensor.index] for piece in pieces)
        for rect, owner in owners.of(written) if (rect, owner) not in gathered_before
    }
    if owners.recut and asked:
        return _gather_recut(state, tensor, asked, seed, forget)
    meeting: dict[Rect, list[tuple[int, Rect, int]]] = {}  # owning piece -> those readers, in order
    copies: dict[Rect, dict[tuple[Rect, tuple[int, ...]], dict[int, int]]] = {}  # of gradients that several have, by processor
    taken: dict[Given, None] = {}
    for given, buffer in put.items():
        processor, read, alike = given
        for rect, _, _ in owners.overlapping(read):
            if rect not in asked:
                continue
            taken[given] = None
            if alike:
                copies.setdefault(rect, {}).setdefault((read, alike), {})[processor] = buffer
            else:
                meeting.setdefault(rect, []).append((processor, read, buffer))
    arriving = Arriving([], [])
    gathered: dict[tuple[Rect, int], int] = {}
    for rect in list(asked):
        parts, held = meeting.get(rect, []), owners.summed.get(rect, {})
        if rect in copies and rect in owners.copied and state.by_collectives and state.strategy.pipeline is not None:
            _from_other_groups(state, tensor, rect, list(held), copies[rect])
        if rect in copies and not parts and not seed:  # each that wants the sum adds up what is nearest to it
            for target in held or (asked[rect],):
                nearest = _nearest(copies[rect], target)
                gathered[rect, target] = owner_gradient(state, tensor, rect, target, nearest, seed, arriving)
            del asked[rect]
        elif held and not seed and all(read == rect for _, read, _ in parts) and {p for p, *_ in parts} == set(held):
            buffers = [state.emit.whole(buffer) for *_, buffer in parts]
            state.emit.all_reduce(f"d {tensor.name}{rect}", buffers, owners.crossing.get(rect))
            gathered.update({(rect, processor): buffer for processor, _, buffer in parts})
            for processor, _, buffer in parts if rect in copies else ():
                both = [(processor, rect, buffer), *_nearest(copies[rect], processor)]
                gathered[rect, processor] = owner_gradient(state, tensor, rect, processor, both, seed, arriving)
            del asked[rect]
        elif state.by_collectives and rect in owners.copied and not seed and {p for p, *_ in parts} <= held.keys():
            gathered.update(_sum_everywhere(state, tensor, rect, asked[rect], list(held), parts, copies.get(rect, {})))
            del asked[rect]
        elif state.by_collectives and held and seed and not parts:  # all begin with 1, and nothing needs to be sent
            gathered.update({(rect, processor): seed_of(state, tensor, rect, processor) for processor in held})
            del asked[rect]
    for rect in [rect for rect in asked if rect in copies]:
        meeting.setdefault(rect, []).extend(_nearest(copies[rect], asked[rect]))
    met = meeting
    if state.by_collectives:
        among = {r: parts for r, parts in meeting.items() if r in asked}
        met = exchange_gradients(state.emit, tensor, asked, among, state.ring)
    for rect, owner in asked.items():
        gathered[rect, owner] = owner_gradient(state, tensor, rect, owner, met.get(rect, []), seed, arriving)
    arriving.emit(state)
    if forget:
        for given in taken:
            del put[given]
    return gathered


def _gather_recut(
    state: Lowering, tensor: Tensor, asked: Mapping[Rect, int], seed: bool, forget: bool
) -> dict[tuple[Rect, int], int]:
    """The same of a tensor that is cut anew among replicas, of which one is lowered."""
    owners, put = state.owners[tensor.node, tensor.index], state.gradients.get((tensor.node, tensor.index), {})
    across = {(p, read): buffer for (p, read, _), buffer in put.items() if (p, read) in owners.recut}
    come = recut_gradients(state.emit, tensor, owners.recut, asked, across)
    parts: dict[Rect, list[tuple[int, Rect, int]]] = {rect: [] for rect in asked}
    for (processor, read, copies), buffer in list(put.items()):
        if (processor, read) in owners.recut:
            own, arrived = come.get((processor, read), (None, []))
        else:
            own = next((rect for rect, owner in asked.items() if owner == processor and rect.contains(read)), None)
            arrived = [(processor, read, buffer)]
            if copies or (own is None and any(rect.overlaps(read) for rect in asked)):
                raise NotAlikeError(f"gradients of {tensor.name} come from other replicas in several ways")
        if own is not None:
            parts[own] += arrived
            if forget:
                del put[processor, read, copies]
    if not all(parts.values()) or seed or owners.summed:
        raise NotAlikeError(f"not every replica gives a gradient of {tensor.name}")
    arriving = Arriving([], [])
    result = {
        (rect, owner): owner_gradient(state, tensor, rect, owner, parts[rect], False, arriving) for rect, owner in asked.items()
    }
    arriving.emit(state)
    return result


def _sum_everywhere(
    state: Lowering, tensor: Tensor, rect: Rect, owner: int, holders: Sequence[int], parts: Sequence[tuple[int, Rect, int]],
    copies: Copies,
) -> dict[tuple[Rect, int], int]:
    """The gradient of a Rect on all that compute it: each adds up what it has put, and an all-reduce does the rest. What several
    have is added by the first."""
    arriving, result = Arriving([], []), {}
    for holder in holders:
        own = [part for part in parts if part[0] == holder] + (_nearest(copies, holder) if holder == owner else [])
        result[rect, holder] = owner_gradient(state, tensor, rect, holder, own, False, arriving)
    arriving.emit(state)
    state.emit.all_reduce(f"d {tensor.name}{rect}", [state.emit.whole(buffer) for buffer in result.values()])
    return result


def _from_other_groups(
    state: Lowering, tensor: Tensor, rect: Rect, holders: Sequence[int], copies: dict[tuple[Rect, tuple[int, ...]], dict[int, int]]
) -> None:
    """Bring the gradients of a Rect that another group has to all that compute it, in shares."""
    for read, alike in copies:
        there = copies[read, alike]
        sources = {holder: (giver, there[giver]) for holder in holders for giver in [nearest_copy(list(there), holder)]}
        if read == rect and can_bring(rect, sources):
            name = f"d {tensor.name}"
            into = {holder: state.emit.buffer(name, rect, holder, tensor.dtype) for holder in holders}
            bring_in_shares(state.emit, name, rect, sources, into)
            copies[read, alike] = into


def _nearest(copies: Copies, target: int) -> list[tuple[int, Rect, int]]:
    """Return, of gradients that several processors have, the processor, Rect and buffer from which one takes each."""
    return [
        (giver, read, by_processor[giver])
        for (read, _), by_processor in copies.items() for giver in [nearest_copy(list(by_processor), target)]
    ]


def _task(state: Lowering, piece: Piece, grads: tuple[int | None, ...], gives: Gives) -> None:
    emit, node = state.emit, piece.node
    inputs, weights, outputs, saved = state.forward_buffers[node.number, piece.index]
    keeps: Keeps = node.operator.keeps(node.specs)
    half = _half(state, piece, gives)
    if half is None:
        return
    recent = state.recent.setdefault(piece.processor, []) if piece.processor in state.last else []
    reads_inputs = keeps.inputs and not (half is Gives.INPUTS and node.operator.inputs_for_weights)
    # Gradients of weights do not depend on the weights, which therefore are not gathered for them alone.
    reads_weights = keeps.weights and not (half is Gives.WEIGHTS and state.gathers.any_of(node.parameters))
    if reads_weights:
        weights = state.weights_again(piece, weights)
    grad_inputs = (None,) * len(node.inputs) if half is Gives.WEIGHTS else tuple(
        _input_target(state, tensor, rect, piece) for tensor, rect in zip(node.inputs, piece.reads.inputs)
    )
    grad_weights = (None,) * len(node.parameters) if half is Gives.INPUTS or not piece.first or node.operator.frozen else tuple(
        weight_target(state, parameter, rect, piece.processor)
        for parameter, rect in zip(node.parameters, piece.reads.weights)
    )
    targets = [t for t in (*grad_inputs, *grad_weights) if t is not None]
    if not targets and not piece.first:  # the first copy gives gradients of weights, and there are no others
        return
    used = [
        *((b for b in inputs if b is not None) if reads_inputs else ()), *(weights if reads_weights else ()),
        *(outputs if keeps.outputs else ()), *saved, *(g for g in grads if g is not None),
        *(t.buffer for t in targets if t.accumulate),
    ]
    flops = node.operator.backward_flops(node.specs, piece.rect)
    room, turn = state.room_for_gradients(node, piece.processor) if any(grad_weights) else ((), None)
    state.last[piece.processor] = emit.emit(
        Kind.BACKWARD,
        f"{piece.name} backward{'' if half is Gives.ALL else f' by {half.value}'}",
        piece.processor,
        Compute(
            node, piece.rect, True,
            inputs if reads_inputs else (None,) * len(inputs),
            weights if reads_weights else (None,) * len(weights),
            outputs if keeps.outputs else (None,) * len(outputs),
            saved, grads, grad_inputs, grad_weights,
            None if half is Gives.ALL else _other_half(state, piece, half, reads_inputs, reads_weights),
        ),
        [emit.whole(b) for b in used],
        [emit.whole(t.buffer) for t in targets],
        flops=flops if half is Gives.ALL else flops // 2,
        also_after=(*state.chain(piece.processor), *room),
    )
    if turn is not None and state.gathers.turns is not None:
        state.gathers.turns.append(Turn(SUMMED, piece.processor, state.last[piece.processor], *turn))
    state.recent[piece.processor] = [*recent, state.last[piece.processor]][-AHEAD:]
    state.gathers.ran(node, piece.processor, state.last[piece.processor])


def _half(state: Lowering, piece: Piece, gives: Gives) -> Gives | None:
    """Part of a backward task that runs in a pass; None: none does. An operator without gradients of inputs does all of its
    work in the pass for weights. One that has both and cannot separate them does it in the pass for inputs."""
    if gives is Gives.ALL:
        return gives
    to_inputs = any(wanted and not r.empty for wanted, r in zip(_wanted(state, piece), piece.reads.inputs))
    to_weights = not piece.node.operator.frozen and any(not rect.empty for rect in piece.reads.weights)
    if to_inputs and to_weights and piece.node.operator.splits_backward:
        return gives
    own = Gives.WEIGHTS if to_weights and not to_inputs else Gives.INPUTS
    return Gives.ALL if gives is own else None


def _wanted(state: Lowering, piece: Piece) -> tuple[bool, ...]:
    """Inputs whose gradients somebody needs."""
    return tuple((t.node, t.index) in state.needs_gradient for t in piece.node.inputs)


def _other_half(state: Lowering, piece: Piece, half: Gives, reads_inputs: bool, reads_weights: bool) -> OtherHalf:
    node, (inputs, weights) = piece.node, (piece.reads.inputs, piece.reads.weights)
    keeps = node.operator.keeps(node.specs)
    if half is Gives.INPUTS:
        missing = sum(r.volume * sums_in(p.spec.dtype).itemsize for p, r in zip(node.parameters, weights))
    else:
        missing = sum(r.volume * t.dtype.itemsize for t, r, w in zip(node.inputs, inputs, _wanted(state, piece)) if w)
    if keeps.inputs and not reads_inputs:
        missing += sum(r.volume * t.dtype.itemsize for t, r in zip(node.inputs, inputs))
    if keeps.weights and not reads_weights:
        missing += sum(r.volume * p.spec.dtype.itemsize for p, r in zip(node.parameters, weights))
    return OtherHalf(_wanted(state, piece), missing)


def _input_target(state: Lowering, tensor: Tensor, rect: Rect, piece: Piece) -> GradientTo | None:
    if (tensor.node, tensor.index) not in state.needs_gradient or rect.empty:
        return None
    put, given = state.gradients.setdefault((tensor.node, tensor.index), {}), (piece.processor, rect, piece.copies)
    if given in put:
        return GradientTo(put[given], True)
    put[given] = state.emit.buffer(f"d {tensor.name}", rect, piece.processor, tensor.dtype)
    return GradientTo(put[given], False)
