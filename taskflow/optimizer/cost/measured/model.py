"""MeasuredCosts: every task's time on this processor, measured once and kept on disk (paper, section 5)."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter, sleep, thread_time

import numpy as np

from taskflow.cache import cache_folder
from taskflow.kernels import KernelSet, kernels_on
from taskflow.machine import Device, Machine
from taskflow.operators.cost_key import cost_key
from taskflow.operators.operator import Array, Operator, Spec
from taskflow.optimizer.cost.accumulated_gradients import Adding
from taskflow.optimizer.cost.measured.bench import ARRAYS, Surroundings, measure, memory_action, piece_action, runs_of
from taskflow.optimizer.cost.measured.blas_threads import blas_threads
from taskflow.optimizer.cost.measured.cache_state import FRESH, TYPICAL, CacheEvictor, CacheState
from taskflow.optimizer.cost.measured.contention import ContendingProcesses
from taskflow.optimizer.cost.measured.guard import NotMeasured, may_measure
from taskflow.optimizer.cost.measured.identity import identity
from taskflow.optimizer.cost.measured.noise import SpeedProbe
from taskflow.optimizer.cost.measured.store import CostStore, Measurement
from taskflow.optimizer.cost.model import CostModel, Gradients
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks import Kind, Runs
from taskflow.working import note

SIZES = tuple(1 << n for n in range(8, 27, 3))  # bytes: 256 to 64 Mi; between them times are interpolated
RUN_BYTES = (4, 12, 36, 108, 324, 972, 2916)  # of a stretch of memory: 4 to 2916, odd numbers of elements as rows have them
PART_BYTES = 1 << 17  # touched by the part whose stretches are measured
SECONDS = 0.03  # to spend on repeats of one measurement; with old arrays (`CacheState.age`) at least three waits come on top
OLD_REPEATS = 3  # of these: each of them waits for longer than most tasks take
PATIENCE_SECONDS, PATIENCE = 2.0, 0.5  # to spend on measuring anew what was disturbed: so long, and this share of all measuring
REST_SECONDS = 0.01  # before that: a core that was idle is often given another place

Make = partial[tuple[Callable[[], object], tuple[Array, ...]]]  # what makes an action and the arrays that were just written


def kernels_for(machine: Machine, kernels: KernelSet | None = None, threads: int | None = None) -> KernelSet:
    """Return the kernels with which tasks of ``machine`` are measured: those given, else those of its kind. Raises ValueError
    if its processors are not those that these run on, DeviceMissing for GPUs where there is none."""
    kinds = {p.kind for p in machine.processors}
    found = kernels or kernels_on("gpu" if kinds == {"gpu"} else "cpu", threads)
    here = {"cpu"} if found.device.waits else {"gpu", found.device.name}
    if foreign := sorted(kinds - here):
        raise ValueError(
            f"measured costs: tasks are timed on the {'CPU' if found.device.waits else 'GPU'} at hand, but machine {machine.name} "
            f"has {', '.join(foreign)}; use analytic costs (--costs analytic, AnalyticCosts) for devices that are not here"
        )
    return found


class MeasuredCosts(CostModel):
    """Seconds of tasks on the CPU or the GPU at hand, with the operators' own ``kernels``; copies by the machine's links.

    ``folder`` (default: the cache folder) keeps the measurements of this CPU, these libraries and this number of threads.
    ``between``: the cache state (`cache_state.between` derives it from a graph). Before each run, enough other memory is read
    and other code runs that the task finds its arrays and its code where a step would have left them. Each task is measured
    once more for the share of data that is old (not on a GPU). ``company``: the number of other ranks of this machine that work
    at the same time. This many processes (at most one for each other core) run the same task beside the measured one.
    ``threads``: of a large task (default: those that this process has). With one thread, the processor time of a run is
    measured, which other programs do not disturb; on a GPU, the time between two events. A measurement made while the core was
    slower than usual (`SpeedProbe`), or of several threads while other programs had their cores, is repeated, for at most two
    seconds plus half of the time spent on measuring. One task is measured at a time, whichever threads ask. `close` ends the
    contending processes. Raises ValueError for a machine whose processors are neither CPU cores nor, with the GPU's kernels, of
    kind "gpu" or of this card's name: other devices cannot be measured here; DeviceMissing for a machine of kind "gpu" without a
    GPU.
    """

    def __init__(
        self, machine: Machine, kernels: KernelSet | None = None, folder: Path | None = None, seconds: float = SECONDS,
        between: CacheState = TYPICAL, company: int = 0, threads: int | None = None,
    ) -> None:
        super().__init__(machine)
        self.kernels = kernels_for(machine, kernels, threads)
        device = self.kernels.device
        self.between = between if device.waits else replace(between, age=FRESH)
        """What tasks are measured with."""
        self._seconds, self._threads = seconds, threads
        self._one = threading.Lock()
        with blas_threads(threads):
            self._store = CostStore(folder or cache_folder(), identity(self.kernels))
        self._interlude = CacheEvictor(self.kernels, self.between)
        self._company = ContendingProcesses(min(company, (os.cpu_count() or 1) - 1) if device.waits else 0, threads)
        self._context = f"beside {between.nbytes}" + (f" in company of {self._company.count}" if self._company.count else "")
        self._context += f" {self.between.age}" if self.between.age.share else ""
        alone = self.kernels.threads == 1 and self._store.identity.get("blas_threads") == "1"
        self._clock = thread_time if alone else perf_counter
        self._yardstick = SpeedProbe(self._clock) if device.waits else None
        self._patience = PATIENCE_SECONDS
        self.measured = 0
        """How many tasks were run to be measured; the others were known."""
        self.disturbed = 0
        """Of how many of these there was no undisturbed measurement."""

    measures = True

    def close(self) -> None:
        """End the contending processes. They start again if something else has to be measured."""
        self._company.close()

    @property
    def name(self) -> str:
        of = self._store.identity
        if not self.kernels.device.waits:
            return f"measured {of['processor']}, {of['precision']}, cuBLAS {of['cublas']}, cuDNN {of['cudnn']}"
        beset = f"; {self.disturbed} of {self.measured} tasks disturbed by other programs" if self.disturbed else ""
        return f"measured {of['processor']}, {of['kernels']} kernels, {of['blas']} {of['blas_core']}{beset}"

    @property
    def identity(self) -> Mapping[str, str]:
        """The device and versions that the measurements are for."""
        return self._store.identity

    @property
    def measurements(self) -> Mapping[str, Measurement]:
        """Return every measurement of this model or its file, by what was measured."""
        return self._store.entries

    @property
    def spread(self) -> float:
        """Median of all measurements' spreads: how much single runs of a task vary."""
        values = sorted(m.spread for m in self._store.entries.values())
        return values[len(values) // 2] if values else 0.0

    def measurement(
        self, operator: Operator, inputs: tuple[Spec, ...], piece: Rect, backward: bool, wanted: Gradients,
        adds: Adding = (),
    ) -> Measurement:
        """Return the measurement of one piece, made now if there is none."""
        many = self.between.code.get(operator.kind, 0)
        which = (f" adds {adds}" if any(adds) else "") + (f" after {many} and other code" if many else "")
        key = f"{cost_key(operator, inputs, piece, backward)!r} {wanted}{which} {self._context}"
        make = partial(piece_action, operator, inputs, piece, backward, wanted, self.kernels, adds)
        return self._known(key, make, operator.kind)

    def _compute(
        self, operator: Operator, inputs: tuple[Spec, ...], piece: Rect, backward: bool, wanted: Gradients, adds: Adding,
        device: Device,
    ) -> float:
        return self.measurement(operator, inputs, piece, backward, wanted, adds).seconds

    by_runs = True

    def transfer_seconds(self, source: int, target: int, nbytes: int, runs: Runs = (1, 1)) -> float:
        """Return the seconds of a copy, as in `CostModel`. Data that are not contiguous are packed by the sender and unpacked
        by the receiver. A message occupies its ends for all of its time or not at all; if it occupies both, each is charged the
        mean of both ends' work."""
        seconds = super().transfer_seconds(source, target, nbytes)
        packing = sum(self.memory_seconds(Kind.MOVE, 2 * nbytes, 0, runs=many) for many in runs if many > 1)
        if packing:
            route = self.machine.route(source, target)
            both = any(k.occupies_sender for k in route) and any(k.occupies_receiver for k in route)
            seconds += packing / 2 if both else packing
        return seconds

    def _memory(self, kind: Kind, nbytes: int, flops: int, device: Device, rule: UpdateRule | None, runs: int) -> float:
        if kind is Kind.CLIP:  # a handful of numbers
            kind, nbytes = Kind.SUM, 0
        seconds = self._in_one(kind, nbytes, rule)
        return seconds if runs == 1 else seconds + runs * self._each_run(kind, nbytes / ARRAYS[kind] / runs)

    def _each_run(self, kind: Kind, nbytes: float) -> float:
        """Seconds that a stretch of so many bytes takes longer than as many in the middle of a longer one: on the line between
        those of two measured lengths, of longer ones as of the longest."""
        at = min(max(1, bisect_left(RUN_BYTES, nbytes)), len(RUN_BYTES) - 1)
        low, high = RUN_BYTES[at - 1], RUN_BYTES[at]
        share = min(1.0, max(0.0, (nbytes - low) / (high - low)))
        return (1 - share) * self._measured_run(kind, low) + share * self._measured_run(kind, high)

    def _measured_run(self, kind: Kind, nbytes: int) -> float:
        runs = runs_of(kind, PART_BYTES, nbytes)
        there = self._at(kind, PART_BYTES, None, nbytes)
        return max(0.0, there - self._in_one(kind, ARRAYS[kind] * runs * nbytes, None)) / runs

    def _in_one(self, kind: Kind, nbytes: int, rule: UpdateRule | None) -> float:
        """Interpolate linearly between two measured sizes; beyond the largest, in proportion."""
        if nbytes >= SIZES[-1]:
            return self._at(kind, SIZES[-1], rule) * nbytes / SIZES[-1]
        above = SIZES[max(1, bisect_left(SIZES, nbytes))]
        below = SIZES[SIZES.index(above) - 1]
        low, high = self._at(kind, below, rule), self._at(kind, above, rule)
        return low + (high - low) * max(0, nbytes - below) / (above - below)

    def _at(self, kind: Kind, nbytes: int, rule: UpdateRule | None, run: int = 0) -> float:
        """``run``: bytes of each stretch of memory, if there are many."""
        what = f" {rule!r}" if rule is not None else f" in runs of {run}" if run else ""
        key = f"{kind.value} {nbytes}{what} {self._context}"
        return self._known(key, partial(memory_action, kind, nbytes, rule, self.kernels, run)).seconds

    def _known(self, key: str, make: Make, kind: str | None = None) -> Measurement:
        """Measurement of a task of an operator of this ``kind``, or of none. Taken now, if there is none yet, or a doubtful one,
        and it may be (`before_measuring`)."""
        if (known := self._store.get(key)) is not None and not self._store.doubtful(key):
            return known
        try:
            may_measure()
        except NotMeasured:
            if known is None:
                raise
            return known
        with self._one, blas_threads(self._threads):
            known = self._store.get(key)
            if known is None or self._store.doubtful(key):  # another thread may have measured it meanwhile
                note(f"measuring tasks, {self.measured} so far")
                known = self._measure(key, make, kind)
                note(f"{self.measured} tasks measured")
        return known

    def _measure(self, key: str, make: Make, kind: str | None) -> Measurement:
        tries: list[Measurement] = []
        with np.errstate(all="ignore"):  # random numbers have no square roots; that is of no interest here
            action, fresh = make()
            twin, _ = make()
            around = self._interlude.around(kind, fresh, twin)
            while (value := self._try(make, action, around, tries)) is None:
                may_measure()
                sleep(REST_SECONDS)
        self.measured += 1
        self._store.put(key, value)
        return value

    def _try(
        self, make: Make, action: Callable[[], object], around: Surroundings, tries: list[Measurement]
    ) -> Measurement | None:
        """None if it was disturbed and there is patience; it is then added to ``tries``, if it was made. Without patience, the
        fastest of all tries: whatever disturbs makes a task slower."""
        timed = None if self.kernels.device.waits else self.kernels.device.timed
        age, began = self.between.age, perf_counter()
        with self._company.beside(make) if self._company.count else nullcontext():
            slow, value = self._slow(), None
            if not slow or self._patience <= 0:
                value = measure(action, self._seconds, around, self._clock, timed)
                slow = slow or value.disturbed or self._slow()
                if age.share and (not slow or self._patience <= 0):
                    waits = replace(around, idle=age.seconds)
                    value = age.mix(value, measure(action, self._seconds, waits, self._clock, least=OLD_REPEATS))
                    slow = slow or value.disturbed or self._slow()
        if slow and self._patience > 0:
            self._patience -= perf_counter() - began + REST_SECONDS
            tries += [value] if value is not None else []
            return None
        self._patience += PATIENCE * (perf_counter() - began)
        self.disturbed += slow
        assert value is not None
        return min([value, *tries], key=lambda result: result.seconds) if slow else value

    def _slow(self) -> bool:
        return self._yardstick is not None and self._yardstick.slow()
