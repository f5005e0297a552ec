"""Initial strategies, from which searches start: those that people would write, and random ones."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, Machine, PartOfMachine
from taskflow.mapper import DataParallel, Expert, ModelParallel, Strategy, copy_on_each, map_graph
from taskflow.optimizer.space import CoupledMoves, SearchSpace

FAR = 4.0  # times as slow as the fastest way from a node: devices behind it may be worth less than their link costs


def known(graph: OperatorGraph, machine: Machine) -> tuple[Strategy, ...]:
    """Return data parallel, expert and model parallel: no search may return a slower plan."""
    return tuple(map_graph(mapper, graph, machine) for mapper in (DataParallel(), Expert(), ModelParallel()))


def without_far(graph: OperatorGraph, machine: Machine) -> tuple[Strategy, ...]:
    """Return data parallelism without the devices whose way to other nodes is far slower than the fastest; nothing if there are
    none. Where it is there, no search may return a slower plan, either."""
    if not isinstance(machine, Cluster) or len({processor.node for processor in machine.processors}) == 1:
        return ()
    rates = [min((link.bytes_per_second for link in machine.way_out(p.number)), default=inf) for p in machine.processors]
    near = tuple(p for p, rate in enumerate(rates) if rate * FAR >= max(rates))
    if len(near) == len(rates):
        return ()
    data = map_graph(DataParallel(), graph, PartOfMachine(machine, near))
    return (replace(data.on_members(near, len(rates)), name="data without far nodes"),)


def with_syncs(strategy: Strategy, graph: OperatorGraph, machine: Machine) -> Strategy:
    """Return the strategy with every layer synchronised, and partial values summed, as mappers do by default
    (`Mapper.select_reduction`, `Mapper.select_sums`). What is made of weights alone is on every processor."""
    copied = {node.name: copy_on_each(node, strategy.processors) for node in graph if node.of_weights}
    if copied:
        strategy = replace(strategy, configs={**strategy.configs, **copied})
    holders: dict[str, set[int]] = {}
    nbytes: dict[str, int] = {}
    for parameter in graph.parameters:
        nbytes[parameter.layer] = nbytes.get(parameter.layer, 0) + parameter.spec.nbytes
    for node in graph:
        for parameter in node.parameters:
            holders.setdefault(parameter.layer, set()).update(strategy[node.name].processors)
    mapper = DataParallel()
    syncs = {
        layer: mapper.select_reduction(layer, nbytes[layer], tuple(sorted(group)), machine)
        for layer, group in holders.items()
    }
    used = tuple(sorted({p for config in strategy.configs.values() for p in config.processors}))
    return replace(strategy, syncs=syncs, sums=mapper.select_sums(used, machine))


def random_start(graph: OperatorGraph, machine: Machine, space: SearchSpace, random: Random, name: str = "random") -> Strategy:
    """Draw a strategy uniformly from the space (with ``space.options.follow``, from the choices of the operators that choose),
    with the default synchronisation."""
    configs = space.random(random) if space.options.follow == "none" else CoupledMoves(graph, space).everything(random)
    return with_syncs(Strategy(len(machine.processors), configs, {}, name), graph, machine)
