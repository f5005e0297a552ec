"""Which pieces of a cut, and which operators of a graph, are alike, so that the core asks about one of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from taskflow.graph import OperatorGraph
from taskflow.operators.operator import Reads, Spec
from taskflow.regions import Rect
from taskflow.tasks.lower import gradient_flow, gradients_given


def shapes(rect: Rect, reads: Reads, writes: Sequence[Rect], saves: Sequence[Spec]) -> tuple[object, ...]:
    """Return all that the cost of a piece depends on, besides its operator and flops (as in `operators.operator.cost_key`)."""
    places = (rect, *reads.inputs, *reads.weights, *writes)
    return tuple([r.shape for r in places]), tuple([spec.shape for spec in saves])


def first_equal(keys: Iterable[Hashable]) -> list[int]:
    """Return for each key the place of the first equal one."""
    first: dict[Hashable, int] = {}
    return [first.setdefault(key, i) for i, key in enumerate(keys)]


def alike(graph: OperatorGraph) -> list[int]:
    """For each node, the first one that costs the same: with an equal operator, inputs' specs, number of parameters and
    gradients, both those that its backward tasks get and those that they give. Gradients count because costs do not
    follow from bytes alone: one that is not given may have as many bytes as one that is added to."""
    active, needs, _ = gradient_flow(graph)
    first: dict[object, int] = {}
    return [
        first.setdefault(
            (node.operator, node.specs, len(node.parameters), tuple((t.node, t.index) in needs for t in node.inputs), given),
            node.number,
        )
        for node, given in zip(graph, gradients_given(graph, active, needs))
    ]
