"""Kept: bytes that a program keeps of an operator from its forward to its backward pass beyond what taskflow's own kernels keep."""

from __future__ import annotations

from collections.abc import Sequence

from taskflow.operators.operator import Operator, Spec
from taskflow.optimizer.cost.library import FUSED
from taskflow.optimizer.cost.phases import arrays
from taskflow.programs import TrainingProgram
from taskflow.regions import Rect


def kept_bytes(program: TrainingProgram, operator: Operator, inputs: Sequence[Spec], piece: Rect, tensor: int) -> int:
    """Return the bytes for a piece on one of ``tensor`` devices that share a layer (`Passes.kept`). They count for each number of
    the result, of a loss for each score of a word, and of attention for each pair of words."""
    each = program.passing(operator.kind).kept
    if not each:
        return 0
    if operator.kind in FUSED:
        pairs = operator.flops(inputs, piece) / 4 / inputs[0].shape[-1]
        return round(each * pairs * (2 if getattr(operator, "causal", False) else 1))
    touched = arrays(operator, tuple(inputs), piece)
    if operator.kind in ("cross_entropy", "class_blocks"):
        return round(each * touched.input_elements[0] * (tensor if program.whole_scores else 1))
    return round(each * sum(touched.output_elements))
