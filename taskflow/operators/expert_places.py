"""expert_places: places of tokens whose experts are chosen already. Lepikhin et al., "GShard", arXiv 2006.16668, algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.operators.expert_slots import next_places
from taskflow.operators.operator import NOTHING, Call, Dim, Example, Operator, Soap, Spec, positive, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect

TOGETHER = 1 << 20
"""Places that are counted at once, unless one group has more."""


@register("expert_places")
class ExpertPlaces(Operator):
    """chosen (G, S, k) integers -> slots (G, S, k): expert * C + place, of C = ``capacity`` places; -1 for what is no expert,
    such as -1, and where the expert is full. Places are assigned as by `top_k_routing`: to all first choices, then to all second
    ones and so on, each in the order of the tokens. Only G can be cut."""

    experts: int
    capacity: int
    kept = NOTHING

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("expert_places", inputs, 1)
        (chosen,) = inputs
        positive("expert_places", experts=self.experts, capacity=self.capacity)
        if len(chosen.shape) != 3 or chosen.dtype.kind not in "iu":
            raise ValueError(f"expert_places: input must be integers (groups, tokens, k), got {chosen}")
        return (Spec(chosen.shape, np.dtype(np.int64)),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        groups, tokens, choices = inputs[0].shape
        return (
            Dim("n", groups, Soap.SAMPLE), Dim("a1", tokens, Soap.ATTRIBUTE, divisible=False),
            Dim("a2", choices, Soap.ATTRIBUTE, divisible=False),
        )

    def integers_below(self, inputs: Sequence[Spec]) -> int:
        return self.experts

    def forward(self, call: Call) -> None:
        (chosen,), (slots,), xp = call.inputs, call.outputs, call.kernels.xp
        groups, tokens, choices = chosen.shape
        every = call.kernels.constant(("experts", self.experts), lambda: np.arange(self.experts))
        together = max(1, TOGETHER // (tokens * self.experts))
        for first in range(0, groups, together):
            part = slice(first, min(groups, first + together))
            taken = xp.zeros((part.stop - first, self.experts), np.int64)
            for i in range(choices):
                hot = chosen[part, :, i, None] == every
                place = next_places(xp, hot, taken)
                taken = taken + hot.sum(axis=1)
                fits = (place >= 0) & (place < self.capacity)
                slots[part, :, i] = xp.where(fits, chosen[part, :, i] * self.capacity + place, -1)

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return 3 * self.experts * piece.volume  # of each choice: which expert, and how many took it before

    @classmethod
    def example(cls, random: Random) -> Example:
        operator = cls(random.randint(1, 4), random.randint(1, 3))
        shape = (random.randint(1, 3), random.randint(1, 5), random.randint(1, 3))
        return Example(operator, (Spec(shape, np.dtype(np.int64)),), high=operator.experts + 1)


def expert_places(chosen: Tensor, experts: int, capacity: int, *, name: str | None = None) -> Tensor:
    """Give tokens places with the experts that they have chosen.

    Args: chosen (G, S, k) integers below ``experts``, such as the slots of `top_k_routing` without a capacity. Returns slots
    (G, S, k) for `dispatch` and `combine` with this ``capacity``: expert * capacity + place, or -1 for a token that found none.
    """
    return chosen.graph.apply(ExpertPlaces(experts, capacity), (chosen,), name=name)[0]
