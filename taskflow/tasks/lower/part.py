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
    than samples, too."""

    images: Mapping[int, tuple[int, ...]]
    replicas: int
    kept: tuple[int, ...]
    alone: bool = False
    spread: frozenset[str] = frozenset()
    known: Mapping[int, int] = field(init=False)
    """Of each processor the one that is lowered."""
    _here: dict[tuple[int, ...], tuple[int, ...]] = field(init=False, default_factory=dict)
    _everywhere: dict[tuple[int, ...], tuple[int, ...]] = field(init=False, default_factory=dict)
    _written: dict[tuple[object, ...], tuple[OpConfig, list[tuple[int, Rect]]]] = field(init=False, default_factory=dict)
    _writers: dict[tuple[object, ...], tuple[OpConfig, dict[int, Rect]]] = field(init=False, default_factory=dict)
    _read: dict[tuple[object, ...], tuple[OpConfig, dict[int, Rect]]] = field(init=False, default_factory=dict)
    _around: dict[tuple[object, ...], tuple[OpConfig, dict[int, Rect]]] = field(init=False, default_factory=dict)
    _holders: dict[tuple[object, ...], tuple[OpConfig, dict[Rect, tuple[int, ...]]]] = field(init=False, default_factory=dict)
    _pieces: dict[tuple[int, int | None, int], tuple[OpConfig, list[int]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", {image: p for p, images in self.images.items() for image in images})

    def lowered(self, group: Sequence[int], name: str, holders: Sequence[int] = ()) -> list[int]:
        """Return those of a group of processors whose tasks are lowered: some, with all their images among the ``holders`` in the
        group; or all, of a group within a replica; or none, of one within another. Raises NotAlikeError in other cases."""
        found = self.here(group)
        some = bool(found) and len(found) < len(group) and tuple(group) != tuple(holders)
        if some and {image for p in found for image in self.images[p]} != set(group):
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

    def beside(self, node: Node, config: OpConfig, pipeline: Pipeline | None, number: int) -> dict[int, Rect]:
        """Return the pieces of the same samples as a lowered one on processors that do the same as its own, by processor,
        ascending."""
        at, _ = self._place(node, config, pipeline, number)
        return self._found(node, config, pipeline, number, at, True)

    def on(
        self, node: Node, config: OpConfig, pipeline: Pipeline | None, number: int, processors: Iterable[int] | None
    ) -> dict[int, Rect]:
        """Return the pieces of the micro-batch of a lowered one on some processors (None: on all), by processor, ascending.
        NotAlikeError unless each of these has one."""
        every = self._found(node, config, pipeline, number, self._place(node, config, pipeline, number)[1], False)
        if processors is None:
            return every
        if not every.keys() >= (wanted := set(processors)):
            raise NotAlikeError(f"{node.name} is not on all processors that give it something")
        return {p: every[p] for p in sorted(wanted)}

    def _place(self, node: Node, config: OpConfig, pipeline: Pipeline | None, number: int) -> tuple[slice, slice]:
        """Where a piece's samples are along its dimension of samples, and those of its micro-batch."""
        dim = sample_dim(node)
        if dim is None:
            return slice(None), slice(None)
        own = int(np.unravel_index(number // config.copies, config.degrees)[dim])
        parts = 1 if pipeline is None or config.degrees[dim] % pipeline.parts else pipeline.parts
        each = config.degrees[dim] // parts
        return slice(own, own + 1), slice(own // each * each, own // each * each + each)

    def _found(
        self, node: Node, config: OpConfig, pipeline: Pipeline | None, number: int, at: slice, alike: bool
    ) -> dict[int, Rect]:
        """The pieces of some samples, by processor; with ``alike``, on images of a piece's processor. NotAlikeError if one of them
        has several."""
        dim, own = sample_dim(node), self.known[config.processors[number]]
        key = id(config), tuple(d.size for d in node.dims), at.start, own if alike else None
        if key in self._around and self._around[key][0] is config:  # layers are alike
            return self._around[key][1]
        numbers = np.arange(len(config.processors)).reshape(*config.degrees, config.copies)
        numbers = numbers[(slice(None),) * (dim or 0) + (at,)].ravel() if dim is not None else numbers.ravel()
        grid, found = config.partition(node), dict[int, Rect]()
        for piece in numbers.tolist():
            p = config.processors[piece]
            if alike and self.known.get(p) != own:
                continue
            if p in found:
                raise NotAlikeError(f"{node.name} has several pieces on one processor")
            found[p] = grid.rect(tuple(int(i) for i in np.unravel_index(piece // config.copies, config.degrees)))
        self._around[key] = config, dict(sorted(found.items()))
        return self._around[key][1]

    def image(self, node: Node, config: OpConfig, pipeline: Pipeline | None) -> Callable[[int], Rect] | None:
        """Return a function from the number of a piece of the first replica to the Rect of another one's piece of other samples;
        None if there is no such replica."""
        dim = sample_dim(node)
        if self.replicas == 1 or dim is None:
            return None
        parts = 1 if pipeline is None else pipeline.parts
        every, each = prod(config.degrees[dim + 1 :]), config.degrees[dim] // parts
        step, copies, grid = each // self.replicas, config.copies, config.partition(node)
        if node.name in self.spread:  # the samples are those of fewer replicas
            column = config.processors[:: every * copies][:each]
            step = next((i for i, p in enumerate(column) if i and self.known.get(p) == self.known.get(column[0])), 0)
            if not step:
                return None
        return lambda piece: grid.rect(tuple(int(i) for i in np.unravel_index(piece // copies + step * every, config.degrees)))

    def written(self, node: Node, config: OpConfig, pipeline: Pipeline | None, output: int, rect: Rect) -> dict[int, Rect]:
        """Return who writes some of ``rect`` of a node's output, in all replicas: by processor, ascending, the Rect of it."""
        key = id(config), node.operator, node.specs, output, rect
        if key not in self._writers or self._writers[key][0] is not config:
            found: dict[int, Rect] = {}
            for everywhere in (False, True):
                around = self._written_around(node, config, pipeline, output, everywhere)
                found = {p: own for p, own in around if own.overlaps(rect)}
                if sum(own.intersect(rect).volume for own in set(found.values())) >= rect.volume:
                    break
            self._writers[key] = config, dict(sorted(found.items()))
        return self._writers[key][1]

    def read(
        self, node: Node, config: OpConfig, pipeline: Pipeline | None, number: int, argument: int, group: Iterable[int] | None
    ) -> dict[int, Rect]:
        """Return what the pieces on some processors (`on`) read of an operator's input, by processor."""
        key = id(config), node.operator, node.specs, number, argument, None if group is None else tuple(group)
        if key not in self._read or self._read[key][0] is not config:
            pieces = self.on(node, config, pipeline, number, key[-1])
            self._read[key] = config, {p: node.reads(one).inputs[argument] for p, one in pieces.items()}
        return self._read[key][1]

    def _written_around(
        self, node: Node, config: OpConfig, pipeline: Pipeline | None, output: int, everywhere: bool
    ) -> list[tuple[int, Rect]]:
        """What is written of the samples of lowered pieces (``everywhere``: of their micro-batches), with the processors."""
        key = id(config), node.operator, node.specs, output, everywhere
        if key not in self._written or self._written[key][0] is not config:
            found: dict[tuple[int, Rect], None] = {}
            for number in self.pieces(node, config, pipeline):
                at = self._place(node, config, pipeline, number)[everywhere]
                around = self._found(node, config, pipeline, number, at, not everywhere)
                found.update(((p, node.writes(piece)[output]), None) for p, piece in around.items())
            self._written[key] = config, list(found)
        return self._written[key][1]

    def holders(self, node: Node, config: OpConfig, pipeline: Pipeline | None, weight: int) -> dict[Rect, tuple[int, ...]]:
        """Return the processors, in all replicas, that read each Rect of a weight of a ``spread`` node, ascending."""
        key = id(config), node.operator, node.specs, weight
        if key not in self._holders or self._holders[key][0] is not config:
            found: dict[Rect, set[int]] = {}
            dim = sample_dim(node)
            processors = np.asarray(config.processors).reshape(*config.degrees, config.copies)
            places, firsts = np.unique(processors, return_index=True)
            first = dict(zip(places.tolist(), firsts.tolist()))
            for number in self.pieces(node, config, pipeline):
                for image, piece in self.beside(node, config, pipeline, number).items():
                    at = np.unravel_index(first[image], processors.shape)
                    others = processors[tuple(slice(None) if i == dim else n for i, n in enumerate(at))]
                    found.setdefault(node.reads(piece).weights[weight], set()).update(np.ravel(others).tolist())
            self._holders[key] = config, {rect: tuple(sorted(of)) for rect, of in found.items()}
        return self._holders[key][1]
