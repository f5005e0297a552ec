"""Tokens on their way to experts and back, in programs that send each to a node once (DeepSeek-AI's DeepEP, arXiv 2412.19437,
section 3.2.2)."""

from __future__ import annotations

from collections.abc import Sequence

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.operators.combine import CombineExperts
from taskflow.operators.dispatch import Dispatch


def token_choices(graph: OperatorGraph, machine: Machine) -> dict[str, int]:
    """Return how many experts a token goes to, by the operators whose outputs are tokens on that way: each `dispatch`, and what
    makes the inputs of each `combine`. Empty where no program of the machine sends a token to a node once."""
    programs = [getattr(getattr(processor, "device", None), "program", None) for processor in machine.processors[:1]]
    if not any(program is not None and program.once_a_node for program in programs):
        return {}
    found: dict[str, int] = {}
    for node in graph:
        if isinstance(node.operator, Dispatch):
            found[node.name] = node.specs[1].shape[-1]
        elif isinstance(node.operator, CombineExperts):
            found[graph.producer(node.inputs[0]).name] = node.specs[2].shape[-1]
    return found


def crossing_bytes(nbytes: int, choices: int, machine: Machine, group: Sequence[int]) -> int:
    """Return the bytes of an all-to-all of tokens as it takes as long between nodes if each goes once to each node that has experts
    of its ``choices``, of ``nbytes`` that all its copies have. Choices are taken to be even and independent: of n nodes a token
    then goes to n (1 - (1 - 1 / n)^k). Within one node all copies are sent."""
    nodes = len({machine.processors[member].node for member in group})
    return round(nbytes * nodes * (1 - (1 - 1 / nodes) ** choices) / choices) if nodes > 1 else nbytes
