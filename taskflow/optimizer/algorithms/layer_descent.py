"""Descent over layers: each layer, and each run of a few consecutive layers, takes the best of all cuts on all device groups.

There are few layers and few device groups, so all of them can be tried, where annealing draws some at random. Device groups
that differ only in where they are are nearly equivalent: of each list of such groups the first is tried, and the others only if
it helped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import nextafter, prod

from taskflow.graph import Node
from taskflow.mapper import OpConfig, Strategy
from taskflow.optimizer.algorithms.moves import SYNCS
from taskflow.optimizer.budget import BudgetPart
from taskflow.optimizer.session import SearchSession
from taskflow.optimizer.space import DeviceGroup, Layer, SearchSpace, on_team

LONGEST = 3  # layers of a stretch that takes one team
ROUNDS = 4  # over all stretches; the first two find nearly all that there is to find

Changes = dict[str, OpConfig]


class LayerDescent:
    """Descent in one search. ``shapes``: device groups in lists that differ only in where they are
    (`space.device_groups.shapes`), with at most as many processors as an operator may have pieces."""

    def __init__(
        self, run: SearchSession, space: SearchSpace, layers: Sequence[Layer], shapes: Sequence[Sequence[DeviceGroup]]
    ) -> None:
        self.run, self.space, self.layers, self.shapes = run, space, layers, shapes
        self._permitted: dict[int, set[tuple[int, ...]]] = {}

    def descend(self, part: BudgetPart) -> None:
        """Descend from the current strategy until no run of layers finds anything better, or the share of the budget is spent."""
        for _ in range(ROUNDS):
            before = self.run.seconds
            for stretch in self._stretches():
                if not self._improve(stretch, part):
                    return
            if not self._synchronise(part) or self.run.seconds >= before:
                return

    def _stretches(self) -> Iterator[Sequence[Layer]]:
        for length in range(1, min(LONGEST, len(self.layers)) + 1):
            some = [self.layers[start : start + length] for start in range(len(self.layers) - length + 1)]
            yield from sorted(some, key=lambda stretch: _heaviest(stretch).weight_bytes, reverse=True)

    def _improve(self, stretch: Sequence[Layer], part: BudgetPart) -> bool:
        """False if there is no time left."""
        for shape in self.shapes:
            for degrees in self.cuts(stretch, len(shape[0])):
                for team in shape:
                    if part.expired:
                        return False
                    if not self._better(self._on(stretch, degrees, team)):
                        break
        return True

    def _better(self, changes: Changes) -> bool:
        current: Strategy = self.run.strategy
        changes = {name: config for name, config in changes.items() if current[name] != config}
        return bool(changes) and self.run.propose(changes, nextafter(self.run.seconds, 0.0))

    def _on(self, stretch: Sequence[Layer], degrees: Sequence[int], team: DeviceGroup) -> Changes:
        """The layers of a stretch on one team: the one with the most weights cut so, the others alike. Nothing if one of them
        may not be."""
        heaviest = _heaviest(stretch)
        changes: Changes = {}
        for layer in stretch:
            cut = layer.like(heaviest, degrees)
            if not self._may(layer.leaders[0], cut):
                return {}
            changes.update(layer.spread(on_team(cut, team[: prod(cut)])))
        return changes

    def _may(self, node: Node, degrees: tuple[int, ...]) -> bool:
        space = self.space[node]
        if id(space) not in self._permitted:
            self._permitted[id(space)] = set(space.tuples)
        return degrees in self._permitted[id(space)]

    def _synchronise(self, part: BudgetPart) -> bool:
        """Each layer's weights in the best way. False if there is no time left."""
        for name in dict.fromkeys(name for layer in self.layers for name in layer.weights):
            for sync in SYNCS:
                if part.expired:
                    return False
                if self.run.strategy.sync(name) != sync:
                    self.run.propose({}, nextafter(self.run.seconds, 0.0), {name: sync})
        return True

    def cuts(self, stretch: Sequence[Layer], pieces: int) -> Sequence[tuple[int, ...]]:
        """Return the cuts to try of the layer with the most weights: of at most two dimensions, into exactly this many pieces,
        since there are smaller device groups too."""
        return self.space[_heaviest(stretch).leaders[0]].cuts(pieces, dimensions=2)


def _heaviest(stretch: Sequence[Layer]) -> Layer:
    return max(stretch, key=lambda layer: layer.weight_bytes)
