"""Schedules of pipelines: which passes of which stages and micro-batches each rank runs, and in which order.

A schedule is a function that gives a rank's passes, and a row of `PipelineSchedule`; the rest of taskflow asks the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum


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


def _gpipe(ranks: int, chunks: int, micro_batches: int, rank: int) -> list[Pass]:
    """All forward passes, then all backward passes."""
    return [
        *(Pass(PassKind.FORWARD, m, rank + c * ranks) for c in range(chunks) for m in range(micro_batches)),
        *(Pass(PassKind.BACKWARD, m, rank + c * ranks) for c in reversed(range(chunks)) for m in range(micro_batches)),
    ]


def _one_f_one_b(ranks: int, chunks: int, micro_batches: int, rank: int) -> list[Pass]:
    """After a warm-up, forward and backward passes alternate."""
    if chunks > 1:
        return _interleaved(ranks, chunks, micro_batches, rank)
    forward = [Pass(PassKind.FORWARD, m, rank) for m in range(micro_batches)]
    backward = [Pass(PassKind.BACKWARD, m, rank) for m in range(micro_batches)]
    return _taking_turns(forward, backward, ranks - 1 - rank)


def _interleaved(ranks: int, chunks: int, micro_batches: int, rank: int) -> list[Pass]:
    """Groups of as many micro-batches as ranks go through one chunk after the other."""
    if micro_batches % ranks:
        raise ValueError(
            f"pipeline: interleaved 1f1b needs micro-batches in multiples of the {ranks} ranks, got {micro_batches}, which {ranks} "
            "does not divide"
        )

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


def _zero_bubble(ranks: int, chunks: int, micro_batches: int, rank: int) -> list[Pass]:
    """1F1B with each gradient of weights delayed by ``rank`` micro-batches; the remaining ones come last."""
    found: list[Pass] = []
    for one in _one_f_one_b(ranks, chunks, micro_batches, rank):
        found.append(one)
        if one.kind is PassKind.BACKWARD and one.micro_batch >= rank:
            found.append(Pass(PassKind.WEIGHTS, one.micro_batch - rank, rank))
    found.extend(Pass(PassKind.WEIGHTS, m, rank) for m in range(max(0, micro_batches - rank), micro_batches))
    return found


def _zero_bubble_v(ranks: int, chunks: int, micro_batches: int, rank: int) -> list[Pass]:
    """ZBV; of fewer than 2 p - 1 micro-batches in the order of so many."""
    every = _full_v(ranks, max(micro_batches, 2 * ranks - 1), rank)
    return [one for one in every if one.micro_batch < micro_batches]


def _full_v(ranks: int, micro_batches: int, rank: int) -> list[Pass]:
    """ZBV of 2 p - 1 micro-batches or more. A rank has gone so far down the V with 2 (p - rank) - 1 micro-batches when the first
    comes back. From then on it takes what comes back with priority, and gradients of weights at once, but for the last
    micro-batches: theirs fill the time in which the V empties."""
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

    # A word in plans; the function of (ranks, stages a rank, micro-batches, rank) that gives a rank's passes in order; the number
    # of stages that each rank must have, None if any will do; whether gradients of weights are separate passes; whether a rank's
    # second stage lies on the way back from the last rank to the first.
    GPIPE = "gpipe", _gpipe
    ONE_F_ONE_B = "1f1b", _one_f_one_b
    ZERO_BUBBLE = "zb-h1", _zero_bubble, 1, True
    ZERO_BUBBLE_V = "zbv", _zero_bubble_v, 2, True, True

    _value_: str

    def __new__(cls, word: str, *rules: object) -> PipelineSchedule:
        """The word is what strategy files and plans write."""
        found = object.__new__(cls)
        found._value_ = word
        return found

    def __init__(
        self, word: str, passes: Callable[[int, int, int, int], list[Pass]], chunks: int | None = None,
        weights_apart: bool = False, in_a_v: bool = False,
    ) -> None:
        self.passes, self.chunks, self.weights_apart, self.in_a_v = passes, chunks, weights_apart, in_a_v

    def rank(self, stage: int, ranks: int) -> int:
        """Return the rank that has a stage."""
        chunk, at = divmod(stage, ranks)
        return ranks - 1 - at if self.in_a_v and chunk % 2 else at

    def stages(self, rank: int, ranks: int, chunks: int) -> list[int]:
        """Return the stages of a rank that has ``chunks`` of them, ascending."""
        back = ranks - 1 - rank if self.in_a_v else rank
        return [chunk * ranks + (back if chunk % 2 else rank) for chunk in range(chunks)]


def rank_passes(schedule: PipelineSchedule, ranks: int, chunks: int, micro_batches: int, rank: int) -> list[Pass]:
    """Return, in order, the passes of one of ``ranks`` ranks that has ``chunks`` stages (`PipelineSchedule.stages`). Raises
    ValueError if the schedule cannot take these numbers."""
    if schedule.chunks not in (None, chunks):
        need = "one stage" if schedule.chunks == 1 else f"{schedule.chunks} stages"
        raise ValueError(f"pipeline: schedule {schedule.value} has {need} a rank, got {chunks}; use 1f1b")
    return schedule.passes(ranks, chunks, micro_batches, rank)
