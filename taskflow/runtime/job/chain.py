"""Wait chains: which rank hangs, found by following ranks that wait for each other to the one that waits for nobody."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

_SHOWN = 8
"""How many ranks of a chain the message shows."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank that another one waits for: in which task, for which transfer, and for how many seconds so far."""

    peers: tuple[int, ...]
    what: str
    transfer: str
    seconds: float

    def __str__(self) -> str:
        return f"has waited {self.seconds:.1f} s in {self.what} to {self.transfer}"

    def pack(self) -> bytes:
        """Return the bytes of a message to another rank."""
        return json.dumps([self.peers, self.what, self.transfer, self.seconds]).encode()

    @staticmethod
    def unpack(data: bytes) -> Wait:
        """Return the Wait that `pack` turned into bytes."""
        peers, what, transfer, seconds = json.loads(data)
        return Wait(tuple(peers), what, transfer, seconds)


def needed(rank: int, waits: Mapping[int, Wait | None]) -> list[int]:
    """Return the ranks that ``rank`` waits for; none if it does not wait. Ranks that wait in the same collective are left out."""
    mine = waits.get(rank)
    if mine is None:
        return []
    found = []
    for peer in mine.peers:
        other = waits.get(peer)
        same = other is not None and other.what == mine.what and {*other.peers, peer} == {*mine.peers, rank}
        collective = other is not None and (len(mine.peers) > 1 or other.transfer == mine.transfer)  # a message's ends differ
        if not (same and collective) and peer != rank:
            found.append(peer)
    return found


def explain(rank: int, waits: Mapping[int, Wait | None]) -> str:
    """Return sentences that say why ``rank`` waits. ``waits``: each rank's answer; None if it did not answer, because it is not
    waiting."""
    path: dict[int, int | None] = {rank: None}  # each rank and the one that waits for it, nearest first
    for here in (order := [rank]):
        for peer in needed(here, waits):
            if peer not in path:
                path[peer] = here
                order.append(peer)
    busy = sorted(peer for peer in order if waits.get(peer) is None)
    if busy:
        chain = [peer for peer in order if waits.get(peer) is not None and _leads(peer, busy, path)]
        one = len(busy) == 1
        end = (
            f"Rank{'' if one else 's'} {', '.join(map(str, busy))} {'waits' if one else 'wait'} for nobody: "
            f"{'it hangs, or computes' if one else 'they hang, or compute'} for longer than the limit"
        )
    else:
        chain = _cycle(rank, waits)
        end = (
            f"Ranks {', '.join(map(str, chain))} wait for each other in a cycle, so that none of them can go on"
            if chain else "All of them wait in the same transfer: a message was lost"
        )
    told = [f"Rank {peer} {waits[peer]}" for peer in chain if peer != rank]
    more = [f"{len(told) - _SHOWN} more wait behind it"] if len(told) > _SHOWN else []
    return ". ".join([*told[:_SHOWN], *more, end])


def _leads(peer: int, busy: list[int], path: Mapping[int, int | None]) -> bool:
    """True if ``peer`` is on the way to one of ``busy``."""
    for last in busy:
        at: int | None = last
        while at is not None:
            if at == peer:
                return True
            at = path[at]
    return False


def _cycle(rank: int, waits: Mapping[int, Wait | None]) -> list[int]:
    """Ranks each of which waits for the next, and the last for the first; empty if there are none."""
    done: set[int] = set()
    trail: list[int] = []

    def visit(here: int) -> list[int]:
        if here in trail:
            return trail[trail.index(here) :]
        if here in done:
            return []
        trail.append(here)
        for peer in needed(here, waits):
            if found := visit(peer):
                return found
        trail.pop()
        done.add(here)
        return []

    return visit(rank)
