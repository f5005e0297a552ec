"""Patterns: layers of one kind are decided about together, two or three kinds at a time.

Good plans treat similar layers alike: all embeddings cut by channels, LSTM layers on halves of the processors in turn, the
output layer by channels again. One of these alone may not help where two together do. (If LSTM layers alternate between two
processors, the layer after them should be where both have half of it.) So each kind has a short list of configurations. For
every two kinds (three, if there are no more) all combinations are tried, until nothing better is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from math import inf, nextafter, prod

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import OpConfig, Strategy, node_size
from taskflow.operators.operator import Soap
from taskflow.optimizer.algorithms.initial import with_syncs
from taskflow.optimizer.budget import BudgetPart
from taskflow.optimizer.session import SearchSession
from taskflow.optimizer.space import DeviceGroup, Layer, SearchSpace, on_team, place

MOST_KINDS = 8  # those with the most weights
MOST_WAYS = 24  # of one kind; those on the most processors come first

Changes = dict[str, OpConfig]


class LayerPatterns:
    """Descent over patterns in one search. ``shapes``: device groups in lists that differ only in where they are
    (`optimizer.space.device_groups.shapes`)."""

    def __init__(
        self, run: SearchSession, space: SearchSpace, layers: Sequence[Layer], shapes: Sequence[Sequence[DeviceGroup]]
    ) -> None:
        self.run, self.space, self.shapes = run, space, shapes
        kinds: dict[object, list[Layer]] = {}
        for layer in layers:
            leader = layer.leaders[0]
            kinds.setdefault((leader.operator.kind, tuple(dim.size for dim in leader.dims)), []).append(layer)
        heaviest = sorted((k for k in kinds.values() if k[0].weights), key=lambda k: -sum(layer.weight_bytes for layer in k))
        self.kinds = tuple(tuple(kind) for kind in heaviest[:MOST_KINDS])

    def descend(self, part: BudgetPart) -> None:
        """Descend from the current strategy until no two or three kinds find anything better, or the share of the budget is
        spent."""
        ways = [self._ways(kind) for kind in self.kinds]
        together = 3 if len(ways) <= 3 else 2
        before = inf
        while self.run.seconds < before:
            before = self.run.seconds
            for some in combinations(ways, min(together, len(ways))):
                for chosen in product(*some):
                    if part.expired:
                        return
                    self._better({name: config for changes in chosen for name, config in changes.items()})

    def _better(self, changes: Changes) -> bool:
        current = self.run.strategy
        changes = {name: config for name, config in changes.items() if current[name] != config}
        return bool(changes) and self.run.propose(changes, nextafter(self.run.seconds, 0.0))

    def _ways(self, kind: Sequence[Layer]) -> list[Changes]:
        """All layers on one team of all processors; or, of teams of a part of them, each layer on the next."""
        found: list[Changes] = []
        for shape in sorted(self.shapes, key=lambda shape: -len(shape[0])):
            whole = len(shape) == 1
            for degrees in self.space[kind[0].leaders[0]].cuts(len(shape[0]), dimensions=2 if whole else 1):
                for first in range(1 if whole or len(kind) == 1 else 2):
                    for order in range(2 if sum(d > 1 for d in degrees) > 1 else 1):
                        changes: Changes = {}
                        for number, layer in enumerate(kind):
                            team = shape[(first + number) % len(shape)]
                            changes |= layer.spread(on_team(degrees, team, order))
                        found.append(changes)
        return found[:MOST_WAYS]


# Layer groups: samples are cut between groups of neighbouring processors, weights and activations within them.
# The plans that people usually write may not fit the memory. Then stored data have to be cut as well: a group of processors
# shares one copy of the weights, and of the activations of a part of the samples. Megatron-LM combines tensor and data
# parallelism in this way (Shoeybi et al., arXiv 1909.08053, section 3); here every layer is cut by its outputs, none by its
# inputs.
def groups(graph: OperatorGraph, machine: Machine) -> Iterator[Strategy]:
    """Return a plan for each size of group that divides the processors evenly: first those of the nodes' own size, in which the
    most traffic is where links are fastest; then from small to large."""
    count, node = len(machine.processors), node_size(machine)
    sizes = [size for size in range(2, count + 1) if count % size == 0 and size & (size - 1) == 0]
    for size in sorted(sizes, key=lambda size: (size != node, size)):
        configs = {n.name: _placed(_cut(n, count, size), count, size) for n in graph}
        yield with_syncs(Strategy(count, configs, {}, f"groups of {size}"), graph, machine)


def _placed(degrees: tuple[int, ...], count: int, size: int) -> OpConfig:
    """Group after group; what is cut by samples only is done by the first of each."""
    return place(degrees, count, stride=size if prod(degrees) * size <= count else 1)


def _cut(node: Node, count: int, size: int) -> tuple[int, ...]:
    """Samples in one piece a group; of what is left the first dimension that has a piece for each processor of a group:
    one that cuts weights, if there are any. Pieces are numbered with samples slowest, so a group's are neighbours."""
    wanted = (Soap.PARAMETER, Soap.ATTRIBUTE) if node.parameters else (Soap.ATTRIBUTE,)
    fits = [
        i for soap in wanted for i, dim in enumerate(node.dims)
        if dim.soap is soap and dim.divisible and dim.size >= size
    ]
    degrees = [1] * len(node.dims)
    for i, dim in enumerate(node.dims):
        if dim.soap is Soap.SAMPLE and dim.divisible:
            degrees[i] = min(dim.size, count // size)
        elif i in fits[:1]:
            degrees[i] = size
    return tuple(degrees)
