"""Ring: what a collective of a ring of processors occupies, and how fast it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from taskflow.machine.parts import Machine


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring through ``members``, each of which sends to the next one and the last to the first.

    ``hop_seconds``: the longest latency of a message between neighbours. ``bytes_per_second``: of what all members send
    together, when all send at once. ``resources``: what a collective occupies, in the order of the ring: links by number,
    counted on after the processors, and processors that copy by themselves (``copies``: whether there are such).
    """

    members: tuple[int, ...]
    resources: tuple[int, ...]
    hop_seconds: float
    bytes_per_second: float
    copies: bool

    def seconds(self, nbytes: int, halves: int = 2) -> float:
        """Of an all-reduce, or of one of its ``halves`` (1), a reduce-scatter or an all-gather; ``nbytes``: `ring_bytes`. Of an
        all-to-all (0, of `all_pairs`): n - 1 rounds, and all bytes at the rate of all.

        Around the ring that is n - 1 rounds for each half, in which every member sends an nth of the array (Patarasuk and Yuan,
        "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). Libraries sum small arrays in
        fewer rounds, so an all-reduce takes what is less of this and two binary trees, up and down, with half of the
        array in each. These take 2 log2 n latencies, and n / (n - 1) of the bytes. NCCL has them (Sanders, Speck and
        Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009). MPI's recursive halving
        and doubling has as many rounds (Thakur, Rabenseifner and Gropp, 2005). Halves go around the ring, as NCCL's do.
        """
        count = len(self.members)
        around = max(1, halves) * (count - 1) * self.hop_seconds + nbytes / self.bytes_per_second
        if halves < 2:
            return around
        rounds = 2 * (count - 1).bit_length()
        return min(around, rounds * self.hop_seconds + nbytes * count / (count - 1) / self.bytes_per_second)


def ring(machine: Machine, members: Sequence[int]) -> Ring:
    """The ring through two or more processors in the order given. A round takes the longest latency of all its messages, and the
    time of the link that has most to carry for its rate."""
    return _by_messages(machine, members, list(zip(members, (*members[1:], members[0]))))


def all_pairs(machine: Machine, members: Sequence[int]) -> Ring:
    """The same for an all-to-all of two or more processors, in which each sends to each. In n - 1 rounds every member sends to
    another one, each time to one further on. ``resources``: those of all these messages."""
    count = len(members)
    return _by_messages(machine, members, [
        (source, members[(place + further) % count]) for further in range(1, count) for place, source in enumerate(members)
    ])


def _by_messages(machine: Machine, members: Sequence[int], messages: Sequence[tuple[int, int]]) -> Ring:
    """Of messages (sender and receiver) of equal sizes."""
    first = len(machine.processors)
    resources: dict[int, None] = {}
    carries: Counter[int] = Counter()
    rates: dict[int, float] = {}
    latency, copies = 0.0, False
    for source, target in messages:
        route = machine.route(source, target)
        sender = [source] if any(link.occupies_sender for link in route) else []
        receiver = [target] if any(link.occupies_receiver for link in route) else []
        resources.update(dict.fromkeys((*sender, *(first + link.number for link in route), *receiver)))
        copies = copies or bool(sender or receiver)
        carries.update(link.number for link in route)
        rates.update({link.number: link.bytes_per_second for link in route})
        latency = max(latency, sum(link.latency_seconds for link in route))
    slowest = min((rates[link] / carries[link] for link in carries), default=float("inf"))
    return Ring(tuple(members), tuple(resources), latency, len(messages) * slowest, copies)


def ring_bytes(members: int, nbytes: int, halves: int = 2) -> int:
    """What all members of a ring send together to sum an array of ``nbytes``: in both halves, or in one (``halves``), by which each
    gets the sum of a share, or gets the others' shares."""
    return halves * (members - 1) * nbytes


def ring_share(members: int, place: int, nbytes: int, halves: int = 2) -> int:
    """What the member at ``place`` of a ring sends of that; all shares together are all of it."""
    total = ring_bytes(members, nbytes, halves)
    return total * (place + 1) // members - total * place // members
