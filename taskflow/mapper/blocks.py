"""Blocks of a network: operators whose names share a number, such as those of ``h.3``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from taskflow.graph import OperatorGraph
from taskflow.mapper.config import ranges

if TYPE_CHECKING:
    from taskflow.mapper.strategy import Strategy

_BLOCK = re.compile(r"(?:^|.*?\.)\d+(?=\.|$)")
"""Matches the name of the block that an operator belongs to, such as ``h.3`` of ``h.3.attn.q_proj``."""


def block_of(name: str) -> str:
    """Return the block that an operator or a module belongs to by its name; empty if it belongs to none."""
    return match[0] if (match := _BLOCK.match(name)) else ""


def block_numbers(graph: OperatorGraph) -> dict[str, int]:
    """Return the number of each operator's block, counted in the order of the graph; empty if operators have no such names. What
    belongs to none counts to the block before it."""
    keys: dict[str, int] = {}
    found: dict[str, int] = {}
    last = 0
    for node in graph:
        if block := block_of(node.name):
            last = max(last, keys.setdefault(block, len(keys)))
        found[node.name] = last
    return found if keys else {}


def block_count(graph: OperatorGraph) -> int:
    """Return the number of a network's blocks; 0 if operators have no such names."""
    return max(block_numbers(graph).values(), default=-1) + 1


def described_by_blocks(graph: OperatorGraph, strategy: Strategy) -> str:
    """Return one line for an operator of all blocks that have it in the same configuration: ``h.0-11.q: n/4 @ 0-3``."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for node in graph:
        block = "" if (own := block_of(node.name)) == node.name else own
        before = block.rstrip("0123456789")
        key = before, node.name[len(block) :], strategy[node.name].describe(node)
        found.setdefault(key, []).extend([int(block[len(before) :])] if block else [])
    return "\n".join(f"{before}{ranges(tuple(of))}{after}: {cut}" for (before, after, cut), of in found.items())
