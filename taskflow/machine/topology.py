"""Topology: the directed links of one kind of node, and the shortest paths over them, found when they are first asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from taskflow.machine.template import NETWORK, NodeTemplate, Wire
from taskflow.machine.torus import Torus


@dataclass(frozen=True, slots=True)
class Slot:
    """Link of a kind of node; ``number`` counts from the node's first link."""

    number: int
    name: str
    wire: Wire


@dataclass(frozen=True, slots=True)
class Path:
    """Path from one vertex to another, and the figures by which paths are compared: hops, then bandwidth, then latency."""

    slots: tuple[Slot, ...]
    bytes_per_second: float
    latency_seconds: float

    def then(self, slot: Slot) -> Path:
        """Return this path extended by one slot."""
        return Path(
            (*self.slots, slot), min(self.bytes_per_second, slot.wire.bytes_per_second),
            self.latency_seconds + slot.wire.latency_seconds,
        )

    def always_better_than(self, other: Path) -> bool:
        """True if this path is better than another between the same vertices with the same number of hops, however both are
        extended."""
        if self.bytes_per_second < other.bytes_per_second or self.latency_seconds > other.latency_seconds:
            return False
        return self.latency_seconds < other.latency_seconds or self._numbers < other._numbers

    def key(self) -> tuple[float, float, tuple[int, ...]]:
        """Sort key; the least is the best. Slot numbers break ties, so the choice is deterministic."""
        return -self.bytes_per_second, self.latency_seconds, self._numbers

    @property
    def _numbers(self) -> tuple[int, ...]:
        return tuple(slot.number for slot in self.slots)


class Topology:
    """Links and shortest paths of a kind of node. Paths pass through switches only, never through another processor.

    A mesh of m members has m * m slots, which are made when a path needs them.
    """

    def __init__(self, template: NodeTemplate) -> None:
        self.template = template
        self._processors = frozenset(template.processor_names)
        self._edges: dict[str, dict[str, Slot]] = {name: {} for name in template.vertices}
        self._meshes: list[tuple[int, dict[str, int], Wire]] = []
        self._trees: dict[str, dict[str, Path]] = {}
        self._ports = {name: i for i, name in enumerate(template.processor_names)} if template.torus is not None else {}
        self.size = 2 * len(self._ports)  # how many slots
        for wire in template.wires:
            if wire.mesh and wire.full_duplex:
                self._add_mesh(wire)
            else:
                for a, b in template.ends(wire):
                    self._add(a, b, wire)

    def _over_torus(self, source: str, target: str, torus: Torus) -> Path:
        """From a chip to another: over one link's rate. Which links it passes on the way is not told; the chips' ports are busy."""
        wire = Wire(("torus",), torus.bytes_per_second, torus.hop_seconds / 2, source=torus.source)
        out, into = (2 * self._ports[name] for name in (source, target))
        slots = Slot(out, f"{source}->torus", wire), Slot(into + 1, f"torus->{target}", wire)
        return Path(slots, torus.bytes_per_second, torus.hop_seconds)

    def _add(self, a: str, b: str, wire: Wire) -> None:
        if b in self._edges[a] or any(a in mesh and b in mesh for _, mesh, _ in self._meshes):
            self._twice(a, b)
        there = Slot(self.size, f"{a}->{b}" if wire.full_duplex else f"{a}-{b}", wire)
        back = Slot(self.size + 1, f"{b}->{a}", wire) if wire.full_duplex else there
        self._edges[a][b], self._edges[b][a] = there, back
        self.size = back.number + 1

    def _add_mesh(self, wire: Wire) -> None:
        members = {name: i for i, name in enumerate(self.template.members(wire))}
        for a in members:
            for b in self._edges[a]:
                if b in members:
                    self._twice(a, b)
        for _, mesh, _ in self._meshes:
            if len(shared := [name for name in members if name in mesh]) > 1:
                self._twice(*shared[:2])
        self._meshes.append((self.size, members, wire))
        self.size += len(members) ** 2

    def _twice(self, a: str, b: str) -> NoReturn:
        raise ValueError(
            f"node {self.template.name!r}: two links between {a!r} and {b!r}; declare one with their total rate"
        )

    def _neighbours(self, vertex: str) -> list[tuple[str, Slot]]:
        found = list(self._edges[vertex].items())
        for first, members, wire in self._meshes:
            if vertex in members:
                row = first + members[vertex] * len(members)
                found += [
                    (other, Slot(row + i, f"{vertex}->{other}", wire)) for other, i in members.items() if other != vertex
                ]
        return found

    def unconnected(self, network: bool) -> tuple[str, str] | None:
        """Return two processors without a path between them or, with ``network``, one that does not reach it; None if all are
        connected."""
        names = self.template.processor_names
        if network:
            for name in names:
                if self.path(NETWORK, name) is None:
                    return name, NETWORK
        if self._ports or any(all(name in members for name in names) for _, members, _ in self._meshes):
            return None  # every two have a link of their own: no need to look at each pair of a large mesh
        for i, name in enumerate(names):
            for other in names[i + 1 :]:
                if self.path(name, other) is None:
                    return name, other
        return None

    def path(self, source: str, target: str) -> Path | None:
        """Return the path with the fewest hops, and among these the most bandwidth; None if there is none."""
        if self._ports and source != target and source in self._ports and target in self._ports:
            assert self.template.torus is not None
            return self._over_torus(source, target, self.template.torus)
        if source not in self._trees:
            self._trees[source] = self._tree(source)
        return self._trees[source].get(target)

    def _tree(self, source: str) -> dict[str, Path]:
        start = Path((), float("inf"), 0.0)
        best, border = {source: start}, {source: [start]}
        while border:
            reached: dict[str, list[Path]] = {}
            for vertex, paths in border.items():
                if vertex != source and (vertex in self._processors or vertex == NETWORK):
                    continue
                for other, slot in self._neighbours(vertex):
                    if other not in best:
                        for path in paths:
                            _keep(reached.setdefault(other, []), path.then(slot))
            best.update({vertex: min(paths, key=Path.key) for vertex, paths in reached.items()})
            border = reached
        return best


def _keep(paths: list[Path], path: Path) -> None:
    """Add a path to those that may become the best, and take out those that no longer may. Of two paths to a switch, that with
    more bandwidth may be the worse one behind a narrow link, where latency decides."""
    if not any(other.always_better_than(path) for other in paths):
        paths[:] = [other for other in paths if not path.always_better_than(other)]
        paths.append(path)
