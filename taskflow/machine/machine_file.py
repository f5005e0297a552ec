"""JSON form of a machine, described in docs/guide/machines.md: writing it, and reading it with checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from taskflow.machine.cluster import Cluster
from taskflow.machine.collectives_form import CollectivesEntry, collectives_of, entry_of
from taskflow.machine.network import Level, Network
from taskflow.machine.parts import AttentionRates, Device, ProductRates
from taskflow.machine.template import NETWORK, Group, NodeTemplate, Wire
from taskflow.machine.timed import Timed, TimedPoint
from taskflow.machine.torus import Slice, Torus
from taskflow.programs import ProgramEntry, program_entry, program_of
from taskflow.reading import LEAST, Count, Entry, Name, NotNegative, Positive, Whole, read_as

FORMAT = "taskflow-machine"
VERSION = 1
CLASSES = ("contraction", "convolution", "recurrent", "memory")  # what an efficiency may be given for

Source = Annotated[str, Meta(description="Where the figures are from.")]
Kernels = Literal["contraction", "convolution", "recurrent", "memory"]
Reached = Annotated[float, Meta(ge=LEAST, le=1)]


class ProductEntry(Entry, frozen=True, kw_only=True):
    """How a device's library performs at matrix products of one type."""

    start_seconds: Annotated[NotNegative, Meta(description="Of a kernel.")]
    reached: Annotated[Positive, Meta(description="Part of the peak that endless tiles would reach.")]
    fill_terms: Annotated[NotNegative, Meta(description="Terms in whose time a tile starts and ends.")]
    edge: Annotated[NotNegative, Meta(description="A tile of a x b reaches 1 / (1 + edge / a + edge / b) of that.")]
    quantised: Annotated[float, Meta(ge=0, le=1, description="How far the last wave of tiles is a whole one.")]
    split_seconds: Annotated[NotNegative, Meta(description="Of adding the parts of a contraction.")]
    memory: Annotated[Positive, Meta(description="Part of the memory's rate for what comes from memory.")]
    cache: Annotated[Positive, Meta(description="The same for what comes from the cache.")]
    few: Annotated[NotNegative, Meta(description="Part of the multiprocessors that reach it.")] = 0.0
    beside: Annotated[NotNegative, Meta(description="Part of the shorter of arithmetic and traffic that is not hidden.")] = 0.0
    sustained: Annotated[NotNegative, Meta(description="By how much long kernels are slower.")] = 0.0
    cast: Annotated[NotNegative, Meta(description="Bytes for each number of the left factor to bring it into the type.")] = 0.0
    term_seconds: Annotated[NotNegative, Meta(description="Least time for a term of a tile.")] = 0.0
    by_rows: Annotated[Whole, Meta(description="Least results of a tile for each row, where rows alone choose it.")] = 0
    source: Source | UnsetType = UNSET


class AttentionEntry(Entry, frozen=True, kw_only=True):
    """Parts of the peak that a kernel of attention reaches with heads of 128."""

    forward: Reached
    backward: Reached
    source: Source | UnsetType = UNSET


class TimedEntry(Entry, frozen=True, kw_only=True):
    """An operator that was timed."""

    name: Annotated[Name, Meta(description="The operator, as a probe calls it.")]
    group: Annotated[Name, Meta(description="Of operators that work alike.")]
    backward: Annotated[bool, Meta(description="Its backward pass.")] = False
    dtype: Annotated[Name, Meta(description="The type of its numbers.")] = "float32"
    points: Annotated[
        list[Annotated[list[NotNegative], Meta(min_length=3, max_length=4)]],
        Meta(min_length=1, description="Of forward the operations and bytes, then seconds, then seconds of the host to start it."),
    ]


