"""top_k_routing, top2_gating: the experts that each token goes to, their weights, and how even the load is.

Lepikhin et al., "GShard", arXiv 2006.16668, algorithm 1; Shazeer et al., arXiv 1701.06538 (k experts); Jiang et al., "Mixtral
of experts", arXiv 2401.04088 (without capacity); DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437, section 2.1.2 (groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random
from typing import Any

import numpy as np

from taskflow.floats import sums_in
from taskflow.operators.dropout import generator_key
from taskflow.operators.expert_slots import next_places
from taskflow.operators.operator import NOTHING, Array, Call, Example, Operator, register
from taskflow.operators.spec import Dim, Soap, Spec, positive, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect

TOGETHER = 1 << 20
"""Gates that are worked on at once, unless one group has more."""
INTEGER = np.dtype(np.int64)


@register("top_k_routing")
class TopKRouting(Operator):
    """x (G, S, E), the scores of E experts for the S tokens of G groups -> for each token's ``k`` choices, best first: weights
    (G, S, k), and slots (G, S, k) integers. Further outputs for each group: the auxiliary loss (G), the number of tokens that
    want each expert (G, E), whether or not it has a place for them, and the number of tokens whose choice was full (G, k).

    A slot is e C + c, place c of expert e, which has C = ``capacity`` places; -1 if the token is not dispatched, and its weight
    is then 0. Places are assigned to all first choices, then to all second choices and so on, each in the order of the tokens.
    Without a capacity every token is dispatched, and the slot is the expert's number.

    Weights are softmax(x), divided by the sum of the token's k if ``normalize``. ``random``, for k = 2: in training the second
    choice is taken only if twice its weight exceeds a random number, which depends on the token's place in (G, S), the
    operator's name, the seed and the step. ``count_all``: a choice takes up a place even if it is not dispatched, as GShard's
    algorithm is printed; else only if it is. The auxiliary loss is (1 / E) sum_e (c_e / S) m_e, of the mean m_e of softmax(x)
    and the number c_e of tokens that have e among their first ``balance`` choices, full or not. Its gradient goes through m_e
    alone. ``expert_groups``: consecutive experts in so many groups, of which a token's experts are in ``chosen_groups``: those
    whose k / ``chosen_groups`` best gates have the largest sum.

    Only G can be cut, since places within a group are counted from its first token.
    """

    k: int
    capacity: int | None
    random: bool = False
    count_all: bool = True
    normalize: bool = True
    balance: int = 1
    expert_groups: int = 1
    chosen_groups: int = 1
    kept = NOTHING

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("top_k_routing", inputs, 1)
        (x,) = inputs
        positive("top_k_routing", k=self.k, balance=self.balance, **({} if self.capacity is None else {"capacity": self.capacity}))
        if len(x.shape) != 3 or not x.differentiable:
            raise ValueError(f"top_k_routing: input must be float scores (groups, tokens, experts), got {x}")
        groups, tokens, experts = x.shape
        if self.k > experts or self.balance > self.k:
            raise ValueError(
                f"top_k_routing: needs balance <= k <= experts, got balance={self.balance}, k={self.k} and {experts} experts"
            )
        if not 1 <= self.chosen_groups <= self.expert_groups or experts % self.expert_groups \
                or self.k > self.chosen_groups * (experts // self.expert_groups):  # fmt: skip
            raise ValueError(
                f"top_k_routing: needs 1 <= chosen_groups <= expert_groups, equal groups, and k experts in those chosen, got "
                f"chosen_groups={self.chosen_groups}, expert_groups={self.expert_groups}, k={self.k} and {experts} experts"
            )
        if self.random and self.k != 2:
            raise ValueError(f"top_k_routing: random is about the second of two choices, got k={self.k}")
        choices = (groups, tokens, self.k)
        return (
            Spec(choices, x.dtype), Spec(choices, INTEGER), Spec((groups,), sums_in(x.dtype)), Spec((groups, experts), INTEGER),
            Spec((groups, self.k), INTEGER),
        )

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        groups, tokens, experts = inputs[0].shape
        return (
            Dim("n", groups, Soap.SAMPLE), Dim("a1", tokens, Soap.ATTRIBUTE, divisible=False),
            Dim("e", experts, Soap.REDUCTION, divisible=False),
        )

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        (first, *_), (last, tokens, experts) = piece.lo, piece.hi
        choices = Rect((first, 0, 0), (last, tokens, self.k))
        return (
            choices, choices, Rect((first,), (last,)), Rect((first, 0), (last, experts)), Rect((first, 0), (last, self.k)),
        )

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        groups, tokens, experts = piece.shape
        dtype, choices = sums_in(inputs[0].dtype), (groups, tokens, self.k)
        # The gates, the choices, whether they are dispatched, and how many tokens chose each expert.
        return (
            Spec(piece.shape, dtype), Spec(choices, INTEGER), Spec(choices, np.dtype(np.bool_)), Spec((groups, experts), dtype),
        )

    def forward(self, call: Call) -> None:
        (x,), gates, counts = call.inputs, call.saved[0], call.saved[3]
        _, tokens, experts = x.shape
        call.kernels.softmax(x.reshape(-1, experts), out=gates.reshape(-1, experts))
        for part in _parts(x.shape):
            numbers = None
            if self.random and call.state.training:
                numbers = call.kernels.xp.empty((part.stop - part.start, tokens), x.dtype)
                place = (call.piece.lo[0] + part.start, 0)
                key = generator_key(call.state, call.name)
                call.kernels.uniform(key, call.state.step, call.specs[0].shape[:2], place, out=numbers)
            self._route(call, part, numbers)
        means = gates.mean(axis=1)
        call.outputs[2][...] = (means * counts).sum(axis=-1) * x.dtype.type(1 / (experts * tokens))

    def _route(self, call: Call, part: slice, numbers: Array | None) -> None:
        """All outputs but the loss, for some groups."""
        xp, (gates, chosen, taken, counts) = call.kernels.xp, (array[part] for array in call.saved)
        weights, slots, _, load, full = (array[part] for array in call.outputs)
        experts = gates.shape[-1]
        every = call.kernels.constant(("experts", experts), lambda: np.arange(experts))
        values = self._choose(xp, gates, chosen, every)
        total = sum(values[1:], values[0]) if self.normalize else 1
        placed = xp.zeros(load.shape, INTEGER)  # the places of each expert that earlier choices use up
        counts[...] = 0
        load[...] = 0
        for i, value in enumerate(values):
            hot, weight = _hot(chosen, i, every), value / total
            if i < self.balance:
                counts += hot.sum(axis=1)
            # A token goes where it wants if its expert has a place; what counts uses up a place even if it does not fit.
            wants = 2 * weight > numbers if numbers is not None and i else weight >= 0
            counted = hot if self.count_all else hot & wants[..., None]
            place = next_places(xp, counted, placed)
            placed = placed + counted.sum(axis=1)
            if self.capacity is None:
                fits, slot = wants, chosen[..., i]
            else:
                fits, slot = wants & (place < self.capacity), chosen[..., i] * self.capacity + place
                if not self.count_all:
                    placed = np.minimum(placed, self.capacity)
            taken[..., i] = fits
            weights[..., i] = weight * fits
            slots[..., i] = xp.where(fits, slot, -1)
            load += (hot & wants[..., None]).sum(axis=1)
            full[..., i] = wants.sum(axis=1) - fits.sum(axis=1)

    def _choose(self, xp: Any, gates: Array, chosen: Array, every: Array) -> list[Array]:
        """Fill in the k experts with the largest gates, best first; their gates (groups, tokens), choice by choice."""
        left, values = self._in_groups(xp, gates), []
        for i in range(self.k):
            chosen[..., i] = xp.argmax(left, axis=-1)
            values.append(left.max(axis=-1))
            left = xp.where(_hot(chosen, i, every), left.dtype.type(-1), left)  # gates are positive: never chosen again
        return values

    def _in_groups(self, xp: Any, gates: Array) -> Array:
        """The gates of experts in each token's chosen groups, and -1 for the others."""
        if self.chosen_groups == self.expert_groups:
            return gates
        grouped = gates.reshape(*gates.shape[:2], self.expert_groups, -1)
        best = max(1, self.k // self.chosen_groups)
        left, every = xp.sort(grouped, axis=-1)[..., -best:].sum(axis=-1), xp.arange(self.expert_groups)
        ours = xp.zeros(left.shape, np.bool_)
        for _ in range(self.chosen_groups):
            ours |= xp.argmax(left, axis=-1)[..., None] == every
            left = xp.where(ours, left.dtype.type(-1), left)
        return xp.where(ours[..., None], grouped, gates.dtype.type(-1)).reshape(gates.shape)

    def backward(self, call: Call) -> None:
        xp, (dweights, _, dloss, *_), (gates, chosen, taken, counts) = call.kernels.xp, call.grad_outputs, call.saved
        if (dx := call.grad_inputs[0]) is None:
            return
        _, tokens, experts = gates.shape
        dgates = xp.zeros(gates.shape, gates.dtype)
        if dloss is not None:
            dgates += (counts * dloss[:, None])[:, None] * gates.dtype.type(1 / (experts * tokens**2))
        if dweights is not None:
            every = call.kernels.constant(("experts", experts), lambda: np.arange(experts))
            for part in _parts(gates.shape):
                self._weigh(gates[part], chosen[part], dweights[part] * taken[part], dgates[part], every)
        call.kernels.softmax_backward(
            gates.reshape(-1, experts), dgates.reshape(-1, experts), out=dx.array.reshape(-1, experts), accumulate=dx.accumulate
        )

    def _weigh(self, gates: Array, chosen: Array, given: Array, into: Array, every: Array) -> None:
        """Add to ``into`` what the weights' gradients ``given`` (groups, tokens, k) say of the gates."""
        hots = [_hot(chosen, i, every) for i in range(self.k)]
        if not self.normalize:
            for i, hot in enumerate(hots):
                into += hot * given[..., i, None]
            return
        values = [(gates * hot).sum(axis=-1) for hot in hots]
        total = sum(values[1:], values[0])
        lost = sum(given[..., i] * value for i, value in enumerate(values)) / (total * total)
        for i, hot in enumerate(hots):
            into += hot * (given[..., i] / total - lost)[..., None]

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return (5 + 4 * self.k) * piece.volume  # the softmax, and for each choice a maximum and a count

    def backward_flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return (6 + 4 * self.k) * piece.volume

    @classmethod
    def example(cls, random: Random) -> Example:
        experts = random.randint(3, 6)
        k = random.choice((1, 2, 2, 3))
        groups = random.choice([n for n in range(1, experts) if experts % n == 0])
        shape = (random.randint(1, 4), random.randint(1, 6), experts)
        operator = cls(
            k, random.choice((None, 1, 2, 3)), k == 2 and random.random() < 0.6, random.random() < 0.5,
            k > 1 and random.random() < 0.7, random.randint(1, k), groups, random.randint(-(-k * groups // experts), groups),
        )
        return Example(operator, (Spec(shape, np.dtype(np.float64)),))


def _hot(chosen: Array, i: int, every: Array) -> Array:
    """True where choice i of a token is an expert: (groups, tokens, experts)."""
    return chosen[..., i, None] == every


def _parts(shape: Sequence[int]) -> list[slice]:
    """Groups that are worked on together."""
    together = max(1, TOGETHER // (shape[1] * shape[2]))
    return [slice(first, min(shape[0], first + together)) for first in range(0, shape[0], together)]


Routing = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Weights, slots, auxiliary loss, load, overflow: what `TopKRouting` gives."""


def top_k_routing(
    scores: Tensor, k: int, capacity: int | None = None, *, normalize: bool = True, expert_groups: int = 1,
    chosen_groups: int = 1, name: str | None = None,
) -> Routing:
    """Send each token to the k experts with the best scores.

    Args: scores (G, S, E): of S tokens in each of G groups. ``capacity``: the most tokens of a group that an expert takes;
    None: no limit ("dropless"). ``normalize``: a token's weights add up to 1; else they are those of the softmax over all
    experts. ``expert_groups`` of consecutive experts (E must be divisible), of which a token's experts are in
    ``chosen_groups``, those whose k / ``chosen_groups`` best gates have the largest sum (DeepSeek-V3, Megatron-LM).

    Returns five tensors. Weights (G, S, k). Slots (G, S, k) integers for `dispatch` and `combine`: expert * capacity + place,
    or -1 for a token that found no place; without a capacity, the expert, for `routed_linear`. The auxiliary loss (G), (1 / E)
    sum_e (c_e / S) m_e, where c_e tokens chose e and m_e is its mean gate. The load (G, E), tokens that want each expert,
    whether or not it has a place for them. The overflow (G, k), tokens that found their first, second, ... choice full.
    """
    operator = TopKRouting(
        k, capacity, normalize=normalize, balance=k, expert_groups=expert_groups, chosen_groups=chosen_groups
    )
    return _built(scores, operator, name)


def top2_gating(scores: Tensor, capacity: int, *, count_all: bool = True, name: str | None = None) -> Routing:
    """Route tokens by algorithm 1 of GShard's paper: to the best expert, and at random to the second best.

    Args and results as for `top_k_routing` with k = 2; the auxiliary loss counts first choices. ``count_all``: a second choice
    takes up a place even if the token does not go there, as in the paper; False: it does not, as in lingvo, GShard's published
    code. In evaluation the second choice is always taken if there is a place.
    """
    return _built(scores, TopKRouting(2, capacity, random=True, count_all=count_all), name)


def _built(scores: Tensor, operator: TopKRouting, name: str | None) -> Routing:
    weights, slots, loss, load, overflow = scores.graph.apply(operator, (scores,), name=name)
    return weights, slots, loss, load, overflow


def capacity_of(tokens: int, experts: int, factor: float) -> int:
    """Return the places of an expert for ``tokens`` tokens of a group, as in lingvo: factor times an even share, at least 4,
    rounded up to a multiple of 4. Raises ValueError for a factor that is not positive and finite."""
    if not 0 < factor < inf:
        raise ValueError(f"capacity_of: factor must be a number above 0, got {factor}")
    return -(-max(4, int(tokens * factor / experts)) // 4) * 4
