"""Schedules of pipelines: which passes of which stages and micro-batches each rank runs, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class PipelineSchedule(Enum):
    """The order of passes on a pipeline's ranks, and the assignment of stages to ranks.

    GPIPE: all forward passes, then all backward passes (Huang et al., "GPipe", arXiv 1811.06965). ONE_F_ONE_B: after a warm-up,
    forward and backward passes alternate, so that a rank keeps activations of no more micro-batches than there are stages from
    its own to the last (Narayanan et al., "PipeDream-2BW", arXiv 2006.09503). With several stages a device it is interleaved,
    as in Megatron-LM (Narayanan et al., arXiv 2104.04473, section 2.2). ZERO_BUBBLE: ZB-H1; gradients of weights are separate
    passes that fill the idle time of 1F1B, with the same activations kept (Qi et al., "Zero bubble", arXiv 2401.10241).
    ZERO_BUBBLE_V: ZBV of the same paper (section 6); each rank has two stages, the second ones going back from the last rank to
    the first.
    """

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    ZERO_BUBBLE = "zb-h1"
    ZERO_BUBBLE_V = "zbv"

    @property
    def weights_apart(self) -> bool:
        """True if gradients of weights are separate passes."""
        return self in (PipelineSchedule.ZERO_BUBBLE, PipelineSchedule.ZERO_BUBBLE_V)

    @property
    def chunks(self) -> int | None:
        """The number of stages that each rank must have; None if any number will do."""
        return {PipelineSchedule.ZERO_BUBBLE: 1, PipelineSchedule.ZERO_BUBBLE_V: 2}.get(self)

    def rank(self, stage: int, ranks: int) -> int:
        """Return the rank that has a stage."""
        chunk, at = divmod(stage, ranks)
        return ranks - 1 - at if self is PipelineSchedule.ZERO_BUBBLE_V and chunk % 2 else at

    def stages(self, rank: int, ranks: int, chunks: int) -> list[int]:
        """Return the stages of a rank that has ``chunks`` of them, ascending."""
        back = ranks - 1 - rank if self is PipelineSchedule.ZERO_BUBBLE_V else rank
        return [chunk * ranks + (back if chunk % 2 else rank) for chunk in range(chunks)]


class PassKind(Enum):
    """Kind of a pass: what it computes of one stage for one micro-batch. If `PipelineSchedule.weights_apart`, BACKWARD computes
    the gradients of inputs and WEIGHTS those of weights; else BACKWARD computes both."""

    __hash__ = object.__hash__  # of an Enum it is Python code, and passes are keys of many tables

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHTS = "W"


@dataclass(frozen=True, slots=True)
class Pass:
    """One stage's work for one micro-batch."""

    kind: PassKind
    micro_batch: int
    stage: int

    def __str__(self) -> str:
        return f"{self.kind.value}{self.micro_batch}.{self.stage}"


def rank_passes(schedule: PipelineSchedule, ranks: int, chunks: int, micro_batches: int, rank: int) -> list[Pass]:
    """Return, in order, the passes of one of ``ranks`` ranks that has ``chunks`` stages (`PipelineSchedule.stages`). Raises
    ValueError if the schedule cannot take these numbers."""
    if schedule.chunks not in (None, chunks):
        need = "one stage" if schedule.chunks == 1 else f"{schedule.chunks} stages"
        raise ValueError(f"pipeline: schedule {schedule.value} has {need} a rank, got {chunks}; use 1f1b")
    if schedule is PipelineSchedule.GPIPE:
        return [
            *(Pass(PassKind.FORWARD, m, rank + c * ranks) for c in range(chunks) for m in range(micro_batches)),
            *(Pass(PassKind.BACKWARD, m, rank + c * ranks) for c in reversed(range(chunks)) for m in range(micro_batches)),
        ]
    if schedule is PipelineSchedule.ZERO_BUBBLE:
        return _zero_bubble(ranks, micro_batches, rank)
    if schedule is PipelineSchedule.ZERO_BUBBLE_V:
        return [one for one in _zero_bubble_v(ranks, max(micro_batches, 2 * ranks - 1), rank) if one.micro_batch < micro_batches]
    if chunks == 1:
        forward = [Pass(PassKind.FORWARD, m, rank) for m in range(micro_batches)]
        backward = [Pass(PassKind.BACKWARD, m, rank) for m in range(micro_batches)]
        return _taking_turns(forward, backward, ranks - 1 - rank)
    if micro_batches % ranks:
        raise ValueError(
            f"pipeline: interleaved 1f1b needs micro-batches in multiples of the {ranks} ranks, got {micro_batches}, which {ranks} "
            "does not divide"
        )
    return _interleaved(ranks, chunks, micro_batches, rank)


