"""Gradients of what owners have: the sum of what readers put."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect, covers
from taskflow.tasks.lower.owners import partial_overlap
from taskflow.tasks.lower.state import Lowering, Piece
from taskflow.tasks.task import Part


@dataclass(frozen=True, slots=True)
class Arriving:
    """Copies and sums that complete the gradients of a tensor's owners: first all copies, then sums in the order of the readers."""

    copies: list[tuple[str, Part, Part]]
    sums: list[tuple[str, Part, Part]]

    def emit(self, state: Lowering) -> None:
        """Emit them."""
        state.emit.transfers(self.copies)
        for name, source, into in self.sums:
            state.emit.sum(name, [source], into)


def seed_of(state: Lowering, tensor: Tensor, rect: Rect, processor: int) -> int:
    """The gradient of a loss by itself."""
    target = state.emit.buffer(f"d {tensor.name}", rect, processor, tensor.dtype)
    state.emit.fill(f"d {tensor.name}{rect}", state.emit.whole(target), 1.0, scaled=True, also_after=state.chain(processor))
    return target


def owner_gradient(
    state: Lowering, tensor: Tensor, rect: Rect, owner: int, readers: list[tuple[int, Rect, int]], seed: bool,
    arriving: Arriving,
) -> int:
    """Return the buffer of an owner's gradient of a Rect: the sum of what ``readers`` (processor, Rect, buffer) put, to which
    ``arriving`` gets what completes it; with ``seed``, of that and 1, as for a loss. What a single reader put of it there is it."""
    emit = state.emit
    name = f"d {tensor.name}"
    parts = [(p, read, b, read.intersect(rect)) for p, read, b in readers]
    if not seed and len(parts) == 1 and parts[0][0] == owner and parts[0][1] == rect:
        return parts[0][2]
    target = emit.buffer(name, rect, owner, tensor.dtype)
    fresh: dict[Rect, None] = {}  # what already has a value
    distinct = dict.fromkeys([shared for *_, shared in parts])
    whole, volumes = covers(distinct, rect), [shared.volume for shared in distinct]
    apart = whole and not seed and all(volumes) and sum(volumes) == rect.volume  # none overlaps another one
    if seed:
        emit.fill(f"{name}{rect}", emit.whole(target), 1.0, scaled=True, also_after=state.chain(owner))
        fresh[rect] = None
    elif not apart and (not whole or partial_overlap([s for *_, s in parts])):
        emit.fill(f"{name}{rect}", emit.whole(target), 0.0, also_after=state.chain(owner))
        fresh[rect] = None
    for processor, _, buffer, shared in parts:
        first = shared not in fresh and (apart or not any(done.overlaps(shared) for done in fresh))
        source, into, part = emit.part(buffer, shared), emit.part(target, shared), f"{name}{shared}"
        if first:
            arriving.copies.append((part, source, into))
        elif processor == owner:
            arriving.sums.append((part, source, into))
        else:
            staging = emit.whole(emit.buffer(f"{part} arriving", Rect.of(shared.shape), owner, tensor.dtype))
            arriving.copies.append((part, source, staging))
            arriving.sums.append((part, staging, into))
        fresh[shared] = None
    return target


def gather_local(
    state: Lowering, tensor: Tensor, pieces: Sequence[Piece], seed: bool, forget: bool
) -> dict[tuple[Rect, int], int]:
    """The gradient of each piece of what is computed of weights alone on several processors: the sum of what the readers of this
    piece's result put. A loss begins with the first piece alone, and of a gradient that several readers have, one is taken."""
    key = tensor.node, tensor.index
    owners, put = state.owners[key], state.gradients.get(key, {})
    before = state.gathered.get(key, {})
    asked = [(rect, p.processor) for p in pieces if ((rect := p.writes[tensor.index]), p.processor) not in before]
    parts: dict[tuple[Rect, int], list[tuple[int, Rect, int]]] = {place: [] for place in asked}
    for given, gradient in list(put.items()):
        processor, read, alike = given
        for rect, owner, buffer in owners.overlapping(read):
            if (place := (rect, owners.nearest(rect, owner, buffer, processor)[0])) not in parts:
                continue
            if not alike or processor == alike[0]:
                parts[place].append((processor, read, gradient))
            if forget:
                put.pop(given, None)
    arriving, result = Arriving([], []), dict[tuple[Rect, int], int]()
    for (rect, processor), readers in parts.items():
        first = seed and processor == owners.pieces[rect.lo][1]
        result[rect, processor] = owner_gradient(state, tensor, rect, processor, readers, first, arriving)
    arriving.emit(state)
    return result
