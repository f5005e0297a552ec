"""Measure the machine that a job runs on: what its processors reach, and how fast messages between its ranks are.

Every rank calls `measure`; all get the same machine, which `taskflow.machine.save` writes. For a figure that a user can
trust, nothing else should run meanwhile.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from taskflow.kernels import KernelSet, default_kernels
from taskflow.machine import NETWORK, Cluster, Device, Group, NodeTemplate, Wire
from taskflow.runtime.transport import Transport

SIZES = (8, 256, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20)  # bytes of the messages
EDGE = 512  # of the matrices in the product whose rate is measured
STREAM_BYTES = 64 << 20  # of each array in the copy whose rate is measured: more than caches hold
SECONDS = 0.1  # to spend on each figure

Rates = dict[str, float]


def measure(transport: Transport, name: str = "measured", kernels: KernelSet | None = None) -> Cluster:
    """The machine of this job: one processor a rank, in the order of ranks.

    Processors are measured while all ranks measure theirs, since they share memory; their median stands for all. Links are
    measured between a few pairs of ranks within nodes and between nodes while the other ranks wait: half of a message's
    way there and back by size, to which latency + bytes / bandwidth is fitted. Raises ValueError if the ranks of a node
    are not numbered one after the other.
    """
    nodes = _nodes(transport)
    transport.barrier()
    device = _everywhere(transport, _processor(kernels or default_kernels(), _memory_bytes() // _here(transport, nodes)))
    within, between = _pairs(nodes)
    links = {
        kind: _link(transport, pairs) for kind, pairs in (("within", within), ("between", between)) if pairs
    }
    return _machine(name, nodes, device, links)


# ---- where ranks are -------------------------------------------------------------------------------------------------
def _nodes(transport: Transport) -> list[int]:
    """How many ranks each node has, in rank order."""
    hosts = transport.broadcast(transport.gather(platform.node()))
    return group(hosts)


def group(hosts: Sequence[str]) -> list[int]:
    """The lengths of the runs of equal names. ValueError if a name comes back later."""
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
    """What this rank reaches."""
    rates: Rates = {"memory_bytes": memory_bytes}
    for dtype in ("float32", "float64"):
        a, b, out = (np.ones((EDGE, EDGE), dtype) for _ in range(3))

        def product(a: Any = a, b: Any = b, out: Any = out) -> None:
            kernels.matmul(a, b, out=out)

        rates[dtype] = 2 * EDGE**3 / _typical(product)
    source, target = np.ones(STREAM_BYTES, np.uint8), np.empty(STREAM_BYTES, np.uint8)
    rates["memory_bytes_per_second"] = 2 * STREAM_BYTES / _typical(lambda: np.copyto(target, source))
    few, sum_of = np.ones(16, np.float32), np.empty(16, np.float32)
    rates["launch_seconds"] = _typical(lambda: np.add(few, few, out=sum_of))
    return rates


def _typical(action: Callable[[], object]) -> float:
    """The median seconds of an action, after one run to warm up."""
    action()
    times: list[float] = []
    until = perf_counter() + SECONDS
    while len(times) < 3 or (perf_counter() < until and len(times) < 1000):
        start = perf_counter()
        action()
        times.append(perf_counter() - start)
    return max(median(times), 1e-9)


def _everywhere(transport: Transport, rates: Rates) -> Rates:
    """The median over ranks of each figure; of the memory, the least."""
    gathered = transport.gather(rates)
    result = None
    if gathered is not None:
        result = {key: median(each[key] for each in gathered) for key in rates}
        result["memory_bytes"] = min(each["memory_bytes"] for each in gathered)
    found: Rates = transport.broadcast(result)
    return found


def _memory_bytes() -> int:
    """What this process may use: the node's memory, or less if its control group says so."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # "max", or no control groups
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


