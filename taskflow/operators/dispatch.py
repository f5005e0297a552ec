"""dispatch: puts tokens into the places of the experts that they are sent to. GShard, arXiv 2006.16668, algorithm 2: the einsum
GSEC,GSM->GECM with the dispatch mask, without building that mask."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.expert_slots import check_slots, rows_of
from taskflow.operators.operator import NOTHING, Call, Dim, Example, Operator, Reads, Soap, Spec, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("dispatch")
class Dispatch(Operator):
    """x (G, S, M), slots (G, S, k) integers, expert * capacity + place -> y (G, E, C, M): each token in its places, zeros where
    there is none; other slots, such as -1, are left out. G, E and M can be cut. The data decide which tokens an expert gets, so
    a piece of E reads all tokens of its groups. If this operator is cut by G instead, its inputs stay where they are, and its
    outputs move to the experts that read them."""

    experts: int
    capacity: int
    kept = NOTHING
    flops_per_element = 0  # it moves memory

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("dispatch", inputs, 2)
        x, slots = inputs
        if len(x.shape) != 3 or not x.differentiable or slots.shape[:2] != x.shape[:2]:
            raise ValueError(f"dispatch: inputs must be float (groups, tokens, features) and their slots, got {x} and {slots}")
        check_slots("dispatch", slots, x.shape[0], self.experts, self.capacity)
        return (Spec((x.shape[0], self.experts, self.capacity, x.shape[2]), x.dtype),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        groups, _, features = inputs[0].shape
        return (
            Dim("n", groups, Soap.SAMPLE), Dim("e", self.experts, Soap.ATTRIBUTE),
            Dim("a2", self.capacity, Soap.ATTRIBUTE, divisible=False), Dim("a3", features, Soap.ATTRIBUTE),
        )

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        (g0, _, _, m0), (g1, _, _, m1) = piece.lo, piece.hi
        _, tokens, k = inputs[1].shape
        return Reads((Rect((g0, 0, m0), (g1, tokens, m1)), Rect((g0, 0, 0), (g1, tokens, k))))

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        # The slots again, so that the much larger tokens need not be kept for their sake.
        return (Spec(self.reads(inputs, piece).inputs[1].shape, inputs[1].dtype),)

    def integers_below(self, inputs: Sequence[Spec]) -> int:
        return self.experts * self.capacity

    def forward(self, call: Call) -> None:
        (x, slots), (y,), (kept,) = call.inputs, call.outputs, call.saved
        kept[...] = slots
        sent = call.kernels.xp.empty((*slots.shape, x.shape[-1]), x.dtype)
        sent[...] = x[:, :, None]
        rows, width = rows_of(call, slots, call.piece.lo[1], call.piece.hi[1], self.capacity), x.shape[-1]
        call.kernels.embedding_backward(rows, 0, sent.reshape(-1, width), out=y.reshape(-1, width))

    def backward(self, call: Call) -> None:
        (slots,), dy = call.saved, call.grad
        if (dx := call.grad_inputs[0]) is not None:
            width = dy.shape[-1]
            rows = rows_of(call, slots, call.piece.lo[1], call.piece.hi[1], self.capacity)
            back = call.kernels.xp.empty((*slots.shape, width), dy.dtype)
            call.kernels.embedding(dy.reshape(-1, width), rows, 0, out=back.reshape(-1, width))
            dx.put(back.sum(axis=2))

    @classmethod
    def example(cls, random: Random) -> Example:
        groups, tokens, features = (random.randint(1, 3) for _ in range(3))
        operator = cls(random.randint(1, 4), random.randint(1, 3))
        x = Spec((groups, tokens, features), np.dtype(np.float64))
        slots = Spec((groups, tokens, random.randint(1, 2)), np.dtype(np.int64))
        return Example(operator, (x, slots), high=operator.experts * operator.capacity + 1)


def dispatch(input: Tensor, slots: Tensor, experts: int, capacity: int, *, name: str | None = None) -> Tensor:
    """Put tokens into the places of their experts.

    Args: input (G, S, M); slots (G, S, k) of `top2_gating` or `top_k_routing` with this ``capacity``. Returns (G, experts,
    capacity, M), with zeros in empty places.
    """
    return input.graph.apply(Dispatch(experts, capacity), (input, slots), name=name)[0]
