"""Numbered layers of a network, by the names of its operators."""

from __future__ import annotations

import re

from taskflow.graph import OperatorGraph

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
