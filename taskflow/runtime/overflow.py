"""Overflow: what an Executor does after each step of a float16 network, whose gradients may have become too large."""

from __future__ import annotations

from math import isfinite, isnan
from typing import Any

import numpy as np

from taskflow.graph import OperatorGraph
from taskflow.loss_scaling import SMALLEST_SCALE, LossScaler, LossScaling
from taskflow.operators.operator import StepState
from taskflow.runtime.program import Placement, Program
from taskflow.tasks.lower import FACTOR

DYNAMIC = LossScaling()


class LossError(ArithmeticError):
    """The loss, or the gradients, became infinite or not a number."""


def scaler_of(graph: OperatorGraph, scaling: LossScaling | None) -> LossScaler | None:
    """The loss scale of a graph that is trained; None if it has none. bfloat16 reaches as far as float32 and needs none."""
    return None if scaling is None or graph.dtype != np.float16 else LossScaler(scaling)


def told(program: Program, placement: Placement, rank: int) -> Any:
    """The array in which a rank finds, after a step, what its gradients were multiplied by: not a number if some gradient of some
    rank was not finite. None if nothing is trained."""
    found = [b for b in program.graph.buffers if b.region == FACTOR and placement.rank(b.processor) == rank]
    return program.storage.array(found[0].number) if found else None


def require_finite(loss: float | None, step: int) -> float | None:
    """The loss of a step; LossError if it is not finite."""
    if loss is not None and not isfinite(loss):
        raise LossError(f"the loss became {loss} at step {step}; lower the learning rate or clip gradients")
    return loss


def note_overflow(scaler: LossScaler, state: StepState, factor: Any) -> None:
    """After a step: count one that was skipped, here as on all other ranks, and let the loss scale follow. LossError if gradients
    are not finite whatever the scale is."""
    overflowed = factor is not None and isnan(float(factor[0]))
    state.skipped += overflowed
    scaler.after(overflowed)
    if overflowed and scaler.scale < SMALLEST_SCALE:
        raise LossError(
            f"the gradients are not finite at step {state.step}, whatever the loss scale; lower the learning rate, or train "
            "in bfloat16"
        )
