"""Machine changes: the same machine with faster links, more memory or faster devices."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from taskflow.machine import Cluster, Device, NodeTemplate, Wire

KINDS = ("links", "memory", "compute", "latency")
MOST = 1e6  # times as much, or as little, of anything


@dataclass(frozen=True, slots=True)
class Change:
    """Improvement of ``what`` by ``factor``: one of KINDS, or a pattern for the ends of links, whose bandwidth improves:
    ``network`` and ``board*`` stand for all links at these vertices, ``pcie-network`` for those between the two."""

    what: str
    factor: float

    @classmethod
    def parse(cls, text: str) -> Change:
        """Parse a change such as ``links=2x``. Raises ValueError if it is not of this form."""
        match = re.fullmatch(r"\s*([^=\s]+)\s*=\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*[x*]?\s*", text)
        if match is None:
            raise ValueError(
                f"what-if {text!r}: write WHAT=FACTOR, for example links=2x, memory=2x, compute=1.5x, latency=0.5x, or the end of "
                f"some links, for example network=4x, or both, pcie-network=4x"
            )
        factor = float(match.group(2))
        if not 1 / MOST <= factor <= MOST:
            raise ValueError(f"what-if {text!r}: the factor must be a number from {1 / MOST:g} to {MOST:g}, got {match.group(2)}")
        return cls(match.group(1), factor)

    def __str__(self) -> str:
        return f"{self.what}={self.factor:g}x"


def changed(machine: Cluster, changes: Iterable[Change]) -> Cluster:
    """Return the machine with all changes.

    ``links``: bandwidth of every link. ``latency``: of every link. ``memory``: bytes of every device. ``compute``: rates of
    arithmetic and of the memory (launching a kernel takes as long as before). Raises ValueError if a pattern matches no link.
    """
    for change in changes:
        machine = _changed(machine, change)
    return machine


def link_ends(machine: Cluster) -> list[str]:
    """Return the names of the vertices between which links go, as the machine declares them."""
    return list(dict.fromkeys(end for node in machine.nodes for wire in node.wires for end in wire.between))


def link_pairs(machine: Cluster) -> list[str]:
    """Return both ends of every kind of link, as `Change` takes them."""
    wires = [wire for node in machine.nodes for wire in node.wires]
    return list(dict.fromkeys("-".join(wire.between if len(wire.between) > 1 else wire.between * 2) for wire in wires))


def _joins(wire: Wire, what: str) -> bool:
    """True if ``what`` names an end of the wire, or both: any hyphen may be the one between them."""
    ends = wire.between
    if any(_named(end, what) for end in ends):
        return True
    words = what.split("-")
    pairs = [(a, b) for i, a in enumerate(ends) for k, b in enumerate(ends) if i != k or wire.mesh]
    return any(
        _named(a, "-".join(words[:i])) and _named(b, "-".join(words[i:])) for i in range(1, len(words)) for a, b in pairs
    )


def _named(end: str, pattern: str) -> bool:
    """Ends may be patterns themselves, ``gpu[01]``: as the machine declares them they are always found."""
    return end == pattern or fnmatchcase(end, pattern)


def _changed(machine: Cluster, change: Change) -> Cluster:
    name = f"{machine.name}, {change}"
    if change.what == "memory":
        kinds = tuple(replace(k, memory_bytes=int(k.memory_bytes * change.factor)) for k in machine.kinds)
        return replace(machine, name=name, kinds=kinds)
    if change.what == "compute":
        return replace(machine, name=name, kinds=tuple(_faster(k, change.factor) for k in machine.kinds))
    hits = 0
    nodes: list[NodeTemplate] = []
    for node in machine.nodes:
        wires: list[Wire] = []
        for wire in node.wires:
            hit = change.what in ("links", "latency") or _joins(wire, change.what)
            hits += hit
            wires.append(_rewired(wire, change) if hit else wire)
        nodes.append(replace(node, wires=tuple(wires)))
    if not hits:
        raise ValueError(
            f"what-if {change}: {machine.name} has no links at {change.what!r}; use {', '.join(KINDS)}, or one of "
            f"{', '.join(link_ends(machine)) or 'no links at all'}; or of both ends, {', '.join(link_pairs(machine)) or 'of none'}"
        )
    return replace(machine, name=name, nodes=tuple(nodes))


def _faster(kind: Device, factor: float) -> Device:
    return replace(
        kind, flops_per_second=tuple((dtype, rate * factor) for dtype, rate in kind.flops_per_second),
        memory_bytes_per_second=kind.memory_bytes_per_second * factor,
    )


def _rewired(wire: Wire, change: Change) -> Wire:
    if change.what == "latency":
        return replace(wire, latency_seconds=wire.latency_seconds * change.factor)
    return replace(wire, bytes_per_second=wire.bytes_per_second * change.factor)
