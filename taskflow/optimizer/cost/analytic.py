"""AnalyticCosts: a roofline for described devices (Williams, Waterman and Patterson, CACM 52(4), 2009).

A kernel takes the time of its arithmetic or of its memory traffic, whichever is longer, plus the time to launch it. Arithmetic
runs at a fraction of the peak, which depends on the kernel's class and on how much of the device its size fills. The constants
below hold for all devices. They come from the sources beside them, none from a result of this project. A device's own figures
(``efficiency`` in its machine file) take precedence.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from taskflow.machine import Device, Machine
from taskflow.operators.operator import Dim, Operator, Spec, Work, computes_in
from taskflow.optimizer.cost.accumulated_gradients import Adding, adding, target_bytes
from taskflow.optimizer.cost.library import FUSED, Spent, attention_rate, free, from_other_end, spent
from taskflow.optimizer.cost.model import CostModel, Gradients
from taskflow.optimizer.cost.phases import Phase, phases
from taskflow.optimizer.cost.products import most_reached
from taskflow.optimizer.cost.timed import timed_memory, timed_spent
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks import Kind

EFFICIENCY = {
    # Large products in vendors' libraries reach 60 to 95 % of the peak, depending on the generation and on the clock
    # that the power limit allows; the layers' own sizes are seldom the best ones.
    Work.CONTRACTION: 0.75,
    # Convolutions run as products whose factors are gathered on the way; they reach somewhat less.
    Work.CONVOLUTION: 0.6,
    # A recurrent layer's kernels are products too; what its steps lose by being small is in `fill` and in launches.
    Work.RECURRENT: 0.75,
    # Copying and adding long arrays reaches 75 to 85 % of the memory's peak, with error correction.
    Work.MEMORY: 0.8,
}

UNFUSED = 0.5
"""Peaks count a multiplication and an addition each cycle; element by element there is mostly one of them."""

TILE = 64 * 64
"""Results that one multiprocessor works on at a time in a product (libraries choose tiles from 32 x 32 to 256 x 128)."""


class AnalyticCosts(CostModel):
    """Seconds of tasks on a described machine, which may have devices of several kinds."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._both: dict[Hashable, Spent | None] = {}

    @property
    def name(self) -> str:
        devices = {processor.device.kind: processor.device for processor in self.machine.processors}
        programs = dict.fromkeys(d.program.name for d in devices.values() if d.program is not None and d.program.name)
        return f"analytic {self.machine.name}" + (f" ({', '.join(programs)})" if programs else "")

    def _compute(
        self, operator: Operator, inputs: tuple[Spec, ...], piece: Rect, backward: bool, wanted: Gradients, adds: Adding,
        device: Device,
    ) -> float:
        if (found := self._spent(operator, inputs, piece, backward, wanted, adds, device)) is not None:
            return found.seconds
        dtype = computes_in(operator, inputs)
        return sum(
            phase_seconds(phase, device, _rate(phase, device, dtype))
            for phase in phases(operator, inputs, piece, backward, wanted, adds)
        )

    def _spent(
        self, operator: Operator, inputs: tuple[Spec, ...], piece: Rect, backward: bool, wanted: Gradients, adds: Adding,
        device: Device,
    ) -> Spent | None:
        if device.timed:
            dtype = computes_in(operator, inputs)
            if (timed := timed_spent(device, operator, inputs, piece, backward, wanted, adds, dtype)) is not None:
                return timed
        if device.program is None:
            return None
        reached = device.reaches(Work.CONTRACTION.value, EFFICIENCY[Work.CONTRACTION])
        dtype, other = computes_in(operator, inputs), None
        if device.program.balances_context:
            other = from_other_end(operator, inputs, piece)
        one = spent(operator, inputs, piece, backward, wanted, adds, device, dtype, reached)
        if other is None or one is None:
            return one
        both = one, spent(operator, inputs, other, backward, wanted, adds, device, dtype, reached) or one
        return Spent(sum(s.device for s in both) / 2, sum(s.host for s in both) / 2)

    def spent(
        self, operator: Operator, inputs: Sequence[Spec], piece: Rect, backward: bool, wanted: Gradients, added_bytes: int,
        device: Device,
    ) -> Spent | None:
        """Return the seconds of device and host for a piece's task, if a program drives the device; else None. Arguments as of
        `compute_seconds`."""
        inputs = tuple(inputs)
        key = (operator, inputs, piece, backward, wanted, added_bytes, device.kind)
        if key not in self._both:
            adds = adding(target_bytes(operator, inputs, piece, wanted), len(inputs), added_bytes) if backward else ()
            self._both[key] = self._spent(operator, inputs, piece, backward, wanted, adds, device)
        return self._both[key]

    def least_seconds(
        self, operator: Operator, inputs: tuple[Spec, ...], backward: bool, wanted: Gradients, device: Device
    ) -> float:
        """Return a lower bound of the seconds that all tasks of one direction take together, however the operator is cut. Their
        arithmetic adds up to the whole's, and so do the bytes that they touch, except inputs that a stride skips. 0 for
        operators that pick from their weights (embeddings), since the data decide what their pieces touch, and where operators were
        timed, which need not add up."""
        total = 0.0
        for repeats, arithmetic, traffic, starts in self._least_phases(operator, inputs, backward, wanted, device):
            total += repeats * (max(arithmetic, traffic) + starts)
        return total

    def least_parts(
        self, operator: Operator, inputs: tuple[Spec, ...], backward: bool, wanted: Gradients, device: Device
    ) -> list[tuple[float, float]]:
        """Return what `least_seconds` adds up, one after another: the seconds of a phase's arithmetic and of what it touches, the
        larger of which counts; and what starting its kernels takes, twice the same."""
        found = []
        for repeats, arithmetic, traffic, starts in self._least_phases(operator, inputs, backward, wanted, device):
            found += [(repeats * arithmetic, repeats * traffic), (repeats * starts,) * 2]
        return found

    def _least_phases(
        self, operator: Operator, inputs: tuple[Spec, ...], backward: bool, wanted: Gradients, device: Device
    ) -> Iterator[tuple[int, float, float, float]]:
        """Return of each phase how often it is repeated, and each time the seconds of arithmetic, memory traffic and starting
        kernels."""
        space = Rect((0,) * len(dims := operator.dims(inputs)), tuple(dim.size for dim in dims))
        if device.timed or operator.picks(inputs, space) or (device.program is not None and free(operator, backward)):
            return
        dtype, seen = computes_in(operator, inputs), _seen(operator, inputs, dims)
        for phase in phases(operator, inputs, space, backward, wanted):
            reached, fastest, starts = _most(phase, operator, inputs, backward, device, dtype)
            # Pieces of repeated kernels may fit the cache where the whole does not.
            traffic = seen * phase.nbytes / fastest if phase.repeats == 1 else 0.0
            yield phase.repeats, phase.flops / reached, traffic, phase.launches * starts

    def _memory(self, kind: Kind, nbytes: int, flops: int, device: Device, rule: UpdateRule | None, runs: int) -> float:
        if device.timed and (timed := timed_memory(device, kind.value, nbytes, rule)) is not None:
            return timed
        # GPUs' threads find their elements one by one: rows cost nothing, unless they are shorter than what memory gives at once.
        times = device.update_times if kind is Kind.UPDATE else 1.0
        return phase_seconds(Phase(Work.MEMORY, flops, times * nbytes, 1), device, device.rate())


