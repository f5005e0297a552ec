"""Limits of the compiled evaluator: sizes, machines and update rules that its integers and tables can hold."""

from __future__ import annotations

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.optimizer.cost import Costs, FromTasks
from taskflow.rules import UpdateRule

MOST_PROCESSORS = 4096  # that the compiled core numbers
MOST_SIZE, MOST_BYTES = 2**31 - 1, 2**63 - 1  # of a dimension, of a tensor


def unsupported(graph: OperatorGraph, machine: Machine, costs: Costs, rule: UpdateRule | None) -> str | None:
    """Return why the compiled core cannot evaluate this exactly as `lower` and `simulate` would; None if it can."""
    if isinstance(costs, FromTasks):
        return "the cost function needs whole tasks"
    if len(machine.processors) > MOST_PROCESSORS:
        return f"more than {MOST_PROCESSORS} processors"
    if any(graph.producer(becomes).operator.kind == "state" for _, becomes in graph.carries):
        return "a state that becomes another state"
    if rule is not None and any(rule.flops(n) != n * rule.flops(1) for n in (2, 1000)):
        return "an update rule whose flops are not proportional to the elements"
    if any(len(node.dims) > 8 or any(len(s.shape) > 8 for s in node.specs) for node in graph):
        return "more than 8 dimensions"
    if any(not _small(node) for node in graph):
        return "sizes that need more than 31 bits, or bytes that need more than 63"
    return None


def _small(node: Node) -> bool:
    """True if the core's integers can hold all sizes."""
    specs = [*node.specs, *(t.spec for t in node.outputs), *(p.spec for p in node.parameters)]
    sizes = (*(dim.size for dim in node.dims), *(size for spec in specs for size in spec.shape))
    return max(sizes, default=0) <= MOST_SIZE and all(spec.nbytes <= MOST_BYTES for spec in specs)
