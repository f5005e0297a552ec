"""combine_weights: routing as the arrays (G, S, E, C) of GShard's paper, for `einsum`; `dispatch` and `combine` need no such
arrays."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.expert_slots import check_slots
from taskflow.operators.operator import INPUTS, Array, Call, Dim, Example, Operator, Reads, Soap, Spec, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("combine_weights")
class CombineWeights(Operator):
    """weights (G, S, k), slots (G, S, k) integers, expert * capacity + place -> combine weights (G, S, E, C) and the
    dispatch mask of that shape. Combine weights are a token's weight at its slots and 0 elsewhere. The mask is 1 at its
    slots; no gradient goes through it."""

    experts: int
    capacity: int
    kept = INPUTS

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("combine_weights", inputs, 2)
        weights, slots = inputs
        if len(weights.shape) != 3 or not weights.differentiable or slots.shape != weights.shape:
            raise ValueError(f"combine_weights: inputs must be float weights (G, S, k) and their slots, got {weights} and {slots}")
        check_slots("combine_weights", slots, weights.shape[0], self.experts, self.capacity)
        return (Spec((*weights.shape[:2], self.experts, self.capacity), weights.dtype),) * 2

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        groups, tokens, _ = inputs[0].shape
        return (
            Dim("n", groups, Soap.SAMPLE), Dim("a1", tokens, Soap.ATTRIBUTE), Dim("e", self.experts, Soap.ATTRIBUTE),
            Dim("a3", self.capacity, Soap.ATTRIBUTE),
        )

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        chosen = Rect((*piece.lo[:2], 0), (*piece.hi[:2], inputs[0].shape[2]))
        return Reads((chosen, chosen))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return (piece, piece)

    def integers_below(self, inputs: Sequence[Spec]) -> int:
        return self.experts * self.capacity

    def forward(self, call: Call) -> None:
        (weights, slots), (found, mask) = call.inputs, call.outputs
        found[...] = 0
        mask[...] = 0
        for i in range(slots.shape[-1]):
            here = self._here(call, slots[..., i])
            found += here * weights[..., i, None, None]
            mask += here

    def backward(self, call: Call) -> None:
        slots, dy, (target, _) = call.inputs[1], call.grad_outputs[0], call.grad_inputs
        if target is None:
            return
        given = call.kernels.xp.zeros(slots.shape, target.array.dtype)
        if dy is not None:
            for i in range(slots.shape[-1]):
                given[..., i] = (self._here(call, slots[..., i]) * dy).sum(axis=(2, 3))
        target.put(given)

    def _here(self, call: Call, slots: Array) -> Array:
        """True where a place of the piece is that of a slot: (groups, tokens, experts, places)."""
        (_, _, e0, c0), (_, _, e1, c1) = call.piece.lo, call.piece.hi
        key = ("combine weights", self.capacity, e0, e1, c0, c1)
        places = call.kernels.constant(key, lambda: np.arange(e0, e1)[:, None] * self.capacity + np.arange(c0, c1))
        return slots[..., None, None] == places

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return 2 * inputs[0].shape[2] * piece.volume

    def backward_flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return 2 * inputs[0].shape[2] * piece.volume

    @classmethod
    def example(cls, random: Random) -> Example:
        shape = (random.randint(1, 3), random.randint(1, 4), random.randint(1, 2))
        operator = cls(random.randint(1, 4), random.randint(1, 3))
        specs = (Spec(shape, np.dtype(np.float64)), Spec(shape, np.dtype(np.int64)))
        return Example(operator, specs, high=operator.experts * operator.capacity + 1)


def combine_weights(
    weights: Tensor, slots: Tensor, experts: int, capacity: int, *, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Return the combine weights and the dispatch mask (G, S, experts, capacity) for weights and slots (G, S, k), for einsums
    such as "GSEC,GSM->EGCM" and "GSEC,GECM->GSM"."""
    found, mask = weights.graph.apply(CombineWeights(experts, capacity), (weights, slots), name=name)
    return found, mask
