"""Which operators' results are cheaply had again: passes over memory whose inputs are kept anyway."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from taskflow.graph import Node, OperatorGraph
from taskflow.operators.operator import Work


def light_operators(graph: OperatorGraph, among: Iterable[Node]) -> Iterator[str]:
    """Return those of ``among``, in the graph's order, that pass over memory, whose results are kept for the backward
    pass, and all of whose inputs are kept in any case, or had again from such operators: normalisation and activations. So
    nothing is kept for their sake, and no product is computed again (Megatron-LM's --recompute-modules layernorm and moe_act;
    Korthikanti et al., arXiv 2205.05198, say which bytes these are)."""
    keeps = [node.operator.keeps(node.specs) for node in graph]
    kept = {(tensor.node, tensor.index) for node in graph if keeps[node.number].inputs for tensor in node.inputs}
    there = (node for node in graph if keeps[node.number].outputs or not node.inputs)
    kept |= {(tensor.node, tensor.index) for node in there for tensor in node.outputs}
    again: set[int] = set()
    for node in among:
        needed = any((tensor.node, tensor.index) in kept for tensor in node.outputs)
        if node.operator.work is not Work.MEMORY or not node.inputs or not needed:
            continue
        if all((tensor.node, tensor.index) in kept or tensor.node in again for tensor in node.inputs):
            again.add(node.number)
            yield node.name