# ---- links -----------------------------------------------------------------------------------------------------------
def _link(transport: Transport, pairs: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """(latency in seconds, bytes a second): the medians of what is fitted for each pair."""
    tag = transport.reserve_tags(2 * len(SIZES))
    mine: list[tuple[float, float]] = []
    for a, b in pairs:
        transport.barrier()
        if transport.rank in (a, b):
            times = {
                nbytes: _one_way(transport, nbytes, b if transport.rank == a else a, transport.rank == a, tag + 2 * i)
                for i, nbytes in enumerate(SIZES)
            }
            if transport.rank == a:
                mine.append(fit(times))
    gathered = transport.gather(mine)
    result = None
    if gathered is not None:
        found = [each for of_rank in gathered for each in of_rank]
        result = median(latency for latency, _ in found), median(rate for _, rate in found)
    link: tuple[float, float] = transport.broadcast(result)
    return link


def _one_way(transport: Transport, nbytes: int, peer: int, first: bool, tag: int) -> float:
    """Half of the median time of a message there and back."""
    array, back = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    send = transport.sender(array, peer, tag + (not first))
    receive = transport.receiver(back, peer, tag + first)
    times: list[float] = []
    for _ in range(_rounds(nbytes)):
        start = perf_counter()
        receive.start()
        if first:
            send.start()
            transport.wait(receive, "measure: pong")
        else:
            transport.wait(receive, "measure: ping")
            send.start()
        transport.wait(send, "measure: sent")
        times.append(perf_counter() - start)
    return median(times[1:]) / 2


def _rounds(nbytes: int) -> int:
    """Rounds for one size, the same at both ends, so not by the clock."""
    return 12 if nbytes > 256 << 10 else 60


def fit(times: Mapping[int, float]) -> tuple[float, float]:
    """(latency in seconds, bytes a second) that give ``times`` by message size with the least squares of relative errors.

    Raises ValueError for fewer than two sizes.
    """
    if len(times) < 2:
        raise ValueError(f"fit: needs times of at least 2 sizes, got {len(times)}")
    sizes, seconds = np.array(list(times), float), np.maximum(np.array(list(times.values())), 1e-9)
    terms = np.stack([1 / seconds, sizes / seconds], axis=1)
    (latency, per_byte), *_ = np.linalg.lstsq(terms, np.ones(len(sizes)), rcond=None)
    if latency < 0 or per_byte <= 0:
        # Noise; then the two ends of the range say which is which.
        small, large = int(sizes.argmin()), int(sizes.argmax())
        return float(seconds[small]), float(sizes[large] / seconds[large])
    return float(latency), float(1 / per_byte)


# ---- the machine -----------------------------------------------------------------------------------------------------
def _machine(name: str, nodes: Sequence[int], rates: Rates, links: Mapping[str, tuple[float, float]]) -> Cluster:
    device = Device(
        "cpu", int(rates["memory_bytes"]), (("float32", rates["float32"]), ("float64", rates["float64"])),
        rates["memory_bytes_per_second"], rates["launch_seconds"],
        efficiency=(("contraction", 1.0), ("convolution", 1.0), ("memory", 1.0), ("recurrent", 1.0)),
        source=f"measured on {platform.machine()}: products of {EDGE} x {EDGE} matrices, copies of {STREAM_BYTES >> 20} MiB",
    )
    templates = {count: _template(count, len(nodes) > 1, links) for count in nodes}
    layout: list[tuple[str, int]] = []
    for count in nodes:
        kind = templates[count].name
        if layout and layout[-1][0] == kind:
            layout[-1] = (kind, layout[-1][1] + 1)
        else:
            layout.append((kind, 1))
    return Cluster(name, (device,), tuple(templates.values()), tuple(layout), source="taskflow.runtime.measure")


def _template(count: int, networked: bool, links: Mapping[str, tuple[float, float]]) -> NodeTemplate:
    wires = []
    if count > 1:
        latency, rate = links["within"]
        # MPI copies between ranks of one node on the ranks' own cores.
        wires.append(Wire(("cpu*",), rate, latency, mesh=True, occupies_endpoints=True, source="measured: messages between ranks"))
    if networked:
        latency, rate = links["between"]
        # All ranks of a node share its card; a processor's way to the card costs nothing beside it.
        wires.append(Wire(("cpu*", "card"), max(rate, *(r for _, r in links.values())), 0.0, source="not measured: no limit"))
        wires.append(Wire(("card", NETWORK), rate, latency / 2, source="measured: messages between nodes, half of the latency"))
    return NodeTemplate(f"{count}-ranks", (Group("cpu", "cpu", count),), ("card",) if networked else (), tuple(wires))
