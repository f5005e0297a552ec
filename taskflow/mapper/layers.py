"""Numbered layers of a network, by the names of its operators."""

from __future__ import annotations

import re

from taskflow.graph import OperatorGraph
from taskflow.mapper.config import ranges
from taskflow.mapper.strategy import Strategy

LAYER = re.compile(r"(?:^|.*?\.)\d+(?=\.|$)")
"""Matches the name of the numbered layer that an operator belongs to, such as ``h.3`` of ``h.3.attn.q_proj``."""


def layer_numbers(graph: OperatorGraph) -> dict[str, int]:
    """Return the layer of each operator, counted in the order of the graph; empty if operators have no such names."""
    keys: dict[str, int] = {}
    found: dict[str, int] = {}
    last = 0
    for node in graph:
        if match := LAYER.match(node.name):
            last = max(last, keys.setdefault(match[0], len(keys)))
        found[node.name] = last
    return found if keys else {}


def described_by_layers(graph: OperatorGraph, strategy: Strategy) -> str:
    """Return one line for an operator of all layers that have it in the same configuration: ``h.0-11.q: n/4 @ 0-3``."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for node in graph:
        match = LAYER.match(node.name)
        layer = match[0] if match and match[0] != node.name else ""
        before = layer.rstrip("0123456789")
        key = before, node.name[len(layer) :], strategy[node.name].describe(node)
        found.setdefault(key, []).extend([int(layer[len(before) :])] if layer else [])
    return "\n".join(f"{before}{ranges(tuple(of))}{after}: {cut}" for (before, after, cut), of in found.items())
