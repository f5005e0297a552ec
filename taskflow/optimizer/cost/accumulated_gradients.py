"""Accumulated gradients: which gradients a backward task adds to and which it replaces, inferred from bytes alone.

The first of the tasks that reach a gradient fills it; the others add to it, and so also read it. The simulator knows how many
bytes a task touches. They exceed those of a task that only fills by exactly the bytes that are added to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from taskflow.floats import sums_in
from taskflow.operators.operator import Operator, Spec
from taskflow.optimizer.cost.phases import arrays
from taskflow.regions import Rect
from taskflow.tasks import Compute

MOST_GRADIENTS = 8  # with more, not every set of them is looked at

Adding = tuple[bool, ...]  # for each input of an operator, then for each weight: whether backward adds to its gradient


def target_bytes(operator: Operator, inputs: Sequence[Spec], piece: Rect, wanted: Sequence[bool]) -> tuple[int, ...]:
    """Return the bytes of every gradient that backward computes: of each input (0 if it is not wanted), then of each weight."""
    touched = arrays(operator, tuple(inputs), piece)
    return (*[nbytes * w for nbytes, w in zip(touched.inputs, wanted)], *touched.weight_gradients)


def adding(sizes: Sequence[int], inputs: int, nbytes: int) -> Adding:
    """Return which gradients are added to, if these have ``nbytes`` together: the likeliest set with that size. ``sizes``: of
    all gradients, those of ``inputs`` inputs first. If no set has exactly this size, return the largest set with fewer bytes."""
    nothing = (False,) * len(sizes)
    if nbytes <= 0:
        return nothing
    best, most = nothing, 0
    for chosen in _likely(sizes, inputs):
        total = sum(sizes[i] for i in chosen)
        if most < total <= nbytes:
            best, most = tuple(i in chosen for i in range(len(sizes))), total
        if most == nbytes:
            break
    return best


def _likely(sizes: Sequence[int], inputs: int) -> Iterator[set[int]]:
    """Sets of gradients, the likely ones first: the weights of an operator are all shared with another one or none is."""
    given = [i for i in range(inputs) if sizes[i]]
    weights = {i for i in range(inputs, len(sizes)) if sizes[i]}
    counts = range(len(given) + 1) if len(given) <= MOST_GRADIENTS else (0, 1, len(given) - 1, len(given))
    for count in counts:
        for some in combinations(given, count):
            if weights:
                yield {*some, *weights}
            if some:
                yield set(some)
    if len(weights) <= MOST_GRADIENTS:
        for count in range(1, len(weights)):
            for part in combinations(sorted(weights), count):
                yield set(part)
                yield {*given, *part}


def added_bytes(work: Compute) -> int:
    """Return the bytes of the gradients that a backward task adds to."""
    node, reads = work.node, work.node.reads(work.piece)
    pairs = [
        *zip(work.grad_inputs, zip(reads.inputs, (t.dtype for t in node.inputs))),
        *zip(work.grad_weights, zip(reads.weights, (sums_in(p.spec.dtype) for p in node.parameters))),
    ]
    return sum(
        rect.volume * dtype.itemsize for target, (rect, dtype) in pairs if target is not None and target.accumulate
    )
