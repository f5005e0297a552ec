"""Machine: the processors that run tasks, and the links that carry copies between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Processor:
    """One device. ``flops_per_second`` and ``bytes_per_second`` are what kernels reach; ``overhead_seconds`` is added to
    every task."""

    number: int
    kind: str = "cpu"
    memory_bytes: int = 4 << 30
    flops_per_second: float = 30e9
    bytes_per_second: float = 8e9
    overhead_seconds: float = 5e-6


@dataclass(frozen=True, slots=True)
class Link:
    """What a transfer occupies: it takes ``latency_seconds + bytes / bytes_per_second``."""

    number: int
    name: str
    bytes_per_second: float
    latency_seconds: float


class Machine(Protocol):
    """What lowering, simulation and mapping ask of a machine."""

    @property
    def name(self) -> str: ...

    @property
    def processors(self) -> tuple[Processor, ...]: ...

    def route(self, source: int, target: int) -> tuple[Link, ...]:
        """The links that a transfer from one processor to another occupies, all at once; empty if they are the same."""
        ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Equal processors, with a link of its own for each ordered pair of them."""

    name: str
    processors: tuple[Processor, ...]
    link_bytes_per_second: float = 4e9
    link_latency_seconds: float = 50e-6

    def route(self, source: int, target: int) -> tuple[Link, ...]:
        """The one link from ``source`` to ``target``; empty if they are the same."""
        if source == target:
            return ()
        number = source * len(self.processors) + target
        return (Link(number, f"{source}->{target}", self.link_bytes_per_second, self.link_latency_seconds),)

    def __str__(self) -> str:
        return f"{self.name}: {len(self.processors)} x {self.processors[0].kind}"


def host(processors: int) -> Uniform:
    """This machine's cores as ``processors`` equal ones, with rates typical of a CPU core and of MPI through shared memory."""
    if processors < 1:
        raise ValueError(f"host: needs at least 1 processor, got {processors}")
    return Uniform(f"host-{processors}", tuple(Processor(i) for i in range(processors)))
