"""The JSON form of a machine, described in docs/guide/machines.md: from values to JSON and, checked, back."""

from __future__ import annotations

from typing import Any

from taskflow.machine.cluster import PRECISIONS, Cluster
from taskflow.machine.fields import Fields, distinct
from taskflow.machine.parts import Device, Ends
from taskflow.machine.template import NETWORK, Group, NodeTemplate, Wire

FORMAT = "taskflow-machine"
VERSION = 1
CLASSES = ("contraction", "convolution", "recurrent", "memory")  # what an efficiency may be given for


def parse(content: Any, where: str) -> Cluster:
    """The machine that a JSON value describes. ValueError begins with ``where`` and says what is wrong."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{where}: not a machine file (its format must be {FORMAT!r})")
    if content.get("version") != VERSION:
        raise ValueError(f"{where}: version {content.get('version')!r} of the format; this taskflow reads {VERSION}")
    fields = Fields(where, content)
    fields.text("format"), fields.count("version")
    name, source = fields.text("name"), fields.text("source", "", empty=True)
    kinds = [_device(f"{where}: device {i}", x) for i, x in enumerate(fields.objects("devices"))]
    distinct(where, "device", [k.kind for k in kinds])
    nodes = [_node(f"{where}: node kind {i}", x) for i, x in enumerate(fields.objects("nodes"))]
    distinct(where, "node", [n.name for n in nodes])
    layout = [_placing(f"{where}: layout {i}", x) for i, x in enumerate(fields.objects("layout"))]
    limited = fields.has("use_devices")
    limit = fields.count("use_devices", 1)
    extensible = fields.flag("extensible", False)
    fields.done()
    _known(where, "device", {g.device for n in nodes for g in n.processors}, {k.kind for k in kinds})
    _known(where, "node", {node for node, _ in layout}, {n.name for n in nodes})
    try:
        return Cluster(name, tuple(kinds), tuple(nodes), tuple(layout), limit if limited else None, extensible, source)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _known(where: str, what: str, used: set[str], declared: set[str]) -> None:
    if missing := sorted(used - declared):
        raise ValueError(f"{where}: {what} {', '.join(map(repr, missing))} is used but not declared; "
                         f"declared are {', '.join(map(repr, sorted(declared))) or 'none'}")  # fmt: skip


def _device(who: str, value: Any) -> Device:
    fields = Fields(who, value)
    kind = fields.text("kind")
    fields.who = who = f"{who} {kind!r}"
    device = Device(
        kind, fields.count("memory_bytes"), fields.rates("flops_per_second"), fields.number("memory_bytes_per_second"),
        fields.number("launch_seconds", zero=True), fields.count("multiprocessors", 1), fields.count("cache_bytes", 0, zero=True),
        fields.rates("efficiency", {}), fields.text("source", "", empty=True), fields.text("products", "float32"),
    )
    fields.done()
    if not device.rate():
        raise ValueError(f"{who}: 'flops_per_second' must have a rate for 'float32', got {dict(device.flops_per_second)}")
    if device.products not in PRECISIONS.values() or device.products not in dict(device.flops_per_second):
        raise ValueError(
            f"{who}: 'products' must be one of {', '.join(PRECISIONS.values())}, with a rate in 'flops_per_second', got "
            f"{device.products!r}"
        )
    for name, part in device.efficiency:
        if name not in CLASSES or part > 1:
            raise ValueError(f"{who}: 'efficiency' must give numbers up to 1 for {', '.join(CLASSES)}, got {name!r}: {part}")
    return device


def _node(where: str, value: Any) -> NodeTemplate:
    fields = Fields(where, value)
    name = fields.text("name")
    fields.who = who = f"{where} {name!r}"
    groups = []
    for i, entry in enumerate(fields.objects("processors")):
        of = Fields(f"{who}: processors {i}", entry)
        groups.append(Group(of.text("name"), of.text("device"), of.count("count", 1)))
        of.done()
    switches = fields.names("switches", ())
    wires = tuple(_wire(f"{who}: link {i}", entry) for i, entry in enumerate(fields.objects("links", [])))
    source = fields.text("source", "", empty=True)
    fields.done()
    try:
        node = NodeTemplate(name, tuple(groups), switches, wires, source)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if not groups:
        raise ValueError(f"{who}: needs at least one processor")
    distinct(who, f"processor or switch ({NETWORK!r} is taken)", list(node.vertices))
    return node


def _wire(who: str, value: Any) -> Wire:
    fields = Fields(who, value)
    mesh = fields.has("mesh")
    ends = fields.names("mesh" if mesh else "between")
    fields.who = f"{who} ({' - '.join(ends)})"
    wire = Wire(
        ends, fields.number("bytes_per_second"), fields.number("latency_seconds", zero=True), mesh,
        fields.choice("duplex", ("full", "half"), "full") == "full", _ends(fields),
        fields.text("source", "", empty=True),
    )
    fields.done()
    return wire


def _ends(fields: Fields) -> Ends:
    """Who copies: ``true``, ``false``, or one of the two by name."""
    if isinstance(fields.peek("occupies_endpoints"), str):
        sender = fields.choice("occupies_endpoints", ("sender", "receiver"), "") == "sender"
        return "sender" if sender else "receiver"
    return fields.flag("occupies_endpoints", False)


def _placing(who: str, value: Any) -> tuple[str, int]:
    fields = Fields(who, value)
    placed = fields.text("node"), fields.count("count")
    fields.done()
    return placed


def unparse(machine: Cluster) -> dict[str, Any]:
    """The JSON value of a machine; `parse` gives the same machine back."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": machine.name,
        **({"source": machine.source} if machine.source else {}),
        "devices": [_of_device(device) for device in machine.kinds],
        "nodes": [_of_node(node) for node in machine.nodes],
        "layout": [{"node": node, "count": count} for node, count in machine.layout],
        **({"use_devices": machine.devices} if machine.devices is not None else {}),
        **({"extensible": True} if machine.extensible else {}),
    }


def _of_device(device: Device) -> dict[str, Any]:
    return {
        "kind": device.kind,
        "memory_bytes": device.memory_bytes,
        "flops_per_second": dict(device.flops_per_second),
        "memory_bytes_per_second": device.memory_bytes_per_second,
        "launch_seconds": device.launch_seconds,
        "multiprocessors": device.multiprocessors,
        "cache_bytes": device.cache_bytes,
        **({"efficiency": dict(device.efficiency)} if device.efficiency else {}),
        **({"source": device.source} if device.source else {}),
        **({"products": device.products} if device.products != "float32" else {}),
    }


def _of_node(node: NodeTemplate) -> dict[str, Any]:
    return {
        "name": node.name,
        **({"source": node.source} if node.source else {}),
        "processors": [{"name": g.name, "device": g.device, "count": g.count} for g in node.processors],
        "switches": list(node.switches),
        "links": [_of_wire(wire) for wire in node.wires],
    }


def _of_wire(wire: Wire) -> dict[str, Any]:
    return {
        "mesh" if wire.mesh else "between": list(wire.between),
        "bytes_per_second": wire.bytes_per_second,
        "latency_seconds": wire.latency_seconds,
        "duplex": "full" if wire.full_duplex else "half",
        **({"occupies_endpoints": wire.occupies_endpoints} if wire.occupies_endpoints else {}),
        **({"source": wire.source} if wire.source else {}),
    }
