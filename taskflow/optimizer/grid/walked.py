"""Walked: seconds of passes in which weights are gathered and gradients reduced, operator by operator.

The rules are the simulator's (`taskflow.tasks.simulate`), for one device: it runs its operators in order, and between them the
copies from and to shares as they become ready; each link serves collectives in the order in which they reach it. A gather may
begin when the last operator of the layer or block one before the previous one has ended, or of one still before
(`taskflow.tasks.lower.weight_gathers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from taskflow.optimizer.grid.shortened import Walk

OWN, OTHER, APART = 0, 1, 2
"""Links: the device's own, those of another device of its tensor-parallel group, and those that only this group uses."""


@dataclass(frozen=True, slots=True)
class Travel:
    """A collective of weights or gradients. ``links``: those that it occupies, of each of the groups that it is for;
    ``copies``: seconds of the device's copy from its share (a gather), or to it."""

    seconds: float
    copies: float
    links: tuple[tuple[int, ...], ...]


_Sent = tuple[tuple[int, ...], float, int, float]
"""Of a collective under way: links, seconds, number (-1: nobody waits for it), and seconds of a copy afterwards."""

Walked = tuple[tuple[float, float], list[tuple[float, float]]]
"""Seconds of a forward and a backward pass of the kept layers, and of each run those of one block more."""


def walked(
    walk: Walk, seconds: Sequence[float], reads: Sequence[float], read_links: tuple[int, ...],
    gathers: Mapping[str, Sequence[Travel]], reduces: Mapping[str, Sequence[Travel]],
) -> Walked:
    """Return the seconds of passes over the kept layers. ``seconds``: of each step; ``reads``: of each collective that is no
    gather, on ``read_links``; ``gathers``, ``reduces``: by name of weights."""
    device, ends, end = _Device(len(walk.collectives)), [], 0.0
    for gather in walk.first:
        device.gather(gather, 0.0, gathers[walk.collectives[gather]])  # type: ignore[index]
    for step, takes in zip(walk.steps, seconds):
        end = device.run(step.waits, end, takes)
        ends.append(end)
        for number in step.sends:
            if reads[number] > 0:
                device.left[number] = 1
                device.send(end, (read_links, reads[number], number, 0.0))
        for number in step.reduces:
            travels = reduces[walk.collectives[number]]  # type: ignore[index]
            device.left[number] = len(travels)
            for travel in travels:
                for place, links in enumerate(travel.links):
                    device.send(end, (links, travel.seconds, -1 if place else number, 0.0 if place else travel.copies))
        for gather in step.begins:
            device.gather(gather, end, gathers[walk.collectives[gather]])  # type: ignore[index]
    return _added_up(walk, ends)


def _added_up(walk: Walk, ends: Sequence[float]) -> Walked:
    """The seconds of the backward pass, and of the forward pass after it."""
    tail, backward, forward = walk.ends
    last, middle = ends[tail[max(tail)]], ends[backward[0]]
    blocks = []
    for run in walk.runs:
        ahead = ends[forward[run.end - 1]] - ends[forward[run.first[-1] - 1]]
        blocks.append((ahead, ends[backward[run.first[0]]] - ends[backward[run.first[1]]]))
    return (ends[forward[max(forward)]] - middle, middle - last), blocks


class _Device:
    """The device, its links, and what waits for them. ``left``: the parts of each numbered collective that have not ended;
    ``done``: when the last of the others did."""

    def __init__(self, collectives: int) -> None:
        self.left, self.done = [0] * collectives, [0.0] * collectives
        self.free = [0.0, 0.0, 0.0]  # when links are
        self.at = 0.0  # when the device is
        self.travels: list[tuple[float, int, _Sent]] = []  # collectives, by the time at which they reached their links
        self.copies: list[tuple[float, int, float, int, Travel | None]] = []
        """Copies, by the time at which they are ready: seconds, the number of a collective, and the gather that begins then; None
        if they are the end of a reduction."""
        self.count = 0

    def run(self, waits: Sequence[int], end: float, takes: float) -> float:
        """Run a step, the one before which ended at ``end``, and return when it ends."""
        if self.copies and self.copies[0][0] < end:
            self._copy(end, False)
        left, done = self.left, self.done
        for number in waits:
            if left[number] or done[number] > end:
                end = self._wait(waits, end)
                break
        self.at = end = max(end, self.at) + takes
        return end

    def _wait(self, waits: Sequence[int], end: float) -> float:
        """When all that a step waits for is there. Other copies and collectives that come before are done."""
        self._copy(end, True)
        for number in waits:
            while self.left[number]:
                self._travel()
            end = max(end, self.done[number])
        while self.travels and self.travels[0][0] < end:
            self._travel()
        self._copy(end, False)
        return end

    def gather(self, number: int, ready: float, travels: Sequence[Travel]) -> None:
        """Let a gather begin."""
        self.left[number] = sum(len(travel.links) for travel in travels)
        for travel in travels:
            heappush(self.copies, (ready, self.count, travel.copies, number, travel))
            self.count += 1

    def send(self, ready: float, what: _Sent) -> None:
        """Let a collective reach its links."""
        heappush(self.travels, (ready, self.count, what))
        self.count += 1

    def _copy(self, end: float, also_at: bool) -> None:
        """Copy what became ready before ``end``, or also then."""
        while self.copies and (self.copies[0][0] < end or (also_at and self.copies[0][0] == end)):
            ready, _, seconds, number, travel = heappop(self.copies)
            self.at = max(self.at, ready) + seconds
            if travel is None:
                self.left[number] -= 1
                self.done[number] = self.at
            else:
                for links in travel.links:
                    self.send(self.at, (links, travel.seconds, number, 0.0))

    def _travel(self) -> None:
        """Let the collective that reached its links first occupy them."""
        if not self.travels or (self.copies and self.copies[0][0] < self.travels[0][0]):
            self._copy(self.copies[0][0], True)
            return
        at, _, (links, seconds, number, copies) = heappop(self.travels)
        free, end = self.free, 0.0
        for link in links:
            free[link] = max(at, free[link]) + seconds
            end = max(end, free[link])
        if copies:
            heappush(self.copies, (end, self.count, copies, number, None))
            self.count += 1
        elif number >= 0:
            self.left[number] -= 1
            self.done[number] = max(end, self.done[number])
