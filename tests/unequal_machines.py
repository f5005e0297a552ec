"""A machine of two kinds of device, for tests."""

from __future__ import annotations

from dataclasses import replace

from taskflow.machine import Cluster, load_machine
from taskflow.machine.template import NodeTemplate


def two_kinds(
    fast: int = 2, slow: int = 2, *, compute: float = 3.0, memory: float = 1.0, link: float = 1.0, scale: float = 1.0,
    nbytes: int | None = None,
) -> Cluster:
    """A100, of 1/``scale`` of their rates and with ``nbytes`` of memory each, on one node. On another, devices ``compute`` times as
    slow with ``memory`` times as much memory, whose node's network cards are ``link`` times as slow."""
    machine = load_machine("a100")
    first = machine.kinds[0]
    quick = replace(
        first, program=None, multiprocessors=1, memory_bytes=nbytes or first.memory_bytes,
        memory_bytes_per_second=first.memory_bytes_per_second / scale,
        flops_per_second=tuple((name, rate / scale) for name, rate in first.flops_per_second),
    )
    other = replace(
        quick, kind="slow", memory_bytes=int(quick.memory_bytes * memory),
        flops_per_second=tuple((name, rate / compute) for name, rate in quick.flops_per_second),
        memory_bytes_per_second=quick.memory_bytes_per_second / compute,
    )
    node = machine.nodes[0]

    def of(name: str, kind: str, count: int, slower: float) -> NodeTemplate:
        wires = tuple(
            replace(wire, bytes_per_second=wire.bytes_per_second / slower) if "network" in wire.between else wire
            for wire in node.wires
        )
        return replace(node, name=name, processors=(replace(node.processors[0], device=kind, count=count),), wires=wires)

    nodes = of("quick", quick.kind, fast, 1.0), of("slow", "slow", slow, link)
    layout = (("quick", 1), ("slow", 1))
    return replace(machine, name="mixed", kinds=(quick, other), nodes=nodes, layout=layout, devices=None, extensible=False)
