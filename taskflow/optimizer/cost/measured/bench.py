"""Bench: runs one task on this processor, with the operator's real kernels on arrays of the Rects that it reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from time import perf_counter, thread_time
from typing import Any

import numpy as np

from taskflow.floats import is_float, sums_in
from taskflow.kernels import KernelSet
from taskflow.operators.operator import Array, Call, Operator, Spec, StepState, Target
from taskflow.operators.sixteen_bit import task_action
from taskflow.optimizer.cost.measured.store import Measurement
from taskflow.optimizer.cost.phases import weight_type
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks import Kind

try:
    from resource import RUSAGE_SELF, getrusage
except ImportError:  # not a Unix
    getrusage = None  # type: ignore[assignment]

NAME = "measured"
LEAST_REPEATS, MOST_REPEATS = 5, 200  # of a kernel that is timed: its median settles
CALM, PATIENCE = 0.15, 4  # a measurement with more spread goes on, at most for so many times its seconds
ARRAYS = {Kind.MOVE: 2, Kind.SUM: 3, Kind.FILL: 1, Kind.NORM: 1}  # that a task touches, counting what is written once more
GROUP = 8  # stretches of memory that lie near to each other
SHORT_SECONDS = 2e-3  # a task whose start is a part of its time that counts


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Preparation before each measured run, so that the run finds caches as a step would have left them.

    ``sweep``: an array that is read first, as the other tasks of a step read theirs; in a real step most of a task's data are
    no longer in the caches near the core. ``idle``: seconds for which nothing of this is touched afterwards, as data are
    untouched from one step to the next. ``twin``: the same work on other arrays, which runs next before a short task. It brings
    the code, the interpreter's objects and the libraries' buffers into the caches, where they are in a step; only the task's
    arrays are then far away. ``between``: runs after the twin, like the tasks between two of one kind (`CacheEvictor`).
    ``fresh``: arrays that are read last, since the previous task has just written them.
    """

    sweep: Array | None = None
    fresh: Sequence[Array] = ()
    twin: Callable[[], object] | None = None
    between: Callable[[], object] | None = None
    idle: float = 0.0

    def pass_by(self, short: bool) -> None:
        """Prepare once. ``short``: whether the measured task is short."""
        if self.sweep is not None:
            self.sweep.sum()
        until = perf_counter() + self.idle
        while self.idle and perf_counter() < until:  # at work: a core that sleeps loses its caches in other ways
            pass
        if short and self.twin is not None:
            self.twin()
            if self.between is not None:
                self.between()
        for array in self.fresh:
            array.max()


NOTHING = Surroundings()


def measure(
    action: Callable[[], object],
    seconds: float,
    around: Surroundings = NOTHING,
    clock: Callable[[], float] | None = None,
    timed: Callable[[Callable[[], object]], float] | None = None,
    least: int = LEAST_REPEATS,
) -> Measurement:
    """Measure ``action``: run it once to warm up, then for about ``seconds``, between ``least`` and 200 times; up to four times
    as long on a busy machine, where runs differ much. Of runs in which the system gave this process's cores to others
    (`interruptions`), those count that were interrupted least: ``least`` of them, and all that were not interrupted more often.
    A clock of this thread's processor time (`thread_time`) stands still meanwhile; with it all runs count.

    ``around``: the preparation before each run. ``clock``: times the runs (default: wall-clock time). ``timed``: a function
    that runs an action and returns its seconds, where a clock on the host cannot measure it (`ArrayDevice.timed`).
    """
    tick = clock or perf_counter

    def once() -> tuple[int, float]:
        if timed is not None:
            return 0, timed(action)
        before, began = interruptions(), tick()
        action()
        took = tick() - began
        return 0 if tick is thread_time else interruptions() - before, took

    action()
    short = once()[1] < SHORT_SECONDS
    runs: list[tuple[int, float]] = []
    start = perf_counter()
    for patience in range(1, PATIENCE + 1):
        while len(runs) < least or perf_counter() < start + patience * seconds:
            if len(runs) == MOST_REPEATS:
                break
            around.pass_by(short)
            runs.append(once())
        most = sorted(runs)[least - 1][0]
        times = [took for often, took in runs if often <= most]
        low, _, high = quantiles(times, n=4, method="inclusive")
        middle = max(median(times), 1e-9)
        if high - low <= CALM * middle:
            break
    return Measurement(middle, (high - low) / middle, len(times), most)


def interruptions() -> int:
    """Return how often so far the system has taken a core from one of this process's threads; 0 where it does not say."""
    return getrusage(RUSAGE_SELF).ru_nivcsw if getrusage is not None else 0


def piece_action(
    operator: Operator, inputs: Sequence[Spec], piece: Rect, backward: bool, wanted: Sequence[bool], kernels: KernelSet,
    adds: Sequence[bool] = (),
) -> tuple[Callable[[], object], tuple[Array, ...]]:
    """Return a function that runs the forward or backward task of a piece, and the arrays that the task would find in the
    nearest cache. Those are its inputs, or the gradients of its outputs, which the previous task has just written. Gradients of
    its inputs are included: they live so briefly that they get memory that was in use a moment ago. ``adds``: which gradients
    are added to (see `accumulated_gradients`)."""
    numbers = np.random.default_rng(0)
    outputs = operator.output(inputs)
    reads, writes = operator.reads_in(inputs, piece, training=True), operator.writes(inputs, piece)
    dtype = weight_type(outputs)
    high, xp = integers_below(operator, inputs), kernels.xp
    call = Call(
        NAME, tuple(inputs), piece, reads, writes, kernels, StepState(seed=1),
        inputs=tuple(_values(kernels, r.shape, s.dtype, high, numbers) for r, s in zip(reads.inputs, inputs)),
        weights=tuple(_values(kernels, r.shape, dtype, high, numbers) for r in reads.weights),
        outputs=tuple(xp.zeros(r.shape, s.dtype) for r, s in zip(writes, outputs)),
        saved=tuple(xp.zeros(s.shape, s.dtype) for s in operator.saves(inputs, piece)),
    )
    if operator.kind == "input":
        call.state.feeds[NAME] = np.ones(outputs[0].shape, outputs[0].dtype)  # written, so that there is memory behind it
    if not backward:
        return task_action(operator, call, False), tuple(a for a in call.inputs if a.size)
    task_action(operator, call, False)()
    _prepare_backward(call, operator, inputs, outputs, wanted, adds or (False,) * (len(inputs) + len(call.weights)), numbers)
    near = (*call.grad_outputs, *(t.array for t in call.grad_inputs if t is not None))
    return task_action(operator, call, True), tuple(g for g in near if g is not None and g.size)