class DeviceEntry(Entry, frozen=True, kw_only=True):
    """A kind of processor."""

    kind: Annotated[Name, Meta(description="Its name.")]
    memory_bytes: Annotated[Count, Meta(description="Memory of one.")]
    flops_per_second: Annotated[dict[Name, Positive], Meta(description="Peak operations a second by dtype, float32 among them.")]
    memory_bytes_per_second: Annotated[Positive, Meta(description="Peak rate of its memory.")]
    launch_seconds: Annotated[NotNegative, Meta(description="Added to every task.")]
    multiprocessors: Annotated[Count, Meta(description="Cores that a kernel must fill to reach the peak.")] = 1
    cache_bytes: Annotated[Whole, Meta(description="The last cache that they share.")] = 0
    efficiency: Annotated[dict[Kernels, Reached], Meta(description="Part of the peak that kernels reach.")] | UnsetType = UNSET
    source: Source | UnsetType = UNSET
    products: Annotated[
        Literal["float32", "tf32", "bfloat16"], Meta(description="At which rate float32 products run. Without it: float32.")
    ] | UnsetType = UNSET
    program: Annotated[
        Name | ProgramEntry, Meta(description="What drives it unless somebody says another: its name, or its figures.")
    ] | UnsetType = UNSET
    matrix_products: Annotated[
        dict[Name, ProductEntry], Meta(description="By dtype, how matrix products perform, where it was measured.")
    ] | UnsetType = UNSET
    power: Annotated[Reached, Meta(description="Part of the rate of products that its power limit allows.")] | UnsetType = UNSET
    attention: Annotated[
        dict[Name, AttentionEntry], Meta(description="By kernel of attention, what it reaches.")
    ] | UnsetType = UNSET
    timed: Annotated[list[TimedEntry], Meta(description="Operators that were timed there.")] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if "float32" not in self.flops_per_second:
            raise ValueError(f"'flops_per_second' must have a rate for 'float32', got {self.flops_per_second}")
        if self.products and self.products not in self.flops_per_second:
            raise ValueError(f"'products' needs a rate for {self.products!r} in 'flops_per_second', got {self.flops_per_second}")


class GroupEntry(Entry, frozen=True, kw_only=True):
    """Processors of one kind: ``gpu0``, ``gpu1``, ..."""

    name: Annotated[Name, Meta(description="What the number of each is put behind.")]
    device: Annotated[Name, Meta(description="Its kind, one of the file's devices.")]
    count: Annotated[Count, Meta(description="How many.")] = 1


class LinkEntry(Entry, frozen=True, kw_only=True):
    """A connection. It has either ``between`` or ``mesh``."""

    mesh: Annotated[
        list[Name], Meta(min_length=1, description="Every two of these vertices have a link of their own.")
    ] | UnsetType = UNSET
    between: Annotated[
        list[Name],
        Meta(min_length=2, max_length=2, description="Two vertices; network is one. A name may hold *, ? or [01]: a link a match."),
    ] | UnsetType = UNSET
    bytes_per_second: Annotated[Positive, Meta(description="Each way, if full duplex.")]
    latency_seconds: Annotated[NotNegative, Meta(description="Added to every transfer.")]
    duplex: Annotated[Literal["full", "half"], Meta(description="Half: one transfer at a time.")] = "full"
    occupies_endpoints: Annotated[
        bool | Literal["sender", "receiver"], Meta(description="Which processors copy themselves. Without it: none.")
    ] | UnsetType = UNSET
    source: Source | UnsetType = UNSET

    def __post_init__(self) -> None:
        if (self.mesh is UNSET) == (self.between is UNSET):
            raise ValueError("must have either 'between' or 'mesh'")


class SliceEntry(Entry, frozen=True, kw_only=True):
    """A shape of a torus."""

    sizes: Annotated[list[Count], Meta(min_length=1, description="Chips along each axis.")]
    wraps: Annotated[list[bool], Meta(min_length=1, description="Whether each axis is closed to a ring.")]


