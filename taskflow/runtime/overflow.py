"""Overflow: what an Executor does after each step of a float16 network, whose gradients may have overflowed."""

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
    """Error for a loss, or gradients, that became infinite or NaN."""


def scaler_of(graph: OperatorGraph, scaling: LossScaling | None) -> LossScaler | None:
    """Return the loss scale of a graph that is trained; None if it has none. bfloat16 has the range of float32 and needs none."""
    return None if scaling is None or graph.dtype != np.float16 else LossScaler(scaling)


def told(program: Program, placement: Placement, rank: int) -> Any:
    """Return the array that holds, after a step, the factor by which this rank's gradients were multiplied: NaN if some
    gradient of some rank was not finite. None if nothing is trained."""
    found = [b for b in program.graph.buffers if b.region == FACTOR and placement.rank(b.processor) == rank]
    return program.storage.array(found[0].number) if found else None


def require_finite(loss: float | None, step: int) -> float | None:
    """Return the loss of a step. Raises LossError if it is not finite."""
    if loss is not None and not isfinite(loss):
        raise LossError(f"the loss became {loss} at step {step}; lower the learning rate or clip gradients")
    return loss


def note_overflow(scaler: LossScaler, state: StepState, factor: Any) -> None:
    """Update the loss scale after a step, and count the step if it was skipped; all ranks do the same. Raises LossError if
    gradients are not finite whatever the scale."""
    overflowed = factor is not None and isnan(float(factor[0]))
    state.skipped += overflowed
    scaler.after(overflowed)
    if overflowed and scaler.scale < SMALLEST_SCALE:
        raise LossError(
            f"the gradients are not finite at step {state.step}, whatever the loss scale; lower the learning rate, or train "
            "in bfloat16"
        )
