"""cross_entropy: the loss of a classifier (PyTorch: torch.nn.functional.cross_entropy, but with the classes last)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.floats import sums_in
from taskflow.operators.class_blocks import class_blocks
from taskflow.operators.cross_entropy_of_blocks import cross_entropy_of_blocks
from taskflow.operators.loss import LabelLoss, require_classes, scores
from taskflow.operators.operator import Call, Example, Reads, Spec, register
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("cross_entropy")
class CrossEntropy(LabelLoss):
    """x (N, ..., C), target (N, ...) integers -> a scalar: the sum over targets of -log softmax(x)[target], or their mean.

    A piece computes the part of its samples, so pieces give partial sums. Targets equal to ``ignore_index`` add nothing, and the
    mean is over the others of the whole batch, whatever the cut and the micro-batches (`LabelLoss`).

    With ``label_smoothing`` e, the right class has the weight 1 - e, and e is spread evenly over all C classes (Szegedy et al.,
    arXiv 1512.00567, section 7).
    """

    ignore_index: int | None = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        x, target = self.pair(inputs)
        scores(self.kind, (x, target), self.label_smoothing)
        return (Spec((), sums_in(x.dtype)),)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return Reads((Rect((*piece.lo, 0), (*piece.hi, inputs[0].shape[-1])), piece))

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        # The probabilities, and the targets again, so that the much larger logits need not be kept for their sake.
        x, target = inputs
        return (Spec((*piece.shape, x.shape[-1]), sums_in(x.dtype)), Spec(piece.shape, target.dtype))

    def integers_below(self, inputs: Sequence[Spec]) -> int:
        return inputs[0].shape[-1]

    def forward(self, call: Call) -> None:
        (x, target), (y,), (probabilities, kept) = call.inputs, call.outputs, call.saved
        classes = x.shape[-1]
        require_classes(call, classes, self.ignore_index)
        kept[...] = target
        total = call.kernels.cross_entropy(
            x.reshape(-1, classes), target.reshape(-1), self.ignored, probabilities.reshape(-1, classes),
            smoothing=self.label_smoothing,
        )
        y[...] = total * self.share(call)

    def backward(self, call: Call) -> None:
        (probabilities, target), dy, dx = call.saved, call.grad, call.grad_inputs[0]
        if dx is not None:
            classes = probabilities.shape[-1]
            call.kernels.cross_entropy_backward(
                probabilities.reshape(-1, classes), target.reshape(-1), self.ignored,
                call.kernels.device.number(dy) * self.share(call), out=dx.array.reshape(-1, classes), accumulate=dx.accumulate,
                smoothing=self.label_smoothing,
            )

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return 5 * piece.volume * inputs[0].shape[-1]  # the softmax

    def backward_flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return piece.volume * inputs[0].shape[-1]

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 4) for _ in range(random.randint(1, 3)))
        classes = random.randint(2, 5)
        ignored, reduction = random.choice((None, -100, random.randrange(classes))), random.choice(("mean", "sum"))
        operator = cls(ignored, reduction, random.choice((0.0, 0.1, 0.5)))
        specs = (Spec((*shape, classes), np.dtype(np.float64)), Spec(shape, np.dtype(np.int64)))
        return Example(operator, specs, high=classes)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    *,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    blocks: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Compute the cross-entropy of unnormalised scores and right classes, in nats.

    Args: input (N, ..., C), classes last (PyTorch has them second); target (N, ...) integers below C, or ``ignore_index``, which
    adds nothing. ``reduction``: "mean", over the labels of the whole batch that are not ``ignore_index``, also in micro-batches
    (PyTorch's, but 0 instead of nan if there are none), or "sum". ``label_smoothing``: the part of the right class's weight that
    is spread evenly over all classes. Returns a scalar ().

    Labels that count are counted before the step. So ``target`` must be made of inputs of integers alone, by such as `reshape`
    or `narrow`; else training refuses it: give ``ignore_index`` None (every label counts), or a "sum" to `per_label`.

    ``blocks`` (at most C): the same loss in two operators, of which the first (``name``.blocks) can also be cut by this many
    blocks of classes. If a layer with many classes is cut by channels, its scores then stay where they are: only two numbers
    for each block are sent on.
    """
    if blocks is not None:
        pairs = class_blocks(
            input, target, blocks, ignore_index=ignore_index, label_smoothing=label_smoothing,
            name=None if name is None else f"{name}.blocks",
        )
        return cross_entropy_of_blocks(
            pairs, target, ignore_index=ignore_index, reduction=reduction, dtype=sums_in(input.spec.dtype).name, name=name
        )
    return input.graph.apply(CrossEntropy(ignore_index, reduction, label_smoothing), (input, target), name=name)[0]
