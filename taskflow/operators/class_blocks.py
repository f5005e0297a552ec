"""class_blocks: contribution of each block of a classifier's classes to its cross-entropy, so that the loss can be cut by
classes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.floats import sums_in
from taskflow.operators.loss import NO_LABEL, require_classes, scores
from taskflow.operators.operator import NOTHING, Call, Example, Operator, Reads, register
from taskflow.operators.spec import Dim, Soap, Spec, positive, sample_and_attributes, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect

DOUBLE = np.dtype(np.float64)


@register("class_blocks")
class ClassBlocks(Operator):
    """x (N, ..., C), target (N, ...) integers -> y (N, ..., B, 2) float64.

    For each of ``blocks`` blocks of the classes, the first number is the logarithm of the sum of exp(x). The second is the
    block's part of (1 - e) x[target] + e / C times the sum of all scores, with ``label_smoothing`` e. Both are zero where the
    target is ``ignore_index``.

    Block b is [b C / B, (b + 1) C / B), rounded down: fixed by the model, not by the strategy, so that results do not depend on
    the strategy. If a layer's scores are cut by classes and the loss is cut by blocks likewise, the scores stay where they are:
    only a pair for each block is sent on. Pairs are in double precision, since a logarithm rounded to single precision would
    make the loss of high scores inexact.
    """

    dense_dim = "c"
    kept = NOTHING

    blocks: int
    ignore_index: int | None = -100
    label_smoothing: float = 0.0

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("class_blocks", inputs, 2)
        x, target = inputs
        positive("class_blocks", blocks=self.blocks)
        scores("class_blocks", inputs, self.label_smoothing)
        if self.blocks > x.shape[-1]:
            raise ValueError(f"class_blocks: each block needs a class, got {self.blocks} blocks of {x.shape[-1]} classes")
        return (Spec((*target.shape, self.blocks, 2), DOUBLE),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        # Named as `linear` names the classes, so that one is cut as the other is.
        return (*sample_and_attributes(inputs[1].shape), Dim("c", self.blocks, Soap.ATTRIBUTE))

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        classes = inputs[0].shape[-1]
        first, end = (b * classes // self.blocks for b in (piece.lo[-1], piece.hi[-1]))
        return Reads((Rect((*piece.lo[:-1], first), (*piece.hi[:-1], end)), Rect(piece.lo[:-1], piece.hi[:-1])))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return (Rect((*piece.lo, 0), (*piece.hi, 2)),)

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        # As `cross_entropy`: probabilities (here of each block for itself) and targets, so that the logits need not be kept.
        scores, target = self.reads(inputs, piece).inputs
        return (Spec(scores.shape, sums_in(inputs[0].dtype)), Spec(target.shape, inputs[1].dtype))

    def integers_below(self, inputs: Sequence[Spec]) -> int:
        return inputs[0].shape[-1]

    def forward(self, call: Call) -> None:
        (x, target), (y,), (probabilities, kept) = call.inputs, call.outputs, call.saved
        classes, rows = call.specs[0].shape[-1], target.size
        require_classes(call, classes, self.ignore_index)
        kept[...] = target
        call.kernels.class_blocks(
            x.reshape(rows, x.shape[-1]), target.reshape(rows), self.ignored, self._split(call),
            probabilities.reshape(rows, x.shape[-1]), y.reshape(rows, 2 * y.shape[-2]), smoothing=self.label_smoothing,
        )

    def backward(self, call: Call) -> None:
        (probabilities, target), dy, dx = call.saved, call.grad, call.grad_inputs[0]
        if dx is not None:
            rows, columns = target.size, probabilities.shape[-1]
            call.kernels.class_blocks_backward(
                probabilities.reshape(rows, columns), target.reshape(rows), self.ignored, self._split(call),
                dy.reshape(rows, 2 * dy.shape[-2]), out=dx.array.reshape(rows, columns), accumulate=dx.accumulate,
                smoothing=self.label_smoothing,
            )

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return 5 * self.reads(inputs, piece).inputs[0].volume  # the softmax of every block

    def backward_flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return self.reads(inputs, piece).inputs[0].volume

    @property
    def ignored(self) -> int:
        """The label that the kernels leave out; if there is none, a number that no label has."""
        return NO_LABEL if self.ignore_index is None else self.ignore_index

    def _split(self, call: Call) -> tuple[int, int, int]:
        return call.specs[0].shape[-1], self.blocks, call.piece.lo[-1]

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 3) for _ in range(random.randint(1, 3)))
        classes = random.randint(2, 9)
        ignored = random.choice((None, -100, random.randrange(classes)))
        operator = cls(random.randint(1, min(4, classes)), ignored, random.choice((0.0, 0.1, 0.5)))
        specs = (Spec((*shape, classes), np.dtype(np.float64)), Spec(shape, np.dtype(np.int64)))
        return Example(operator, specs, high=classes)


def class_blocks(
    input: Tensor,
    target: Tensor,
    blocks: int,
    *,
    ignore_index: int | None = -100,
    label_smoothing: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """Compute the pairs from which `cross_entropy_of_blocks` makes the loss; `cross_entropy` builds both operators.

    Args: input (N, ..., C), classes last; target (N, ...) integers below C, or ``ignore_index``; ``blocks``, at most C. Returns
    (N, ..., blocks, 2) float64.
    """
    return input.graph.apply(ClassBlocks(blocks, ignore_index, label_smoothing), (input, target), name=name)[0]
