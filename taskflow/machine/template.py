"""NodeTemplate: declaration of one node of a cluster: processors, switches and the wires between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import combinations
from typing import Annotated

from msgspec import Meta

from taskflow.machine.parts import Ends
from taskflow.machine.torus import Torus
from taskflow.reading import Count, Name
from taskflow.wording import some

NETWORK = "network"  # the vertex that all nodes share: a switch that never blocks
MOST_DEVICES = 100_000  # processors of a machine


@dataclass(frozen=True, slots=True)
class Group:
    """Processors of one kind: ``gpu0``, ``gpu1``, ..."""

    name: Annotated[Name, Meta(description="What the number of each is put behind.")]
    device: Annotated[Name, Meta(description="Its kind, one of the file's devices.")]
    count: Annotated[Count, Meta(description="How many.")] = 1


@dataclass(frozen=True, slots=True)
class Wire:
    """Declaration of a connection.

    It is ``between`` two vertices; with ``mesh`` there is a separate wire between every two of the named vertices. A name may
    contain ``*``: ``("gpu*", "nvswitch")`` makes one wire for every gpu. Full duplex: ``bytes_per_second`` in each direction at
    the same time; half duplex: one transfer at a time.
    """

    between: tuple[str, ...]
    bytes_per_second: float
    latency_seconds: float
    mesh: bool = False
    full_duplex: bool = True
    occupies_endpoints: Ends = False
    source: str = ""


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """A kind of node. ``network`` may be an end of its wires. ``torus``: its processors are a torus of chips, in their order, and
    reach each other over it. Raises ValueError for more than MOST_DEVICES processors, or if a torus has another number of chips."""

    name: str
    processors: tuple[Group, ...]
    switches: tuple[str, ...]
    wires: tuple[Wire, ...]
    source: str = ""
    torus: Torus | None = None

    def __post_init__(self) -> None:
        if self.count > MOST_DEVICES:
            raise ValueError(f"node {self.name!r}: a machine may have {MOST_DEVICES:,} processors at most, got {self.count:,}")
        if self.torus is not None and self.torus.count != self.count:
            raise ValueError(f"node {self.name!r}: a torus of {self.torus.count} chips, but {self.count} processors")

    @property
    def count(self) -> int:
        """Number of processors."""
        return sum(group.count for group in self.processors)

    def sliced(self, count: int) -> NodeTemplate:
        """Return the node with the smallest slice of its torus that has so many processors, or else the largest one."""
        assert self.torus is not None
        torus = self.torus.sliced(count)
        (group,) = self.processors
        return replace(self, processors=(replace(group, count=torus.count),), torus=torus)

    @property
    def processor_names(self) -> tuple[str, ...]:
        return tuple(f"{g.name}{i}" for g in self.processors for i in range(g.count))

    @property
    def devices(self) -> tuple[str, ...]:
        """Device kind of every processor."""
        return tuple(g.device for g in self.processors for _ in range(g.count))

    @property
    def vertices(self) -> tuple[str, ...]:
        """Vertices: processors, then switches, then the network."""
        return (*self.processor_names, *self.switches, NETWORK)

    def members(self, wire: Wire) -> tuple[str, ...]:
        """Return the vertices of a mesh. Raises ValueError if it names fewer than two, or one that does not exist."""
        found = dict.fromkeys(name for pattern in wire.between for name in self._matching(pattern, wire))
        if len(found) < 2:
            raise ValueError(f"{self._who(wire)}: a mesh needs at least 2 members, got {', '.join(found)}")
        return tuple(found)

    def ends(self, wire: Wire) -> Iterator[tuple[str, str]]:
        """Return the pairs of vertices that a wire connects. Raises ValueError if it names one that does not exist, or one
        twice."""
        if wire.mesh:
            yield from combinations(self.members(wire), 2)
            return
        if len(wire.between) != 2:
            raise ValueError(f"{self._who(wire)}: 'between' must name 2 ends, got {len(wire.between)}")
        for a in self._matching(wire.between[0], wire):
            for b in self._matching(wire.between[1], wire):
                if a == b:
                    raise ValueError(f"{self._who(wire)}: connects {a!r} with itself")
                yield a, b

    def _who(self, wire: Wire) -> str:
        return f"node {self.name!r}: link {' - '.join(wire.between)}"

    def _matching(self, pattern: str, wire: Wire) -> list[str]:
        names = [name for name in self.vertices if fnmatchcase(name, pattern)]
        if not names:
            raise ValueError(
                f"{self._who(wire)}: no processor or switch {pattern!r}; there are {some([*self.vertices], 20)}"
            )
        return names