def _interleaved(ranks: int, chunks: int, micro_batches: int, rank: int) -> list[Pass]:
    """Groups of as many micro-batches as ranks go through one chunk after the other."""

    def passes(kind: PassKind) -> list[Pass]:
        found = []
        for k in range(micro_batches * chunks):
            group, place = divmod(k, ranks * chunks)
            chunk = place // ranks if kind is PassKind.FORWARD else chunks - 1 - place // ranks
            found.append(Pass(kind, group * ranks + place % ranks, rank + chunk * ranks))
        return found

    return _taking_turns(passes(PassKind.FORWARD), passes(PassKind.BACKWARD), 2 * (ranks - 1 - rank) + (chunks - 1) * ranks)


def _taking_turns(forward: Sequence[Pass], backward: Sequence[Pass], warm_up: int) -> list[Pass]:
    """``warm_up`` forward passes, then forward and backward in turn, then the backward passes that are left."""
    warm_up = min(warm_up, len(forward))
    found = list(forward[:warm_up])
    for i, one in enumerate(backward):
        found.extend((*forward[warm_up + i : warm_up + i + 1], one))
    return found


def _zero_bubble(ranks: int, micro_batches: int, rank: int) -> list[Pass]:
    """1F1B with each gradient of weights delayed by ``rank`` micro-batches; the remaining ones come last."""
    in_turn = _taking_turns(
        [Pass(PassKind.FORWARD, m, rank) for m in range(micro_batches)],
        [Pass(PassKind.BACKWARD, m, rank) for m in range(micro_batches)], ranks - 1 - rank,
    )
    found: list[Pass] = []
    for one in in_turn:
        found.append(one)
        if one.kind is PassKind.BACKWARD and one.micro_batch >= rank:
            found.append(Pass(PassKind.WEIGHTS, one.micro_batch - rank, rank))
    found.extend(Pass(PassKind.WEIGHTS, m, rank) for m in range(max(0, micro_batches - rank), micro_batches))
    return found


def _zero_bubble_v(ranks: int, micro_batches: int, rank: int) -> list[Pass]:
    """ZBV (Qi et al., arXiv 2401.10241, section 6) of 2 p - 1 micro-batches or more. A rank has gone so far down the V with
    2 (p - rank) - 1 micro-batches when the first comes back. From then on it takes what comes back with priority, and gradients
    of weights at once, but for the last micro-batches: theirs fill the time in which the V empties."""
    down, back = rank, 2 * ranks - 1 - rank
    found: list[Pass] = []
    counts: dict[tuple[PassKind, int], int] = {}

    def add(stage: int, *kinds: PassKind) -> None:
        for kind in kinds:
            number = counts.get((kind, stage), 0)
            if number < micro_batches:
                found.append(Pass(kind, number, stage))
                counts[kind, stage] = number + 1

    ahead, inputs, weights = PassKind.FORWARD, PassKind.BACKWARD, PassKind.WEIGHTS
    add(down, *[ahead] * (2 * (ranks - rank) - 1))
    for _ in range(rank):  # both ways in turn, until the first gradient comes
        add(back, ahead)
        add(down, ahead)
    for _ in range(ranks - rank):  # from here on gradients of the stages that go back
        add(back, ahead, inputs, weights)
    while counts[ahead, back] < micro_batches:
        add(down, ahead, inputs, weights)
        add(back, ahead, inputs, weights)
    for _ in range(rank):
        add(down, inputs)
        add(back, inputs)
    for _ in range(ranks - rank):
        add(down, inputs, weights)
    add(back, *[weights] * rank)
    add(down, *[weights] * rank)
    return found
