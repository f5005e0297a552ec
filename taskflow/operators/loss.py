"""Loss: base of the losses. Each is a scalar to which every piece of the targets adds its part."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from taskflow.operators.operator import Call, Dim, Keeps, Operator, Spec, sample_and_attributes, takes
from taskflow.regions import Rect

TARGET = 1  # the input that says how it should be


class Loss(Operator):
    """Base of operators of an input and targets (N, ...) that compute the sum over all targets, or their mean."""

    __slots__ = ()

    reduction: str

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        return sample_and_attributes(inputs[TARGET].shape)

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return (Rect((), ()),)

    def keeps(self, inputs: Sequence[Spec]) -> Keeps:
        return Keeps(inputs=False, weights=False, outputs=False)

    def factor(self, call: Call) -> float:
        """Return the factor of a piece's sum: 1, or 1 over the number of all targets (not just the piece's)."""
        return 1 / prod(call.specs[TARGET].shape) if self.reduction == "mean" else 1.0

    def pair(self, inputs: Sequence[Spec]) -> tuple[Spec, Spec]:
        """Return the two inputs. Raises ValueError if there are more or fewer, or if ``reduction`` is unknown."""
        takes(self.kind, inputs, 2)
        if self.reduction not in ("mean", "sum"):
            raise ValueError(f"{self.kind}: reduction must be 'mean' or 'sum', got {self.reduction!r}")
        return inputs[0], inputs[TARGET]


def scores(name: str, inputs: Sequence[Spec], label_smoothing: float) -> None:
    """Raise ValueError unless the inputs are scores of classes and integers that name the right ones."""
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"{name}: label_smoothing must be from 0 to 1, got {label_smoothing}")
    x, target = inputs
    if len(x.shape) < 2 or not x.differentiable or target.shape != x.shape[:-1] or target.dtype.kind not in "iu":
        raise ValueError(f"{name}: inputs must be float (N, ..., classes) and integers (N, ...), got {x} and {target}")


def require_classes(call: Call, classes: int, ignore_index: int) -> None:
    """Check that the piece's targets are classes or ``ignore_index``; the step raises ValueError that names the operator."""
    target = call.inputs[TARGET]
    call.kernels.device.require(
        (target == ignore_index) | ((target >= 0) & (target < classes)), target,
        f"{call.name}: targets must be at least 0 and below {classes}, or {ignore_index} to be ignored, got {{given}}",
    )
