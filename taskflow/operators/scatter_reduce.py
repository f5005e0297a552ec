"""scatter_reduce: the largest, the least or the product of the entries of every sample that go to one place (PyTorch:
torch.scatter_reduce without the tensor's own entries)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from taskflow.operators.operator import Array, Call, Example, Keeps, Spec, register
from taskflow.operators.scatter_add import ScatterAdd, samples_of
from taskflow.operators.tensor import Tensor

REDUCTIONS: dict[str, Any] = {"amax": np.maximum, "amin": np.minimum, "prod": np.multiply}


@register("scatter_reduce")
class ScatterReduce(ScatterAdd):
    """x (N, K, ...), index (N, K) integers below ``size`` -> y (N, size, ...): y[n, b] = the ``reduction`` of x[n, k] with
    index[n, k] = b, and 0 where there are none. Of several equal extremes each gets an equal part of the gradient."""

    reduction: str = "amax"

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        if self.reduction not in REDUCTIONS:
            raise ValueError(f"scatter_reduce: reduction must be one of {', '.join(REDUCTIONS)}, got {self.reduction!r}")
        return ScatterAdd.output(self, inputs)

    def keeps(self, inputs: Sequence[Spec]) -> Keeps:
        return Keeps(weights=False, outputs=self.reduction != "prod")

    def forward(self, call: Call) -> None:
        self._require_below(call)
        entries = _InTurn.of(call)
        put = entries.scanned(entries.of_entries(call.inputs[0]), REDUCTIONS[self.reduction])
        ends = entries.differs(1)
        put = call.kernels.xp.where(_beside(ends, put), put, 0).astype(put.dtype)
        self._add_up(call, put, entries.index, call.outputs[0])

    def backward(self, call: Call) -> None:
        if (dx := call.grad_inputs[0]) is None:
            return
        xp, (x, index), (y,) = call.kernels.xp, call.inputs, call.outputs
        samples = samples_of(call)
        if self.reduction == "prod":
            dx.put(call.grad[samples, index] * _of_others(call))
            return
        hits = (x == y[samples, index]).astype(x.dtype)
        count = xp.empty(y.shape, y.dtype)
        self._add_up(call, hits, index, count)
        dx.put(hits * (call.grad / xp.maximum(count, 1))[samples, index])

    @classmethod
    def example(cls, random: Random) -> Example:
        found = ScatterAdd.example(random)
        assert isinstance(found.operator, ScatterAdd)
        return Example(cls(found.operator.size, False, random.choice([*REDUCTIONS])), found.inputs, high=found.high)


@dataclass(frozen=True, slots=True)
class _InTurn:
    """The entries of each sample ordered by their places. ``index``: the places, in order; ``order``: which entries they are."""

    xp: Any
    index: Array
    order: Array
    samples: Array

    @classmethod
    def of(cls, call: Call) -> _InTurn:
        xp, index = call.kernels.xp, call.inputs[1]
        count = index.shape[1]
        keys = xp.sort(index.astype(np.int64) * count + xp.arange(count)[None], axis=1)
        return cls(xp, keys // count, keys % count, samples_of(call))

    def of_entries(self, x: Array) -> Array:
        """Entries (N, K, ...) in this order."""
        return x[self.samples, self.order]

    def differs(self, step: int) -> Array:
        """(N, K): True where the entry ``step`` further on belongs to another place, or there is none."""
        found = self.xp.ones(self.index.shape, np.bool_)
        found[:, :-step] = self.index[:, step:] != self.index[:, :-step]
        return found

    def scanned(self, x: Array, combine: Any) -> Array:
        """For each entry what those of its place up to it make together: of twice as many at a time."""
        step = 1
        while step < x.shape[1]:
            apart = _beside(self.differs(step)[:, :-step], x)
            late = self.xp.where(apart, x[:, step:], combine(x[:, step:], x[:, :-step]))
            x, before = self.xp.empty(x.shape, x.dtype), x
            x[:, :step], x[:, step:] = before[:, :step], late
            step *= 2
        return x


def _of_others(call: Call) -> Array:
    """For each entry the product of all others of its place."""
    entries, xp = _InTurn.of(call), call.kernels.xp
    backwards = _InTurn(xp, xp.flip(entries.index, 1), xp.flip(entries.order, 1), entries.samples)
    products = []
    for way in (entries, backwards):
        x = way.of_entries(call.inputs[0])
        so_far, before = way.scanned(x, np.multiply), xp.ones(x.shape, x.dtype)
        before[:, 1:] = xp.where(_beside(way.differs(1)[:, :-1], x), 1, so_far[:, :-1])
        products.append(before)
    found = xp.empty(products[0].shape, products[0].dtype)
    found[entries.samples, entries.order] = products[0] * xp.flip(products[1], 1)
    return found


def _beside(flags: Array, x: Array) -> Array:
    """(N, K) beside (N, K, ...)."""
    return flags.reshape(*flags.shape, *(1,) * (x.ndim - 2))


def scatter_reduce(
    input: Tensor, index: Tensor, size: int, reduction: str, *, name: str | None = None
) -> Tensor:
    """The extreme or the product of the entries of every sample that go to one place.

    Args: input (N, K, ...) floats; index (N, K) integers below ``size``; ``reduction``: "amax", "amin" or "prod". Returns
    (N, size, ...), zeros where nothing goes.
    """
    return input.graph.apply(ScatterReduce(size, False, reduction), (input, index), name=name)[0]
