"""Recomputation: which operators' results are computed again for the backward pass, by the words of a plan.

Two words are for all of a layer. PyTorch's checkpoint ends as soon as the backward pass has all that it reads (early stop), and so
leaves out the layer's last product: ``full``. The reentrant checkpoint of Megatron-LM and DeepSpeed, and any without early stop,
runs the whole layer again: ``whole``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper.layers import layer_numbers, numbered_layer
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


def recomputed(graph: OperatorGraph, rule: str) -> frozenset[str]:
    """Return the operators whose results a rule does not keep. ``full``, ``whole``: all of each layer (operators whose names share
    a number) except its last one, whose output the next layer reads. ``selective``: the part of attention that grows with the
    square of the sequence, from the product of queries and keys up to the input of the product with the values (Korthikanti et
    al., arXiv 2205.05198). ``light``: that, and of a layer's other operators the quick ones (`light_operators`). ``linear``: all
    that ``full`` recomputes but the results of attention, which take long for their bytes: of operators without weights that do
    more than pass over memory, those that ``selective`` does not recompute."""
    if rule == "selective":
        return frozenset(_attention(graph))
    if rule == "none":
        return frozenset()
    inner = [node for nodes in _layers(graph, rule) for node in nodes[:-1]]
    if rule == "light":
        return frozenset((*light_operators(graph, inner), *_attention(graph)))
    if rule == "linear":
        scores = set(_attention(graph))
        return frozenset(n.name for n in inner if n.parameters or n.operator.work is Work.MEMORY or n.name in scores)
    return frozenset(node.name for node in inner)


def rerun(graph: OperatorGraph, rule: str) -> frozenset[str]:
    """Return the operators that run again for the backward pass though it may read nothing of theirs: with ``whole`` all of each
    layer, its last product and what follows that included; with any other rule none."""
    if rule != "whole":
        return frozenset()
    return frozenset(node.name for nodes in _layers(graph, rule) for node in nodes)


def by_layer(
    of_rule: Callable[[OperatorGraph, str], frozenset[str]], graph: OperatorGraph, levels: Sequence[str]
) -> frozenset[str]:
    """Return the operators of `recomputed` or `rerun` if each layer has a rule of its own."""
    numbers = layer_numbers(graph)
    of = {level: of_rule(graph, level) for level in dict.fromkeys(levels)}
    return frozenset(node.name for node in graph if node.name in of[levels[numbers[node.name]]])


def _layers(graph: OperatorGraph, rule: str) -> Iterable[list[Node]]:
    """The operators of each layer that have inputs."""
    layers: dict[str, list[Node]] = {}
    for node in graph:
        if node.inputs and (block := numbered_layer(node.name)):
            layers.setdefault(block, []).append(node)
    if not layers:
        raise ValueError(f"plan: recompute={rule} needs layers with numbers in their names, as h.3; {graph.name} has none")
    return layers.values()


def _attention(graph: OperatorGraph) -> Iterable[str]:
    """Operators from one product of two activations to the next one that reads it, with only elementwise and similar passes
    between."""
    products = {node.number for node in graph if node.operator.kind == "matmul"}
    for node in graph:
        if node.number not in products:
            continue
        for tensor in node.inputs:
            path, at = [], graph.nodes[tensor.node]
            while at.number not in products and at.operator.work is Work.MEMORY and at.inputs and not at.parameters:
                path.append(at.name)
                at = graph.nodes[at.inputs[0].node]
            if at.number in products:
                yield from (*path, at.name)