def _prepare_backward(
    call: Call, operator: Operator, inputs: Sequence[Spec], outputs: Sequence[Spec], wanted: Sequence[bool],
    adds: Sequence[bool], numbers: np.random.Generator,
) -> None:
    """Give a call that has run forward what its backward task gets, and nothing that this does not get."""
    keeps, xp = operator.keeps(inputs), call.kernels.xp
    nothing = xp.empty(0)
    dtype = weight_type(outputs)
    call.grad_outputs = tuple(
        _values(call.kernels, r.shape, s.dtype, 1, numbers) if s.differentiable else None for r, s in zip(call.writes, outputs)
    )
    call.grad_inputs = tuple(
        Target(xp.zeros(r.shape, s.dtype), a) if w and not r.empty else None
        for r, s, w, a in zip(call.reads.inputs, inputs, wanted, adds)
    )
    call.grad_weights = tuple(
        None if r.empty or operator.frozen else Target(xp.zeros(r.shape, sums_in(dtype)), a)
        for r, a in zip(call.reads.weights, adds[len(inputs) :])
    )
    for name, kept in (("inputs", keeps.inputs), ("weights", keeps.weights), ("outputs", keeps.outputs)):
        if not kept:
            setattr(call, name, (nothing,) * len(getattr(call, name)))


def integers_below(operator: Operator, inputs: Sequence[Spec]) -> int:
    """Return the upper bound of random integer inputs: the operator's own, else the last dimension of the floats beside them."""
    if (given := operator.integers_below(inputs)) is not None:
        return given
    return next((s.shape[-1] for s in inputs if s.differentiable and s.shape), 2)


def _values(
    kernels: KernelSet, shape: tuple[int, ...], dtype: np.dtype[Any], high: int, numbers: np.random.Generator
) -> Array:
    host = _host_values(shape, dtype, high, numbers)
    if kernels.device.waits:
        return host
    there = kernels.xp.empty(shape, dtype)
    kernels.device.upload(host, there)
    return there


def _host_values(
    shape: tuple[int, ...], dtype: np.dtype[Any], high: int, numbers: np.random.Generator
) -> np.ndarray[Any, Any]:
    if is_float(dtype):
        return numbers.standard_normal(shape, np.float32).astype(dtype)
    if dtype.kind in "iu":
        return numbers.integers(0, min(high, int(np.iinfo(dtype).max)), shape).astype(dtype)
    return np.zeros(shape, dtype)


def runs_of(kind: Kind, nbytes: int, run: int) -> int:
    """Return how many runs of ``run`` bytes `memory_action` uses for a task that touches about ``nbytes``: whole groups."""
    return max(1, nbytes // ARRAYS[kind] // run // GROUP) * GROUP


def memory_action(
    kind: Kind, nbytes: int, rule: UpdateRule | None, kernels: KernelSet, run: int = 0
) -> tuple[Callable[[], object], tuple[Array, ...]]:
    """Return a function that runs a MOVE, SUM, FILL, NORM or UPDATE that touches about ``nbytes`` of float32, read and written,
    and the arrays that were written just before: those that are moved or added. ``run``: use parts of arrays whose contiguous
    stretches have this many bytes, in groups of eight, like the rows of an image that is cut."""
    arrays = ARRAYS.get(kind, 0)
    if kind is Kind.UPDATE:
        if rule is None:
            raise ValueError("memory_seconds: an UPDATE needs the update rule to measure")
        return _update_action(rule, max(1, nbytes // rule.nbytes(1, 4)), kernels), ()
    if not arrays:
        raise ValueError(f"memory_seconds: there is no {kind.value} to measure")
    size, xp = max(1, nbytes // 4 // arrays), kernels.xp
    row, groups = run // 4, runs_of(kind, nbytes, run) // GROUP if run else 0
    b = xp.ones((groups, GROUP, row) if run else size, np.float32)  # written, so that there is memory behind it
    a = xp.ones((groups, GROUP + GROUP // 2, 2 * row), np.float32)[:, :GROUP, :row] if run else b.copy()
    if kind is Kind.MOVE:
        return partial(kernels.copy, b, a), (b,)
    if kind is Kind.SUM:
        return partial(kernels.add, b, a), (b,)
    if kind is Kind.FILL:
        return partial(a.fill, 0.0), ()
    return partial(kernels.sum_of_squares, a), ()


def _update_action(rule: UpdateRule, size: int, kernels: KernelSet) -> Callable[[], object]:
    xp = kernels.xp
    weights, gradients = xp.ones(size, np.float32), xp.ones(size, np.float32)
    state = tuple(xp.ones(size, rule.state_type(np.dtype(np.float32))) for _ in range(rule.buffers))
    return lambda: rule.update(kernels, weights, gradients, state, lr=rule.lr, step=2, scale=1.0)
