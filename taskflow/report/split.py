"""Split: where each device's time of a step goes, so that the parts add up to the step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from taskflow.machine import Machine
from taskflow.report.spans import BACKWARD, FORWARD, LOCAL, VALUES, Spans

# Every moment of a device belongs to the first of these that holds: it computes; it copies or adds values; it adds or
# updates weights; it copies a message by itself; idle while values are on their way to it; idle while weights or their
# gradients are on their way to it; idle otherwise (waiting for other devices, for busy links, or done).
PARTS = (
    "compute", "local values", "synchronise", "copy messages", "wait for values", "wait for weights", "wait for others",
)


def device_split(spans: Spans, machine: Machine) -> NDArray[np.float64]:
    """(devices, PARTS): seconds. Each row adds up to the step's time, up to rounding."""
    count = len(machine.processors)
    sends, receives = copying_ends(spans, machine)
    result = np.zeros((count, len(PARTS)))
    for p in range(count):
        own = spans.processor == p
        work = own & ~spans.message
        layers = (
            work & ((spans.category == FORWARD) | (spans.category == BACKWARD)),
            work & (spans.category == LOCAL),
            work & (spans.category > LOCAL),
            (own & receives) | ((spans.source == p) & sends),
            own & (spans.category == VALUES),
            own & (spans.category > VALUES),
        )
        result[p] = _first_of(spans, layers)
    return result


def _first_of(spans: Spans, layers: tuple[NDArray[np.bool_], ...]) -> NDArray[np.float64]:
    """How long each layer holds and none before it; last, how long none holds."""
    times, which, change = [np.array([0.0, spans.makespan])], [np.zeros(2, np.int64)], [np.zeros(2, np.int64)]
    for number, layer in enumerate(layers):
        starts, ends = spans.start[layer], spans.end[layer]
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


def copying_ends(spans: Spans, machine: Machine) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which messages occupy their sender, and which their receiver (`Link.occupies_endpoints`)."""
    sends, receives = np.zeros(len(spans), bool), np.zeros(len(spans), bool)
    for rows, route in _by_route(spans, machine):
        sends[rows] = any(link.occupies_sender for link in route)
        receives[rows] = any(link.occupies_receiver for link in route)
    return sends, receives


def link_use(spans: Spans, machine: Machine) -> Mapping[int, tuple[str, float, int, int]]:
    """By number of each link in use: its name, busy seconds, bytes and messages."""
    found: dict[int, tuple[str, float, int, int]] = {}
    took = spans.end - spans.start
    for rows, route in _by_route(spans, machine):
        seconds, nbytes = float(took[rows].sum()), int(spans.nbytes[rows].sum())
        for link in route:
            _, s, b, n = found.get(link.number, ("", 0.0, 0, 0))
            found[link.number] = (link.name, s + seconds, b + nbytes, n + len(rows))
    return found


def _by_route(spans: Spans, machine: Machine):  # type: ignore[no-untyped-def]
    """(rows of all messages between two processors, their route)."""
    messages = np.flatnonzero(spans.message)
    if not len(messages):
        return
    count = len(machine.processors)
    pairs = spans.source[messages] * count + spans.processor[messages]
    order = np.argsort(pairs, kind="stable")
    cuts = np.flatnonzero(np.diff(pairs[order])) + 1
    for rows in np.split(messages[order], cuts):
        yield rows, machine.route(int(spans.source[rows[0]]), int(spans.processor[rows[0]]))
