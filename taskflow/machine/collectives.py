"""Channels: cost of a collective of a library such as NCCL, which uses all links and network cards of a node at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

import numpy as np

from taskflow.machine.library import TREE, Collectives, ramped
from taskflow.machine.network import NOTHING_ABOVE, Above, Network, above
from taskflow.machine.parts import Link, Machine
from taskflow.machine.ring import Ring, all_pairs, ring
from taskflow.machine.torus import Torus


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
    ``bytes_per_second``: rate of the links over which one member sends within its node. ``network_bytes_per_second``: payload
    rate at which one node sends to the others, over all network cards that its members reach (infinite for one node).
    ``resources``: as of a `Ring`. ``above``: what the network above the cards does to it. ``hops``: messages within a node that
    wait for another in a half, if they are other than around one ring (on a torus)."""

    members: tuple[int, ...]
    resources: tuple[int, ...]
    nodes: int
    bytes_per_second: float
    network_bytes_per_second: float
    library: Collectives
    copies: bool = False
    above: Above = NOTHING_ABOVE
    hops: int | None = None

    def seconds(self, nbytes: int, halves: int = 2) -> float:
        """Return the duration, as in `Around`.

        In each half every one of n members sends (n - 1) / n of the array to its neighbour, over all channels together, and so
        does every node to the next one. What arrives is added (or copied) before it is passed on within a node. Between nodes
        an all-reduce takes the lesser of the times of rings and of two trees, up and down (Sanders, Speck and Traeff, 2009),
        and within one the lesser of that of rings and of sums in the switch.
        """
        count, own = len(self.members), self.library
        curve, start = own.curve(halves), own.start_seconds
        array = nbytes / (halves * (count - 1))
        sent = halves * (count - 1) / count * array
        link = own.limited(self.bytes_per_second * curve.link_share, -(-count // self.nodes))
        copied = array * halves / 2 / curve.copy_bytes_per_second
        hops = count - self.nodes if self.hops is None else self.hops
        around = start + curve.start_seconds + halves * hops * curve.step_seconds
        if self.nodes == 1:
            short = own.limited(self.bytes_per_second * (curve.short_share or 1.0), count)
            around += curve.quickest(sent / short, ramped(sent / link + copied, curve.ramp_seconds))
            switch = own.switch
            if halves < 2 or switch is None or count < switch.members:
                return around
            in_switch = array / (self.bytes_per_second * switch.link_share)
            return min(around, start + switch.start_seconds + ramped(in_switch, switch.ramp_seconds))
        ramp, network = max(curve.ramp_seconds, own.network_ramp_seconds), self.network_bytes_per_second * self.above.share
        around += halves * ((self.nodes - 1) * own.network_step_seconds + self.above.ring_seconds)
        around += ramped(max(sent / link + copied, sent / network), ramp)
        if halves < 2:
            return around
        deep = (-(-count // self.nodes) - 1 if self.hops is None else hops) * curve.step_seconds
        deep += (self.nodes - 1).bit_length() * own.network_step_seconds
        deep += self.above.tree_seconds
        up_and_down = ramped(max(2 * array / (TREE * link) + copied, 2 * array / (TREE * network)), ramp)
        return min(around, start + curve.start_seconds + 2 * deep + up_and_down)


@dataclass(frozen=True, slots=True)
class PairExchange:
    """All-to-all of a library: messages between all pairs of processors (``pairs``), which start together. ``nodes``: as of
    `Channels`."""

    pairs: Ring
    nodes: int
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
        own, curve, others = self.library, self.library.curve(0), len(self.members) - 1
        start = own.start_seconds + (curve.start_seconds or self.pairs.hop_seconds) + others * curve.step_seconds
        if self.nodes > 1:
            rate = self.pairs.bytes_per_second * own.network_share
            return start + ramped(nbytes / rate, max(curve.ramp_seconds, own.network_ramp_seconds))
        copied = nbytes / others / 2 / curve.copy_bytes_per_second
        sent, each = nbytes / (others + 1), self.pairs.bytes_per_second / (others + 1)
        long, short = (own.limited(each * share, others + 1) for share in (curve.link_share, curve.short_share or 1.0))
        return start + curve.quickest(sent / short, ramped(sent / long + copied, curve.ramp_seconds))


def exchange(machine: Machine, members: Sequence[int]) -> Around:
    """Return the cost of an all-to-all among two or more processors."""
    pairs = all_pairs(machine, members)
    library: Collectives | None = getattr(machine, "collectives", None)
    if library is None or pairs.copies:
        return pairs
    if (found := _torus(machine, members)) is not None:
        torus, places = found
        pairs = replace(pairs, bytes_per_second=torus.exchanged(places))
    return PairExchange(pairs, len({machine.processors[member].node for member in members}), library)


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
        occupied_here = (*around.members, *around.resources) if library.blocks else around.resources
        return Channels(around.members, occupied_here, 1, _within(machine, around), inf, library, hops=_hops(machine, members))
    out = {member: machine.way_out(member) for member in members}  # type: ignore[attr-defined]
    into = {member: machine.way_in(member) for member in members}  # type: ignore[attr-defined]
    first = len(machine.processors)
    occupied = dict.fromkeys([*(around.members if library.blocks else ()), *around.resources])
    for member in members:
        occupied.update(dict.fromkeys([first + link.number for link in (*out[member], *into[member])]))
    narrowest = inf
    for there in nodes.values():
        for way in (out, into):
            narrowest = min(narrowest, _together([way[member] for member in there]))
    within = [_within(machine, ring(machine, there)) for there in nodes.values() if len(there) > 1]
    return Channels(
        around.members, tuple(occupied), len(nodes), min(within, default=inf),
        narrowest * library.network_share, library, above=above(getattr(machine, "network", None), list(nodes)),
        hops=max((_hops(machine, there) or 0 for there in nodes.values()), default=0) or None,
    )  # fmt: skip


def _of_alike_nodes(machine: Machine, members: Sequence[int], library: Collectives) -> Channels | None:
    """The same where members lie in the same places of several nodes, whose links then differ in their numbers alone. None if they
    do not, or if a processor has to copy by itself."""
    repeated: tuple[int, list[int]] | None = machine.repeated(members)  # type: ignore[attr-defined]
    if repeated is None or len(repeated[1]) == 1 or _rails(machine) or library.blocks:
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
    within = _within(machine, ring(machine, there)) if size > 1 else inf
    return Channels(
        tuple(members), tuple(occupied), len(offsets), within,
        min(_together(out), _together(into)) * library.network_share, library,
        above=above(getattr(machine, "network", None), [machine.processors[member].node for member in members[::size]]),
        hops=_hops(machine, there),
    )  # fmt: skip


def _torus(machine: Machine, members: Sequence[int]) -> tuple[Torus, list[int]] | None:
    """The torus on which all members lie, with their places."""
    return machine.torus(members) if hasattr(machine, "torus") else None


def _hops(machine: Machine, members: Sequence[int]) -> int | None:
    """Messages of a group on a torus that wait for another in a half of an all-reduce; None elsewhere."""
    found = _torus(machine, members)
    return None if found is None else found[0].around(found[1])[1]


def _rails(machine: Machine) -> bool:
    network: Network | None = getattr(machine, "network", None)
    return network is not None and network.rails


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


def _within(machine: Machine, around: Ring) -> float:
    """Return the bytes a second that each member of a ring within a node sends: over several rings at once, if it has links of its
    own to several others (a mesh), or along several axes (a torus)."""
    if (found := _torus(machine, around.members)) is not None:
        torus, places = found
        return torus.around(places)[0]
    first, *others = around.members
    if len({machine.route(first, other)[0].number for other in others}) == 1:
        return around.bytes_per_second / len(around.members)
    ways = ([(a, b) for b in around.members if b != a] for a in around.members)
    return min(
        _together([machine.route(*(pair if out else pair[::-1])) for pair in pairs]) for pairs in ways for out in (True, False)
    )


def _together(ways: Sequence[Sequence[Link]]) -> float:
    """Return the bytes a second of several routes between a node's processors and the network together: the sum over their
    narrowest links, each counted once, and no more than the links give together that they begin or end with."""
    narrow = [way[0] if len(way) == 1 else min(way, key=lambda k: k.bytes_per_second) for way in ways]
    return min(
        sum({link.number: link.bytes_per_second for link in links}.values())
        for links in (narrow, [way[0] for way in ways], [way[-1] for way in ways])
    )
