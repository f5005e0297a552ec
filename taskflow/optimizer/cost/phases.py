"""Work of a piece of an operator on a device, as consecutive phases (matrix products, passes over memory)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from taskflow.floats import sum_bytes
from taskflow.operators.frozen import trained
from taskflow.operators.operator import Operator, Spec, Work, outputs_of
from taskflow.regions import Rect

SPLIT = 4096
"""Libraries cut contractions longer than a few thousand (gradients of convolutions' weights) and add the parts."""


@dataclass(frozen=True, slots=True)
class Phase:
    """``repeats`` consecutive kernels, each of ``flops`` and ``nbytes``. ``width``: the number of results that a kernel can
    work on at the same time, which decides how much of a device it fills. ``launches``: kernel launches each time. ``factors``:
    of a matrix product, the elements of its two factors and of its result."""

    kernels: Work
    flops: float
    nbytes: float
    width: int
    repeats: int = 1
    launches: int = 1
    factors: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Arrays:
    """Bytes and elements of everything that a piece touches."""

    inputs: tuple[int, ...]
    weights: tuple[int, ...]
    weight_gradients: tuple[int, ...]
    outputs: tuple[int, ...]
    saved: int
    input_elements: tuple[int, ...]
    weight_elements: tuple[int, ...]
    output_elements: tuple[int, ...]
    picked: Mapping[int, int]  # of weights of which the data choose what is looked at: how many bytes, by number

    @property
    def forward_bytes(self) -> int:
        return sum(self.inputs) + sum(self.weights) + sum(self.outputs) + self.saved


@lru_cache(maxsize=1 << 14)
def arrays(operator: Operator, inputs: tuple[Spec, ...], piece: Rect) -> Arrays:
    """Return what the forward task of a piece touches, computed once for all questions about the piece."""
    reads = operator.reads_in(inputs, piece, training=True)
    writes, outputs = operator.writes(inputs, piece), outputs_of(operator, inputs)
    itemsize = weight_type(outputs).itemsize
    summed = sum_bytes(itemsize)
    return Arrays(
        tuple(r.volume * s.dtype.itemsize for r, s in zip(reads.inputs, inputs)),
        tuple(r.volume * itemsize for r in reads.weights),
        tuple(0 if operator.frozen else r.volume * summed for r in reads.weights),
        tuple(r.volume * s.dtype.itemsize for r, s in zip(writes, outputs)),
        sum(s.nbytes for s in operator.saves(inputs, piece)),
        tuple(r.volume for r in reads.inputs), tuple(r.volume for r in reads.weights),
        tuple(r.volume for r in writes), {i: n * itemsize for i, n in operator.picks(inputs, piece).items()},
    )  # fmt: skip


def weight_type(outputs: Sequence[Spec]) -> np.dtype[Any]:
    """Return the type of an operator's parameters: that of its first float output."""
    return next((s.dtype for s in outputs if s.differentiable), np.dtype(np.float32))


def phases(
    operator: Operator, inputs: Sequence[Spec], piece: Rect, backward: bool, wanted: Sequence[bool],
    adds: Sequence[bool] = (),
) -> tuple[Phase, ...]:
    """Return the work of a piece. ``wanted``: for each input, whether backward computes its gradient. ``adds``: for each input,
    then for each weight, whether backward adds to its gradient, which is then also read (none, if empty)."""
    kernels, touched = operator.work, arrays(operator, tuple(inputs), piece)
    # Of all gradients; products whose gradient is not wanted are left out below.
    flops = trained(operator).backward_flops(inputs, piece) if backward else operator.flops(inputs, piece)
    if kernels == Work.RECURRENT:
        return _recurrent(touched, inputs[0].shape[1], flops, backward, (*wanted, not operator.frozen), adds)
    if kernels == Work.MEMORY:
        nbytes = _pass_bytes(operator, inputs, touched, backward, wanted, adds)
        return (Phase(Work.MEMORY, flops, nbytes, max(1, piece.volume)),)
    if not backward:
        results = sum(touched.output_elements)
        left, right = _factors(inputs, touched)
        return (Phase(kernels, flops, touched.forward_bytes, _width(flops, results), factors=(left, right, results)),)
    return _products(kernels, inputs, touched, flops, (*wanted, not operator.frozen), adds)


def _added(touched: Arrays, adds: Sequence[bool]) -> int:
    """Bytes of the gradients that are added to."""
    return sum(n for n, a in zip((*touched.inputs, *touched.weight_gradients), adds) if a)


def _pass_bytes(
    operator: Operator, inputs: Sequence[Spec], touched: Arrays, backward: bool, wanted: Sequence[bool],
    adds: Sequence[bool],
) -> int:
    """Bytes of one pass over what an operator reads and writes."""
    picked = touched.picked
    read_weights = sum(picked.get(i, nbytes) for i, nbytes in enumerate(touched.weights))
    if not backward:
        return sum(touched.inputs) + read_weights + sum(touched.outputs) + touched.saved
    keeps = operator.keeps(inputs)
    read = (
        sum(touched.inputs) * keeps.inputs + read_weights * keeps.weights + sum(touched.outputs) * (1 + keeps.outputs)
    )
    gradients = touched.weight_gradients
    written = sum(n for n, w in zip(touched.inputs, wanted) if w) + sum(gradients) + _added(touched, adds)
    for i, some in picked.items():
        # Only to what was looked at something is added, which is read for that; the rest is set to zero, but not by a task
        # that adds to a gradient that is there.
        adding = adds[len(touched.inputs) + i] if adds else False
        some *= gradients[i] // touched.weights[i] if touched.weights[i] else 1
        written += 2 * (some - gradients[i]) if adding else some
    return read + touched.saved + written


def _products(
    kernels: Work, inputs: Sequence[Spec], touched: Arrays, flops: int, wanted: Sequence[bool], adds: Sequence[bool]
) -> tuple[Phase, ...]:
    """Backward of a contraction: for each factor whose gradient is ``wanted``, of inputs and then the weight, a product of the
    output's gradient with the other factor. Biases, far smaller, are left out."""
    given = len(touched.inputs)
    adding = [*adds[:given], *adds[given : given + 1]] if adds else [False] * (given + 1)
    wider = [g - w for g, w in zip(touched.weight_gradients[:1], touched.weights)]  # a gradient than its weight
    factors = [
        (elements, needed, size * again + more)
        for elements, needed, size, again, more in zip(
            (*touched.input_elements, *touched.weight_elements[:1]), wanted,
            (*touched.inputs, *touched.weight_gradients[:1]), adding, (*(0 for _ in touched.inputs), *wider),
        )
    ]
    # Each reads the output's gradient and the other factor, and writes as much as its own factor is.
    nbytes = sum(touched.outputs) + sum(touched.inputs) + sum(touched.weights[:1])
    # ``flops`` counts the products of all float inputs and of the weight.
    factors = [of for of, floats in zip(factors, (*(spec.differentiable for spec in inputs), True)) if floats]
    part = flops / len(factors)
    results = sum(touched.output_elements)
    others = (*_factors(inputs, touched)[::-1], *(0 for _ in factors[2:]))
    return tuple(
        Phase(kernels, part, nbytes + again, _width(part, elements), factors=(results, other, elements))
        for (elements, needed, again), other in zip(factors, others) if needed
    )


def _factors(inputs: Sequence[Spec], touched: Arrays) -> tuple[int, int]:
    """The elements of a product's two factors: two inputs, or an input and the weight. Integers, which choose or count, are no
    factors."""
    floats = (n for n, spec in zip(touched.input_elements, inputs) if spec.differentiable)
    both = (*floats, *touched.weight_elements[:1])
    return (both[0], both[1]) if len(both) > 1 else (both[0], both[0])


def _width(flops: float, results: int) -> int:
    """Number of elements that a product can work on at the same time: its results, and for a long contraction also its parts."""
    contracted = flops / 2 / max(1, results)
    return max(1, int(results * max(1.0, contracted / SPLIT)))


def _recurrent(
    touched: Arrays, steps: int, flops: int, backward: bool, wanted: Sequence[bool], adds: Sequence[bool]
) -> tuple[Phase, ...]:
    """One layer over ``steps``: products with the input weights for all steps at once; with the recurrent weights one step after
    the other, and a pass over the gates each time. ``wanted``: gradients of inputs, then those of weights."""
    input_weight, recurrent_weight = touched.weights[0], touched.weights[1]
    share = recurrent_weight / max(1, input_weight + recurrent_weight)  # of the flops of a forward task
    gates = 4 * touched.output_elements[0]
    x, y, saved = touched.inputs[0], touched.outputs[0], touched.saved
    if not backward:
        whole = Phase(Work.RECURRENT, flops * (1 - share), x + input_weight + 4 * y, max(1, gates))
        # Each step reads the recurrent weights again, unless they stay in the device's cache.
        again = recurrent_weight + (y + saved) / steps
        step = Phase(Work.RECURRENT, flops * share / steps, again, max(1, gates // steps), steps, 2)
        return whole, step
    # Of twice the forward's flops, half of the recurrent part runs step by step; the rest is two products over all
    # steps for the weights, and one for the input if its gradient is wanted.
    chain = Phase(
        Work.RECURRENT, flops * share / 2 / steps, recurrent_weight + (y + 2 * saved) / steps,
        max(1, touched.output_elements[0] // steps), steps, 2,
    )
    weights = Phase(
        Work.RECURRENT, flops / 2, 4 * y + x + y + sum(touched.weight_gradients[:2]) + _added(touched, adds),
        _width(flops / 2, sum(touched.weight_elements[:2])),
    )
    towards_input = Phase(Work.RECURRENT, flops * (1 - share) / 2, 4 * y + input_weight + x, max(1, touched.input_elements[0]))
    return (chain, *[weights] * wanted[-1], *[towards_input] * wanted[0])


def product_flops(
    operator: Operator, inputs: Sequence[Spec], piece: Rect, backward: bool, wanted: Sequence[bool]
) -> float:
    """Return the operations of a piece's matrix products, in a task of one direction (``wanted``: as for `phases`)."""
    found = phases(operator, inputs, piece, backward, wanted)
    return sum(one.repeats * one.flops for one in found if one.kernels is not Work.MEMORY)
