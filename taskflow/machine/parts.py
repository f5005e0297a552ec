"""Parts of a machine: processors of some device kind, links, and routes over them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal, Protocol

from msgspec import Meta

from taskflow.machine.library import Reached, Source
from taskflow.machine.timed import Timed
from taskflow.programs import TrainingProgram
from taskflow.reading import Count, Name, NotNegative, Positive, Whole

Ends = bool | Literal["sender", "receiver"]  # of a transfer: both (True), none, or one


@lru_cache(maxsize=64)
def _name(dtype: object) -> str:
    return str(dtype)  # takes numpy some microseconds


@dataclass(frozen=True, slots=True)
class ProductRates:
    """How a device's library performs at matrix products of one type, alone on the device (`optimizer.cost.products`). Where rows
    alone choose a library's tiles, ``by_rows`` counts rows rounded up to a power of two; 0: the fastest tile is chosen."""

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
    sustained: Annotated[NotNegative, Meta(description="By how much long kernels are slower, as power and heat allow.")] = 0.0
    cast: Annotated[NotNegative, Meta(description="Bytes for each number of the left factor to bring it into the type.")] = 0.0
    term_seconds: Annotated[NotNegative, Meta(description="Least time for a term of a tile.")] = 0.0
    by_rows: Annotated[Whole, Meta(description="Least results of a tile for each row, where rows alone choose it.")] = 0
    source: Source = ""


@dataclass(frozen=True, slots=True)
class AttentionRates:
    """Parts of the peak that a kernel of attention reaches with heads of 128 and very many words."""

    forward: Reached
    backward: Reached
    source: Source = ""


ALIKE = {"float16": "bfloat16", "bfloat16": "float16"}  # tensor cores multiply both at one rate


@dataclass(frozen=True, slots=True)
class Device:
    """A kind of processor. A type without a rate runs at float32's. What multiplies float32 numbers in ``products``, ``tf32`` or
    ``bfloat16`` on tensor cores, are matrix products, convolutions and recurrent layers; sums and everything else stay float32.
    ``efficiency`` says what differs from the cost model's own figures. Under a ``program``, matrix products run in tiles, and views
    are free (`taskflow.optimizer.cost.library`). Times of operators that were ``timed`` take precedence."""

    kind: Annotated[Name, Meta(description="Its name.")]
    memory_bytes: Annotated[Count, Meta(description="Memory of one.")]
    flops_per_second: Annotated[
        tuple[tuple[Name, Positive], ...], Meta(description="Peak operations a second by dtype, float32 among them.")
    ]
    memory_bytes_per_second: Annotated[Positive, Meta(description="Peak rate of its memory.")]
    launch_seconds: Annotated[NotNegative, Meta(description="Added to every task.")]
    multiprocessors: Annotated[Count, Meta(description="Cores that a kernel must fill to reach the peak.")] = 1
    cache_bytes: Annotated[Whole, Meta(description="The last cache that they share.")] = 0
    efficiency: tuple[tuple[str, float], ...] = ()
    source: Source = ""
    products: str = "float32"
    program: TrainingProgram | None = None
    matrix_products: Annotated[
        tuple[tuple[Name, ProductRates], ...], Meta(description="By dtype, how matrix products perform, where it was measured.")
    ] = ()
    power: Annotated[Reached, Meta(description="Part of the rate of products that its power limit allows.")] = 1.0
    attention: Annotated[
        tuple[tuple[Name, AttentionRates], ...], Meta(description="By kernel of attention, what it reaches.")
    ] = ()
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
    def hides_sums(self) -> bool:
        """Whether its program has tensor groups sum gradients beside products that make weights' gradients."""
        return self.program is not None and self.program.sums_beside_weights > 0

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
