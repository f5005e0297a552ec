"""Loss: base of the losses. Each is a scalar to which every piece of the targets adds its part."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from taskflow.operators.operator import NOTHING, Call, Dim, Operator, Spec, sample_and_attributes, takes
from taskflow.regions import Rect

TARGET = 1  # the input that says how it should be
NO_LABEL = -1


class Loss(Operator):
    """Base of operators of an input and targets (N, ...) that compute the sum over all targets, or their mean."""

    __slots__ = ()

    reduction: str
    kept = NOTHING

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        return sample_and_attributes(inputs[TARGET].shape)

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return (Rect((), ()),)

    def factor(self, call: Call) -> float:
        """Return the factor of a piece's sum: 1, or 1 over the number of all targets (not just the piece's)."""
        return 1 / prod(call.specs[TARGET].shape) if self.reduction == "mean" else 1.0

    def pair(self, inputs: Sequence[Spec]) -> tuple[Spec, Spec]:
        """Return the two inputs. Raises ValueError if there are more or fewer, or if ``reduction`` is unknown."""
        takes(self.kind, inputs, 2)
        if self.reduction not in ("mean", "sum"):
            raise ValueError(f"{self.kind}: reduction must be 'mean' or 'sum', got {self.reduction!r}")
        return inputs[0], inputs[TARGET]


class LabelLoss(Loss):
    """Base of losses whose targets are labels. Those equal to ``ignore_index`` add nothing, and the mean is over the others of the
    whole batch (0 if there are none). With None there are no such labels."""

    __slots__ = ()

    ignore_index: int | None

    @property
    def counts(self) -> bool:
        """Whether the loss depends on how many labels are left."""
        return self.reduction == "mean" and self.ignore_index is not None

    @property
    def ignored(self) -> int:
        """The label that the kernels leave out; if there is none, a number that no label has."""
        return NO_LABEL if self.ignore_index is None else self.ignore_index

    def share(self, call: Call) -> Any:
        """Return the factor of a piece's sum: 1, or 1 over the number of labels that count in the whole batch. The runtime has
        counted them before the step (`StepState.labels`), so pieces do not wait for each other. Work that is being recorded gets
        an array of one element, which has the number of each step."""
        if not self.counts:
            return self.factor(call)
        there = call.kernels.device.scalar(("labels", call.name), lambda *_: (_share(call),))
        return _share(call) if there is None else there.reshape(())


def _share(call: Call) -> float:
    if call.state.labels is None:  # a task by itself, such as one that is timed
        return 1 / prod(call.specs[TARGET].shape)
    if call.name not in call.state.labels:
        raise ValueError(f"{call.name}: the labels that count were not counted before the step; run it by an Executor")
    number = call.state.labels[call.name]
    return 1 / number if number else 0.0


def scores(name: str, inputs: Sequence[Spec], label_smoothing: float) -> None:
    """Raise ValueError unless the inputs are scores of classes and integers that name the right ones."""
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"{name}: label_smoothing must be from 0 to 1, got {label_smoothing}")
    x, target = inputs
    if len(x.shape) < 2 or not x.differentiable or target.shape != x.shape[:-1] or target.dtype.kind not in "iu":
        raise ValueError(f"{name}: inputs must be float (N, ..., classes) and integers (N, ...), got {x} and {target}")


def require_classes(call: Call, classes: int, ignore_index: int | None) -> None:
    """Check that the piece's targets are classes or ``ignore_index``; the step raises ValueError that names the operator."""
    target = call.inputs[TARGET]
    fits, others = (target >= 0) & (target < classes), ""
    if ignore_index is not None:
        fits, others = (target == ignore_index) | fits, f", or {ignore_index} to be ignored"
    call.kernels.device.require(
        fits, target, f"{call.name}: targets must be at least 0 and below {classes}{others}, got {{given}}"
    )