def _most(
    phase: Phase, operator: Operator, inputs: tuple[Spec, ...], backward: bool, device: Device, dtype: object
) -> tuple[float, float, float]:
    """Operations and bytes a second that a phase exceeds in no piece, and the least seconds to start a kernel."""
    rate, program = _rate(phase, device, dtype), device.program
    if phase.kernels == Work.MEMORY:
        times = program.passing(operator.kind).times if program is not None else 1.0
        return rate * UNFUSED, device.memory_rate / max(times, 1e-9), device.launch_seconds
    efficiency = device.reaches(phase.kernels.value, EFFICIENCY[phase.kernels])
    if program is None or phase.kernels != Work.CONTRACTION:
        return rate * efficiency, device.memory_rate, device.launch_seconds
    if operator.kind in FUSED:
        head = inputs[0].shape[-1]
        return attention_rate(device, dtype, head, backward, efficiency), device.memory_rate, device.launch_seconds
    part = device.power * program.products
    if (rates := device.products_of(dtype)) is None:
        return rate * efficiency * part, device.memory_rate, device.launch_seconds
    fastest = max(rates.memory, rates.cache) * device.memory_bytes_per_second * part
    return rate * most_reached(rates) * part, fastest, rates.start_seconds


def _rate(phase: Phase, device: Device, dtype: object) -> float:
    """Peak operations a second of a phase whose numbers are of type ``dtype``."""
    return device.rate(dtype) if phase.kernels == Work.MEMORY else device.product_rate(dtype)


def _seen(operator: Operator, inputs: tuple[Spec, ...], dims: Sequence[Dim]) -> float:
    """Fraction of what the whole operator reads that all pieces together read at the finest cut. Less than 1 where windows step
    over elements, and where what is read grows along a dimension, as in causal attention."""
    size = [dim.size for dim in dims]

    def reads(dim: int, low: int, high: int) -> list[int]:
        lows, highs = [0] * len(size), list(size)
        lows[dim], highs[dim] = low, high
        return [rect.volume for rect in operator.reads(inputs, Rect(tuple(lows), tuple(highs))).inputs]

    seen = [1.0] * len(inputs)
    for i, dim in enumerate(dims):
        if dim.divisible and dim.size > 2:
            middle = dim.size // 2 - 1
            one, two = reads(i, middle, middle + 1), reads(i, middle, middle + 2)
            ends = zip(reads(i, 0, 1), reads(i, dim.size - 1, dim.size))
            for k, (a, b, end) in enumerate(zip(one, two, ends)):
                step = b - a
                seen[k] *= min(1.0, a / step) if step > 0 else 1.0
                if 2 * min(end) < a:  # more than padding takes from the windows at a border
                    seen[k] *= min(end) / a
    return min(seen, default=1.0)


def phase_seconds(phase: Phase, device: Device, rate: float) -> float:
    """Return the seconds of a phase on a device whose peak is ``rate`` operations a second."""
    memory = device.memory_rate
    nbytes = phase.nbytes
    if phase.kernels == Work.MEMORY:
        arithmetic = phase.flops / (rate * UNFUSED)
    else:
        reached = rate * device.reaches(phase.kernels.value, EFFICIENCY[phase.kernels]) * fill(phase.width, device)
        arithmetic = phase.flops / reached
    first = max(arithmetic, nbytes / memory)
    # What stays in the cache is read from memory the first time only.
    again = max(arithmetic, max(0.0, nbytes - device.cache_bytes) / memory)
    return first + (phase.repeats - 1) * again + phase.repeats * phase.launches * device.launch_seconds


def fill(width: int, device: Device) -> float:
    """Return the fraction of a device that a kernel of ``width`` independent results keeps busy: a half if they give half of
    the multiprocessors a tile, and more with more results. More flops for each result do not fill it better, unless the
    contraction is so long that libraries split it (`phases.SPLIT`)."""
    return width / (width + device.multiprocessors * TILE / 2)
