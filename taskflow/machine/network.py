"""Network: what is above the cards of a cluster's nodes, where it is not one switch that never blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from taskflow.machine.library import Reached, Source
from taskflow.reading import Count, NotNegative


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the network between nodes: of a fat tree, or islands."""

    nodes: Annotated[Count, Meta(description="So many nodes, in their order, lie below each switch of it.")]
    share: Annotated[Reached, Meta(description="Part of what all their cards send that can leave the switch at once.")] = 1.0
    latency_seconds: Annotated[NotNegative, Meta(description="Added to a message that leaves it.")] = 0.0
    source: Source = ""


@dataclass(frozen=True, slots=True)
class Network:
    """The network above the cards of nodes. With ``rails`` what goes to another place crosses the sender's node first.

    Links stay those of the nodes. A message that leaves a switch goes at that level's ``share`` of its card's rate, as it does
    when all cards send upwards; that others leave the upper links idle does not speed it up. Raises ValueError unless each level
    has a multiple of the nodes of the one below.
    """

    levels: Annotated[tuple[Level, ...], Meta(description="From the nodes upwards; beyond the last nothing blocks.")] = ()
    rails: Annotated[bool, Meta(description="A card reaches only those in the same place of other nodes.")] = False
    source: Source = ""

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
