"""Ring: resources and duration of a collective around a ring of processors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from taskflow.machine.network import Network
from taskflow.machine.parts import Link, Machine


@dataclass(frozen=True, slots=True)
class Ring:
    """Ring through ``members``: each sends to the next one, and the last to the first.

    ``hop_seconds``: the longest latency of a message between neighbours. ``bytes_per_second``: total rate of all members when
    all send at once. ``resources``: what a collective occupies, in the order of the ring: processors that copy by themselves,
    and links, whose numbers follow those of the processors. ``copies``: whether any processor copies by itself.
    """

    members: tuple[int, ...]
    resources: tuple[int, ...]
    hop_seconds: float
    bytes_per_second: float
    copies: bool

    def seconds(self, nbytes: int, halves: int = 2) -> float:
        """Return the duration of an all-reduce, or of one of its ``halves`` (1): a reduce-scatter or an all-gather. ``nbytes``:
        as `ring_bytes` counts them. With ``halves`` 0, of an all-to-all (of `all_pairs`): n - 1 rounds, and all bytes at the
        total rate.

        Around the ring each half takes n - 1 rounds, in which every member sends an nth of the array (Patarasuk and Yuan,
        "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). Libraries sum small arrays in fewer
        rounds. So an all-reduce takes the lesser of this and of two binary trees, up and down, with half of the array in each:
        2 log2 n latencies, and n / (n - 1) of the bytes. NCCL has such trees (Sanders, Speck and Traeff, "Two-tree algorithms
        for full bandwidth broadcast, reduction and scan", 2009). MPI's recursive halving and doubling has as many rounds
        (Thakur, Rabenseifner and Gropp, 2005). Halves go around the ring, as NCCL's do.
        """
        count = len(self.members)
        around = max(1, halves) * (count - 1) * self.hop_seconds + nbytes / self.bytes_per_second
        if halves < 2:
            return around
        rounds = 2 * (count - 1).bit_length()
        return min(around, rounds * self.hop_seconds + nbytes * count / (count - 1) / self.bytes_per_second)


def ring(machine: Machine, members: Sequence[int]) -> Ring:
    """Return the ring through two or more processors in the order given. A round takes the longest latency of its messages,
    plus the time of the link that takes longest for its bytes."""
    return _by_messages(machine, members, list(zip(members, (*members[1:], members[0]))))


def all_pairs(machine: Machine, members: Sequence[int]) -> Ring:
    """Return the same for an all-to-all of two or more processors. In each of n - 1 rounds every member sends to one other,
    each time to one further on. ``resources``: those of all these messages."""
    return _by_nodes(machine, members) or _by_messages(machine, members, list(_pairs(members, len(members))))


def _pairs(members: Sequence[int], rounds: int) -> Iterator[tuple[int, int]]:
    count = len(members)
    every = range(1, min(rounds + 1, count))
    return ((one, members[(place + further) % count]) for further in every for place, one in enumerate(members))


def _by_nodes(machine: Machine, members: Sequence[int]) -> Ring | None:
    """`all_pairs`, found without going through all messages, of which 1,024 members send a million. What travels between nodes
    goes from one to the network, and from there to another. None on one node, where processors copy by themselves, or on rails."""
    nodes: dict[int, list[int]] = {}
    for member in members:
        nodes.setdefault(machine.processors[member].node, []).append(member)
    network: Network | None = getattr(machine, "network", None)
    if len(nodes) == 1 or not hasattr(machine, "way_out") or (network is not None and network.rails):
        return None
    carries: Counter[int] = Counter()
    links: dict[int, Link] = {}
    ways: list[dict[tuple[float, ...], set[int]]] = [{}, {}]  # latencies on the way out and in -> the nodes
    latency = 0.0
    for node, there in nodes.items():
        for member in there:
            for way, of in zip((machine.way_out(member), machine.way_in(member)), ways):  # type: ignore[attr-defined]
                of.setdefault(tuple(link.latency_seconds for link in way), set()).add(node)
                for link in way:
                    links[link.number] = link
                    carries[link.number] += len(members) - len(there)
            for other in there:
                if other != member:
                    route = machine.route(member, other)
                    links.update((link.number, link) for link in route)
                    carries.update(link.number for link in route)
                    latency = max(latency, sum([link.latency_seconds for link in route]))
    if any(link.occupies_endpoints for link in links.values()):
        return None
    for out, senders in ways[0].items():
        for into, receivers in ways[1].items():
            if len(senders | receivers) > 1:
                latency = max(latency, sum([*out, *into]))
    resources: dict[int, None] = {}
    first, messages = len(machine.processors), len(members) * (len(members) - 1)
    # In the order in which messages use them. All send to another node, and get something from one, within so many rounds.
    rounds = max(map(len, nodes.values()))
    place = {member: i for i, member in enumerate(members)}
    later = sorted(
        (further, place[a]) for there in nodes.values() for a in there for b in there
        if (further := (place[b] - place[a]) % len(members)) > rounds
    )
    for pair in (*_pairs(members, rounds), *((members[i], members[(i + further) % len(members)]) for further, i in later)):
        resources.update(dict.fromkeys([first + link.number for link in machine.route(*pair)]))
    slowest = min(links[number].bytes_per_second / count for number, count in carries.items())
    if network is not None:
        limit, late = _upwards(machine, network, nodes)
        slowest, latency = min(slowest, limit), latency + late
    return Ring(tuple(members), tuple(resources), latency, messages * slowest, False)


def _upwards(machine: Machine, network: Network, nodes: dict[int, list[int]]) -> tuple[float, float]:
    """The rate of each message, of all between pairs, that the levels of a network allow, and their latencies."""
    limit, crossed = inf, 0
    for place, level in enumerate(network.levels, 1):
        below = Counter[int]()
        for node, there in nodes.items():
            below[node // level.nodes] += len(there)
        if len(below) == 1:
            break
        crossed, total = place, sum(below.values())
        for node, there in nodes.items():
            leaving = total - below[node // level.nodes]
            for way in (machine.way_out, machine.way_in):  # type: ignore[attr-defined]
                narrow = [min(way(member), key=lambda link: link.bytes_per_second) for member in there]
                carries = Counter({link.number: 0 for link in narrow})
                for link in narrow:
                    carries[link.number] += leaving
                limit = min(limit, min(link.bytes_per_second / carries[link.number] for link in narrow) * network.upwards(place)[0])
    return limit, network.upwards(crossed)[1]


def _by_messages(machine: Machine, members: Sequence[int], messages: Sequence[tuple[int, int]]) -> Ring:
    """Ring of messages (sender and receiver) of equal sizes."""
    first = len(machine.processors)
    resources: dict[int, None] = {}
    carries: dict[tuple[int, float], int] = {}  # of a link, and the rate at which a message goes over it
    latency, copies = 0.0, False
    for source, target in messages:
        route = machine.route(source, target)  # plain loops: of ten thousand processors there are as many routes
        if any([link.occupies_endpoints for link in route]):
            copies = True
            if any([link.occupies_sender for link in route]):
                resources[source] = None
        for link in route:
            number = link.number
            resources[first + number] = None
            key = number, link.bytes_per_second
            carries[key] = carries.get(key, 0) + 1
        if copies and any([link.occupies_receiver for link in route]):
            resources[target] = None
        latency = max(latency, sum([link.latency_seconds for link in route]))
    slowest = min((rate / count for rate, count in _slower(carries)), default=inf)
    return Ring(tuple(members), tuple(resources), latency, len(messages) * slowest, copies)


def _slower(carries: dict[tuple[int, float], int]) -> Iterator[tuple[float, int]]:
    """For each rate of each link, how many messages go over it at that rate or a lower one. Those that leave a switch of the
    network above are slower, and the others go on beside them."""
    before: dict[int, int] = {}
    for (number, rate), count in sorted(carries.items(), key=lambda of: of[0][1]):
        before[number] = before.get(number, 0) + count
        yield rate, before[number]


def ring_bytes(members: int, nbytes: int, halves: int = 2) -> int:
    """Return the bytes that all members of a ring send together to sum an array of ``nbytes``. ``halves`` 2: an all-reduce; 1:
    a reduce-scatter, by which each member gets the sum of a share, or an all-gather, by which it gets the others' shares."""
    return halves * (members - 1) * nbytes


def ring_share(members: int, place: int, nbytes: int, halves: int = 2) -> int:
    """Return the part of those bytes that the member at ``place`` of a ring sends; the parts of all members add up to the
    whole."""
    total = ring_bytes(members, nbytes, halves)
    return total * (place + 1) // members - total * place // members
