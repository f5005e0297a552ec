"""Parts of a machine: processors of some device kind, links, and routes over them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

from taskflow.machine.timed import Timed
from taskflow.programs import TrainingProgram

Ends = bool | Literal["sender", "receiver"]  # of a transfer: both (True), none, or one


@lru_cache(maxsize=64)
def _name(dtype: object) -> str:
    return str(dtype)  # takes numpy some microseconds


@dataclass(frozen=True, slots=True)
class ProductRates:
    """How a device's library performs at matrix products of one type, alone on the device (`optimizer.cost.products`).

    ``start_seconds``: of a kernel. ``reached``: part of the peak that endless tiles would reach; a tile of a x b results reaches
    1 / (1 + edge / a + edge / b) of that. ``fill_terms``: terms of a contraction in whose time a tile starts and ends.
    ``quantised``: how far the last wave of tiles is a whole one (1: wholly). ``split_seconds``: of adding up the parts of a
    contraction. ``memory``, ``cache``: part of the memory's rate at which factors and results come from memory, and from the
    cache where they fit. ``few``: part of the multiprocessors that it takes to reach it. ``beside``: part of the shorter of
    arithmetic and traffic that is not hidden by the longer. ``sustained``: by how much long kernels are slower, as power and
    heat allow. ``cast``: bytes for each number of the left factor by which it is brought into the type. ``term_seconds``: the
    least time for a term of a tile. ``by_rows``: of libraries that choose tiles by rows alone, the least results of a tile for
    each row, of rows rounded up to a power of two; 0: the fastest tile is chosen."""

    start_seconds: float
    reached: float
    fill_terms: float
    edge: float
    quantised: float
    split_seconds: float
    memory: float
    cache: float
    few: float = 0.0
    beside: float = 0.0
    sustained: float = 0.0
    cast: float = 0.0
    term_seconds: float = 0.0
    by_rows: int = 0
    source: str = ""


@dataclass(frozen=True, slots=True)
class AttentionRates:
    """Parts of the peak that a kernel of attention reaches forward and backward, with heads of 128 and very many words."""

    forward: float
    backward: float
    source: str = ""


ALIKE = {"float16": "bfloat16", "bfloat16": "float16"}  # tensor cores multiply both at one rate


@dataclass(frozen=True, slots=True)
class Device:
    """A kind of processor.

    ``flops_per_second``: peak rate by dtype name; a dtype that is not named runs at float32's rate. ``efficiency``: fraction of
    the peak that a class of kernels reaches ("contraction", "convolution", "recurrent"; "memory": fraction of the memory's
    rate), where it differs from the cost model's own figure. ``multiprocessors``: cores that a kernel must fill.
    ``cache_bytes``: size of the last-level cache that they share. ``source``: where the figures are from. ``products``: the
    type in which matrix products, convolutions and recurrent layers multiply float32 numbers: ``tf32`` or ``bfloat16`` on
    tensor cores. Sums and everything else stay float32. ``program``: how it is driven, where ``launch_seconds`` between two
    kernels do not describe that. Matrix products then run in tiles, and views are free (`taskflow.optimizer.cost.library`).
    ``matrix_products``: by type, how these perform, where it was measured. ``power``: part of the rate of products and attention
    that a card's power limit allows. ``attention``: by kernel, what it reaches. ``timed``: operators that were timed, whose
    times take precedence.
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
    program: TrainingProgram | None = None
    matrix_products: tuple[tuple[str, ProductRates], ...] = ()
    attention: tuple[tuple[str, AttentionRates], ...] = ()
    power: float = 1.0
    timed: tuple[Timed, ...] = ()

    def rate(self, dtype: object = "float32") -> float:
        """Return the peak operations a second on numbers of a type."""
        wanted, default = _name(dtype), 0.0
        for name, rate in self.flops_per_second:
            if name == wanted:
                return rate
            if name == "float32":
                default = rate
        return default

    def product_rate(self, dtype: object) -> float:
        """Return the peak operations a second of multiplying and adding numbers of a type."""
        return self.rate(self.products if _name(dtype) == "float32" else dtype)

    @property
    def memory_rate(self) -> float:
        """Bytes a second of a pass over memory, in the program that drives it."""
        own = self.program.memory if self.program is not None else 0.0
        return self.memory_bytes_per_second * (own or self.reaches("memory", 0.8))

    @property
    def update_times(self) -> float:
        """How many times the bytes of a fused update its program passes over."""
        return self.program.passing("update").times if self.program is not None else 1.0

    def products_of(self, dtype: object) -> ProductRates | None:
        """Return how products of numbers of a type perform; None if that was not measured."""
        wanted = self.products if _name(dtype) == "float32" else _name(dtype)
        known = dict(self.matrix_products)
        return known.get(wanted) or known.get(ALIKE.get(wanted, ""))

    def timed_of(self, name: str, group: str, backward: bool, dtype: object) -> Timed | None:
        """Return the measured times of an operator, or else of one of its group; None if there are none of either."""
        found = None
        for one in self.timed:
            if one.backward == backward and one.dtype == _name(dtype):
                if one.name == name:
                    return one
                if one.group == group and found is None:
                    found = one
        return found

    def reaches(self, kernels: str, default: float) -> float:
        """Return the fraction of the peak that this class of kernels reaches."""
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
        """Time added to every task."""
        return self.device.launch_seconds


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a connection (both, if it is half duplex). A transfer occupies every link of its route for all of its
    duration.

    ``occupies_endpoints``: which processors copy by themselves: ``sender``, ``receiver``, both (True) or none (False). A
    transfer over this link occupies them too, so that none of their tasks runs meanwhile. Between CPU ranks of one machine MPI
    copies on the ranks' own cores: on both through shared memory, or on the receiver's alone where the system lets a process
    read another's memory. GPUs have copy engines, and network cards read and write memory by themselves.
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
    """Interface that lowering, simulation and mapping use."""

    @property
    def name(self) -> str: ...

    @property
    def processors(self) -> tuple[Processor, ...]: ...

    def route(self, source: int, target: int) -> tuple[Link, ...]:
        """Return the links that a transfer from one processor to another occupies, all at once; empty if the processors are the
        same."""
        ...


def transfer_seconds(route: Iterable[Link], nbytes: int) -> float:
    """Return the duration of moving ``nbytes`` over a route: the sum of the links' latencies, plus the bytes at the slowest
    link's rate. 0 for an empty route (paper, section 5, assumption A2, with latency added)."""
    links = tuple(route)
    if not links:
        return 0.0
    return sum(k.latency_seconds for k in links) + nbytes / min(k.bytes_per_second for k in links)
