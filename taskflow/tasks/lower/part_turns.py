"""PartTurns: the parts of a micro-batch take turns after each stretch of operators that nothing is exchanged between.

While the values of one part are under way, the devices compute the same stretch for the next part (dual-batch overlap).
Wang et al., "Domino: eliminating communication in LLM training via generic tensor slicing and overlapping", arXiv 2409.15241;
DeepSeek-AI, "DeepSeek-V3 technical report", arXiv 2412.19437, section 3.2.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from taskflow.graph import Node
from taskflow.mapper import Pipeline
from taskflow.operators.tensor import Tensor
from taskflow.tasks.lower.state import Lowering, Piece

Divided = tuple[Node, list[list[Piece]]]
"""An operator of a stage, with its pieces by micro-batch."""


@dataclass(frozen=True, slots=True)
class OperatorRun:
    """Operators of a stage that run one after the other, by their places in it. ``whole``: all parts of a micro-batch run
    together."""

    places: tuple[int, ...]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class PartTurns:
    """How the parts of a stage's micro-batches take turns. ``forward``, ``backward``: the stretches of a pass, in order.
    ``pieces``: by operator, micro-batch and part (only one of an operator that takes all together)."""

    forward: tuple[OperatorRun, ...]
    backward: tuple[OperatorRun, ...]
    pieces: list[list[list[list[Piece]]]]

    def of(self, ahead: bool) -> Iterable[tuple[int, int, bool]]:
        """Yield what a pass computes, in order: the place of an operator, a part, and whether it is the operator's last."""
        for stretch in self.forward if ahead else self.backward:
            count = 1 if stretch.whole else len(self.pieces[stretch.places[0]][0])
            for part in range(count):
                for at in stretch.places:
                    yield at, part, part == count - 1


def part_turns(state: Lowering, stage: Sequence[Divided], pipeline: Pipeline, whole: Collection[int]) -> PartTurns:
    """Return how the parts of a stage's micro-batches take turns. ``whole``: the operators that take all parts together."""
    place = {node.number: at for at, (node, _) in enumerate(stage)}
    together = {at for at, (node, _) in enumerate(stage) if node.number in whole}
    pieces = [
        [[some] if at in together else _by_part(state, pipeline, some) for some in by_micro_batch]
        for at, (_, by_micro_batch) in enumerate(stage)
    ]
    sample = [next((parts[0] for parts in of if parts[0]), []) for of in pieces]
    ahead: set[int] = set()  # places before which values are exchanged in the forward pass,
    back: set[int] = set()  # and before which gradients are in the backward pass
    for at, (node, _) in enumerate(stage):
        state.checkpoint()
        for index, tensor in enumerate(node.inputs):
            source = place.get(tensor.node)
            if source is None or at in together or source in together:
                continue
            away = _exchanged(sample[at], index, sample[source], tensor)
            if away:
                ahead.add(at)
            if tensor.spec.differentiable and (away or _shared(sample[at], index)):
                back.add(source)
    places = range(len(stage))
    return PartTurns(_divided(places, ahead, together), _divided(places[::-1], back, together), pieces)


def _by_part(state: Lowering, pipeline: Pipeline, pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces of a micro-batch by part."""
    found: list[list[Piece]] = [[] for _ in range(pipeline.split)]
    for piece in pieces:
        number = piece.index if piece.of_all is None else piece.of_all
        part = pipeline.part(piece.node, state.strategy[piece.node.name], number)
        assert part is not None
        found[part].append(piece)
    return found


def _divided(places: Iterable[int], before: Collection[int], together: Collection[int]) -> tuple[OperatorRun, ...]:
    """The stretches of ``places``: a new one begins at those ``before`` which something is exchanged."""
    found: list[list[int]] = []
    for at in places:
        if not found or at in before or at in together or found[-1][-1] in together:
            found.append([])
        found[-1].append(at)
    return tuple(OperatorRun(tuple(some), some[0] in together) for some in found)


def _exchanged(readers: Sequence[Piece], index: int, writers: Sequence[Piece], tensor: Tensor) -> bool:
    """True if a reader's processor does not have what it reads. Only the first and the last reader are looked at: where stretches
    end says nothing about results."""
    for piece in (*readers[:1], *readers[-1:]):
        read = piece.reads.inputs[index]
        if read.empty:
            continue
        here = [w for w in writers if w.processor == piece.processor]
        if not any(w.writes[tensor.index].contains(read) for w in here):
            return True
        apart = (w for w in writers if w.processor != piece.processor and not (w.copies or w.local))
        if any(w.writes[tensor.index].overlaps(read) for w in apart):  # partial values
            return True
    return False


def _shared(readers: Sequence[Piece], index: int) -> bool:
    """True if several processors read the same, so that their gradients are added."""
    if not readers:
        return False
    read, processor, copies = readers[0].reads.inputs[index], readers[0].processor, readers[0].copies
    return any(
        piece.processor != processor and piece.processor not in copies and piece.reads.inputs[index].overlaps(read)
        for piece in readers[1:]
    )
