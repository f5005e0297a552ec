"""HadAgain: what the backward pass has anew instead of finding it kept (activation checkpointing), and how words of plans say it.

A new way is a field of `HadAgain` with its texts in `AGAIN_STATES`, a line in `again_of` and one in `again_words`. Strategies,
their files, differences and exports take all fields alike.

Two words are for all of a layer. PyTorch's checkpoint ends as soon as the backward pass has all that it reads (early stop), and so
leaves out the layer's last product: ``full``. The reentrant checkpoint of Megatron-LM and DeepSpeed, and any without early stop,
runs the whole layer again: ``whole``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper.blocks import block_numbers, block_of
from taskflow.operators.operator import Work
from taskflow.reading import Entry, Name

if TYPE_CHECKING:
    from taskflow.mapper.plan import HybridPlan

Names = frozenset[Name]


class HadAgain(Entry, frozen=True, kw_only=True):
    """Operators, by name, whose values the backward pass does not find kept. Those of ``rerun`` are as in a layer's checkpoint
    without early stop; unless ``recompute`` names them too, what later operators read of them is kept. In strategy files each field
    is a list of names."""

    recompute: Annotated[Names, Meta(description="Operators whose outputs are computed again for the backward pass.")] = frozenset()
    rerun: Annotated[
        Names, Meta(description="Operators that run again for the backward pass even if it reads nothing of theirs.")
    ] = frozenset()
    regather: Annotated[
        Names, Meta(description="Operators whose inputs from other processors are brought again for the backward pass.")
    ] = frozenset()

    @property
    def computed(self) -> frozenset[str]:
        """Return the operators that may run again."""
        return self.recompute | self.rerun

    @property
    def fetched(self) -> frozenset[str]:
        """Return the operators whose inputs may travel again."""
        return self.regather

    def sets(self) -> dict[str, frozenset[str]]:
        """Return the operators by field."""
        return {name: getattr(self, name) for name in HadAgain.__struct_fields__}

    def of(self, operator: str) -> tuple[bool, ...]:
        """Return what holds of one operator, field by field."""
        return tuple([operator in names for names in self.sets().values()])

    def among(self, operators: Collection[str]) -> HadAgain:
        """Return the same of these operators alone."""
        return HadAgain(**{field: names.intersection(operators) for field, names in self.sets().items()})

    def __or__(self, other: HadAgain) -> HadAgain:
        return HadAgain(**{field: names | other.sets()[field] for field, names in self.sets().items()})

    def __bool__(self) -> bool:
        return any(self.sets().values())


AGAIN_STATES: Mapping[str, tuple[str, str]] = {
    "recompute": ("recomputed", "kept"),
    "rerun": ("run again whole (recompute=whole)", "run again as far as the backward pass reads (recompute=full)"),
    "regather": ("gathering its input again for the backward pass", "keeping the input that it gathers for the backward pass"),
}
"""Of each field of `HadAgain`, what an operator is that it names, and what one is that it does not."""


def again_of(graph: OperatorGraph, plan: HybridPlan, gathers: Callable[[Node], bool]) -> HadAgain:
    """Return what a plan has again. ``gathers``: whether a tensor group gathers what an operator with weights reads."""
    found, levels = HadAgain(), plan.recompute_layers
    numbers = block_numbers(graph) if levels else {}
    for level in dict.fromkeys(levels or (plan.recompute,)):
        of = level_again(graph, level)
        found |= of.among([name for name, number in numbers.items() if levels[number] == level]) if levels else of
    brought = frozenset(node.name for node in graph if plan.regather and node.parameters and gathers(node))
    return found | HadAgain(regather=brought)


def again_words(graph: OperatorGraph, again: HadAgain, levels: Sequence[str], in_groups: bool) -> dict[str, Any]:
    """Return fields of the plan that has this again, or the nearest. ``levels``: the words for recomputation that it may have,
    the last one for all of a layer; ``in_groups``: a tensor group shares sequences."""
    return {"recompute": _level(graph, again, levels), "regather": in_groups and bool(again.regather)}


def _level(graph: OperatorGraph, again: HadAgain, levels: Sequence[str]) -> str:
    if not again.computed:
        return "none"
    for level in levels:
        try:
            if level_again(graph, level) == HadAgain(recompute=again.recompute, rerun=again.rerun):
                return level
        except ValueError:
            continue
    if again.recompute <= recomputed(graph, "selective") and not again.rerun:
        return "selective"
    return levels[-1] if again.rerun or "full" not in levels else "full"


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
    more than pass over memory, those that ``selective`` does not recompute. ``alternate``: all that ``linear`` does but every other
    product with weights of a layer, the first one and so on (torchtitan's selective checkpoint of operators)."""
    if rule == "selective":
        return frozenset(_attention(graph))
    if rule == "none":
        return frozenset()
    inner = [node for nodes in _layers(graph, rule) for node in nodes[:-1]]
    if rule == "light":
        return frozenset((*light_operators(graph, inner), *_attention(graph)))
    if rule in ("linear", "alternate"):
        scores = set(_attention(graph))
        saved = _every_other_product(graph) if rule == "alternate" else ()
        again = (n.name for n in inner if n.parameters or n.operator.work is Work.MEMORY or n.name in scores)
        return frozenset(again).difference(saved)
    return frozenset(node.name for node in inner)


def level_again(graph: OperatorGraph, rule: str) -> HadAgain:
    """Return what a rule computes again (`recomputed`). With ``whole`` all of each layer runs again, its last product and what
    follows that included, though the backward pass may read nothing of theirs."""
    whole = [node.name for nodes in _layers(graph, rule) for node in nodes] if rule == "whole" else ()
    return HadAgain(recompute=recomputed(graph, rule), rerun=frozenset(whole))


def _layers(graph: OperatorGraph, rule: str) -> Iterable[list[Node]]:
    """The operators of each layer that have inputs."""
    layers: dict[str, list[Node]] = {}
    for node in graph:
        if node.inputs and (block := block_of(node.name)):
            layers.setdefault(block, []).append(node)
    if not layers:
        raise ValueError(f"plan: recompute={rule} needs layers with numbers in their names, as h.3; {graph.name} has none")
    return layers.values()


def _every_other_product(graph: OperatorGraph) -> Iterator[str]:
    """Of each layer's products with weights the first, the third and so on, in the graph's order."""
    for nodes in _layers(graph, "alternate"):
        yield from [n.name for n in nodes if n.parameters and n.operator.work is not Work.MEMORY][::2]


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
