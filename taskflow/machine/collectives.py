"""Channels: cost of a collective of a library such as NCCL, which uses all links and network cards of a node at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

import numpy as np

from taskflow.machine.parts import Link, Machine
from taskflow.machine.ring import Ring, all_pairs, ring

TREE = 0.9
"""Of the rate of rings that trees reach between nodes (NCCL's own estimate: src/graph/tuning.cc)."""


@dataclass(frozen=True, slots=True)
class Collectives:
    """Performance of a machine's collective library. ``start_seconds``: from the call until the first byte moves.
    ``step_seconds``: latency of each message within a node that waits for the one before; ``network_step_seconds``: of each
    between nodes. ``link_share`` and ``network_share``: the fraction of a link's rate that the payload gets.
    ``copy_bytes_per_second``: rate at which a processor adds arriving data to its own, or copies it, counted in bytes of the
    array of an all-reduce."""

    start_seconds: float
    step_seconds: float
    network_step_seconds: float
    link_share: float
    network_share: float
    copy_bytes_per_second: float
    source: str = ""


class Around(Protocol):
    """Cost of a collective among some processors: the resources that it occupies, and its duration (`Ring`, `Channels`)."""

    @property
    def members(self) -> tuple[int, ...]: ...

    @property
    def resources(self) -> tuple[int, ...]: ...

    @property
    def copies(self) -> bool: ...

    def seconds(self, nbytes: int, halves: int = 2) -> float:
        """Return the duration of an all-reduce, or of one of its ``halves`` (a reduce-scatter or an all-gather). ``nbytes``: as
        `ring_bytes` counts them."""
        ...


@dataclass(frozen=True, slots=True)
class Channels:
    """Group of processors whose library sends around several rings at once. ``nodes``: the number of nodes they are on.
    ``bytes_per_second``: rate at which one member sends within its node. ``network_bytes_per_second``: rate at which one node
    sends to the others, over all network cards that its members reach (infinite for one node). ``resources``: as of a `Ring`."""

    members: tuple[int, ...]
    resources: tuple[int, ...]
    nodes: int
    bytes_per_second: float
    network_bytes_per_second: float
    library: Collectives
    copies: bool = False

    def seconds(self, nbytes: int, halves: int = 2) -> float:
        """Return the duration, as in `Around`.

        In each half every one of n members sends (n - 1) / n of the array to its neighbour, over all channels together, and so
        does every node to the next one. What arrives is added (or copied) before it is passed on. Between nodes an all-reduce
        takes the lesser of the times of rings and of two trees, up and down (Sanders, Speck and Traeff, 2009).
        """
        count, own = len(self.members), self.library
        array = nbytes / (halves * (count - 1))
        sent = halves * (count - 1) / count * array
        copied = array * halves / 2 / own.copy_bytes_per_second
        slowest = min(self.bytes_per_second, self.network_bytes_per_second)
        steps = (count - self.nodes) * own.step_seconds + (self.nodes - 1) * own.network_step_seconds
        around = own.start_seconds + halves * steps + sent / slowest + copied
        if halves == 1 or self.nodes == 1:
            return around
        deep = (-(-count // self.nodes) - 1) * own.step_seconds + (self.nodes - 1).bit_length() * own.network_step_seconds
        return min(around, own.start_seconds + 2 * deep + 2 * array / (TREE * slowest) + copied)


@dataclass(frozen=True, slots=True)
class PairExchange:
    """All-to-all of a library: messages between all pairs of processors (``pairs``), which start together."""

    pairs: Ring
    share: float
    library: Collectives
    copies: bool = False

    @property
    def members(self) -> tuple[int, ...]:
        return self.pairs.members

    @property
    def resources(self) -> tuple[int, ...]:
        return self.pairs.resources

    def seconds(self, nbytes: int, halves: int = 0) -> float:
        """Return the duration, as in `Around`; ``nbytes``: of all messages."""
        return self.library.start_seconds + self.pairs.hop_seconds + nbytes / (self.pairs.bytes_per_second * self.share)


def exchange(machine: Machine, members: Sequence[int]) -> Around:
    """Return the cost of an all-to-all among two or more processors."""
    pairs = all_pairs(machine, members)
    library: Collectives | None = getattr(machine, "collectives", None)
    if library is None or pairs.copies:
        return pairs
    return PairExchange(pairs, library.network_share if between_nodes(machine, members) else library.link_share, library)


def collective(machine: Machine, members: Sequence[int]) -> Around:
    """Return the cost of a collective among two or more processors, in the order given. It uses all channels if the machine
    says how its library performs (`Cluster.collectives`) and no processor has to copy by itself; else one ring."""
    library: Collectives | None = getattr(machine, "collectives", None)
    if library is not None and hasattr(machine, "repeated"):
        found = _of_alike_nodes(machine, members, library)
        if found is not None:
            return found
    around = ring(machine, members)
    if library is None or around.copies:
        return around
    nodes: dict[int, list[int]] = {}
    for member in members:
        nodes.setdefault(machine.processors[member].node, []).append(member)
    if len(nodes) == 1:
        return Channels(around.members, around.resources, 1, _within(around) * library.link_share, inf, library)
    out = {member: machine.way_out(member) for member in members}  # type: ignore[attr-defined]
    into = {member: machine.way_in(member) for member in members}  # type: ignore[attr-defined]
    first = len(machine.processors)
    occupied = dict.fromkeys(around.resources)
    for member in members:
        occupied.update(dict.fromkeys([first + link.number for link in (*out[member], *into[member])]))
    narrowest = inf
    for there in nodes.values():
        for way in (out, into):
            narrowest = min(narrowest, _together([way[member] for member in there]))
    within = [_within(ring(machine, there)) for there in nodes.values() if len(there) > 1]
    return Channels(
        around.members, tuple(occupied), len(nodes), min(within, default=inf) * library.link_share,
        narrowest * library.network_share, library,
    )  # fmt: skip


def _of_alike_nodes(machine: Machine, members: Sequence[int], library: Collectives) -> Channels | None:
    """The same where members lie in the same places of several nodes, whose links then differ in their numbers alone. None if they
    do not, or if a processor has to copy by itself."""
    repeated: tuple[int, list[int]] | None = machine.repeated(members)  # type: ignore[attr-defined]
    if repeated is None or len(repeated[1]) == 1:
        return None
    size, offsets = repeated
    there, first = members[:size], len(machine.processors)
    out, into = ([way(member) for member in there] for way in (machine.way_out, machine.way_in))  # type: ignore[attr-defined]
    own = [link for pair in zip(there, there[1:]) for link in machine.route(*pair)]
    if any(link.occupies_endpoints for way in (own, *out, *into) for link in way):
        return None
    nodes = np.array(offsets) + first
    following = np.roll(nodes, -1)
    along = [nodes + link.number for link in (*own, *out[-1])] + [following + link.number for link in into[0]]
    ways = [nodes + link.number for pair in zip(out, into) for way in pair for link in way]
    occupied = dict.fromkeys([*np.stack(along, 1).ravel().tolist(), *np.stack(ways, 1).ravel().tolist()])
    within = _within(ring(machine, there)) if size > 1 else inf
    return Channels(
        tuple(members), tuple(occupied), len(offsets), within * library.link_share,
        min(_together(out), _together(into)) * library.network_share, library,
    )  # fmt: skip


def collective_links(machine: Machine, members: Sequence[int]) -> dict[int, Link]:
    """Return the links, by number, that a collective among processors in the order given occupies."""
    pairs = zip(members, (*members[1:], members[0]))
    found = {link.number: link for source, target in pairs for link in machine.route(source, target)}
    if between_nodes(machine, members):
        found.update(_ways(machine, members))
    return found


def between_nodes(machine: Machine, members: Sequence[int]) -> bool:
    """True if a collective among these processors uses all routes between them and the network."""
    return getattr(machine, "collectives", None) is not None and len({machine.processors[m].node for m in members}) > 1


def _ways(machine: Machine, members: Sequence[int]) -> dict[int, Link]:
    """Return the links between the members and the network, by number."""
    ways = [way(member) for member in members for way in (machine.way_out, machine.way_in)]  # type: ignore[attr-defined]
    return {link.number: link for way in ways for link in way}


def _within(around: Ring) -> float:
    """Return the bytes a second that each member of a ring sends."""
    return around.bytes_per_second / len(around.members)


def _together(ways: Iterable[Sequence[Link]]) -> float:
    """Return the bytes a second of several routes between a node's processors and the network together: the sum over their
    narrowest links, each counted once."""
    narrow = {
        link.number: link.bytes_per_second
        for way in ways for link in [way[0] if len(way) == 1 else min(way, key=lambda k: k.bytes_per_second)]
    }
    return sum(narrow.values())
