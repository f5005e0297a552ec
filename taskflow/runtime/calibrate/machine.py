"""Measurement of the machine that a job runs on: its processors' rates, and the speed of messages between its ranks.

Every rank calls `measure`, and all get the same machine, which `taskflow.machine.save` writes. For trustworthy figures nothing
else should run meanwhile.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, sleep
from typing import Any

import numpy as np

from taskflow.kernels import HOST, KernelSet, default_kernels
from taskflow.machine import NETWORK, Cluster, Device, Group, NodeTemplate, Wire
from taskflow.runtime.calibrate.links import Fitted, measure_link, measure_local_copies
from taskflow.runtime.job import node_key
from taskflow.runtime.transport import Transport, for_device

EDGE = 512  # of the matrices in the product whose rate is measured
STREAM_BYTES = 64 << 20  # of each array in the copy whose rate is measured: more than caches hold
GPU_EDGE, GPU_STREAM_BYTES = 8192, 1 << 30  # the same on a GPU
SECONDS = 0.05  # to spend on each figure, in each of so many rounds on a CPU, with a rest before each:
ROUNDS, REST_SECONDS = 5, 0.02  # a core that must share a real one gives half of its rate, for a moment or longer

Rates = dict[str, float]
Say = Callable[[str], None]


def measure(
    transport: Transport,
    name: str = "measured",
    kernels: KernelSet | None = None,
    *,
    processors: int | None = None,
    say: Say | None = None,
) -> Cluster:
    """Return the machine of this job: one processor for each rank, in the order of ranks. ``kernels``: of the device that is
    measured.

    All ranks measure their processors at the same time, since they share memory. CPUs are measured in five rounds, since on a
    rented machine two cores may be one for a moment. The median of rounds and ranks stands for all. Links are measured between
    a few pairs of ranks within nodes and between nodes, while the other ranks wait. Half of the round-trip times by size are
    fitted by latency + bytes / bandwidth; within nodes it is also measured whose core copies. ``processors``: for a job of one
    rank, the number of virtual processors that share its core; their link is a copy in memory. ``say`` is told on rank 0 what
    comes next.

    Raises ValueError if the ranks of a node are not numbered consecutively, or for ``processors`` with several ranks.
    """
    if processors is not None and (processors < 1 or transport.size > 1):
        raise ValueError(
            f"measure: processors (virtual ones, 1 or more) is for a job of one rank; got {processors} with "
            f"{transport.size} ranks, each of which is a processor"
        )
    tell = say if say is not None and transport.rank == 0 else _silent
    nodes = _nodes(transport)
    tell(f"processors: {transport.size} at once, memory and rates")
    kernels = kernels or default_kernels()
    transport = for_device(transport, kernels.device)
    share = _memory_bytes(kernels.device) // (processors or _sharing(transport, kernels.device, nodes))
    rounds = []
    for _ in range(ROUNDS if kernels.device.waits else 1):
        sleep(REST_SECONDS)
        transport.barrier()
        rounds.append(_processor(kernels, share))
    device = _everywhere(transport, {key: median(each[key] for each in rounds) for key in rounds[0]})
    if processors is not None:
        tell("copies within this process")
        links = {"within": measure_local_copies(kernels.device)} if processors > 1 else {}
        return _machine(name, [processors], device, links, kernels.device)
    links = {}
    within, between = _pairs(nodes)
    for kind, pairs in (("within", within), ("between", between)):
        if pairs:
            tell(f"links {kind} nodes: {', '.join(f'rank {a} - rank {b}' for a, b in pairs)}")
            here = kernels.device.waits  # a GPU copies by itself
            links[kind] = measure_link(transport, pairs, kind == "within" and here, kernels.device)
    return _machine(name, nodes, device, links, kernels.device)


def _silent(_: str) -> None:
    """For ranks that say nothing."""


# ---- where ranks are -------------------------------------------------------------------------------------------------
def _nodes(transport: Transport) -> list[int]:
    """Number of ranks of each node, in rank order."""
    hosts = transport.broadcast(transport.gather(node_key()))
    return group(hosts)


def group(hosts: Sequence[str]) -> list[int]:
    """Return the lengths of the runs of equal names. Raises ValueError if a name comes back later."""
    counts: list[int] = []
    for i, host in enumerate(hosts):
        if i and host == hosts[i - 1]:
            counts[-1] += 1
        elif host in hosts[:i]:
            raise ValueError(
                f"measure: rank {i} is on the node of rank {hosts.index(host)}, but ranks between them are not; start the job "
                "with the ranks of a node numbered one after the other"
            )
        else:
            counts.append(1)
    return counts


def _here(transport: Transport, nodes: Sequence[int]) -> int:
    """Ranks on this rank's node."""
    first = 0
    for count in nodes:
        if transport.rank < first + count:
            return count
        first += count
    raise AssertionError(f"rank {transport.rank} is on none of {len(nodes)} nodes")


