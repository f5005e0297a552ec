"""Spans: the tasks of one simulated step as columns, each with the category by which the page colours it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskflow.optimizer.evaluate import Evaluator, Shown, ShownStep, everything, shown_step
from taskflow.tasks import Kind, Purpose

try:
    from taskflow.optimizer.evaluate.compiled import KINDS, CompiledEvaluator
except ImportError:  # not built: no compiler
    CompiledEvaluator = None  # type: ignore[assignment, misc]

# What a task is for, in the order of their numbers. "values" are activations and their gradients, "weights" parameters'.
CATEGORIES = (
    "forward", "backward", "local values", "gradients on the device", "update",
    "values between devices", "weight gradients between devices", "new weights between devices",
)
FORWARD, BACKWARD, LOCAL, SUM, UPDATE, VALUES, GRADIENTS, WEIGHTS = range(len(CATEGORIES))
MESSAGES = (VALUES, GRADIENTS, WEIGHTS)
SYNC = (SUM, UPDATE, GRADIENTS, WEIGHTS)

_ORDER = (
    Kind.FORWARD, Kind.BACKWARD, Kind.COPY, Kind.MOVE, Kind.SUM, Kind.FILL, Kind.NORM, Kind.CLIP, Kind.UPDATE, Kind.CALL,
    Kind.COLLECTIVE,
)


@dataclass(frozen=True, slots=True)
class Spans:
    """One row for each task; a collective has one for each two neighbours in its ring. A row has its category, processor, the
    processor that sends it (else the same one), seconds, bytes, and the ``task``'s number. A message is under way from
    ``begun``, when it gets the first resource of its route; it keeps each for ``end - start``."""

    category: NDArray[np.int64]
    processor: NDArray[np.int64]
    source: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    nbytes: NDArray[np.int64]
    begun: NDArray[np.float64]
    task: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.category)

    @property
    def message(self) -> NDArray[np.bool_]:
        """Mask of the rows that are messages between processors."""
        return self.category >= VALUES

    @property
    def first(self) -> NDArray[np.bool_]:
        """Mask of the rows that are the first of their task."""
        return np.diff(self.task, prepend=-1) > 0

    @property
    def makespan(self) -> float:
        return float(self.end.max()) if len(self) else 0.0

    @property
    def transfer_bytes(self) -> int:
        return int(self.nbytes[self.message].sum())


def spans_of(step: ShownStep) -> Spans:
    """Return the spans of a step. Tasks are in program order: those after the last backward task synchronise weights. Of a
    collective, a replica has what its own devices get; so it has of a message that it sends to another one what it gets instead."""
    tasks, on, number = step.tasks, step.on, {kind: i for i, kind in enumerate(_ORDER)}
    kinds = np.array([number[task.kind] for task in tasks], np.int64)
    new = np.array([task.topic.purpose is Purpose.NEW_WEIGHTS for task in tasks], bool)
    spans = _apart(Spans(
        _categories(kinds, new),
        np.array([task.processor for task in tasks], np.int64),
        np.array([task.source for task in tasks], np.int64),
        on.start, on.end,
        np.array([task.nbytes for task in tasks], np.int64),
        _begun(on.start, on.starts, on.place[:-1]),
        np.arange(len(tasks)),
    ), {n: task.processors for n, task in enumerate(tasks) if task.kind is Kind.COLLECTIVE})  # fmt: skip
    if step.folded is None:
        return spans
    own = step.shown.first[spans.processor] == spans.processor
    alone = np.isin(spans.task, np.flatnonzero(kinds == number[Kind.COPY])) & ~own
    spans.processor[alone] = step.shown.first[spans.processor[alone]]
    return Spans(*(getattr(spans, f.name)[own | alone] for f in fields(spans)))


def _begun(start: NDArray[np.float64], starts: NDArray[np.float64], place: NDArray[np.int64]) -> NDArray[np.float64]:
    """When each task occupies the first thing; its start if there is none. ``place``: where its own begin in ``starts``."""
    first = np.minimum.reduceat(np.append(starts, np.inf), place) if len(place) else start
    return np.where(np.diff(place, append=len(starts)) > 0, first, start)


def spans_at(evaluator: Evaluator) -> tuple[Spans, Shown]:
    """Return the spans of the strategy that an evaluator is at, and on which devices. A compiled evaluator is read without
    lowering in Python; new weights are then told from weight gradients by whether an update came before in program order."""
    if CompiledEvaluator is None or not isinstance(evaluator, CompiledEvaluator) or evaluator.reference is not None:
        step = shown_step(evaluator)
        return spans_of(step), step.shown
    table = evaluator.task_table()
    _, start, end, _, _, starts, place = evaluator._core.times()
    number = np.array([_ORDER.index(kind) for kind in KINDS], np.int64)
    kinds = number[table["kind"]]
    new = np.cumsum(kinds == _ORDER.index(Kind.UPDATE)) > 0
    collectives = np.flatnonzero(kinds == _ORDER.index(Kind.COLLECTIVE)).tolist()
    return _apart(Spans(
        _categories(kinds, new), table["processor"].astype(np.int64), table["source"].astype(np.int64),
        np.asarray(start, np.float64), np.asarray(end, np.float64), table["nbytes"].astype(np.int64),
        _begun(np.asarray(start), np.asarray(starts), np.asarray(place)),
        np.arange(len(kinds)),
    ), {task: evaluator.groups[table["source"][task]] for task in collectives}), everything(evaluator.machine)  # fmt: skip


def _apart(spans: Spans, rings: Mapping[int, tuple[int, ...]]) -> Spans:
    """Spans in which each collective is replaced by one row for each two neighbours. ``rings`` has its members in order."""
    if not rings:
        return spans
    many = np.ones(len(spans), np.int64)
    many[list(rings)] = [len(members) for members in rings.values()]
    first = np.cumsum(many) - many
    rows: dict[str, NDArray[Any]] = {f.name: np.repeat(getattr(spans, f.name), many) for f in fields(spans)}
    for task, members in rings.items():
        at = slice(first[task], first[task] + len(members))
        rows["source"][at] = members
        rows["processor"][at] = (*members[1:], members[0])
        rows["nbytes"][at] = np.diff(int(spans.nbytes[task]) * np.arange(len(members) + 1) // len(members))  # as ring_share
    return Spans(**rows)


def _categories(kinds: NDArray[np.int64], new_weights: NDArray[np.bool_]) -> NDArray[np.int64]:
    """``new_weights`` counts for messages after the last backward task only."""
    backward = np.flatnonzero(kinds == _ORDER.index(Kind.BACKWARD))
    after = np.arange(len(kinds)) > (backward[-1] if len(backward) else len(kinds))
    copy = np.isin(kinds, [i for i, kind in enumerate(_ORDER) if kind.travels])
    local = np.where(after, SUM, LOCAL)
    found = np.where(copy, np.where(after, np.where(new_weights, WEIGHTS, GRADIENTS), VALUES), local)
    found[kinds == _ORDER.index(Kind.FORWARD)] = FORWARD
    found[kinds == _ORDER.index(Kind.CALL)] = FORWARD
    found[kinds == _ORDER.index(Kind.BACKWARD)] = BACKWARD
    found[kinds == _ORDER.index(Kind.UPDATE)] = UPDATE
    return found.astype(np.int64)
