"""Aliasing: which processors' copies of a layer's weights may share one memory, although each of them reads and updates there.

Under data parallelism every rank has all weights, so a machine with several ranks holds them several times. Where each element
is updated by only one processor, the others merely read their copies and receive the new values. So one memory is enough, and
of those messages only their order remains. That is correct if nobody updates what another still reads in that step. A rank's
items run in order, so a rank knows of another how far it had come when it sent what has arrived: a vector clock (Mattern,
"Virtual time and global states of distributed systems", 1989). Pure: nothing is allocated here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from taskflow.regions import Rect
from taskflow.tasks import Kind, Part, Placement, Task, TaskGraph, Transfer

Span = tuple[int, int]  # first element and the one after the last, of a flat buffer


@dataclass(slots=True)
class _Use:
    """Accesses of a step to the copies of one bundle's weights."""

    buffers: tuple[int, ...]
    fit: bool = True
    last_read: dict[int, int] = field(default_factory=dict)  # rank -> place in the order
    updates: list[tuple[int, int, list[int]]] = field(default_factory=list)  # rank, place, its clock then
    spans: dict[int, list[Span]] = field(default_factory=dict)  # buffer -> what is updated there or arrives there
    updated: list[Span] = field(default_factory=list)


def one_copy(
    graph: TaskGraph, order: Sequence[int], placement: Placement, smallest_bytes: int = 0
) -> tuple[tuple[int, ...], ...]:
    """Return groups of flat weight buffers, each of which may be one memory when the step's tasks run in ``order``
    (topological). Buffers smaller than ``smallest_bytes`` are left out."""
    uses = _candidates(graph, smallest_bytes)
    if not uses:
        return ()
    of = {buffer: use for use in uses for buffer in use.buffers}
    ranks = [placement.rank(p) for p in range(placement.processors)]
    clocks = [[-1] * placement.ranks for _ in range(placement.ranks)]
    arriving: list[dict[int, list[int]]] = [{} for _ in clocks]  # by rank: copy -> its sender's clock
    for place, number in enumerate(order):
        task = graph.tasks[number]
        here, giver = ranks[task.processor], ranks[task.source]
        for rank in {here, giver}:
            _advance(clocks[rank], arriving[rank], task, rank, place)
        if here != giver:
            arriving[here][number] = list(clocks[giver])
        _note(graph, of, task, here, giver, place, clocks[here])
    return tuple(use.buffers for use in uses if use.fit and _in_order(use) and _complete(use))


def _candidates(graph: TaskGraph, smallest_bytes: int) -> list[_Use]:
    found: dict[tuple[str, Rect], list[int]] = {}
    for (bundle, _), number in graph.weights.items():
        buffer = graph.buffers[number]
        if buffer.nbytes >= smallest_bytes:
            found.setdefault((bundle, buffer.rect), []).append(number)
    return [_Use(tuple(buffers)) for buffers in found.values() if len(buffers) > 1]


def _advance(clock: list[int], arriving: dict[int, list[int]], task: Task, rank: int, place: int) -> None:
    """A rank comes to a task; it has waited for the copies that the task needs."""
    for before in task.after:
        if before in arriving:
            clock[:] = map(max, clock, arriving.pop(before))
    clock[rank] = place


def _note(
    graph: TaskGraph, of: dict[int, _Use], task: Task, here: int, giver: int, place: int, clock: list[int]
) -> None:
    """Record a task's accesses to weights."""
    between = _between_copies(graph, of, task)
    for part in task.writes:
        root, span = _flat(graph, part)
        if (use := of.get(root)) is None:
            continue
        use.spans.setdefault(root, []).append(span)
        if task.kind is Kind.UPDATE:
            use.updates.append((here, place, list(clock)))
            use.updated.append(span)
        elif not between:
            use.fit = False
    if between or task.kind is Kind.UPDATE:
        return
    for part in task.reads:
        if (use := of.get(_flat(graph, part)[0])) is not None:
            use.last_read[giver] = place
            use.fit &= here == giver  # else it is read until the message has left, which no clock tells


def _between_copies(graph: TaskGraph, of: dict[int, _Use], task: Task) -> bool:
    """True if a task copies from one copy of the weights to the same place of another."""
    if not isinstance(task.work, Transfer) or task.work.add:
        return False
    (source, span), (target, into) = _flat(graph, task.work.source), _flat(graph, task.work.target)
    return source in of and of[source] is of.get(target) and span == into


def _flat(graph: TaskGraph, part: Part) -> tuple[int, Span]:
    """The buffer whose memory a part is of, and what it spans there; the whole alias of what is one."""
    buffer = graph.buffers[part.buffer]
    if buffer.base is None or buffer.part is None:
        return part.buffer, (part.rect.lo[0], part.rect.hi[0]) if part.rect.lo else (0, 1)
    return buffer.base, (buffer.part.lo[0], buffer.part.hi[0])


def _in_order(use: _Use) -> bool:
    """True if every update comes after all reads, on whatever rank."""
    return all(
        last <= (place if rank == reader else clock[reader])
        for rank, place, clock in use.updates for reader, last in use.last_read.items()
    )


def _complete(use: _Use) -> bool:
    """True if each element is updated once, and all holders update it or are told."""
    if not _disjoint(use.updated):
        return False
    volume = _volume(use.updated)
    return all(
        _disjoint(spans) and _volume(spans) == volume for spans in (use.spans.get(b, []) for b in use.buffers)
    )


def _disjoint(spans: Sequence[Span]) -> bool:
    ordered = sorted(spans)
    return all(end <= start for (_, end), (start, _) in zip(ordered, ordered[1:]))


def _volume(spans: Sequence[Span]) -> int:
    return sum(end - start for start, end in spans)
