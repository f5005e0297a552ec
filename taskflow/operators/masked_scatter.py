"""masked_scatter: rows of another tensor at the places of a token, such as an image's features among words (PyTorch:
torch.Tensor.masked_scatter by ``tokens == token``, each sample from its own rows)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import NOTHING, Call, Dim, Example, Operator, Reads, Soap, Spec, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("masked_scatter")
class MaskedScatter(Operator):
    """x (N, T, D), tokens (N, T) integers, rows (N, M, D) -> y (N, T, D): where tokens[n, t] is ``token``, for the k-th time in its
    sample, y[n, t] = rows[n, k]; elsewhere y = x. A sample has the token at most M times. ``adds``: y = x + rows there.

    Every dimension can be cut. A piece of steps reads the tokens up to its end, and every row that there may be until then.
    """

    token: int
    adds: bool = False
    kept = NOTHING
    flops_per_element = 0  # it moves memory

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("masked_scatter", inputs, 3)
        x, tokens, rows = inputs
        fits = len(x.shape) == 3 == len(rows.shape) and x.differentiable and x.dtype == rows.dtype
        if not fits or (x.shape[0], x.shape[2]) != (rows.shape[0], rows.shape[2]) or tokens.shape != x.shape[:2] or (
            tokens.dtype.kind not in "iu"
        ):
            raise ValueError(
                f"masked_scatter: needs floats (N, T, D), integers (N, T) and floats (N, M, D) of the same type, got {x}, {tokens} "
                f"and {rows}"
            )
        return (x,)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        samples, steps, features = inputs[0].shape
        return (Dim("n", samples, Soap.SAMPLE), Dim("t", steps, Soap.ATTRIBUTE), Dim("d", features, Soap.ATTRIBUTE))

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        (n0, _, d0), (n1, t1, d1) = piece.lo, piece.hi
        rows = Rect((n0, 0, d0), (n1, min(t1, inputs[2].shape[1]), d1))
        return Reads((piece, Rect((n0, 0), (n1, t1)), rows))

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        """Save which row each step has; the number of rows for none."""
        return (Spec(piece.shape[:2], np.dtype(np.int64)),)

    def forward(self, call: Call) -> None:
        (x, tokens, rows), (y,), (chosen,) = call.inputs, call.outputs, call.saved
        xp, count = call.kernels.xp, call.specs[2].shape[1]
        here = tokens == self.token
        rank = xp.cumsum(here, axis=1)  # and one more
        call.kernels.device.require(
            rank[:, -1] <= count, rank[:, -1],
            f"{call.name}: each sample must have the token {self.token} at most {count} times, once for each row, got {{given}}",
        )
        first = call.piece.lo[1]
        chosen[...] = xp.where(here, rank - 1, rows.shape[1])[:, first:]
        samples = xp.arange(len(chosen))[:, None]
        found = rows[samples, xp.minimum(chosen, rows.shape[1] - 1)]
        y[...] = xp.where(here[:, first:, None], found + x if self.adds else found, x)

    def backward(self, call: Call) -> None:
        (dx, _, drows), (chosen,), dy, xp = call.grad_inputs, call.saved, call.grad, call.kernels.xp
        count = call.reads.inputs[2].shape[1]
        if dx is not None:
            dx.put(dy if self.adds else dy * (chosen == count)[:, :, None])
        if drows is not None:  # those of no row go to one that is left out
            each = xp.zeros((dy.shape[0], count + 1, dy.shape[2]), dy.dtype)
            each[xp.arange(len(chosen))[:, None], chosen] = dy
            drows.put(each[:, :count])

    @classmethod
    def example(cls, random: Random) -> Example:
        samples, steps, features = (random.randint(1, 4) for _ in range(3))
        dtype, rows = np.dtype(np.float64), steps + random.randint(0, 1)
        specs = (Spec((samples, steps, features), dtype), Spec((samples, steps), np.dtype(np.int64)))
        return Example(cls(random.randint(0, 1), random.random() < 0.5), (*specs, Spec((samples, rows, features), dtype)))


def masked_scatter(
    input: Tensor, tokens: Tensor, token: int, rows: Tensor, *, adds: bool = False, name: str | None = None
) -> Tensor:
    """Put ``rows`` (N, M, D) of each sample, one after the other, where ``tokens`` (N, T) are ``token``; elsewhere ``input``
    (N, T, D) stays. ``adds``: add them there. A sample must have the token at most M times. Returns (N, T, D)."""
    return input.graph.apply(MaskedScatter(token, adds), (input, tokens, rows), name=name)[0]
