"""Tasks on 16-bit arrays: the operator computes in float32, and each result is rounded once.

This is the only place that converts; the arrays' device says how. Operators and kernels see float32 arrays, and need no variant
of their own. The copies in float32 live as long as the task; like other temporaries, they are not in the memory plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from taskflow.floats import is_narrow, sums_in
from taskflow.kernels import ArrayDevice
from taskflow.operators.operator import Array, Call, Operator, Target

Action = Callable[[], object]


def task_action(operator: Operator, call: Call, backward: bool) -> Action:
    """Return the function that runs the forward or backward task of a call."""
    action = operator.backward if backward else operator.forward
    adds = backward and any(target.accumulate for target in _targets(call))
    if not (operator.calculates or adds) or not any(is_narrow(array.dtype) for array in _arrays(call)):
        return partial(action, call)
    return partial(_in_float32, action, call, backward)


def _targets(call: Call) -> list[Target]:
    return [target for target in (*call.grad_inputs, *call.grad_weights) if target is not None]


def _arrays(call: Call) -> list[Array]:
    targets = [target.array for target in _targets(call)]
    given = [g for g in call.grad_outputs if g is not None]
    return [*call.inputs, *call.weights, *call.outputs, *call.saved, *given, *targets]


def _in_float32(action: Callable[[Call], None], call: Call, backward: bool) -> None:
    """Run a task on float32 copies of its 16-bit arrays, and round what it has written. No weight is ``steady`` in a copy, and
    none is laid out for the next task."""
    device = call.kernels.device
    written: dict[int, tuple[Array, Array]] = {}  # by the array's identity: two gradients may be one array

    def wide(array: Array) -> Array:
        return device.widen(array) if is_narrow(array.dtype) else array

    def read(arrays: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(None if a is None else wide(a) for a in arrays)

    def write(array: Array, keeps: bool) -> Array:
        if not is_narrow(array.dtype):
            return array
        if id(array) not in written:
            written[id(array)] = array, wide(array) if keeps else device.xp.empty(array.shape, np.float32)
        return written[id(array)][1]

    def targets(wanted: Sequence[Target | None]) -> tuple[Target | None, ...]:
        return tuple(None if t is None else Target(write(t.array, t.accumulate), t.accumulate) for t in wanted)

    def results(arrays: Sequence[Array]) -> tuple[Array, ...]:
        return read(arrays) if backward else tuple(write(array, False) for array in arrays)

    with np.errstate(all="ignore") if call.state.scaling is not None else nullcontext():  # gradients may overflow, which is noticed
        action(replace(
            call, specs=tuple(replace(spec, dtype=sums_in(spec.dtype)) for spec in call.specs),
            inputs=read(call.inputs), weights=read(call.weights), outputs=results(call.outputs), saved=results(call.saved),
            grad_outputs=read(call.grad_outputs), grad_inputs=targets(call.grad_inputs), grad_weights=targets(call.grad_weights),
            steady=(), scratches=(),
        ))  # fmt: skip
    for array, value in written.values():
        device.round_into(value, array)


def add_up(device: ArrayDevice, total: Array, others: Iterable[Array], fresh: bool = False) -> None:
    """Add 16-bit arrays to one in float32, in order, and round once; ``fresh``: the contents of ``total`` are ignored."""
    first, *rest = others if fresh else (total, *others)
    value = device.widen(first)
    for other in rest:
        device.widen(other, value, accumulate=True)
    device.round_into(value, total)
