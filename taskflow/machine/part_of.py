"""PartOfMachine: some processors of a cluster, numbered from 0, with the cluster's own links between them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from taskflow.machine.cluster import Cluster
from taskflow.machine.library import Collectives
from taskflow.machine.network import Network
from taskflow.machine.parts import Device, Link, Processor


@dataclass(frozen=True, slots=True)
class PartOfMachine:
    """Machine whose processor p is processor ``members[p]`` of the ``whole``. Raises ValueError if there are no members, or if
    one is repeated or does not exist in the whole."""

    whole: Cluster
    members: tuple[int, ...]
    processors: tuple[Processor, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        there = self.whole.processors
        if not self.members or len(set(self.members)) < len(self.members) or not set(self.members) <= set(range(len(there))):
            raise ValueError(
                f"part of machine {self.whole.name}: members must be different processors of 0 to {len(there) - 1}, got "
                f"{self.members}"
            )
        object.__setattr__(self, "processors", tuple([replace(there[m], number=i) for i, m in enumerate(self.members)]))

    @property
    def name(self) -> str:
        return f"{len(self.members)} of {self.whole.name}"

    @property
    def kinds(self) -> tuple[Device, ...]:
        """Kinds of devices of the whole."""
        return self.whole.kinds

    @property
    def collectives(self) -> Collectives | None:
        """Performance of the whole's collective library."""
        return self.whole.collectives

    @property
    def network(self) -> Network | None:
        """What is above the cards of the whole's nodes."""
        return self.whole.network

    def route(self, source: int, target: int) -> tuple[Link, ...]:
        """Return the whole's links between two members."""
        return self.whole.route(self.members[source], self.members[target])

    def way_out(self, processor: int) -> tuple[Link, ...]:
        """Return the links from a member to the network between nodes."""
        return self.whole.way_out(self.members[processor])

    def way_in(self, processor: int) -> tuple[Link, ...]:
        """Return the links from the network between nodes to a member."""
        return self.whole.way_in(self.members[processor])
