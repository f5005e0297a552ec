"""Network: what is above the cards of a cluster's nodes, where it is not one switch that never blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """Level of a fat tree, or islands of a cluster: so many ``nodes``, in their order, lie below each switch of it. ``share``: the
    part of what all their cards send together that can leave the switch upwards at once. ``latency_seconds``: added to a
    message that leaves it."""

    nodes: int
    share: float = 1.0
    latency_seconds: float = 0.0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Network:
    """Network between nodes. ``levels``: from the nodes upwards; beyond the last nothing blocks. ``rails``: a card reaches only
    those in the same place of other nodes, so that what goes to another place crosses the sender's node first.

    Links stay those of the nodes. A message that leaves a switch goes at that level's ``share`` of its card's rate, as it does
    when all cards send upwards; that others leave the upper links idle does not speed it up. Raises ValueError unless each level
    has a multiple of the nodes of the one below.
    """

    levels: tuple[Level, ...] = ()
    rails: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        for below, above in zip(self.levels, self.levels[1:]):
            if above.nodes % below.nodes or above.nodes == below.nodes:
                raise ValueError(
                    f"network: a level must have a multiple of the nodes of the one below, got {above.nodes} above {below.nodes}"
                )

    def crossed(self, a: int, b: int) -> int:
        """Return how many levels a message between two nodes leaves."""
        return sum([a // level.nodes != b // level.nodes for level in self.levels])

    def upwards(self, crossed: int) -> tuple[float, float]:
        """Return the share of the rate, and the latency, of a message that leaves so many levels."""
        left = self.levels[:crossed]
        return min([level.share for level in left], default=1.0), sum([level.latency_seconds for level in left])


@dataclass(frozen=True, slots=True)
class Above:
    """What a network does to a collective among nodes: the ``share`` of its rate, and the latencies of a ring and of a tree."""

    share: float = 1.0
    ring_seconds: float = 0.0
    tree_seconds: float = 0.0


NOTHING_ABOVE = Above()


def above(network: Network | None, nodes: Sequence[int]) -> Above:
    """Return it for a ring through nodes in the order given.

    Groups beside this one do the same at the same time, so all nodes below a switch send: of what they send, that part leaves the
    switch which leaves it on this ring's way.
    """
    if network is None or not network.levels:
        return NOTHING_ABOVE
    share, ring, tree = 1.0, 0.0, 0.0
    for level in network.levels:
        places = [node // level.nodes for node in nodes]
        leaving = sum(a != b for a, b in zip(places, (*places[1:], places[0])))
        if leaving:
            share = min(share, level.share * len(nodes) / leaving)
            ring += min(leaving, len(nodes) - 1) * level.latency_seconds
            tree += (len(set(places)) - 1).bit_length() * level.latency_seconds
    return Above(share, ring, tree)
