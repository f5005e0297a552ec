"""Ring: pieces of a tensor travel from neighbour to neighbour, and their gradients back; each processor adds its own on the
way.

Liu, Zaharia, Abbeel, "Ring attention with blockwise transformers", arXiv 2310.01889: keys and values go around the processors
that share a sequence. Each sends to only one neighbour, while it computes with what it has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect
from taskflow.tasks.lower.emit import Copying, Emitter
from taskflow.tasks.task import Part

if TYPE_CHECKING:
    from taskflow.tasks.lower.exchange import Given, Wanted
    from taskflow.tasks.lower.state import Lowering, Piece


def as_they_arrive(state: Lowering, pieces: Sequence[Piece], *, last_first: bool = False) -> list[Piece]:
    """Return pieces of one operator in the order in which a processor should run its own: first those that need nothing from
    others, last those whose data come from the farthest. For gradients it is reversed, since the farthest go back first."""
    if all(piece.rect == pieces[0].rect for piece in pieces):  # each processor has at most one
        return list(pieces)
    count = state.strategy.processors

    def hops(piece: Piece) -> int:
        found = 0
        for tensor, rect in zip(piece.node.inputs, piece.reads.inputs):
            for _, owner, _ in () if rect.empty else state.owners[tensor.node, tensor.index].overlapping(rect):
                found = max(found, (piece.processor - owner) % count)
        return -found if last_first else found

    return sorted(pieces, key=hops)


def goes_around(wanted: Sequence[Wanted]) -> bool:
    """True if each instance is of one piece, and several processors want the same of some piece."""
    takers: dict[tuple[int, Rect], set[int]] = {}
    for one in wanted:
        if len(one.sources) != 1:
            return False
        ((shared, _, buffer),) = one.sources
        takers.setdefault((buffer, shared), set()).add(one.processor)
    return any(len(some) > 1 for some in takers.values())


def pass_on(emit: Emitter, members: Collection[int], wanted: Sequence[Wanted]) -> None:
    """Fill instances, each of one piece: a piece goes from its owner to the next of the ``members``, by number, that wants it,
    and on from there. In each round every piece makes one step."""
    ring = sorted(members)
    place = {processor: number for number, processor in enumerate(ring)}
    routes: dict[tuple[int, Rect], list[Wanted]] = {}
    for one in wanted:
        ((shared, _, buffer),) = one.sources
        routes.setdefault((buffer, shared), []).append(one)
    for route in routes.values():
        giver = route[0].sources[0][1]
        route.sort(key=lambda one: (place[one.processor] - place[giver]) % len(ring))
    for step in range(max(map(len, routes.values()))):
        copies: list[Copying] = []
        for (buffer, shared), route in routes.items():
            if step < len(route):
                one, source = route[step], buffer if step == 0 else route[step - 1].buffer
                copies.append((f"{one.tensor.name}{shared}", emit.part(source, shared), emit.part(one.buffer, shared)))
        emit.transfers(copies)


def add_on_the_way(
    emit: Emitter, tensor: Tensor, members: Collection[int], owners: Mapping[Rect, int], parts: Mapping[Rect, Sequence[Given]]
) -> dict[Rect, Given]:
    """Bring gradients of whole pieces (by Rect, of processors other than the owner's) back to the owners: from the last
    processor to the one before, which adds its own, and so on. Returns by Rect the sum of them all on its owner."""
    ring = sorted(members)
    place = {processor: number for number, processor in enumerate(ring)}
    routes: dict[Rect, list[tuple[int, Part]]] = {}
    for rect, given in parts.items():
        owner = owners[rect]
        route = sorted(given, key=lambda part: -((place[part[0]] - place[owner]) % len(ring)))
        buffer = emit.buffer(f"d {tensor.name}", rect, owner, tensor.dtype)
        routes[rect] = [*((processor, emit.whole(held)) for processor, _, held in route), (owner, emit.whole(buffer))]
    name = f"d {tensor.name}"
    for step in range(1, max(map(len, routes.values()))):
        copies: list[Copying] = []
        sums: list[tuple[str, Part, Part]] = []
        for rect, stops in routes.items():
            if step >= len(stops):
                continue
            (_, carried), (processor, own) = stops[step - 1], stops[step]
            if step == len(stops) - 1:
                copies.append((f"{name}{rect}", carried, own))
                continue
            arriving = emit.whole(emit.buffer(f"{name}{rect} arriving", Rect.of(rect.shape), processor, tensor.dtype))
            copies.append((f"{name}{rect}", carried, arriving))
            sums.append((f"{name}{rect}", arriving, own))
        emit.transfers(copies)
        for what, arriving, own in sums:
            emit.sum(what, [arriving], own)
    return {rect: (owners[rect], rect, stops[-1][1].buffer) for rect, stops in routes.items()}
