"""Where searches start: the strategies that people would write, and random ones."""

from __future__ import annotations

from random import Random

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import DataParallel, Expert, ModelParallel, Strategy, map_graph
from taskflow.optimizer.space import Space


def known(graph: OperatorGraph, machine: Machine) -> tuple[Strategy, ...]:
    """Data parallel, expert and model parallel: no search may return a slower plan."""
    return tuple(map_graph(mapper, graph, machine) for mapper in (DataParallel(), Expert(), ModelParallel()))


def random_start(graph: OperatorGraph, machine: Machine, space: Space, random: Random, name: str = "random") -> Strategy:
    """Uniform over the space, with the default synchronisation."""
    return Strategy(len(machine.processors), space.random(random), {}, name)
