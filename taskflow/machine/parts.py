"""What a machine consists of: processors of some device kind, links, and routes over them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Literal, Protocol

Ends = bool | Literal["sender", "receiver"]  # of a transfer: both (True), none, or one


@lru_cache(maxsize=64)
def _name(dtype: object) -> str:
    return str(dtype)  # takes numpy some microseconds


@dataclass(frozen=True, slots=True)
class HostProgram:
    """How a training program drives a device, PyTorch's eager mode for instance. ``host_seconds``: what its one thread needs to
    start a kernel, none of which begins before; 0 where steps are recorded and replayed (CUDA graphs). ``message_seconds``: what
    it waits in addition for a message from or to another stage of a pipeline, and ``message_bytes_per_second`` how fast the
    message goes meanwhile (infinite: as fast as links are). ``source``: where the figures are from."""

    host_seconds: float
    message_seconds: float = 0.0
    source: str = ""
    message_bytes_per_second: float = inf

    def waits(self, nbytes: float) -> float:
        """Seconds that it waits for a message of so many bytes."""
        return self.message_seconds + nbytes / self.message_bytes_per_second


@dataclass(frozen=True, slots=True)
class Device:
    """A kind of processor.

    ``flops_per_second``: peak rate by dtype name; a dtype that is not named runs at float32's. ``efficiency``: which part
    of the peak a class of kernels reaches ("contraction", "convolution", "recurrent"; "memory" of the memory's rate),
    where the cost model's own figure does not hold. ``multiprocessors``: cores that kernels must fill.
    ``cache_bytes``: the last cache that all of them share. ``source``: where the figures are from. ``products``: the type in
    which matrix products, convolutions and recurrent layers multiply float32 numbers, which they add, and all else keeps,
    in float32: ``tf32`` or ``bfloat16`` on tensor cores. ``program``: what drives it, where that is more than
    ``launch_seconds`` between two kernels; products then run in tiles, and views are free (`taskflow.optimizer.cost.library`).
    """

    kind: str
    memory_bytes: int
    flops_per_second: tuple[tuple[str, float], ...]
    memory_bytes_per_second: float
    launch_seconds: float
    multiprocessors: int = 1
    cache_bytes: int = 0
    efficiency: tuple[tuple[str, float], ...] = ()
    source: str = ""
    products: str = "float32"
    program: HostProgram | None = None

    def rate(self, dtype: object = "float32") -> float:
        """Peak operations a second on numbers of a type."""
        wanted, default = _name(dtype), 0.0
        for name, rate in self.flops_per_second:
            if name == wanted:
                return rate
            if name == "float32":
                default = rate
        return default

    def product_rate(self, dtype: object) -> float:
        """Peak operations a second where numbers of a type are multiplied and added up."""
        return self.rate(self.products if _name(dtype) == "float32" else dtype)

    def reaches(self, kernels: str, default: float) -> float:
        """Which part of the peak this class of kernels reaches."""
        return dict(self.efficiency).get(kernels, default)


@dataclass(frozen=True, slots=True)
class Processor:
    """One device of a machine, on node ``node``."""

    number: int
    device: Device
    node: int = 0

    @property
    def kind(self) -> str:
        return self.device.kind

    @property
    def memory_bytes(self) -> int:
        return self.device.memory_bytes

    @property
    def flops_per_second(self) -> float:
        """Peak rate in float32."""
        return self.device.rate()

    @property
    def bytes_per_second(self) -> float:
        """Peak rate of its memory."""
        return self.device.memory_bytes_per_second

    @property
    def overhead_seconds(self) -> float:
        """Added to every task."""
        return self.device.launch_seconds


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a connection (both, if it is half duplex). A transfer occupies every link of its route, from its
    start to its end.

    ``occupies_endpoints``: which processors do the copying themselves, so that a transfer over this link occupies them too and
    no task of theirs runs meanwhile: ``sender``, ``receiver``, both (True) or none (False). Between CPU ranks of one
    machine MPI copies on the ranks' own cores: through shared memory on both, or, where the system lets one process read
    another's memory, on the receiver's alone. GPUs have copy engines, and network cards read and write memory by
    themselves.
    """

    number: int
    name: str
    bytes_per_second: float
    latency_seconds: float
    occupies_endpoints: Ends = False

    @property
    def occupies_sender(self) -> bool:
        return self.occupies_endpoints in (True, "sender")

    @property
    def occupies_receiver(self) -> bool:
        return self.occupies_endpoints in (True, "receiver")


class Machine(Protocol):
    """What lowering, simulation and mapping ask of a machine."""

    @property
    def name(self) -> str: ...

    @property
    def processors(self) -> tuple[Processor, ...]: ...

    def route(self, source: int, target: int) -> tuple[Link, ...]:
        """The links that a transfer from one processor to another occupies, all at once; empty if they are the same."""
        ...


def transfer_seconds(route: Iterable[Link], nbytes: int) -> float:
    """How long ``nbytes`` take over a route: the sum of its latencies, and the bytes at its slowest link's rate. 0 for an
    empty route (paper, section 5, assumption A2, and latency)."""
    links = tuple(route)
    if not links:
        return 0.0
    return sum(k.latency_seconds for k in links) + nbytes / min(k.bytes_per_second for k in links)
