"""embedding: rows of a table, chosen by integers (PyTorch: torch.nn.Embedding)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np

from taskflow.operators.operator import INPUTS, Call, Example, Operator, Reads, register
from taskflow.operators.spec import Dim, Init, Soap, Spec, WeightSpec, positive, sample_and_attributes, takes
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.regions import Rect


@register("embedding")
class Embedding(Operator):
    """x (N, ...) integers, weight (V, E) -> y (N, ..., E). E cuts the table by columns (parameter). V cuts it by rows and
    counts as contracted: a piece gives zeros for indices outside its rows, so the pieces' outputs add up to the whole."""

    num_embeddings: int
    embedding_dim: int
    dtype: np.dtype[Any]  # of the table; integers do not say
    std: float = 1.0  # of the table's start
    padding: int | None = None  # a row that is not trained: its gradient is zero
    kept = INPUTS
    flops_per_element = 0  # it moves memory
    summed = 1

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("embedding", inputs, 1)
        positive("embedding", num_embeddings=self.num_embeddings, embedding_dim=self.embedding_dim)
        (x,) = inputs
        if self.padding is not None and not 0 <= self.padding < self.num_embeddings:
            raise ValueError(f"embedding: padding must be a row below {self.num_embeddings}, got {self.padding}")
        if not x.shape or x.dtype.kind not in "iu":
            raise ValueError(f"embedding: input must be an integer tensor (N, ...), got {x}")
        return (Spec((*x.shape, self.embedding_dim), self.dtype),)

    def weights(self, inputs: Sequence[Spec]) -> tuple[WeightSpec, ...]:
        return (WeightSpec("weight", (self.num_embeddings, self.embedding_dim), Init("normal", self.std)),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        return (
            *sample_and_attributes(inputs[0].shape),
            Dim("e", self.embedding_dim, Soap.PARAMETER),
            Dim("v", self.num_embeddings, Soap.REDUCTION),
        )

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        *lo, e0, v0 = piece.lo
        *hi, e1, v1 = piece.hi
        return Reads((Rect(tuple(lo), tuple(hi)),), (Rect((v0, e0), (v1, e1)),))

    def picks(self, inputs: Sequence[Spec], piece: Rect) -> Mapping[int, int]:
        (table,), (rows,) = self.reads(inputs, piece).weights, self.writes(inputs, piece)
        return {0: min(table.volume, rows.volume)}

    def integers_below(self, inputs: Sequence[Spec]) -> int:
        return self.num_embeddings

    def forward(self, call: Call) -> None:
        (x,), (y,), (table,) = call.inputs, call.outputs, call.weights
        call.kernels.device.require(
            (x >= 0) & (x < self.num_embeddings), x,
            f"{call.name}: indices must be at least 0 and below {self.num_embeddings}, got {{given}}",
        )
        call.kernels.embedding(table, x.reshape(-1), call.piece.lo[-1], out=y.reshape(-1, y.shape[-1]))

    def backward(self, call: Call) -> None:
        (x,), dy = call.inputs, call.grad
        if (dw := call.grad_weights[0]) is not None:
            rows = x.reshape(-1)
            if self.padding is not None:  # no table has a row -1
                rows = call.kernels.xp.where(rows == self.padding, -1, rows)
            call.kernels.embedding_backward(
                rows, call.piece.lo[-1], dy.reshape(-1, dy.shape[-1]), out=dw.array, accumulate=dw.accumulate
            )

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = tuple(random.randint(1, 4) for _ in range(random.randint(1, 3)))
        rows = random.randint(1, 6)
        operator = cls(rows, random.randint(1, 4), np.dtype(np.float64))
        return Example(operator, (Spec(shape, np.dtype(np.int64)),), high=rows)


def embedding(
    input: Tensor,
    num_embeddings: int,
    embedding_dim: int,
    *,
    std: float = 1.0,
    padding: int | None = None,
    name: str | None = None,
    parameters: Sequence[Parameter] | None = None,
) -> Tensor:
    """Look up rows of a table (num_embeddings, embedding_dim), in the graph's float type. Initial values are normal with
    standard deviation ``std``.

    Args: input (N, ...) integers below ``num_embeddings``. ``padding``: a row that is not trained. Returns (N, ...,
    embedding_dim). ``parameters`` shares another embedding's table.
    """
    operator = Embedding(num_embeddings, embedding_dim, np.dtype(input.graph.dtype), std, padding)
    return input.graph.apply(operator, (input,), name=name, parameters=parameters)[0]
