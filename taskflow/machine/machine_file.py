"""JSON form of a machine, described in docs/guide/machines.md: writing it, and reading it with checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from taskflow.machine.cluster import Cluster
from taskflow.machine.library import Collectives, Reached, Source
from taskflow.machine.network import Network
from taskflow.machine.parts import Device
from taskflow.machine.template import NETWORK, Group, NodeTemplate, Wire
from taskflow.machine.timed import Timed, TimedPoint
from taskflow.machine.torus import Torus
from taskflow.programs import ProgramEntry, program_entry, program_of
from taskflow.reading import Count, Entry, Name, NotNegative, Positive, form_of, read_format, table_of, value_of

Kernels = Literal["contraction", "convolution", "recurrent", "memory"]  # what an efficiency may be given for

if TYPE_CHECKING:
    DeviceForm: TypeAlias = Any
    GroupEntry: TypeAlias = Any
    NetworkEntry: TypeAlias = Any
    CollectivesEntry: TypeAlias = Any
    TorusEntry: TypeAlias = Any
else:
    GroupEntry, NetworkEntry, CollectivesEntry, TorusEntry = map(form_of, (Group, Network, Collectives, Torus))


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


if not TYPE_CHECKING:
    DeviceForm = form_of(
        Device,
        efficiency=Annotated[dict[Kernels, Reached], Meta(description="Part of the peak that kernels reach.")],
        products=Annotated[
            Literal["float32", "tf32", "bfloat16"], Meta(description="At which rate float32 products run. Without it: float32.")
        ],
        program=Annotated[
            Name | ProgramEntry, Meta(description="What drives it unless somebody says another: its name, or its figures.")
        ],
        timed=Annotated[list[TimedEntry], Meta(description="Operators that were timed there.")],
    )


class DeviceEntry(DeviceForm, frozen=True, kw_only=True):  # type: ignore[call-arg,misc]  # made where it runs
    """A kind of processor."""

    def __post_init__(self) -> None:
        if "float32" not in self.flops_per_second:
            raise ValueError(f"'flops_per_second' must have a rate for 'float32', got {self.flops_per_second}")
        if self.products and self.products not in self.flops_per_second:
            raise ValueError(f"'products' needs a rate for {self.products!r} in 'flops_per_second', got {self.flops_per_second}")


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


class NodeEntry(Entry, frozen=True, kw_only=True):
    """A kind of node."""

    name: Annotated[Name, Meta(description="Its name.")]
    source: Source | UnsetType = UNSET
    processors: Annotated[list[GroupEntry], Meta(min_length=1, description="Its processors.")]
    switches: Annotated[list[Name], Meta(description="Vertices that only pass data on.")] = []  # noqa: RUF012
    links: Annotated[list[LinkEntry], Meta(description="Its links.")] = []  # noqa: RUF012
    torus: Annotated[TorusEntry, Meta(description="The torus over which its processors reach each other.")] | UnsetType = UNSET


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
    file = read_format(MachineFile, content, where, "a machine file")
    _distinct(f"{where}: device", [device.kind for device in file.devices])
    _distinct(f"{where}: node", [node.name for node in file.nodes])
    _declared(where, "device", [g.device for n in file.nodes for g in n.processors], [d.kind for d in file.devices])
    _declared(where, "node", [placing.node for placing in file.layout], [node.name for node in file.nodes])
    try:
        return Cluster(
            file.name, tuple(map(_device, file.devices)), tuple(map(_node, file.nodes)),
            tuple((placing.node, placing.count) for placing in file.layout), file.use_devices or None, bool(file.extensible),
            file.source or "", value_of(file.collectives) if file.collectives else None,
            value_of(file.network) if file.network else None,
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
    plain: Device = value_of(msgspec.structs.replace(entry, program=UNSET, timed=UNSET))
    program = program_of(entry.program, entry.kind) if entry.program else None
    return replace(plain, program=program, timed=tuple(map(_timed, entry.timed or ())))


def _timed(entry: TimedEntry) -> Timed:
    points = tuple(TimedPoint(*point) for point in entry.points)
    return Timed(entry.name, entry.group, entry.backward, entry.dtype, points)


def _node(entry: NodeEntry) -> NodeTemplate:
    groups = tuple(map(value_of, entry.processors))
    wires = tuple(
        Wire(
            tuple(link.mesh or link.between or ()), link.bytes_per_second, link.latency_seconds, bool(link.mesh),
            link.duplex == "full", link.occupies_endpoints or False, link.source or "",
        )
        for link in entry.links
    )
    node = NodeTemplate(
        entry.name, groups, tuple(entry.switches), wires, entry.source or "", value_of(entry.torus) if entry.torus else None
    )
    _distinct(f"node {node.name!r}: processor or switch ({NETWORK!r} is taken)", node.vertices)
    return node


# ---- to JSON ---------------------------------------------------------------------------------------------------------
def unparse(machine: Cluster) -> dict[str, Any]:
    """Return the JSON value of a machine, from which `parse` makes the same machine. Raises ValueError for what no file can
    say, such as a link of infinite rate."""
    file = MachineFile(
        format="taskflow-machine", version=1, name=machine.name, source=machine.source or UNSET,
        devices=[_of_device(device) for device in machine.kinds],  # type: ignore[misc]
        nodes=[_of_node(node) for node in machine.nodes],
        layout=[Placing(node=node, count=count) for node, count in machine.layout],
        collectives=UNSET if machine.collectives is None else table_of(machine.collectives),
        network=UNSET if machine.network is None else table_of(machine.network),
        use_devices=UNSET if machine.devices is None else machine.devices, extensible=machine.extensible or UNSET,
    )
    content: dict[str, Any] = msgspec.to_builtins(file)
    read_format(MachineFile, content, f"machine {machine.name}", "a machine file")
    return content


def _of_device(device: Device) -> dict[str, Any]:
    said = {"multiprocessors": 1, "cache_bytes": 0, **table_of(replace(device, program=None, timed=()))}
    if device.program is not None:
        said["program"] = program_entry(device.program, device.kind)
    if device.timed:
        said["timed"] = [{**table_of(one), "points": [list(point) for point in one.points]} for one in device.timed]
    return {key: said[key] for key in DeviceEntry.__struct_fields__ if key in said}


def _of_node(node: NodeTemplate) -> NodeEntry:
    return NodeEntry(
        name=node.name, source=node.source or UNSET, switches=list(node.switches), links=[_of_wire(wire) for wire in node.wires],
        processors=[table_of(group) for group in node.processors],
        torus=UNSET if node.torus is None else table_of(node.torus),
    )


def _of_wire(wire: Wire) -> LinkEntry:
    ends = list(wire.between)
    return LinkEntry(
        mesh=ends if wire.mesh else UNSET, between=UNSET if wire.mesh else ends, bytes_per_second=wire.bytes_per_second,
        latency_seconds=wire.latency_seconds, duplex="full" if wire.full_duplex else "half",
        occupies_endpoints=wire.occupies_endpoints or UNSET, source=wire.source or UNSET,
    )
