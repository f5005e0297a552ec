"""Networks of which a random part is frozen."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from taskflow.graph import OperatorGraph


def freeze_some(graph: OperatorGraph, random: Random, share: float = 0.5) -> OperatorGraph:
    """Freeze about this share of a graph's layers, and return it. What an operator shares with one that is trained is trained."""
    for layer in dict.fromkeys(parameter.layer for parameter in graph.parameters):
        if random.random() < share:
            with suppress(ValueError):
                graph.freeze_parameters({p.name for p in graph.parameters if p.layer == layer})
    return graph
