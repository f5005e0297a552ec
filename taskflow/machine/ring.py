"""Ring: what a collective around a ring of processors occupies, and how fast it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from taskflow.machine.parts import Machine


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring through ``members``, each of which sends to the next one and the last to the first.

    An all-reduce takes ``latency_seconds`` and the bytes that all members send together at ``bytes_per_second``; each of its
    halves, a reduce-scatter and an all-gather, half of these latencies, and its own bytes at that rate. ``resources``: what each of
    them occupies, in the order of the ring: links by number, counted on after the processors, and processors that copy by
    themselves (``copies``: whether there are such).
    """

    members: tuple[int, ...]
    resources: tuple[int, ...]
    latency_seconds: float
    bytes_per_second: float
    copies: bool


def ring(machine: Machine, members: Sequence[int]) -> Ring:
    """The ring through two or more processors in the order given. In each of its 2 (n - 1) rounds every member sends an nth of the
    array (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009): a round takes the
    longest latency of all its messages, and the time of the link that has most to carry for its rate."""
    count, first = len(members), len(machine.processors)
    resources: dict[int, None] = {}
    carries: Counter[int] = Counter()
    rates: dict[int, float] = {}
    latency, copies = 0.0, False
    for source, target in zip(members, (*members[1:], members[0])):
        route = machine.route(source, target)
        sender = [source] if any(link.occupies_sender for link in route) else []
        receiver = [target] if any(link.occupies_receiver for link in route) else []
        resources.update(dict.fromkeys((*sender, *(first + link.number for link in route), *receiver)))
        copies = copies or bool(sender or receiver)
        carries.update(link.number for link in route)
        rates.update({link.number: link.bytes_per_second for link in route})
        latency = max(latency, sum(link.latency_seconds for link in route))
    slowest = min((rates[link] / carries[link] for link in carries), default=float("inf"))
    return Ring(tuple(members), tuple(resources), 2 * (count - 1) * latency, count * slowest, copies)


def ring_bytes(members: int, nbytes: int, halves: int = 2) -> int:
    """What all members of a ring send together to sum an array of ``nbytes``: in both halves, or in one (``halves``), by which each
    gets the sum of a share, or gets the others' shares."""
    return halves * (members - 1) * nbytes


def ring_share(members: int, place: int, nbytes: int, halves: int = 2) -> int:
    """What the member at ``place`` of a ring sends of that; all shares together are all of it."""
    total = ring_bytes(members, nbytes, halves)
    return total * (place + 1) // members - total * place // members
