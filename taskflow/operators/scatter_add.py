"""scatter_add: adds up entries of every sample by chosen places, the transpose of gather (PyTorch: torch.index_add over dimension
1)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random

import numpy as np

from taskflow.operators.operator import INPUTS, Array, Call, Example, Operator, Reads, register
from taskflow.operators.spec import Dim, Spec, positive, sample_and_attributes, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("scatter_add")
class ScatterAdd(Operator):
    """x (N, K, ...), index (N, K) integers below ``size`` -> y (N, size, ...): y[n, b] = the sum of x[n, k] with index[n, k] = b.
    The samples and the last dimensions can be cut. Only the data tell which places entries go to, so a piece has all of them.
    ``distinct``: the step refuses a place that several entries of a sample go to."""

    size: int
    distinct: bool = False
    kept = INPUTS
    flops_per_element = 1

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes(self.kind, inputs, 2)
        positive(self.kind, size=self.size)
        x, index = inputs
        fits = len(x.shape) >= 2 and x.shape[:2] == index.shape and x.differentiable
        if not fits or index.dtype.kind not in "iu":
            raise ValueError(f"{self.kind}: inputs must be floats (N, K, ...) and integers (N, K), got {x} and {index}")
        return (Spec((x.shape[0], self.size, *x.shape[2:]), x.dtype),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        x = inputs[0].shape
        return sample_and_attributes((x[0], self.size, *x[2:]), fixed=1)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        entries = inputs[1].shape[1]
        x = Rect((piece.lo[0], 0, *piece.lo[2:]), (piece.hi[0], entries, *piece.hi[2:]))
        return Reads((x, Rect((piece.lo[0], 0), (piece.hi[0], entries))))

    def integers_below(self, inputs: Sequence[Spec]) -> int:
        return self.size

    def forward(self, call: Call) -> None:
        x, index = call.inputs
        self._require_below(call)
        if self.distinct:
            ordered = call.kernels.xp.sort(index, axis=1)
            call.kernels.device.require(
                ordered[:, 1:] != ordered[:, :-1], ordered[:, 1:],
                f"{call.name}: entries are put, not added, so each place may be named once in a row, but {{given}} is named twice",
            )
        self._add_up(call, x, index, call.outputs[0])

    def _require_below(self, call: Call) -> None:
        index = call.inputs[1]
        call.kernels.device.require(
            (index >= 0) & (index < self.size), index,
            f"{call.name}: indices must be at least 0 and below {self.size}, got {{given}}",
        )

    def _add_up(self, call: Call, x: Array, index: Array, out: Array) -> None:
        """Write the sums of entries x (N, K, ...) by places (N, K) to ``out`` (N, size, ...)."""
        samples, entries, *rest = x.shape
        flat = call.kernels.xp.ascontiguousarray(samples_of(call) * self.size + index).reshape(-1)
        rows = call.kernels.xp.ascontiguousarray(x).reshape(samples * entries, prod(rest))
        call.kernels.embedding_backward(flat, 0, rows, out=out.reshape(samples * self.size, prod(rest)), accumulate=False)

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is not None:
            dx.put(call.grad[samples_of(call), call.inputs[1]])

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return piece.volume // self.size * inputs[1].shape[1]

    @classmethod
    def example(cls, random: Random) -> Example:
        samples, entries, size = (random.randint(1, 4) for _ in range(3))
        rest = tuple(random.randint(1, 4) for _ in range(random.randint(0, 2)))
        x = Spec((samples, entries, *rest), np.dtype(np.float64))
        return Example(cls(size), (x, Spec((samples, entries), np.dtype(np.int64))), high=size)


def samples_of(call: Call) -> Array:
    """The number of each sample among the entries, (N, 1)."""
    return call.kernels.xp.arange(call.inputs[0].shape[0])[:, None]


def scatter_add(
    input: Tensor, index: Tensor, size: int, *, distinct: bool = False, name: str | None = None
) -> Tensor:
    """Add up the entries of every sample that go to one place, such as what a node of a graph gets from its neighbours.

    Args: input (N, K, ...) floats; index (N, K) integers below ``size``, which may repeat unless ``distinct``. Returns
    (N, size, ...), zeros where nothing goes.
    """
    return input.graph.apply(ScatterAdd(size, distinct), (input, index), name=name)[0]
