"""The machine at hand: its CPU cores as processors that copy for themselves, or its GPUs."""

from __future__ import annotations

from numbers import Integral

from taskflow.machine.cluster import Cluster
from taskflow.machine.parts import Device
from taskflow.machine.template import Group, NodeTemplate, Wire

TYPICAL = "typical of"  # so begins the source of rates that nobody has measured
CPU = Device(
    "cpu", memory_bytes=4 << 30, flops_per_second=(("float32", 30e9), ("float64", 15e9)), memory_bytes_per_second=8e9,
    launch_seconds=5e-6, multiprocessors=1, cache_bytes=1 << 20,
    # The rates are what kernels reach, not a peak that they stay below.
    efficiency=(("contraction", 1.0), ("convolution", 1.0), ("memory", 1.0), ("recurrent", 1.0)),
    source=f"{TYPICAL} one core of a server's CPU in a virtual machine; measure your own",
)


GPU = Device(
    "gpu", memory_bytes=80 << 30, flops_per_second=(("float32", 60e12), ("float64", 30e12)), memory_bytes_per_second=3e12,
    launch_seconds=8e-6, multiprocessors=132, cache_bytes=50 << 20,
    source=f"{TYPICAL} a data centre's GPU started from Python, not measured; measure your own",
)


def host(processors: int, kind: str = "cpu") -> Cluster:
    """Return this machine's cores as ``processors`` equal processors, with rates typical of a CPU core and of MPI through
    shared memory.

    A copy between two of them occupies the receiver, which reads the sender's memory, as MPICH does on Linux. For measured
    figures see `taskflow.runtime.calibrate.machine`. ``kind`` "gpu": that many GPUs instead, with typical rates, whose copies
    occupy no processor.
    """
    if not isinstance(processors, Integral) or processors < 1:
        raise ValueError(f"host: needs at least 1 processor, got {processors!r}")
    if kind == "gpu":
        between = Wire(("gpu*",), 100e9, 10e-6, mesh=True, source="typical of GPUs with links of their own, not measured")
        template = NodeTemplate("host", (Group("gpu", GPU.kind, processors),), (), (between,) if processors > 1 else ())
        return Cluster(f"host-gpu-{processors}", (GPU,), (template,), (("host", 1),))
    if kind != "cpu":
        raise ValueError(f"host: kind must be cpu or gpu, got {kind!r}")
    wires = (
        Wire(
            ("cpu*",), 4e9, 50e-6, mesh=True, occupies_endpoints="receiver",
            source="typical of MPI through shared memory between ranks that also compute",
        ),
    ) if processors > 1 else ()
    node = NodeTemplate("host", (Group("cpu", CPU.kind, processors),), (), wires)
    return Cluster(f"host-{processors}", (CPU,), (node,), (("host", 1),))
