"""How much memory a step goes through before a task comes again: what decides in which cache it finds its arrays."""

from __future__ import annotations

from taskflow.graph import OperatorGraph
from taskflow.rules import UpdateRule

LEAST, MOST = 1 << 20, 64 << 20  # bytes; below, all is in the nearest caches, above, in memory


def working_set(graph: OperatorGraph, processors: int, rule: UpdateRule | None) -> int:
    """Bytes that one processor touches in a step, as a power of two from 1 to 64 MiB, so that networks share measurements.

    Activations and what is saved of them are shared out; weights, their gradients and the update rule's arrays are taken as
    whole on every processor, as in data parallelism.
    """
    weights = sum(p.spec.nbytes for p in graph.parameters) * (2 + rule.buffers if rule is not None else 1)
    activations = sum(
        sum(t.spec.nbytes for t in node.outputs) + sum(s.nbytes for s in node.operator.saves(node.specs, node.space))
        for node in graph
    )
    touched = weights + activations // max(1, processors)
    return int(min(MOST, max(LEAST, 1 << (touched.bit_length() - 1))))
