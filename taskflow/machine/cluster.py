"""Cluster: a machine declared as kinds of nodes and how many there are of each, joined by a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from numbers import Integral

from taskflow.drawing import box, device_colour, svg, table, text
from taskflow.machine.library import Collectives
from taskflow.machine.network import Network
from taskflow.machine.parts import Device, Link, Processor
from taskflow.machine.template import MOST_DEVICES, NETWORK, NodeTemplate
from taskflow.machine.topology import Path, Topology
from taskflow.machine.torus import Torus
from taskflow.programs import TrainingProgram

MOST_NODES = 32  # that a notebook shows
PRECISIONS = {"fp32": "float32", "tf32": "tf32", "bf16": "bfloat16"}  # of products of float32 arrays -> whose rate they run at


@dataclass(frozen=True, slots=True)
class Cluster:
    """Processors are numbered node by node. ``layout``: (node name, number of nodes) in order. ``devices``: how many processors
    are used, from the first (None: all); the last node keeps its links even if some of its processors are idle. ``extensible``:
    asking for more devices adds nodes of the last kind. ``collectives``: performance of its collective library; None: each
    collective goes around one ring. ``network``: what is above the cards of its nodes; None: a switch that never blocks.

    A route within a node is a shortest path there; between nodes, one to the network and one from it. Routes are found when
    first asked for. Raises ValueError if the declaration is inconsistent or has more than MOST_DEVICES processors.
    """

    name: str
    kinds: tuple[Device, ...]
    nodes: tuple[NodeTemplate, ...]
    layout: tuple[tuple[str, int], ...]
    devices: int | None = None
    extensible: bool = False
    source: str = ""
    collectives: Collectives | None = None
    network: Network | None = None
    processors: tuple[Processor, ...] = field(init=False, compare=False, repr=False)
    _placed: _Placed = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        sizes = {node.name: node.count for node in self.nodes}
        if (total := sum(sizes[name] * count for name, count in self.layout)) > MOST_DEVICES:
            raise ValueError(f"machine {self.name}: may have {MOST_DEVICES:,} processors at most, got {total:,}")
        placed = _Placed(self)
        object.__setattr__(self, "_placed", placed)
        object.__setattr__(self, "processors", placed.processors)

    def route(self, source: int, target: int) -> tuple[Link, ...]:
        """Return the links from one processor to another. Raises IndexError if one of them does not exist."""
        return self._placed.route(source, target)

    def way_out(self, processor: int) -> tuple[Link, ...]:
        """Return the links from a processor to the network between nodes, in a machine of several nodes."""
        return self._placed.half(processor, True)

    def way_in(self, processor: int) -> tuple[Link, ...]:
        """Return the links from the network between nodes to a processor."""
        return self._placed.half(processor, False)

    def alike_routes(self, sources: Sequence[int], targets: Sequence[int]) -> list[list[int]] | None:
        """Return the numbers of the links from each source to its target, one list for each link along the way, where nodes of one
        kind have these links at the same places; else None."""
        return self._placed.alike_routes(sources, targets)

    def alike_ways(self, processors: Sequence[int], out: bool) -> list[list[int]] | None:
        """Return the same for the links from processors to the network between nodes (``out``), or from there to them."""
        return self._placed.alike_ways(processors, out)

    def repeated(self, members: Sequence[int]) -> tuple[int, list[int]] | None:
        """Return how many members are on each node, where they lie in the same places of nodes of one kind, node after node; else
        None. With it, for each node, by how much its links' numbers are above those of the first."""
        return self._placed.repeated(members)

    def link_names(self, source: int, target: int) -> tuple[str, ...]:
        """Return the names of a route's links."""
        return tuple(link.name for link in self.route(source, target))

    @property
    def link_count(self) -> int:
        """Upper bound of link numbers (exclusive)."""
        return self._placed.link_count

    @property
    def node_count(self) -> int:
        """Number of nodes with at least one processor in use."""
        return self.processors[-1].node + 1

    def prefix(self, devices: int) -> Cluster:
        """Return the machine of the first ``devices`` processors, with added nodes if there are too few and it is extensible.

        Raises ValueError if there are not so many, or for more than MOST_DEVICES.
        """
        if not isinstance(devices, Integral) or devices < 1:
            raise ValueError(f"machine {self.name}: devices must be 1 or more, got {devices!r}")
        if len(self.nodes) == 1 and self.nodes[0].torus is not None:
            return self._of_slices(int(devices))
        layout, sizes = list(self.layout), {n.name: n.count for n in self.nodes}
        total = sum(sizes[name] * count for name, count in layout)
        if devices > total:
            name, count = layout[-1]
            if not self.extensible:
                raise ValueError(f"machine {self.name}: has {total} processors, {devices} asked for")
            layout[-1] = (name, count - (total - devices) // sizes[name])
            total = sum(sizes[name] * count for name, count in layout)
        return replace(self, layout=tuple(layout), devices=None if devices == total else devices)

    def _of_slices(self, devices: int) -> Cluster:
        """The machine of the first processors of a slice that has so many, or of several of the largest slices."""
        node = self.nodes[0].sliced(devices)
        count = -(-devices // node.count)
        if count > 1 and not self.extensible:
            raise ValueError(f"machine {self.name}: has slices of {node.count} processors at most, {devices} asked for")
        used = None if devices == count * node.count else devices
        return replace(self, nodes=(node,), layout=((node.name, count),), devices=used)

    def torus(self, members: Sequence[int]) -> tuple[Torus, list[int]] | None:
        """Return the torus on which processors of one node lie, and their places there; None if they do not."""
        return self._placed.torus(members)

    def multiplying_in(self, precision: str) -> Cluster:
        """Return the same machine with matrix products of float32 arrays multiplied in ``precision``, a key of PRECISIONS (the
        GPU kernels' TASKFLOW_PRECISION). Raises ValueError for any other key, or if one of the devices has no rate for it."""
        if precision not in PRECISIONS:
            raise ValueError(f"machine {self.name}: precision must be {', '.join(PRECISIONS)}, got {precision!r}")
        dtype = PRECISIONS[precision]
        for kind in self.kinds:
            if dtype not in (there_are := dict(kind.flops_per_second)):
                raise ValueError(f"machine {self.name}: {kind.kind} has no rate for {dtype}; it has {', '.join(there_are)}")
        kinds = tuple(replace(kind, products=dtype) for kind in self.kinds)
        return replace(self, name=f"{self.name}:{precision}", kinds=kinds)

    def driven_by(self, program: TrainingProgram) -> Cluster:
        """Return the same machine with a training program that drives its devices."""
        return replace(self, kinds=tuple(replace(kind, program=program.on(kind.kind)) for kind in self.kinds))

    def __str__(self) -> str:
        kinds = list(dict.fromkeys(p.kind for p in self.processors))
        nodes = self.node_count
        return f"{self.name}: {len(self.processors)} x {'/'.join(kinds)} on {nodes} node{'s' * (nodes != 1)}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return _page(self)


def _page(cluster: Cluster) -> str:
    """The cluster as HTML: its nodes with a box a processor, and what its links are."""
    size, parts, last = 26, [], -1
    column = row = 0
    for processor in cluster.processors:
        if processor.node != last:
            column, row, last = 0, processor.node, processor.node
            if row < MOST_NODES:
                parts.append(text(0, row * size + 17, f"node {row}"))
        if row < MOST_NODES:
            title = f"processor {processor.number}: {processor.kind}, {processor.memory_bytes / 1e9:.3g} GB"
            colour = device_colour(processor.number, len(cluster.processors))
            parts.append(box(56 + column * size, row * size, size - 3, size - 3, colour, title, str(processor.number)))
        column += 1
    width = 56 + size * max(len(node.devices) for node in cluster.nodes)
    image = svg(width, size * min(cluster.node_count, MOST_NODES), parts, str(cluster))
    rows = [
        (node.name, " - ".join(wire.between), f"{wire.bytes_per_second / 1e9:.4g} GB/s", f"{wire.latency_seconds * 1e6:.3g} us",
         "each way" if wire.full_duplex else "shared")
        for node in cluster.nodes for wire in node.wires
    ]
    kinds = [
        (kind.kind, f"{kind.memory_bytes / 1e9:.3g} GB", f"{kind.rate() / 1e12:.3g} TFLOP/s",
         f"{kind.memory_bytes_per_second / 1e9:.4g} GB/s")
        for kind in cluster.kinds
    ]
    return (
        f"<div><div>{escape(str(cluster))}</div>{image}"
        f"{table(('device', 'memory', 'float32', 'memory rate'), kinds)}"
        f"{table(('node', 'link', 'rate', 'latency', 'duplex'), rows)}</div>"
    )


class _Placed:
    """A cluster's processors and link numbers, and the routes that were asked for."""

    def __init__(self, cluster: Cluster) -> None:
        kinds = {device.kind: device for device in cluster.kinds}
        topologies = {node.name: Topology(node) for node in cluster.nodes}
        self._nodes: list[Topology] = []
        self._first_link: list[int] = []
        self._local: list[str] = []  # the name within its node of each processor
        self._within: dict[tuple[int, int], tuple[Link, ...]] = {}  # routes in a node
        self._out: dict[int, tuple[Link, ...]] = {}
        self._into: dict[int, tuple[Link, ...]] = {}
        self._links: dict[int, Link] = {}
        self._network = cluster.network or Network()
        self._crossing: dict[tuple[int, int], tuple[Link, ...]] = {}  # (target, levels that are left) -> links into it
        self.link_count = 0
        processors: list[Processor] = []
        limit = cluster.devices
        for name, count in cluster.layout:
            topology = topologies[name]
            for _ in range(count):
                if limit is not None and len(processors) >= limit:
                    break
                for local, kind in zip(topology.template.processor_names, topology.template.devices):
                    if limit is None or len(processors) < limit:
                        processors.append(Processor(len(processors), kinds[kind], len(self._nodes)))
                        self._local.append(local)
                self._first_link.append(self.link_count)
                self._nodes.append(topology)
                self.link_count += topology.size
        if not processors or (limit is not None and len(processors) < limit):
            raise ValueError(f"machine {cluster.name}: has {len(processors)} processors, {limit or 'at least 1'} asked for")
        self.processors = tuple(processors)
        self._node = [processor.node for processor in processors]
        _reachable(cluster, [topologies[name] for name, _ in cluster.layout], len(self._nodes))

    def torus(self, members: Sequence[int]) -> tuple[Torus, list[int]] | None:
        node = self._node[members[0]]
        torus = self._nodes[node].template.torus
        if torus is None or any(self._node[member] != node for member in members):
            return None
        first = self._node.index(node)
        return torus, [member - first for member in members]

    def route(self, source: int, target: int) -> tuple[Link, ...]:
        count = len(self._node)
        if not (0 <= source < count and 0 <= target < count):
            raise IndexError(f"route {source} -> {target}: processors are 0 to {count - 1}")
        if source == target:
            return ()
        if (a := self._node[source]) != self._node[target]:  # two halves are kept, not the pairs, which are a million of 1,024
            if self._network.levels or self._network.rails:
                return self._over(source, target)
            out, into = self._out.get(source), self._into.get(target)
            return (self.half(source, True) if out is None else out) + (self.half(target, False) if into is None else into)
        found = self._within.get((source, target))
        if found is None:
            path = self._nodes[a].path(self._local[source], self._local[target])
            found = self._within[source, target] = self._place(a, path)
        return found

    def _over(self, source: int, target: int) -> tuple[Link, ...]:
        """A route between nodes over a network of levels or rails."""
        a, crossed = self._node[source], self._network.crossed(self._node[source], self._node[target])
        out, there = self.half(source, True), self._local[target]
        if self._network.rails and there != self._local[source] and there in self._nodes[a].template.processor_names:
            within, card = self._nodes[a].path(self._local[source], there), self._nodes[a].path(there, NETWORK)
            out = self._place(a, within) + self._place(a, card)
        if not crossed:
            return out + self.half(target, False)
        key = target, crossed
        if key not in self._crossing:
            share, latency = self._network.upwards(crossed)
            *before, last = self.half(target, False)
            rate = min(link.bytes_per_second for link in (*before, last)) * share
            slower = replace(last, bytes_per_second=rate, latency_seconds=last.latency_seconds + latency)
            self._crossing[key] = (*before, slower)
        return out + self._crossing[key]

    def _alike(self, processors: Sequence[int]) -> bool:
        """True if these have the same place in nodes of one kind."""
        return len({(self._local[p], id(self._nodes[self._node[p]])) for p in processors}) == 1

    def alike_routes(self, sources: Sequence[int], targets: Sequence[int]) -> list[list[int]] | None:
        here, there = [self._node[p] for p in sources], [self._node[p] for p in targets]
        if not (self._alike(sources) and self._alike(targets)) or len({a == b for a, b in zip(here, there)}) != 1:
            return None
        if here[0] == there[0]:
            return self._numbers(self._nodes[here[0]].path(self._local[sources[0]], self._local[targets[0]]), here)
        if self._network.rails and self._local[sources[0]] != self._local[targets[0]]:
            return None
        if len({self._network.crossed(a, b) for a, b in zip(here, there)}) > 1:
            return None
        out, into = self.alike_ways(sources, True), self.alike_ways(targets, False)
        return None if out is None or into is None else out + into

    def alike_ways(self, processors: Sequence[int], out: bool) -> list[list[int]] | None:
        nodes, local = [self._node[p] for p in processors], self._local[processors[0]]
        ends = (local, NETWORK) if out else (NETWORK, local)
        return self._numbers(self._nodes[nodes[0]].path(*ends), nodes) if self._alike(processors) else None

    def _numbers(self, path: Path | None, nodes: Sequence[int]) -> list[list[int]] | None:
        """The numbers of a path's links in several nodes."""
        return None if path is None else [[self._first_link[node] + slot.number for node in nodes] for slot in path.slots]

    def repeated(self, members: Sequence[int]) -> tuple[int, list[int]] | None:
        nodes = [self._node[p] for p in members]
        size = next((i for i, node in enumerate(nodes) if node != nodes[0]), len(nodes))
        own = nodes[::size]
        if len(nodes) % size or len(set(own)) < len(own) or nodes != [node for node in own for _ in range(size)]:
            return None
        if not all(self._alike(members[i::size]) for i in range(size)):
            return None
        return size, [self._first_link[node] - self._first_link[own[0]] for node in own]

    def half(self, processor: int, out: bool) -> tuple[Link, ...]:
        """Return the links from a processor to the network between the nodes, or from there to it."""
        halves = self._out if out else self._into
        found = halves.get(processor)
        if found is None:
            a, local = self._node[processor], self._local[processor]
            path = self._nodes[a].path(local, NETWORK) if out else self._nodes[a].path(NETWORK, local)
            found = halves[processor] = self._place(a, path)
        return found

    def _place(self, node: int, path: Path | None) -> tuple[Link, ...]:
        assert path is not None  # _reachable has looked
        links = []
        for slot in path.slots:
            number = self._first_link[node] + slot.number
            if number not in self._links:
                wire = slot.wire
                self._links[number] = Link(
                    number, f"node{node}.{slot.name}", wire.bytes_per_second, wire.latency_seconds,
                    wire.occupies_endpoints,
                )
            links.append(self._links[number])
        return tuple(links)


def _reachable(cluster: Cluster, topologies: list[Topology], nodes: int) -> None:
    """ValueError unless every processor can reach every other one."""
    for topology in {id(t): t for t in topologies}.values():
        if (pair := topology.unconnected(network=nodes > 1)) is not None:
            raise ValueError(
                f"machine {cluster.name}: node {topology.template.name!r}: no path over switches from {pair[0]!r} to "
                f"{pair[1]!r}; add a link"
            )
