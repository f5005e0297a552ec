"""Tokens on their way to experts and back, in programs that send each to a node once (DeepSeek-AI's DeepEP, arXiv 2412.19437,
section 3.2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, prod

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.operators.combine import CombineExperts
from taskflow.operators.dispatch import Dispatch
from taskflow.operators.top_k import TopK
from taskflow.operators.top_k_routing import TopKRouting


@dataclass(frozen=True, slots=True)
class TokenRoute:
    """Where a token goes: to so many ``choices`` of experts, which are in ``chosen`` of ``groups`` of consecutive experts."""

    choices: int
    groups: int = 1
    chosen: int = 1

    def nodes(self, nodes: int) -> float:
        """Return to how many of the ``nodes`` that share the experts a token goes in the mean, if choices of groups, and of experts
        in them, are even. Groups that nodes do not divide count as one."""
        groups, chosen = (self.groups, self.chosen) if not self.groups % nodes or not nodes % self.groups else (1, 1)
        if nodes >= groups:  # each node has a part of a group, or all of one
            within = chosen * nodes // groups
            return within * (1 - (1 - 1 / within) ** self.choices)
        here, missed = groups // nodes, 0.0
        for ours in range(min(here, chosen) + 1):  # of its groups, a node has so many of the chosen ones
            ways = comb(here, ours) * comb(groups - here, chosen - ours) / comb(groups, chosen)
            missed += ways * (1 - ours / chosen) ** self.choices
        return nodes * (1 - missed)


def token_routes(graph: OperatorGraph, machine: Machine) -> dict[str, TokenRoute]:
    """Return where tokens go, by the operators whose outputs are tokens on that way: each `dispatch`, and what makes the inputs of
    each `combine`. Empty where no program of the machine sends a token to a node once."""
    programs = [getattr(getattr(processor, "device", None), "program", None) for processor in machine.processors[:1]]
    if not any(program is not None and program.once_a_node for program in programs):
        return {}
    found: dict[str, TokenRoute] = {}
    for node in graph:
        if isinstance(node.operator, Dispatch):
            found[node.name] = _route(graph, node, 1)
        elif isinstance(node.operator, CombineExperts):
            found[graph.producer(node.inputs[0]).name] = _route(graph, node, 2)
    return found


def _route(graph: OperatorGraph, node: Node, slots: int) -> TokenRoute:
    """The route by the operators that make a node's input number ``slots``, back to the router's product. In imported networks
    a choice among each token's groups is a `top_k` of as many scores, of which the experts' number is a multiple."""
    choices, behind, seen = node.specs[slots].shape[-1], [node.inputs[slots]], set[int]()
    others: list[Node] = []
    experts = tokens = 0
    while behind:
        made = graph.producer(behind.pop())
        if made.number in seen or made.parameters:
            continue
        seen.add(made.number)
        if isinstance(routing := made.operator, TopKRouting):
            return TokenRoute(choices, routing.expert_groups, routing.chosen_groups)
        if isinstance(made.operator, TopK):
            *rows, scores = made.specs[0].shape
            if scores > experts and made.operator.k == choices:
                experts, tokens = scores, prod(rows)
            others.append(made)
        behind.extend(made.inputs)
    for other in others:
        assert isinstance(other.operator, TopK)
        *rows, groups = other.specs[0].shape
        if prod(rows) == tokens and groups < experts and experts % groups == 0:
            return TokenRoute(choices, groups, other.operator.k)
    return TokenRoute(choices)


def crossing_bytes(nbytes: int, route: TokenRoute, machine: Machine, group: Sequence[int]) -> int:
    """Return the bytes of an all-to-all of tokens as it takes as long between nodes if each goes once to each node that has experts
    of its choices, of ``nbytes`` that all its copies have. Within one node all copies are sent."""
    nodes = len({machine.processors[member].node for member in group})
    return round(nbytes * route.nodes(nodes) / route.choices) if nodes > 1 else nbytes
