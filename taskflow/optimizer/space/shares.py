"""Shares: pieces of uneven size for devices of unequal speed.

Every processor has a share, a whole number of units of the samples. The pieces of an operator are proportional to the shares of
the processors that run them: along each dimension that is cut, the weight of a slice is the sum of its processors' shares. So
operators that are cut alike have equal pieces, and nothing moves between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import gcd, prod

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import OpConfig, Strategy
from taskflow.operators.operator import Soap
from taskflow.optimizer.space.space import SpaceOptions
from taskflow.partition import weighted_cuts

MOST_UNITS = 4096  # finer shares change no time that anybody measures


def unequal(machine: Machine) -> bool:
    """True if the machine's devices are of more than one kind."""
    first = machine.processors[0].device
    return any(processor.device != first for processor in machine.processors)


def uneven_applies(machine: Machine, options: SpaceOptions) -> bool:
    """True if a search may cut unevenly: devices are of several kinds, and neither even pieces nor neighbours are required."""
    return unequal(machine) and options.uneven and options.degrees != "even" and options.placements != "contiguous"


def units_of(graph: OperatorGraph, processors: int) -> int:
    """Return the number of units that shares divide: the number of samples that most operators have, but at least the number of
    processors."""
    sizes: dict[int, int] = {}
    for node in graph:
        size = next((dim.size for dim in node.dims if dim.soap is Soap.SAMPLE and dim.divisible), 0)
        if size >= processors:
            sizes[size] = sizes.get(size, 0) + 1
    return max(processors, min(MOST_UNITS, max(sizes, key=lambda size: sizes[size], default=processors)))


def whole_shares(speeds: Sequence[float], units: int) -> tuple[int, ...]:
    """Return integers in proportion to ``speeds`` that add up to ``units``, by largest remainders, ties to the first. Raises
    ValueError if a speed is negative or none is above 0."""
    if min(speeds, default=-1.0) < 0 or sum(speeds) <= 0:
        raise ValueError(f"shares: speeds must not be negative, and one must be above 0, got {tuple(speeds)}")
    exact = [units * speed / sum(speeds) for speed in speeds]
    found = [int(share) for share in exact]
    by_rest = sorted(range(len(exact)), key=lambda p: (found[p] - exact[p], p))
    for p in by_rest[: units - sum(found)]:
        found[p] += 1
    return tuple(found)


def kinds_of(machine: Machine) -> list[list[int]]:
    """Group the processors by the kind of their devices."""
    kinds: dict[object, list[int]] = {}
    for processor in machine.processors:
        kinds.setdefault(processor.device, []).append(processor.number)
    return list(kinds.values())


def shares_by_speed(machine: Machine, busy: Sequence[float], shares: Sequence[int]) -> tuple[int, ...]:
    """Return shares with which all devices would be busy equally long, given how many seconds each was busy with these
    ``shares``. Devices of a kind have equal speeds. The number of units stays."""
    speeds = [0.0] * len(shares)
    for members in kinds_of(machine):
        seconds, units = sum(busy[p] for p in members), sum(shares[p] for p in members)
        for p in members:
            speeds[p] = units / seconds if seconds > 0 else 0.0
    return whole_shares(speeds, sum(shares)) if any(speeds) else tuple(shares)


class Weigher:
    """Applies ``shares`` to configurations without weights; operators in ``fixed`` are unchanged."""

    def __init__(self, graph: OperatorGraph, shares: Sequence[int], fixed: frozenset[str] = frozenset()) -> None:
        self.shares, self.fixed = tuple(shares), fixed
        self._nodes = {node.name: node for node in graph}
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], OpConfig] = {}

    def __call__(self, configs: Mapping[str, OpConfig]) -> dict[str, OpConfig]:
        """The same operators' configurations, with weights."""
        return {name: self.of(name, config) for name, config in configs.items()}

    def of(self, name: str, config: OpConfig) -> OpConfig:
        """Return one operator's configuration with weights; unchanged if it has weights, is fixed, or its processors' shares
        are equal."""
        if config.weights or len(config.processors) == 1 or name in self.fixed:
            return config
        node = self._nodes[name]
        key = tuple(dim.size for dim in node.dims), config.degrees, config.processors
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = weighed(node, config, self.shares)
        return found

    def strategy(self, strategy: Strategy) -> Strategy:
        """Return a strategy whose pieces all have the sizes of the shares, whatever they were before."""
        return replace(strategy, configs=self(even(strategy).configs), plan=None)


def weighed(node: Node, config: OpConfig, shares: Sequence[int]) -> OpConfig:
    """Return ``config`` with pieces in proportion to the shares of their processors. Empty slices, and their processors, are
    left out; a dimension whose slices are all equal has no weights."""
    numbers = {color: k for k, color in enumerate(product(*map(range, config.degrees)))}
    kept, weights = [], []
    for i, (dim, degree) in enumerate(zip(node.dims, config.degrees)):
        sums = [0] * degree
        for color, k in numbers.items():
            sums[color[i]] += shares[config.processors[k]]
        slices = list(range(degree)) if not any(sums) or len(set(sums)) == 1 else _not_empty(dim.size, sums)
        kept.append(slices)
        some = [sums[s] for s in slices]
        weights.append(() if len(set(some)) == 1 else tuple(w // gcd(*some) for w in some))
    processors = tuple(config.processors[numbers[color]] for color in product(*kept))
    degrees = tuple(map(len, kept))
    assert len(processors) == prod(degrees)
    return OpConfig(degrees, processors, tuple(map(_floats, weights)) if any(weights) else ())


def _floats(weights: Sequence[int]) -> tuple[float, ...]:
    return tuple(map(float, weights))  # as strategy files have them


def _not_empty(size: int, sums: Sequence[int]) -> list[int]:
    """The slices that hold something when so many points are cut in proportion to ``sums``."""
    slices = [s for s, weight in enumerate(sums) if weight > 0]
    while True:
        cuts = weighted_cuts(size, [sums[s] for s in slices])
        empty = [s for s, low, high in zip(slices, cuts, cuts[1:]) if low == high]
        if not empty:
            return slices
        slices.remove(min(empty, key=lambda s: (sums[s], -s)))


def even(strategy: Strategy) -> Strategy:
    """Return the strategy with pieces of even size, on the same processors."""
    if not any(config.weights for config in strategy.configs.values()):
        return strategy
    configs = {n: replace(c, weights=()) if c.weights else c for n, c in strategy.configs.items()}
    return replace(strategy, configs=configs, plan=None)
