"""Split: where each device's time of a step goes, so that the parts add up to the step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taskflow.machine import Link
from taskflow.optimizer.evaluate import Shown
from taskflow.report.spans import BACKWARD, FORWARD, LOCAL, VALUES, Spans
from taskflow.tasks import message_resources

# Every moment of a device belongs to the first of these that holds: it computes; it copies or adds values; it adds or
# updates weights; it copies a message by itself; idle while values are on their way to it, over whichever link; idle while
# weights or their gradients are; idle otherwise (waiting for other devices, or done).
PARTS = (
    "compute", "local values", "synchronise", "copy messages", "wait for values", "wait for weights", "wait for others",
)


def device_split(spans: Spans, shown: Shown) -> NDArray[np.float64]:
    """Return seconds (shown devices, PARTS). Each row adds up to the step's time, up to rounding."""
    sends, receives = copying_ends(spans, shown)
    result = np.zeros((len(shown.processors), len(PARTS)))
    took, sources = spans.end - spans.start, shown.first[spans.source]
    for at, p in enumerate(shown.processors):
        own = spans.processor == p
        work = own & ~spans.message
        computes = work & ((spans.category == FORWARD) | (spans.category == BACKWARD))
        sending, receiving = (sources == p) & sends, own & receives
        values, weights = own & (spans.category == VALUES), own & (spans.category > VALUES)
        result[at] = _first_of(spans.makespan, (
            _of(spans.start, spans.end, computes),
            _of(spans.start, spans.end, work & (spans.category == LOCAL)),
            _of(spans.start, spans.end, work & (spans.category > LOCAL)),
            # The sender is the first thing that a message occupies, the receiver the last.
            (np.concatenate([spans.start[receiving], spans.begun[sending]]),
             np.concatenate([spans.end[receiving], (spans.begun + took)[sending]])),
            _of(spans.begun, spans.end, values),
            _of(spans.begun, spans.end, weights),
        ))  # fmt: skip
    return result


Layer = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Starts and ends."""


def _of(starts: NDArray[np.float64], ends: NDArray[np.float64], rows: NDArray[np.bool_]) -> Layer:
    return starts[rows], ends[rows]


def _first_of(makespan: float, layers: tuple[Layer, ...]) -> NDArray[np.float64]:
    """Time for which each layer is active and none before it; last, the time for which none is."""
    times, which, change = [np.array([0.0, makespan])], [np.zeros(2, np.int64)], [np.zeros(2, np.int64)]
    for number, (starts, ends) in enumerate(layers):
        times += [starts, ends]
        which += [np.full(len(starts) * 2, number)]
        change += [np.ones(len(starts), np.int64), -np.ones(len(ends), np.int64)]
    at, of, by = np.concatenate(times), np.concatenate(which), np.concatenate(change)
    order = np.argsort(at, kind="stable")
    at, of, by = at[order], of[order], by[order]
    lasts = np.diff(at, append=at[-1])
    free = np.ones(len(at), bool)
    seconds = np.zeros(len(layers) + 1)
    for number in range(len(layers)):
        holds = np.cumsum(np.where(of == number, by, 0)) > 0
        seconds[number] = lasts[holds & free].sum()
        free &= ~holds
    seconds[-1] = lasts[free].sum()
    return seconds


def occupied(shown: Shown, source: int, target: int) -> tuple[int, ...]:
    """Return what a message occupies, numbered as in `resources`."""
    return shown.images(message_resources(source, target, shown.machine))


def copying_ends(spans: Spans, shown: Shown) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which messages occupy their sender, and which their receiver."""
    sends, receives = np.zeros(len(spans), bool), np.zeros(len(spans), bool)
    for rows, source, target in _by_route(spans, shown):
        things = occupied(shown, source, target)
        sends[rows], receives[rows] = shown.first[source] in things, shown.first[target] in things
    return sends, receives


@dataclass(frozen=True, slots=True)
class LinkUse:
    """A link, and what it does in a step: ``seconds`` busy, bytes and messages."""

    link: Link
    seconds: float = 0.0
    nbytes: int = 0
    messages: int = 0


def link_use(spans: Spans, shown: Shown) -> Mapping[int, LinkUse]:
    """Return what each link in use does, by number; of links that replicas use alike, the first one."""
    found: dict[int, LinkUse] = {}
    took, count = spans.end - spans.start, len(shown.machine.processors)
    for rows, source, target in _by_route(spans, shown):
        seconds, nbytes = float(took[rows].sum()), int(spans.nbytes[rows].sum())
        links = {shown.images((count + link.number,))[0]: link for link in shown.machine.route(source, target)}
        for thing in (r for r in occupied(shown, source, target) if r >= count):
            use = found.get(thing - count, LinkUse(links[thing]))
            found[thing - count] = LinkUse(use.link, use.seconds + seconds, use.nbytes + nbytes, use.messages + len(rows))
    return found


def _by_route(spans: Spans, shown: Shown) -> Iterator[tuple[NDArray[np.int64], int, int]]:
    """(rows of all messages between two processors, the sender, the receiver)."""
    messages = np.flatnonzero(spans.message)
    if not len(messages):
        return
    count = len(shown.machine.processors)
    pairs = spans.source[messages] * count + spans.processor[messages]
    order = np.argsort(pairs, kind="stable")
    cuts = np.flatnonzero(np.diff(pairs[order])) + 1
    for rows in np.split(messages[order], cuts):
        yield rows, int(spans.source[rows[0]]), int(spans.processor[rows[0]])
