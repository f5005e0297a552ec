"""PartOfMachine: some processors of a cluster, numbered from 0, with the cluster's own links between them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from taskflow.machine.cluster import Cluster
from taskflow.machine.collectives import Collectives
from taskflow.machine.parts import Device, Link, Processor


@dataclass(frozen=True, slots=True)
class PartOfMachine:
    """Processor p is the ``whole``'s processor ``members[p]``. ValueError if there are no members, or one is there twice, or not
    at all in the whole."""

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
        """The whole's."""
        return self.whole.kinds

    @property
    def collectives(self) -> Collectives | None:
        """How the whole's collective library performs."""
        return self.whole.collectives

    def route(self, source: int, target: int) -> tuple[Link, ...]:
        """The whole's links between two members."""
        return self.whole.route(self.members[source], self.members[target])

    def way_out(self, processor: int) -> tuple[Link, ...]:
        """The links from a member to the network between the nodes."""
        return self.whole.way_out(self.members[processor])

    def way_in(self, processor: int) -> tuple[Link, ...]:
        """The links to a member from there."""
        return self.whole.way_in(self.members[processor])
