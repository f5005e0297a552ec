"""StepPart: the part of a step that is lowered if the rest is the same.

Replicas do the same at the same time, and every micro-batch goes through the same tasks. So a step can be lowered for one
replica and a few micro-batches, and the rest follows (optimizer/evaluate/folded). Anything that crosses replicas must be a
collective whose members are all images of each other. Experts are divided among replicas as samples are; what goes to them
and comes back is an all-to-all in which each member gives each an equal part (`StepPart.members`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from taskflow.graph import Node
from taskflow.mapper import OpConfig, Pipeline, sample_dim
from taskflow.regions import Rect

LOWERED = 4
"""How many micro-batches are lowered of a step with more."""


class NotAlikeError(ValueError):
    """Error for a step that cannot be lowered in part, because something in it is not the same everywhere."""


@dataclass(frozen=True, eq=False)
class StepPart:
    """Part of a step. ``images``: for each processor whose tasks are lowered, all processors that do the same, itself first,
    one in each of ``replicas`` groups, each of which has an equal share of the samples of every micro-batch. ``kept``: the
    micro-batches that are lowered. ``alone``: the other replicas' parts of partial values, losses and carried states are left
    out; without it such a step cannot be lowered in part. ``spread``: the operators that replicas divide along another dimension
    than samples."""

    images: Mapping[int, tuple[int, ...]]
    replicas: int
    kept: tuple[int, ...]
    alone: bool = False
    spread: frozenset[str] = frozenset()
    known: Mapping[int, int] = field(init=False)
    """Of each processor the one that is lowered."""
    _here: dict[tuple[int, ...], tuple[int, ...]] = field(init=False, default_factory=dict)
    _everywhere: dict[tuple[int, ...], tuple[int, ...]] = field(init=False, default_factory=dict)
    _written: dict[tuple[object, ...], tuple[OpConfig, list[tuple[Rect, int]]]] = field(init=False, default_factory=dict)
    _members: dict[tuple[object, ...], tuple[int, ...]] = field(init=False, default_factory=dict)
    _holders: dict[tuple[object, ...], tuple[OpConfig, dict[Rect, tuple[int, ...]]]] = field(init=False, default_factory=dict)
    _pieces: dict[tuple[int, int | None, int], tuple[OpConfig, list[int]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", {image: p for p, images in self.images.items() for image in images})

    def lowered(self, group: Sequence[int], name: str) -> list[int]:
        """Return those of a group of processors whose tasks are lowered: some, with all their images in the group; or all, of a
        group within a replica; or none, of one within another. Raises NotAlikeError in other cases."""
        found = self.here(group)
        if found and len(found) < len(group) and {image for p in found for image in self.images[p]} != set(group):
            raise NotAlikeError(f"{name}: shares are kept by some of the replicas")
        return list(found)

    def here(self, group: Sequence[int]) -> tuple[int, ...]:
        """Return those of a group of processors whose tasks are lowered."""
        key = tuple(group)
        if key not in self._here:  # few groups, perhaps of thousands, hold many weights
            self._here[key] = tuple([p for p in key if p in self.images])
        return self._here[key]

    def everywhere(self, processors: Iterable[int]) -> tuple[int, ...]:
        """Return all images of these processors, ascending."""
        key = tuple(sorted(processors))
        if key not in self._everywhere:
            self._everywhere[key] = tuple(sorted({image for p in key for image in self.images[p]}))
        return self._everywhere[key]

    def pieces(self, node: Node, config: OpConfig, pipeline: Pipeline | None) -> list[int]:
        """Return the numbers of a node's pieces that are lowered, ascending."""
        dim = sample_dim(node)
        key = id(config), dim, 1 if pipeline is None else pipeline.micro_batches
        if key not in self._pieces or self._pieces[key][0] is not config:  # layers are alike
            self._pieces[key] = config, self._find_pieces(node, config, pipeline, dim)
        return self._pieces[key][1]

    def _find_pieces(self, node: Node, config: OpConfig, pipeline: Pipeline | None, dim: int | None) -> list[int]:
        here = np.isin(np.asarray(config.processors), list(self.images))  # by copies of pieces
        if pipeline is not None and pipeline.micro_batch(node, config, 0) is not None and dim is not None:
            degrees, count = config.degrees, pipeline.micro_batches
            samples = np.arange(degrees[dim]) * count // degrees[dim]
            shape = [degrees[dim] if i == dim else 1 for i in range(len(degrees))]
            here &= np.repeat(np.broadcast_to(np.isin(samples, self.kept).reshape(shape), degrees).ravel(), config.copies)
        return [int(number) for number in np.flatnonzero(here)]

    def image(self, node: Node, config: OpConfig, pipeline: Pipeline | None) -> Callable[[int], Rect] | None:
        """Return a function from the number of a piece of the first replica to the Rect of the second replica's piece; None if
        there is no other replica."""
        dim = sample_dim(node)
        if self.replicas == 1 or dim is None or node.name in self.spread:
            return None
        parts = 1 if pipeline is None else pipeline.parts
        step = config.degrees[dim] // parts // self.replicas * prod(config.degrees[dim + 1 :])
        grid = config.partition(node)
        copies = config.copies
        return lambda piece: grid.rect(tuple(int(i) for i in np.unravel_index(piece // copies + step, config.degrees)))

    def members(self, node: Node, config: OpConfig, output: int, rect: Rect) -> tuple[int, ...]:
        """Return the processors, in all replicas, that write some of ``rect`` of a node's output, ascending."""
        key = id(config), node.operator, node.specs, output
        if key not in self._written or self._written[key][0] is not config:
            pieces = [(node.writes(piece)[output], processor) for piece, processor in config.pieces(node)]
            self._written[key] = config, pieces
        asked = *key, rect
        if asked not in self._members:
            self._members[asked] = tuple(sorted({at for piece, at in self._written[key][1] if piece.overlaps(rect)}))
        return self._members[asked]

    def holders(self, node: Node, config: OpConfig, weight: int) -> dict[Rect, tuple[int, ...]]:
        """Return the processors, in all replicas, that read each Rect of a weight of a ``spread`` node, ascending."""
        key = id(config), node.operator, node.specs, weight
        if key not in self._holders or self._holders[key][0] is not config:
            found: dict[Rect, set[int]] = {}
            for piece, processor in config.pieces(node):
                found.setdefault(node.reads(piece).weights[weight], set()).add(processor)
            self._holders[key] = config, {rect: tuple(sorted(of)) for rect, of in found.items()}
        return self._holders[key][1]