def _pairs(nodes: Sequence[int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """A few pairs of ranks within nodes, and between neighbouring nodes."""
    starts = [sum(nodes[:i]) for i in range(len(nodes))]
    within = {pair for s, n in list(zip(starts, nodes))[:2] if n > 1 for pair in ((s, s + 1), (s, s + n - 1))}
    return sorted(within), list(zip(starts, starts[1:]))[:3]


# ---- processors ------------------------------------------------------------------------------------------------------
def _processor(kernels: KernelSet, memory_bytes: int) -> Rates:
    """Rates that this rank reaches."""
    rates: Rates = {"memory_bytes": memory_bytes}
    device, xp = kernels.device, kernels.xp
    edge, stream_bytes = (EDGE, STREAM_BYTES) if device.waits else (GPU_EDGE, GPU_STREAM_BYTES)
    for dtype in ("float32", "float64"):
        a, b, out = (xp.ones((edge, edge), dtype) for _ in range(3))

        def product(a: Any = a, b: Any = b, out: Any = out) -> None:
            kernels.matmul(a, b, out=out)

        rates[dtype] = 2 * edge**3 / typical(product, SECONDS, device.timed)
    source, target = xp.ones(stream_bytes, np.uint8), xp.empty(stream_bytes, np.uint8)
    rates["memory_bytes_per_second"] = 2 * stream_bytes / typical(lambda: np.copyto(target, source), SECONDS, device.timed)
    few, sum_of = xp.ones(16, np.float32), xp.empty(16, np.float32)
    # On a GPU, what starting it costs the program: a row of starts, till the last is done.
    if device.waits:
        rates["launch_seconds"] = typical(lambda: np.add(few, few, out=sum_of), SECONDS)
    else:
        rates["launch_seconds"] = _launch(device, xp.zeros(16, np.float32))
        rates |= _host_rates(device, target)
    return rates


def _launch(device: Any, few: Any) -> float:
    """Seconds of one small kernel in a row of them."""

    def many() -> None:
        for _ in range(100):
            np.add(few, few, out=few)
        device.synchronize()

    return typical(many, SECONDS) / 100


def _host_rates(device: Any, array: Any) -> Rates:
    """Bytes a second between pinned memory of the host and the device's."""
    staging = device.pinned(array.shape, array.dtype)
    staging[...] = 1
    return {
        "to_host": array.nbytes / typical(lambda: device.wait_for(device.copy_out(array, staging)), SECONDS),
        "from_host": array.nbytes / typical(lambda: device.wait_for(device.copy_in(staging, array, None)), SECONDS),
    }


def typical(
    action: Callable[[], object], seconds: float, timed: Callable[[Callable[[], object]], float] = HOST.timed
) -> float:
    """Return the lower quartile of an action's seconds, after one warm-up run. ``seconds``: time to spend. (On a busy machine
    the median would include other programs' time slices.)"""
    action()
    times: list[float] = []
    until = perf_counter() + seconds
    while len(times) < 3 or (perf_counter() < until and len(times) < 1000):
        times.append(timed(action))
    return max(quantiles(times, n=4, method="inclusive")[0], 1e-9)


def _everywhere(transport: Transport, rates: Rates) -> Rates:
    """The median over ranks of each figure; of the memory, the least."""
    gathered = transport.gather(rates)
    result = None
    if gathered is not None:
        result = {key: median(each[key] for each in gathered) for key in rates}
        result["memory_bytes"] = min(each["memory_bytes"] for each in gathered)
    found: Rates = transport.broadcast(result)
    return found


def _sharing(transport: Transport, device: Any, nodes: Sequence[int]) -> int:
    """Number of ranks that share the memory of this rank's device."""
    if device.waits:
        return _here(transport, nodes)
    every: list[str] = transport.broadcast(transport.gather(device.identity))
    return every.count(device.identity)


def _memory_bytes(device: Any) -> int:
    """Memory that this process may use: the card's, or the node's, or less if its control group says so."""
    if not device.waits:
        return int(device.facts["memory_bytes"])
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # "max", or no control groups
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


# ---- the machine -----------------------------------------------------------------------------------------------------
def _machine(
    name: str, nodes: Sequence[int], rates: Rates, links: Mapping[str, Fitted], on: Any = HOST
) -> Cluster:
    kind, facts = ("cpu", {}) if on.waits else ("gpu", on.facts)
    what = f"{platform.machine()}: products of {EDGE} x {EDGE} matrices, copies of {STREAM_BYTES >> 20} MiB"
    if not on.waits:
        what = (
            f"{on.name}: products of {GPU_EDGE} x {GPU_EDGE} matrices, copies of {GPU_STREAM_BYTES >> 20} MiB; "
            f"{rates['from_host'] / 1e9:.1f} GB/s from the host's pinned memory, {rates['to_host'] / 1e9:.1f} GB/s to it"
        )
    device = Device(
        kind, int(rates["memory_bytes"]), (("float32", rates["float32"]), ("float64", rates["float64"])),
        rates["memory_bytes_per_second"], rates["launch_seconds"],
        efficiency=(("contraction", 1.0), ("convolution", 1.0), ("memory", 1.0), ("recurrent", 1.0)),
        multiprocessors=facts.get("multiprocessors", 1), cache_bytes=facts.get("cache_bytes", 0), source=f"measured on {what}",
    )
    templates = {count: _template(count, len(nodes) > 1, links, kind) for count in nodes}
    layout: list[tuple[str, int]] = []
    for count in nodes:
        kind = templates[count].name
        if layout and layout[-1][0] == kind:
            layout[-1] = (kind, layout[-1][1] + 1)
        else:
            layout.append((kind, 1))
    return Cluster(name, (device,), tuple(templates.values()), tuple(layout), source="taskflow machine measure")


def _template(count: int, networked: bool, links: Mapping[str, Fitted], kind: str = "cpu") -> NodeTemplate:
    wires = []
    if count > 1:
        of = links["within"]
        wires.append(
            Wire(
                (f"{kind}*",), of.bytes_per_second, of.latency_seconds, mesh=True, occupies_endpoints=of.copied_by,
                source=f"measured: {of.what}",
            )
        )
    if networked:
        of = links["between"]
        # All ranks of a node share its card; a processor's way to the card costs nothing beside it.
        most = max(each.bytes_per_second for each in links.values())
        wires.append(Wire((f"{kind}*", "card"), most, 0.0, source="not measured: no limit"))
        wires.append(
            Wire(
                ("card", NETWORK), of.bytes_per_second, of.latency_seconds / 2, occupies_endpoints=of.copied_by,
                source=f"measured: {of.what}; half of the latency",
            )
        )
    return NodeTemplate(f"{count}-ranks", (Group(kind, kind, count),), ("card",) if networked else (), tuple(wires))
