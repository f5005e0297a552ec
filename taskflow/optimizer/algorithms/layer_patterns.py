"""Patterns: layers of one kind are decided about together, two or three kinds at a time.

Good plans treat similar layers alike: all embeddings cut by channels, LSTM layers on halves of the processors in turn, the
output layer by channels again. One of these alone may not help where two together do. (If LSTM layers alternate between two
processors, the layer after them should be where both have half of it.) So each kind has a short list of configurations. For
every two kinds (three, if there are no more) all combinations are tried, until nothing better is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from math import inf, nextafter

from taskflow.mapper import OpConfig
from taskflow.optimizer.budget import BudgetPart
from taskflow.optimizer.session import SearchSession
from taskflow.optimizer.space import DeviceGroup, Layer, SearchSpace, on_team

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