class TorusEntry(SliceEntry, frozen=True, kw_only=True):
    """A torus of a node's processors, the last axis first in their order."""

    bytes_per_second: Annotated[Positive, Meta(description="Of a link between neighbours, each way.")]
    hop_seconds: Annotated[NotNegative, Meta(description="From a chip to its neighbour.")]
    slices: Annotated[list[SliceEntry], Meta(description="Other shapes that there are, for other numbers of processors.")] = []  # noqa: RUF012
    source: Source | UnsetType = UNSET


class NodeEntry(Entry, frozen=True, kw_only=True):
    """A kind of node."""

    name: Annotated[Name, Meta(description="Its name.")]
    source: Source | UnsetType = UNSET
    processors: Annotated[list[GroupEntry], Meta(min_length=1, description="Its processors.")]
    switches: Annotated[list[Name], Meta(description="Vertices that only pass data on.")] = []  # noqa: RUF012
    links: Annotated[list[LinkEntry], Meta(description="Its links.")] = []  # noqa: RUF012
    torus: Annotated[TorusEntry, Meta(description="The torus over which its processors reach each other.")] | UnsetType = UNSET


class LevelEntry(Entry, frozen=True, kw_only=True):
    """A level of the network between nodes: of a fat tree, or islands."""

    nodes: Annotated[Count, Meta(description="So many nodes, in their order, lie below each switch of it.")]
    share: Annotated[Reached, Meta(description="Part of what all their cards send that can leave the switch at once.")] = 1.0
    latency_seconds: Annotated[NotNegative, Meta(description="Added to a message that leaves it.")] = 0.0
    source: Source | UnsetType = UNSET


class NetworkEntry(Entry, frozen=True, kw_only=True):
    """The network above the cards of nodes."""

    levels: Annotated[list[LevelEntry], Meta(description="From the nodes upwards; beyond the last nothing blocks.")] = []  # noqa: RUF012
    rails: Annotated[bool, Meta(description="A card reaches only those in the same place of other nodes.")] = False
    source: Source | UnsetType = UNSET


class Placing(Entry, frozen=True, kw_only=True):
    """A number of nodes of one kind."""

    node: Annotated[Name, Meta(description="One of the file's nodes.")]
    count: Annotated[Count, Meta(description="How many.")]


class MachineFile(Entry, frozen=True, kw_only=True):
    """A machine: kinds of nodes, and the number of each."""

    format: Literal["taskflow-machine"]
    version: Literal[1]
    name: Annotated[Name, Meta(description="What results call it.")]
    source: Source | UnsetType = UNSET
    devices: Annotated[list[DeviceEntry], Meta(description="Kinds of processors.")]
    nodes: Annotated[list[NodeEntry], Meta(description="Kinds of nodes.")]
    layout: Annotated[list[Placing], Meta(description="The nodes, in the order in which processors are numbered.")]
    collectives: Annotated[
        CollectivesEntry, Meta(description="How the collective library performs. Without it: each collective goes around one ring.")
    ] | UnsetType = UNSET
    network: Annotated[NetworkEntry, Meta(description="Without it: a switch that never blocks.")] | UnsetType = UNSET
    use_devices: Annotated[Count, Meta(description="Only the first so many processors are used.")] | UnsetType = UNSET
    extensible: Annotated[bool, Meta(description="More nodes of the last kind may be had.")] | UnsetType = UNSET


