"""Repetition: a plan of a few processors that all processors of a machine carry out, so many at a time, each time on an equal
share of the samples.

What one repetition does, all others do at the same time, so one is evaluated for all. It is the first ``size`` processors of the
whole machine, whose pieces are those of the first share of the samples. Weights are kept equal by collectives among the holders in
all repetitions, priced on the whole machine. What else goes from one repetition to another is left out: partial values that are
summed over all samples (losses, running statistics), and what operators without samples send to the others where only the first
repetition has them. What is made of weights alone is in each, if it has copies. So its seconds are those of the whole plan but
for these, and for ties.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Cluster, PartOfMachine, collective
from taskflow.mapper import OpConfig, Strategy, Sync, SyncAlgorithm, sample_dim
from taskflow.optimizer.cost import Costs
from taskflow.optimizer.evaluate.folded import FoldedResources, simulate_arrays
from taskflow.partition import Grid
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks import TaskGraph, on_grid, together
from taskflow.tasks.lower import NotAlikeError, StepPart, lower


@dataclass(frozen=True, eq=False)
class Repetition:
    """Repetition of ``graph`` on the ``whole`` machine: its first ``size`` processors, and as many others so many times.
    ValueError if it cannot be seen so: see `repetition`."""

    graph: OperatorGraph
    whole: Cluster
    size: int
    machine: PartOfMachine = field(init=False)
    part: StepPart = field(init=False)
    """What of a whole plan is lowered."""
    _links: FoldedResources = field(init=False)
    _expanded: dict[tuple[int | None, OpConfig], OpConfig] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.whole.processors)
        images = {p: tuple(range(p, count, self.size)) for p in range(self.size)}
        links = FoldedResources(self.whole, images)
        for p, q in permutations(range(self.size), 2):
            links.join_ends((p, q), False)
        links.join_ways()
        object.__setattr__(self, "machine", PartOfMachine(self.whole, tuple(range(self.size))))
        object.__setattr__(self, "part", StepPart(images, count // self.size, (0,), alone=True))
        object.__setattr__(self, "_links", links)

    @property
    def count(self) -> int:
        """Number of repetitions."""
        return len(self.whole.processors) // self.size

    def takes(self, changes: Mapping[str, OpConfig], syncs: Mapping[str, Sync]) -> bool:
        """Return whether a plan with these changes can be repeated. A repetition's samples are cut into equal pieces, so that
        the whole plan's lie in repetitions. Weights are kept equal by collectives, since messages between holders know of no
        others."""
        for name, config in changes.items():
            node = self.graph.node(name)
            if (dim := sample_dim(node)) is not None and node.dims[dim].size // self.count % config.degrees[dim]:
                return False
        return all(sync.algorithm is SyncAlgorithm.COLLECTIVE for sync in syncs.values())

    def rects(self, node: Node, config: OpConfig) -> list[Rect]:
        """The pieces of an operator in the first repetition. ValueError unless they are of equal size along the samples."""
        dim = sample_dim(node)
        if dim is None:
            return config.partition(node).rects()
        if node.dims[dim].size // self.count % config.degrees[dim]:
            raise ValueError(
                f"operator {node.name}: {node.dims[dim].size // self.count} samples of a repetition are not cut into equal pieces "
                f"by degree {config.degrees[dim]}"
            )
        cuts = list(self.expanded(node, config).partition(node).cuts)
        cuts[dim] = cuts[dim][: config.degrees[dim] + 1]
        return Grid(cuts).rects()

    def expanded(self, node: Node, config: OpConfig) -> OpConfig:
        """A configuration for all processors. Operators without samples stay in the first repetition, unless they have copies
        there: then each has as many."""
        dim = sample_dim(node)
        if dim is None:
            return self._copied(config) if config.is_local(node) else config
        if (dim, config) not in self._expanded:
            self._expanded[dim, config] = repeated(config, dim, self.size, self.count)
        return self._expanded[dim, config]

    def _copied(self, config: OpConfig) -> OpConfig:
        apart = np.array(config.processors).reshape(-1, 1, config.copies) + np.arange(0, self.size * self.count, self.size)[:, None]
        return OpConfig(config.degrees, tuple(apart.ravel().tolist()), copies=config.copies * self.count)

    def expand(self, strategy: Strategy) -> Strategy:
        """A plan of the first repetition as one of the whole machine."""
        configs = {node.name: self.expanded(node, strategy[node.name]) for node in self.graph}
        return Strategy(self.size * self.count, configs, dict(strategy.syncs), strategy.name, strategy.sums)

    def occupied(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """Return what a collective among processors of the whole machine occupies of the first repetition's links, numbered on
        after its processors."""
        return self._numbered(collective(self.whole, members).resources)

    def _numbered(self, occupied: tuple[int, ...]) -> tuple[int, ...]:
        count = len(self.whole.processors)
        return tuple([r if r < count else r - count + self.size for r in self._links.images(occupied)])

    def places(self, tasks: TaskGraph) -> list[tuple[int, ...]]:
        """Return what each of the tasks that are lowered of a whole plan (``part``) occupies, numbered in the same way."""
        return [self._numbered(self._links.of(task)) for task in tasks]


def repeated(config: OpConfig, dim: int, size: int, count: int) -> OpConfig:
    """A configuration on the first ``size`` processors, ``count`` times one after the other along dimension ``dim``, each time on
    the next ``size`` processors. ValueError for one that has copies or uneven pieces."""
    if config.copies > 1 or config.weights:
        raise ValueError(f"repeated: only even pieces without copies are repeated, got {config}")
    apart = np.array(config.processors).reshape(config.degrees)
    together = np.concatenate([apart + first for first in range(0, size * count, size)], axis=dim)
    degrees = (*config.degrees[:dim], config.degrees[dim] * count, *config.degrees[dim + 1 :])
    return OpConfig(degrees, tuple(together.ravel().tolist()))


def repeated_seconds(of: Repetition, strategy: Strategy, costs: Costs, rule: UpdateRule) -> float:
    """Seconds of a training step under a plan of the first repetition: the definition. Of the whole plan its part is lowered, and
    simulated on what one repetition occupies.

    The compiled twin is optimizer/evaluate/_core.pyx; tests/optimizer/evaluate/test_repetition.py holds them equal."""
    tasks = lower(of.graph, of.expand(strategy), rule, part=of.part)
    places = [(place, together(task.kind, place, of.machine)) for task, place in zip(tasks, of.places(tasks))]
    numbers = {place: number for number, place in enumerate(dict.fromkeys(places))}
    seconds = np.array([on_grid(costs.task(task)) for task in tasks])
    offset = np.cumsum([0, *(len(task.after) for task in tasks)])
    after = np.array([before for task in tasks for before in task.after], np.int64)
    _, _, end, _ = simulate_arrays(
        of.size, [place for place, _ in numbers], [at_once for _, at_once in numbers], seconds,
        np.array([numbers[place] for place in places]), offset, after, lambda: None,
    )  # fmt: skip
    return float(end.max(initial=0.0))


def repetition(graph: OperatorGraph, machine: object, size: int) -> Repetition | None:
    """Return the first ``size`` processors of a machine for all, or None where others are not like them: they differ in kind or in
    links, or share links. None also if samples do not divide evenly, or an operator reads samples of other repetitions."""
    if not isinstance(machine, Cluster) or not 0 < size < len(machine.processors) or len(machine.processors) % size:
        return None
    if len({p.device for p in machine.processors}) > 1 or not _independent(graph, len(machine.processors) // size, size):
        return None
    try:
        return Repetition(graph, machine, size)
    except NotAlikeError:
        return None


def _independent(graph: OperatorGraph, count: int, size: int) -> bool:
    """Return whether each of ``count`` shares of the samples can be computed by itself, and has a sample for each of ``size``
    pieces."""
    first = {}
    for node in graph:
        dim, high = sample_dim(node), [d.size for d in node.dims]
        if dim is not None:
            if high[dim] % count or high[dim] < count * size:
                return False
            high[dim] //= count
        first[node.number] = Rect((0,) * len(high), tuple(high))
    return all(
        rect.empty or graph.producer(tensor).writes(first[tensor.node])[tensor.index].contains(rect)
        for node in graph if sample_dim(node) is not None
        for tensor, rect in zip(node.inputs, node.reads(first[node.number]).inputs)
    )
