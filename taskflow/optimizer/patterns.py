"""Patterns: layers of one kind are decided together, two kinds at a time.

Good plans treat alike layers alike: all embeddings cut by channels, LSTM layers dealt to halves of the processors in turn, the
output layer by channels again. One of these alone may help nothing, two together do (LSTM layers dealt to two processors want
what follows them where both have half of it). So each kind has a short list of ways, and of every two kinds all ways of the one
are tried with all ways of the other, until no two kinds find anything better.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import nextafter, prod

from taskflow.mapper import OpConfig
from taskflow.optimizer.run import Run
from taskflow.optimizer.skeleton import Layer
from taskflow.optimizer.slice import Slice
from taskflow.optimizer.space import Space
from taskflow.optimizer.teams import Team, on_team

MOST_KINDS = 8  # those with the most weights
MOST_WAYS = 16  # of one kind

Changes = dict[str, OpConfig]


class Patterns:
    """Of one run. ``shapes``: teams in lists that differ only in where they lie (`taskflow.optimizer.teams.shapes`)."""

    def __init__(self, run: Run, space: Space, layers: Sequence[Layer], shapes: Sequence[Sequence[Team]]) -> None:
        self.run, self.space, self.shapes = run, space, shapes
        kinds: dict[object, list[Layer]] = {}
        for layer in layers:
            leader = layer.leaders[0]
            kinds.setdefault((leader.operator.kind, tuple(dim.size for dim in leader.dims)), []).append(layer)
        heaviest = sorted((k for k in kinds.values() if k[0].weights), key=lambda k: -sum(layer.weight_bytes for layer in k))
        self.kinds = tuple(tuple(kind) for kind in heaviest[:MOST_KINDS])

    def descend(self, part: Slice) -> None:
        """From the current strategy, until no two kinds find anything better or the slice is over."""
        ways = [self._ways(kind) for kind in self.kinds]
        before = float("inf")
        while self.run.seconds < before:
            before = self.run.seconds
            pairs = combinations(ways, 2) if len(ways) > 1 else [(way, [{}]) for way in ways]
            for one, other in pairs:
                for first in one:
                    for second in other:
                        if part.over:
                            return
                        self._better(first | second)

    def _better(self, changes: Changes) -> bool:
        current = self.run.strategy
        changes = {name: config for name, config in changes.items() if current[name] != config}
        return bool(changes) and self.run.propose(changes, nextafter(self.run.seconds, 0.0))

    def _ways(self, kind: Sequence[Layer]) -> list[Changes]:
        """All layers on one team of all processors; or each on the next of several teams."""
        found: list[Changes] = []
        for shape in sorted(self.shapes, key=lambda shape: -len(shape[0])):
            if len(shape) > 1 and len(kind) < 2:
                continue
            for degrees in self._cuts(kind[0], len(shape[0]), len(shape) == 1):
                for first in range(min(2, len(shape))):
                    changes: Changes = {}
                    for number, layer in enumerate(kind):
                        team = shape[(first + number) % len(shape)]
                        changes |= layer.spread(on_team(degrees, team[: prod(degrees)]))
                    found.append(changes)
        return found[:MOST_WAYS]

    def _cuts(self, layer: Layer, pieces: int, mixed: bool) -> Sequence[tuple[int, ...]]:
        """In one dimension that is not contracted; if ``mixed`` in samples and another one, too."""
        leader = layer.leaders[0]
        return self.space[leader].cuts(pieces, dimensions=2 if mixed else 1, contracted=False)
