"""Binding: turns a task and the arrays of a rank into a function without arguments that runs it. Done once for each task."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isfinite, isnan, nan, sqrt
from typing import Any

import numpy as np

from taskflow.floats import is_narrow
from taskflow.kernels import ArrayDevice, KernelSet
from taskflow.operators.operator import Call, StepState, Target
from taskflow.operators.sixteen_bit import add_up, task_action
from taskflow.runtime.program.bind_collective import bind_collective
from taskflow.runtime.program.schedule import root_of
from taskflow.runtime.program.storage import Storage
from taskflow.tasks import (
    AllGather,
    AllReduce,
    AllToAll,
    Clip,
    Compute,
    Filling,
    GradientTo,
    Norm,
    ReduceScatter,
    Summation,
    Task,
    Transfer,
    Update,
    UserCall,
    rooms,
)

Action = Callable[[], object]


def bind(task: Task, storage: Storage, kernels: KernelSet, state: StepState) -> Action:
    """Return the action of a task whose processor (and source) belong to this rank."""
    match task.work:
        case Compute() as work:
            return _compute(work, storage, kernels, state)
        case Transfer(source, target, add):
            if storage.is_there(task):
                return _nothing
            if add:
                return partial(_sum, kernels, storage.part(target), [storage.part(source)], False)
            return partial(kernels.copy, storage.part(source), storage.part(target))
        case Summation(sources, target, fresh):
            return partial(_sum, kernels, storage.part(target), [storage.part(s) for s in sources], fresh)
        case AllReduce() | ReduceScatter() | AllGather() | AllToAll() as work:
            return bind_collective(work, storage)
        case Filling(target, value, scaled):
            return partial(_fill, storage.part(target), value, kernels.device, state if scaled else None)
        case Norm(source, into, accumulate):
            return partial(_norm, kernels, storage.part(source), storage.array(into), accumulate)
        case Clip(parts, into, limit):
            clip = _clip if storage.device.waits else partial(_clip_there, storage.device)
            return partial(clip, state, [storage.array(p) for p in parts], storage.array(into), limit)
        case Update() as work:
            return _update(work, storage, kernels, state)
        case UserCall(call, arguments):
            return call.bind([None if part is None else storage.part(part) for part in arguments])
    raise TypeError(f"{task.name}: no way to run {type(task.work).__name__}")


def _compute(work: Compute, storage: Storage, kernels: KernelSet, state: StepState) -> Action:
    node, nothing = work.node, storage.device.xp.empty(0)

    def arrays(numbers: tuple[int | None, ...], absent: Any) -> tuple[Any, ...]:
        return tuple(absent if b is None else storage.array(b) for b in numbers)

    def targets(wanted: tuple[GradientTo | None, ...]) -> tuple[Target | None, ...]:
        return tuple(None if t is None else Target(storage.array(t.buffer), t.accumulate) for t in wanted)

    reads, writes = storage.touched(node, work.piece)
    wanted = rooms(work)
    call = Call(
        node.name, node.specs, work.piece, reads, writes, kernels, state,
        arrays(work.inputs, nothing), arrays(work.weights, nothing), arrays(work.outputs, nothing),
        arrays(work.saved, None), arrays(work.grad_outputs, None), targets(work.grad_inputs),
        targets(work.grad_weights),
        tuple(b is not None and root_of(storage.graph, b).kept for b in work.weights),
        tuple(storage.room(b, wanted[b]) if b in wanted else None for b in work.weights) if wanted else (),
    )
    return task_action(node.operator, call, work.backward)


def _fill(target: Any, value: float, device: ArrayDevice, state: StepState | None) -> None:
    scale = None if state is None else _loss_scale(device, state)
    if scale is None or isinstance(scale, float):
        target.fill(value * (scale or 1.0))
    else:
        target[...] = scale * value


def _loss_scale(device: ArrayDevice, state: StepState) -> Any:
    """The loss scale of the step, None without one: a float, or, where the step is being recorded, an array that has it."""
    scaling = state.scaling
    if scaling is None:
        return None
    place = device.scalar(("loss scale",), lambda *_: [scaling.scale])
    return float(scaling.scale) if place is None else place


def _nothing() -> None:
    """Do nothing: the data to be copied are already there."""


def _sum(kernels: KernelSet, target: Any, sources: list[Any], fresh: bool) -> None:
    if is_narrow(target.dtype):
        add_up(kernels.device, target, sources, fresh)
        return
    if fresh:
        kernels.copy(sources[0], target)
    for source in sources[1:] if fresh else sources:
        kernels.add(source, target)


def _norm(kernels: KernelSet, source: Any, target: Any, accumulate: bool) -> None:
    squares = kernels.sum_of_squares(source)
    target[0] = target[0] + squares if accumulate else squares


def _clip(state: StepState, parts: list[Any], target: Any, limit: float) -> None:
    squares = sum(float(part[0]) for part in parts)
    if state.scaling is not None:
        if not isfinite(squares):
            target[0] = nan
            return
        squares /= state.scaling.scale**2
    # The same arithmetic as torch.nn.utils.clip_grad_norm_.
    target[0] = min(1.0, limit / (sqrt(squares) + 1e-6))


def _clip_there(device: ArrayDevice, state: StepState, parts: list[Any], target: Any, limit: float) -> None:
    """The same on a device, without waiting for it."""
    squares = parts[0] + 0.0
    for part in parts[1:]:
        squares += part
    scale = _loss_scale(device, state)
    if scale is None:
        target[...] = np.fmin(1.0, limit / (np.sqrt(squares) + 1e-6))  # 1 if the norm is not a number, as `min` has it
        return
    factor = np.minimum(1.0, limit / (np.sqrt(squares) / scale + 1e-6))
    target[...] = device.xp.where(np.isfinite(squares), factor, nan)


def _update(work: Update, storage: Storage, kernels: KernelSet, state: StepState) -> Action:
    weights, gradients = storage.part(work.weights), storage.part(work.gradients)
    changed = weights if work.master is None else storage.array(work.master)
    buffers = tuple(storage.array(b) for b in work.state)
    scale = None if work.scale is None else storage.array(work.scale)

    def update() -> None:
        factor = 1.0 if scale is None else storage.device.number(scale[0])
        if (loss_scale := _loss_scale(storage.device, state)) is not None:
            if isinstance(factor, float) and isnan(factor):  # some gradient was not finite, here or elsewhere: nobody updates
                return
            factor = factor / loss_scale
        work.rule.update(
            kernels, changed, gradients, buffers, lr=work.rule.lr if state.lr is None else state.lr,
            step=state.step + 1 - state.skipped, scale=factor,
        )
        if changed is not weights:
            storage.device.round_into(changed, weights)

    return update
