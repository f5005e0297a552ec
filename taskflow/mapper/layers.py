"""Numbered layers of a network, by the names of its operators."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from taskflow.graph import OperatorGraph
from taskflow.mapper.config import ranges

if TYPE_CHECKING:
    from taskflow.mapper.strategy import Strategy

_LAYER = re.compile(r"(?:^|.*?\.)\d+(?=\.|$)")
"""Matches the name of the numbered layer that an operator belongs to, such as ``h.3`` of ``h.3.attn.q_proj``."""


def numbered_layer(name: str) -> str:
    """Return the numbered layer that an operator or a module belongs to by its name; empty if it belongs to none."""
    return match[0] if (match := _LAYER.match(name)) else ""


def layer_numbers(graph: OperatorGraph) -> dict[str, int]:
    """Return the layer of each operator, counted in the order of the graph; empty if operators have no such names."""
    keys: dict[str, int] = {}
    found: dict[str, int] = {}
    last = 0
    for node in graph:
        if block := numbered_layer(node.name):
            last = max(last, keys.setdefault(block, len(keys)))
        found[node.name] = last
    return found if keys else {}


def described_by_layers(graph: OperatorGraph, strategy: Strategy) -> str:
    """Return one line for an operator of all layers that have it in the same configuration: ``h.0-11.q: n/4 @ 0-3``."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for node in graph:
        layer = "" if (block := numbered_layer(node.name)) == node.name else block
        before = layer.rstrip("0123456789")
        key = before, node.name[len(layer) :], strategy[node.name].describe(node)
        found.setdefault(key, []).extend([int(layer[len(before) :])] if layer else [])
    return "\n".join(f"{before}{ranges(tuple(of))}{after}: {cut}" for (before, after, cut), of in found.items())
