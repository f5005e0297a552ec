"""softmax over one dimension (PyTorch: torch.nn.functional.softmax)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import Array, Call, Example, Keeps, Operator, Reads, register
from taskflow.operators.spec import Dim, Spec, axis, sample_and_attributes, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("softmax")
class Softmax(Operator):
    """x -> exp(x) / sum of exp(x) over ``dim``, of the same shape. Every dimension but ``dim`` can be cut.

    ``causal``: row t of (..., T, S) ends at column t + S - T; later columns count as minus infinity, are not read, and give 0.
    A second input, lengths (N) integers, ends the rows of sample n before column lengths[n]; an empty row is 0.
    """

    dim: int
    causal: bool = False
    kept = Keeps(inputs=False, weights=False)
    flops_per_element = 5  # maximum, difference, exponential, sum, quotient
    backward_flops_per_element = 4

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        if len(inputs) != 2:
            takes("softmax", inputs, 1)
        x = inputs[0]
        axis("softmax", self.dim, len(x.shape))
        if not x.differentiable:
            raise ValueError(f"softmax: input must be a float tensor, got {x}")
        if self.causal and (self.dim % len(x.shape) != len(x.shape) - 1 or len(x.shape) < 2 or x.shape[-2] > x.shape[-1]):
            raise ValueError(f"softmax: causal needs the last dim of (..., T, S) with T at most S, got {self.dim} of {x}")
        if len(inputs) == 2:
            lengths = inputs[1]
            last = len(x.shape) >= 2 and self.dim % len(x.shape) == len(x.shape) - 1
            if not last or lengths.shape != x.shape[:1] or lengths.dtype.kind not in "iu":
                raise ValueError(
                    f"softmax: lengths must be integers (N,) and end the last dim of (N, ..., S), got {lengths} for "
                    f"dim {self.dim} of {x}"
                )
        return (x,)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        shape = inputs[0].shape
        return sample_and_attributes(shape, fixed=self.dim % len(shape))

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        x = piece
        if self.causal:
            rows, columns = inputs[0].shape[-2:]
            x = Rect(piece.lo, (*piece.hi[:-1], piece.hi[-2] + columns - rows))
        return Reads((x, Rect(piece.lo[:1], piece.hi[:1])) if len(inputs) == 2 else (x,))

    def forward(self, call: Call) -> None:
        x, (y,) = call.inputs[0], call.outputs
        if self.causal or len(call.inputs) == 2:
            call.kernels.softmax(_rows(x), out=_rows(y), ends=self._ends(call).reshape(-1))
        elif self._last(y):
            call.kernels.softmax(_rows(x), out=_rows(y))
        else:
            rows = _rows(np.moveaxis(x, self.dim, -1).copy())
            result = np.empty_like(rows)
            call.kernels.softmax(rows, out=result)
            moved = np.moveaxis(y, self.dim, -1)
            moved[...] = result.reshape(moved.shape)

    def backward(self, call: Call) -> None:
        y, dy, dx = call.outputs[0], call.grad, call.grad_inputs[0]
        if dx is None:
            return
        if self.causal and dx.array.shape != y.shape:
            result = np.empty_like(y)
            call.kernels.softmax_backward(_rows(y), _rows(dy), out=_rows(result))
            dx.put(result[..., : dx.array.shape[-1]])
        elif self._last(y):
            call.kernels.softmax_backward(_rows(y), _rows(dy), out=_rows(dx.array), accumulate=dx.accumulate)
        else:
            moved = np.moveaxis(y, self.dim, -1).copy()
            rows = _rows(moved)
            result = np.empty_like(rows)
            call.kernels.softmax_backward(rows, _rows(np.moveaxis(dy, self.dim, -1).copy()), out=result)
            dx.put(np.moveaxis(result.reshape(moved.shape), -1, self.dim))

    def _last(self, array: Array) -> bool:
        return bool(self.dim % array.ndim == array.ndim - 1)

    def _ends(self, call: Call) -> Array:
        """Number of columns that each row of the piece sees."""
        rows, columns = call.specs[0].shape[-2:]
        piece = call.piece
        key = ("softmax ends", self.causal, rows, columns, piece.shape[:-1], piece.lo[-2:-1])
        ends = call.kernels.constant(key, lambda: self._ends_on_host(call))
        if len(call.inputs) == 2:
            lengths = call.inputs[1]
            call.kernels.device.require(
                (lengths >= 0) & (lengths <= columns), lengths,
                f"{call.name}: lengths must be from 0 to {columns}, got {{given}}",
            )
            ends = np.minimum(ends, lengths.reshape(-1, *[1] * (ends.ndim - 1))).astype(np.int64)
        return ends

    def _ends_on_host(self, call: Call) -> Array:
        rows, columns = call.specs[0].shape[-2:]
        ends = np.full(call.piece.shape[:-1], columns, np.int64)
        if self.causal:
            ends[...] = np.arange(call.piece.lo[-2], call.piece.hi[-2]) + columns - rows + 1
        return ends

    @classmethod
    def example(cls, random: Random) -> Example:
        kind = random.random()
        if kind < 0.3:
            shape = tuple(random.randint(1, 3) for _ in range(random.randint(1, 3)))
            causal, columns = len(shape) > 1 and random.random() < 0.5, random.randint(2, 4)
            specs = (Spec((*shape, columns + shape[-1] * causal), np.dtype(np.float64)), Spec(shape[:1], np.dtype(np.int64)))
            return Example(cls(-1, causal), specs, high=specs[0].shape[-1] + 1)
        if kind < 0.6:
            leading, rows = tuple(random.randint(1, 3) for _ in range(random.randint(0, 2))), random.randint(1, 4)
            shape = (*leading, rows, rows + random.randint(1, 3))  # so that the first row has two elements
            return Example(cls(-1, True), (Spec(shape, np.dtype(np.float64)),))
        rank = random.randint(1, 4)
        sizes = [random.randint(1, 4) for _ in range(rank)]
        dim = random.randint(-rank, rank - 1)
        sizes[dim] += 1  # over one element softmax is the constant 1
        return Example(cls(dim), (Spec(tuple(sizes), np.dtype(np.float64)),))


def _rows(array: Array) -> Array:
    """(..., C) as contiguous (rows, C)."""
    return array.reshape(-1, array.shape[-1])


def softmax(
    input: Tensor, dim: int = -1, *, causal: bool = False, lengths: Tensor | None = None, name: str | None = None
) -> Tensor:
    """Compute positive values that add up to 1 over ``dim``. Any shape in, the same shape out.

    ``causal``: row t of (..., T, S) sees only the columns up to t + S - T (the mask of a decoder's attention). ``lengths`` (N)
    integers: sample n of (N, ..., S) has this many columns; the others are padding, and a sample with none gives zeros.
    """
    inputs = (input,) if lengths is None else (input, lengths)
    return input.graph.apply(Softmax(dim, causal), inputs, name=name)[0]
