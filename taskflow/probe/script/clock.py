"""Seconds of a piece of work on this rank's device, and of the host to start it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from time import perf_counter
from typing import Any

import torch

BETWEEN_SECONDS = 0.002  # of computing between messages on CPUs, as in a step
BUSY_EDGE, BUSY_ELEMENTS = 256, 1 << 19  # of the products and of the passes over memory that are computed there
FAR_OFF = 10  # times the median: other programs' doing
CHUNK_SECONDS = 0.004  # of repeats that are timed together: their mean is what a step adds up, interruptions included
LEAST_CHUNKS, MOST_CHUNKS = 3, 200
SLEEPS = (4_000_000, 64_000_000)  # cycles of a GPU (2 and 32 ms), by which its host gets ahead


@dataclass(frozen=True)
class Taken:
    """Seconds that work took: of the device, of the host to start it, and how far chunks differ (between quartiles, as a part of
    the median)."""

    seconds: float
    host_seconds: float
    spread: float


def taken(
    phases: Sequence[Callable[[], Any]], times: int, device: torch.device, seconds: float,
    together: Callable[[float], float] | None = None,
) -> list[Taken]:
    """Return what each of some phases takes, which follow each other and each do their work ``times`` times. ``seconds``: to spend.
    ``together``: where phases have messages, which all ranks must begin equally often, the largest value of all ranks."""
    run = partial(_on_gpu, asleep(phases, device, together)) if device.type == "cuda" else _on_cpu
    run(phases, device)
    began = perf_counter()
    once = sum(device_seconds for device_seconds, _ in run(phases, device))
    if device.type == "cuda":
        once = perf_counter() - began  # with the time that the device sleeps
    once = max(1e-7, together(once) if together is not None else once)
    chunk = max(1, min(50, round(CHUNK_SECONDS / once)))
    wanted = max(LEAST_CHUNKS, min(MOST_CHUNKS, round(seconds / (chunk * once)))) if together is not None else LEAST_CHUNKS
    found: list[list[tuple[float, float]]] = []
    until = perf_counter() + seconds
    while len(found) < wanted or (together is None and perf_counter() < until and len(found) < MOST_CHUNKS):
        rows = [run(phases, device) for _ in range(chunk)]
        found.append([(sum(row[i][0] for row in rows) / chunk, sum(row[i][1] for row in rows) / chunk) for i in range(len(phases))])
    middle = mean_of if together is not None else median
    return [_summary([row[i] for row in found], times, middle) for i in range(len(phases))]


def busy(device: torch.device) -> Callable[[], None]:
    """Return what computes for `BETWEEN_SECONDS` on a CPU, and nothing on a GPU, whose kernels wait for none of the host's threads.

    Messages and Python's code share a CPU with computing. What follows computing takes two to three times as long as the same many
    times in a row: caches are cold, and threads of a message wait for a core that computes."""
    if device.type == "cuda":
        return lambda: None
    factor, passed = torch.randn(BUSY_EDGE, BUSY_EDGE), torch.zeros(BUSY_ELEMENTS)

    def compute(count: int) -> float:
        began = perf_counter()
        for _ in range(count):
            factor @ factor
            passed.add_(1.0)
        return perf_counter() - began

    once = min(compute(2) / 2 for _ in range(5))
    count = max(1, round(BETWEEN_SECONDS / once))

    def something() -> None:
        compute(count)

    return something


def _summary(chunks: Sequence[tuple[float, float]], times: int, middle: Callable[[Sequence[float]], float]) -> Taken:
    values = sorted(seconds for seconds, _ in chunks)
    usual = median(values)
    spread = (values[3 * len(values) // 4] - values[len(values) // 4]) / usual if usual > 0 else 0.0
    return Taken(middle(values) / times, middle([host for _, host in chunks]) / times, spread)


def mean_of(values: Sequence[float]) -> float:
    """The mean, since a step adds messages up and some of them wait for a core; without what was not their doing."""
    return fmean(value for value in values if value <= FAR_OFF * median(values))


def _on_cpu(phases: Sequence[Callable[[], Any]], device: torch.device) -> list[tuple[float, float]]:
    found, kept = [], []
    for phase in phases:
        began = perf_counter()
        kept.append(phase())  # freed behind the clock
        found.append((perf_counter() - began, 0.0))
    return found


def finish(device: torch.device) -> None:
    """Wait until a GPU has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def asleep(phases: Sequence[Callable[[], Any]], device: torch.device, together: Callable[[float], float] | None = None) -> int:
    """Return for how many cycles a GPU has to sleep so that the host has started all kernels before it wakes, on all ranks; 0 where
    the host waits for the device, however long it sleeps."""
    _on_gpu(0, phases, device)  # compilers and choices of kernels take their time in the first
    for cycles in SLEEPS:
        late = float(not _started(cycles, phases, device)[1])
        if not (together(late) if together is not None else late):
            return cycles
    return 0


def _on_gpu(cycles: int, phases: Sequence[Callable[[], Any]], device: torch.device) -> list[tuple[float, float]]:
    """The device sleeps while the host starts all kernels, so that events between them see the device alone."""
    return _started(cycles, phases, device)[0]


def _started(
    cycles: int, phases: Sequence[Callable[[], Any]], device: torch.device
) -> tuple[list[tuple[float, float]], bool]:
    """Seconds of device and host of each phase, and whether the device still slept when the host had started all."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(phases) + 1)]
    hosts, kept = [], []
    torch.cuda.synchronize(device)
    if cycles:
        torch.cuda._sleep(cycles)
    events[0].record()
    for phase, event in zip(phases, events[1:]):
        began = perf_counter()
        kept.append(phase())
        hosts.append(perf_counter() - began)
        event.record()
    slept = not events[0].query()
    torch.cuda.synchronize(device)
    return [(seconds_between(before, after), host) for before, after, host in zip(events, events[1:], hosts)], slept


def seconds_between(before: torch.cuda.Event, after: torch.cuda.Event) -> float:
    """Seconds of a device, which are never 0: events are half a microsecond apart or not at all."""
    return max(1e-9, float(before.elapsed_time(after)) / 1e3)


def both_ways(call: Callable[..., Any], given: Sequence[Any], module: Any = None) -> list[Callable[[], Any]]:
    """Return forward and backward of a function of one result or several; of a ``module`` with the gradients of its parameters."""
    result: list[Any] = []
    wanted = [*given, *(module.parameters() if module is not None else ())]

    def forward() -> None:
        found = call(*given)
        result[:] = found if isinstance(found, list) else [found]

    def backward() -> Any:
        return torch.autograd.grad(result, wanted, [torch.ones_like(one) for one in result])

    return [forward, backward]
