"""routed_linear: a linear layer whose weight each token chooses, for routing without a capacity ("dropless": Gale,
Narayanan, Young, Zaharia, "MegaBlocks", arXiv 2211.15841)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import numpy as np

from taskflow.operators.operator import Array, Call, Example, Keeps, Operator, Reads, Work, register
from taskflow.operators.spec import Dim, Init, Soap, Spec, WeightSpec, positive, takes
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.regions import Rect


@register("routed_linear")
class RoutedLinear(Operator):
    """x (G, S, k, M), or (G, S, M) for all k choices, chosen (G, S, k) integers below E, weight (E, H, M) -> y (G, S, k, H) = x
    W_chosen^T. A choice that is no expert, such as -1, gives zeros. G, S, k and H can be cut, and so can the contracted
    dimensions M and E (like an embedding's rows). A piece of E gives zeros for tokens of other experts. So tokens stay where
    they are, and the pieces' outputs add up to the whole."""

    work = Work.CONTRACTION
    uniform = False  # see `flops`
    kept = Keeps(outputs=False)
    summed = 2

    experts: int
    out_features: int

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("routed_linear", inputs, 2)
        x, chosen = inputs
        positive("routed_linear", experts=self.experts, out_features=self.out_features)
        fits = len(chosen.shape) == 3 and len(x.shape) in (3, 4) and x.shape[:-1] == chosen.shape[: len(x.shape) - 1]
        if not fits or not x.differentiable or chosen.dtype.kind not in "iu":
            raise ValueError(
                f"routed_linear: inputs must be float (G, S, features) or (G, S, k, features), and integers (G, S, k), got {x} "
                f"and {chosen}"
            )
        return (Spec((*chosen.shape, self.out_features), x.dtype),)

    def weights(self, inputs: Sequence[Spec]) -> tuple[WeightSpec, ...]:
        features = inputs[0].shape[-1]
        return (WeightSpec("weight", (self.experts, self.out_features, features), Init("uniform", features**-0.5)),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        groups, tokens, choices = inputs[1].shape
        return (
            Dim("n", groups, Soap.SAMPLE), Dim("a1", tokens, Soap.ATTRIBUTE), Dim("a2", choices, Soap.ATTRIBUTE),
            Dim("c", self.out_features, Soap.PARAMETER), Dim("e", self.experts, Soap.REDUCTION),
            Dim("k", inputs[0].shape[-1], Soap.REDUCTION),
        )

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        *lo, c0, e0, k0 = piece.lo
        *hi, c1, e1, k1 = piece.hi
        rows = len(inputs[0].shape) - 1
        x = Rect((*lo[:rows], k0), (*hi[:rows], k1))
        return Reads((x, Rect(tuple(lo), tuple(hi))), (Rect((e0, c0, k0), (e1, c1, k1)),))

    def integers_below(self, inputs: Sequence[Spec]) -> int:
        return self.experts

    def forward(self, call: Call) -> None:
        (x, _), (weight,), (y,) = call.inputs, call.weights, call.outputs
        y[...] = 0
        result = y.reshape(-1, y.shape[-1])
        for e, rows in self._rows(call):
            some = _taken(x, rows, self._shared(call))
            rows_out = call.kernels.xp.empty((len(some), y.shape[-1]), y.dtype)
            call.kernels.matmul(some, weight[e].T, out=rows_out)
            if rows.dtype.kind == "f":
                result += rows_out
            else:
                result[rows] = rows_out

    def backward(self, call: Call) -> None:
        (x, _), (weight,), kernels = call.inputs, call.weights, call.kernels
        (dx, _), (dw,), dy = call.grad_inputs, call.grad_weights, call.grad
        for target in (dx, dw):
            if target is not None and not target.accumulate:
                target.array[...] = 0
        for e, rows in self._rows(call):
            given, shared = _taken(dy, rows, 1), self._shared(call)
            if dw is not None:
                kernels.matmul(given.T, _taken(x, rows, shared), out=dw.array[e], accumulate=True)
            if dx is not None:
                rows_out = kernels.xp.empty((len(given), x.shape[-1]), x.dtype)
                kernels.matmul(given, weight[e], out=rows_out)
                into = dx.array.reshape(-1, x.shape[-1])
                if rows.dtype.kind == "f":
                    into += rows_out.reshape(len(into), shared, -1).sum(axis=1)
                else:  # a token may have chosen an expert twice
                    kernels.embedding_backward(rows // shared, 0, rows_out, out=into, accumulate=True)

    @staticmethod
    def _shared(call: Call) -> int:
        """Number of choices for each row of x."""
        return int(call.inputs[1].shape[-1]) if call.inputs[0].ndim == 3 else 1

    def _rows(self, call: Call) -> Iterator[tuple[int, Array]]:
        """For each expert of the piece, its number there and the rows that chose it: their indices, or, on a device that does
        not wait, a factor of 1 or 0 for every row."""
        chosen = call.inputs[1].reshape(-1)
        for e in range(first := call.piece.lo[-2], call.piece.hi[-2]):
            if not call.kernels.device.waits:
                yield e - first, (chosen == e).astype(call.inputs[0].dtype)
            elif (rows := np.flatnonzero(chosen == e)).size:
                yield e - first, rows

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        """Count flops as if the tokens of a group chose the experts in turn."""
        (_, s0, _, _, e0, _), (_, s1, _, _, e1, _) = piece.lo, piece.hi
        turns = _of_experts(s1, e0, e1, self.experts) - _of_experts(s0, e0, e1, self.experts)
        return 2 * piece.shape[0] * piece.shape[2] * piece.shape[3] * piece.shape[5] * turns

    @classmethod
    def example(cls, random: Random) -> Example:
        choices, experts = tuple(random.randint(1, 3) for _ in range(3)), random.randint(1, 4)
        rows = choices[: random.choice((2, 3))]
        specs = (Spec((*rows, random.randint(1, 4)), np.dtype(np.float64)), Spec(choices, np.dtype(np.int64)))
        return Example(cls(experts, random.randint(1, 4)), specs, high=experts + 1)


def _of_experts(count: int, first: int, end: int, experts: int) -> int:
    """Number of choices below ``count`` that go to experts from ``first`` to below ``end``, if experts are chosen in turn."""
    rounds, rest = divmod(count, experts)
    return rounds * (end - first) + min(max(rest - first, 0), end - first)


def _taken(x: Array, rows: Array, shared: int) -> Array:
    """Rows of (..., M), each of which stands for ``shared`` rows: those that are named by number, or all, times their
    factors."""
    flat = x.reshape(-1, x.shape[-1])
    if rows.dtype.kind != "f":
        return flat[rows // shared]
    return (flat[:, None] * rows.reshape(-1, shared, 1)).reshape(-1, flat.shape[-1])


def routed_linear(
    input: Tensor, chosen: Tensor, experts: int, out_features: int, *, name: str | None = None,
    parameters: Sequence[Parameter] | None = None,
) -> Tensor:
    """Multiply each token by the weight (out_features, in_features) of the expert that it has chosen.

    Args: input (G, S, k, in_features), or (G, S, in_features) for all choices of a token; chosen (G, S, k) integers
    below ``experts``, the slots of `top_k_routing` without a capacity. Returns (G, S, k, out_features). The weight is
    (experts, out_features, in_features).
    """
    return input.graph.apply(RoutedLinear(experts, out_features), (input, chosen), name=name, parameters=parameters)[0]
