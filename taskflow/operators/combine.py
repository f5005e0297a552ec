"""combine: weighted sums of the experts' outputs for each token. GShard, arXiv 2006.16668, algorithm 2: the einsum
GSEC,GECM->GSM with the combine weights, without building that array."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.expert_slots import check_slots, rows_of
from taskflow.operators.operator import INPUTS, Array, Call, Dim, Example, Operator, Reads, Soap, Spec, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("combine")
class CombineExperts(Operator):
    """x (G, E, C, M), weights (G, S, k), slots (G, S, k) integers, expert * C + place -> y (G, S, M): for each token the
    weighted sum over its slots; other slots, such as -1, add nothing. G, S and M can be cut; E is contracted: a piece of E adds
    its experts' part. A piece reads all places of its groups' experts."""

    kept = INPUTS
    flops_per_element = 0  # it moves memory
    summed = 1

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("combine", inputs, 3)
        x, weights, slots = inputs
        if len(x.shape) != 4 or not x.differentiable or weights.dtype != x.dtype or weights.shape != slots.shape:
            raise ValueError(
                f"combine: inputs must be float (groups, experts, places, features), and weights and slots of one shape, got {x}, "
                f"{weights} and {slots}"
            )
        check_slots("combine", slots, x.shape[0], x.shape[1], x.shape[2])
        return (Spec((*slots.shape[:2], x.shape[3]), x.dtype),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        (groups, experts, _, features), tokens = inputs[0].shape, inputs[1].shape[1]
        return (
            Dim("n", groups, Soap.SAMPLE), Dim("a1", tokens, Soap.ATTRIBUTE), Dim("a2", features, Soap.ATTRIBUTE),
            Dim("e", experts, Soap.REDUCTION),
        )

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        (g0, s0, m0, e0), (g1, s1, m1, e1) = piece.lo, piece.hi
        chosen = Rect((g0, s0, 0), (g1, s1, inputs[1].shape[2]))
        return Reads((Rect((g0, e0, 0, m0), (g1, e1, inputs[0].shape[2], m1)), chosen, chosen))

    def integers_below(self, inputs: Sequence[Spec]) -> int:
        return inputs[0].shape[1] * inputs[0].shape[2]

    def forward(self, call: Call) -> None:
        weights, (y,) = call.inputs[1], call.outputs
        y[...] = (self._said(call, self._rows(call)) * weights[..., None]).sum(axis=2)

    def backward(self, call: Call) -> None:
        (x, weights, _), (dx, dweights) = call.inputs, call.grad_inputs[:2]
        rows, dy = self._rows(call), call.grad[:, :, None]
        if dweights is not None:
            dweights.put((self._said(call, rows) * dy).sum(axis=-1))
        if dx is not None:
            width = x.shape[-1]
            sent = (dy * weights[..., None]).reshape(-1, width)
            call.kernels.embedding_backward(rows, 0, sent, out=dx.array.reshape(-1, width), accumulate=dx.accumulate)

    def _rows(self, call: Call) -> Array:
        return rows_of(call, call.inputs[2], call.piece.lo[-1], call.piece.hi[-1], call.inputs[0].shape[2])

    @staticmethod
    def _said(call: Call, rows: Array) -> Array:
        """Outputs in each token's places, (G, S, k, M)."""
        x, slots = call.inputs[0], call.inputs[2]
        width = x.shape[-1]
        result = call.kernels.xp.empty((*slots.shape, width), x.dtype)
        call.kernels.embedding(x.reshape(-1, width), rows, 0, out=result.reshape(-1, width))
        return result

    @classmethod
    def example(cls, random: Random) -> Example:
        groups, experts, places, features, tokens = (random.randint(1, 3) for _ in range(5))
        real, choices = np.dtype(np.float64), (groups, tokens, random.randint(1, 2))
        specs = (Spec((groups, experts, places, features), real), Spec(choices, real), Spec(choices, np.dtype(np.int64)))
        return Example(cls(), specs, high=experts * places + 1)


def combine(input: Tensor, weights: Tensor, slots: Tensor, *, name: str | None = None) -> Tensor:
    """Add up the experts' outputs for each token, weighted; zeros for a token that no expert took.

    Args: input (G, E, C, M), of the experts' places; weights and slots (G, S, k) of `top2_gating` or `top_k_routing` with
    capacity C. Returns (G, S, M).
    """
    return input.graph.apply(CombineExperts(), (input, weights, slots), name=name)[0]
