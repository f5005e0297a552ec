"""Equivalence: which pieces of a cut, and which operators of a graph, are alike, so that the core asks about only one of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from taskflow.graph import OperatorGraph
from taskflow.operators.operator import Reads, Spec
from taskflow.regions import Rect
from taskflow.tasks.lower import gradient_flow, gradients_given


def shapes(rect: Rect, reads: Reads, writes: Sequence[Rect], saves: Sequence[Spec]) -> tuple[object, ...]:
    """Return everything that the cost of a piece depends on, besides its operator and flops (as in
    `operators.operator.cost_key`)."""
    places = (rect, *reads.inputs, *reads.weights, *writes)
    return tuple([r.shape for r in places]), tuple([spec.shape for spec in saves])


def first_equal(keys: Iterable[Hashable]) -> list[int]:
    """Return for each key the index of the first equal one."""
    first: dict[Hashable, int] = {}
    return [first.setdefault(key, i) for i, key in enumerate(keys)]


def alike(graph: OperatorGraph) -> list[int]:
    """Return for each node the first one that costs the same. They have equal operators, specs of inputs, numbers of
    parameters, and gradients, both those that backward tasks get and those that they compute. Gradients matter because bytes
    alone do not determine costs: a gradient that is not computed may have as many bytes as one that is added to."""
    active, needs, _ = gradient_flow(graph)
    first: dict[object, int] = {}
    return [
        first.setdefault(
            (
                node.operator, node.specs, len(node.parameters), node.of_weights,
                tuple((t.node, t.index) in needs for t in node.inputs), given,
            ),
            node.number,
        )
        for node, given in zip(graph, gradients_given(graph, active, needs))
    ]