# ---- from JSON -------------------------------------------------------------------------------------------------------
def parse(content: Any, where: str) -> Cluster:
    """Return the machine that a JSON value describes. Raises ValueError that begins with ``where`` and says what is wrong at
    which key."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{where}: not a machine file (its format must be {FORMAT!r})")
    if content.get("version") != VERSION:
        raise ValueError(f"{where}: version {content.get('version')!r} of the format; this taskflow reads {VERSION}")
    file = read_as(MachineFile, content, where)
    _distinct(f"{where}: device", [device.kind for device in file.devices])
    _distinct(f"{where}: node", [node.name for node in file.nodes])
    _declared(where, "device", [g.device for n in file.nodes for g in n.processors], [d.kind for d in file.devices])
    _declared(where, "node", [placing.node for placing in file.layout], [node.name for node in file.nodes])
    try:
        return Cluster(
            file.name, tuple(map(_device, file.devices)), tuple(map(_node, file.nodes)),
            tuple((placing.node, placing.count) for placing in file.layout), file.use_devices or None, bool(file.extensible),
            file.source or "", collectives_of(file.collectives) if file.collectives else None,
            _network(file.network) if file.network else None,
        )
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _distinct(what: str, names: Iterable[str]) -> None:
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise ValueError(f"{what} {', '.join(map(repr, twice))} declared twice")


def _declared(where: str, what: str, used: list[str], declared: list[str]) -> None:
    if missing := sorted(set(used) - set(declared)):
        raise ValueError(f"{where}: {what} {', '.join(map(repr, missing))} is used but not declared; "
                         f"declared are {', '.join(map(repr, sorted(declared))) or 'none'}")  # fmt: skip


def _device(entry: DeviceEntry) -> Device:
    return Device(
        entry.kind, entry.memory_bytes, _sorted(entry.flops_per_second), entry.memory_bytes_per_second, entry.launch_seconds,
        entry.multiprocessors, entry.cache_bytes, _sorted(entry.efficiency or {}), entry.source or "", entry.products or "float32",
        program_of(entry.program, entry.kind) if entry.program else None,
        tuple(sorted(((dtype, _rates(one)) for dtype, one in (entry.matrix_products or {}).items()), key=lambda pair: pair[0])),
        tuple((name, _attention(one)) for name, one in sorted((entry.attention or {}).items(), key=lambda pair: pair[0])),
        entry.power or 1.0, tuple(map(_timed, entry.timed or ())),
    )


def _timed(entry: TimedEntry) -> Timed:
    points = tuple(TimedPoint(*point) for point in entry.points)
    return Timed(entry.name, entry.group, entry.backward, entry.dtype, points)


def _attention(entry: AttentionEntry) -> AttentionRates:
    return AttentionRates(entry.forward, entry.backward, entry.source or "")


def _rates(entry: ProductEntry) -> ProductRates:
    values = {name: getattr(entry, name) for name in ProductEntry.__struct_fields__}
    return ProductRates(**{**values, "source": entry.source or ""})


def _network(entry: NetworkEntry) -> Network:
    levels = [Level(of.nodes, of.share, of.latency_seconds, of.source or "") for of in entry.levels]
    return Network(tuple(levels), entry.rails, entry.source or "")


def _sorted(table: Mapping[Any, float]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(table.items()))


def _node(entry: NodeEntry) -> NodeTemplate:
    groups = tuple(Group(group.name, group.device, group.count) for group in entry.processors)
    wires = tuple(
        Wire(
            tuple(link.mesh or link.between or ()), link.bytes_per_second, link.latency_seconds, bool(link.mesh),
            link.duplex == "full", link.occupies_endpoints or False, link.source or "",
        )
        for link in entry.links
    )
    node = NodeTemplate(
        entry.name, groups, tuple(entry.switches), wires, entry.source or "", _torus(entry.torus) if entry.torus else None
    )
    _distinct(f"node {node.name!r}: processor or switch ({NETWORK!r} is taken)", node.vertices)
    return node


def _torus(entry: TorusEntry) -> Torus:
    shapes = [Slice(tuple(one.sizes), tuple(one.wraps)) for one in (entry, *entry.slices)]
    return Torus(shapes[0], entry.bytes_per_second, entry.hop_seconds, tuple(shapes[1:]), entry.source or "")


# ---- to JSON ---------------------------------------------------------------------------------------------------------
def unparse(machine: Cluster) -> dict[str, Any]:
    """Return the JSON value of a machine, from which `parse` makes the same machine. Raises ValueError for what no file can
    say, such as a link of infinite rate."""
    file = MachineFile(
        format="taskflow-machine", version=1, name=machine.name, source=machine.source or UNSET,
        devices=[_of_device(device) for device in machine.kinds], nodes=[_of_node(node) for node in machine.nodes],
        layout=[Placing(node=node, count=count) for node, count in machine.layout],
        collectives=UNSET if machine.collectives is None else entry_of(machine.collectives),
        network=UNSET if machine.network is None else _of_network(machine.network),
        use_devices=UNSET if machine.devices is None else machine.devices, extensible=machine.extensible or UNSET,
    )
    content: dict[str, Any] = msgspec.to_builtins(file)
    read_as(MachineFile, content, f"machine {machine.name}")
    return content


def _of_device(device: Device) -> DeviceEntry:
    efficiency: dict[Any, float] = dict(device.efficiency)
    products: Any = device.products  # `unparse` checks both
    return DeviceEntry(
        kind=device.kind, memory_bytes=device.memory_bytes, flops_per_second=dict(device.flops_per_second),
        memory_bytes_per_second=device.memory_bytes_per_second, launch_seconds=device.launch_seconds,
        multiprocessors=device.multiprocessors, cache_bytes=device.cache_bytes, efficiency=efficiency or UNSET,
        source=device.source or UNSET, products=UNSET if products == "float32" else products,
        program=UNSET if device.program is None else program_entry(device.program, device.kind),
        matrix_products={dtype: _of_rates(rates) for dtype, rates in device.matrix_products} or UNSET,
        power=UNSET if device.power == 1 else device.power,
        attention={
            name: AttentionEntry(forward=one.forward, backward=one.backward, source=one.source or UNSET)
            for name, one in device.attention
        } or UNSET,
        timed=[
            TimedEntry(name=one.name, group=one.group, backward=one.backward, dtype=one.dtype, points=[list(p) for p in one.points])
            for one in device.timed
        ] or UNSET,
    )  # fmt: skip


def _of_rates(rates: ProductRates) -> ProductEntry:
    values = {name: getattr(rates, name) for name in ProductEntry.__struct_fields__}
    return ProductEntry(**{**values, "source": rates.source or UNSET})


def _of_network(network: Network) -> NetworkEntry:
    levels = [
        LevelEntry(nodes=of.nodes, share=of.share, latency_seconds=of.latency_seconds, source=of.source or UNSET)
        for of in network.levels
    ]
    return NetworkEntry(levels=levels, rails=network.rails, source=network.source or UNSET)


def _of_node(node: NodeTemplate) -> NodeEntry:
    return NodeEntry(
        name=node.name, source=node.source or UNSET, switches=list(node.switches), links=[_of_wire(wire) for wire in node.wires],
        processors=[GroupEntry(name=g.name, device=g.device, count=g.count) for g in node.processors],
        torus=UNSET if node.torus is None else _of_torus(node.torus),
    )


def _of_torus(torus: Torus) -> TorusEntry:
    slices = [SliceEntry(sizes=list(one.sizes), wraps=list(one.wraps)) for one in torus.slices]
    return TorusEntry(
        sizes=list(torus.shape.sizes), wraps=list(torus.shape.wraps), bytes_per_second=torus.bytes_per_second,
        hop_seconds=torus.hop_seconds, slices=slices, source=torus.source or UNSET,
    )


def _of_wire(wire: Wire) -> LinkEntry:
    ends = list(wire.between)
    return LinkEntry(
        mesh=ends if wire.mesh else UNSET, between=UNSET if wire.mesh else ends, bytes_per_second=wire.bytes_per_second,
        latency_seconds=wire.latency_seconds, duplex="full" if wire.full_duplex else "half",
        occupies_endpoints=wire.occupies_endpoints or UNSET, source=wire.source or UNSET,
    )
