"""FoldedStep: the predicted time of a step of which only distinct parts are lowered: one replica and a few micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from heapq import merge
from itertools import pairwise
from operator import attrgetter

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import OpConfig, Strategy, sample_dim
from taskflow.optimizer.cost import Costs
from taskflow.optimizer.evaluate.evaluator import Usage
from taskflow.optimizer.evaluate.folded.layers import FewerLayers, every_layer, fewer_layers
from taskflow.optimizer.evaluate.folded.links import FoldedResources
from taskflow.optimizer.evaluate.folded.replicas import Replicas, replicas
from taskflow.optimizer.evaluate.folded.template import StepTemplate, WholeStep, expand, kept, make_template
from taskflow.partition import weighted_cuts
from taskflow.rules import UpdateRule
from taskflow.tasks import Collective, Compute, Kind, Task, TaskGraph, on_grid, together
from taskflow.tasks.lower import NotAlikeError, StepPart, lower

try:
    from taskflow.optimizer.evaluate.folded._arrays import simulate_arrays
except ImportError:  # not built: no compiler
    from taskflow.optimizer.evaluate.folded.arrays import simulate_arrays


@dataclass(frozen=True, eq=False)
class FoldedStep:
    """A step of ``replicas`` that do the same. ``lowered``: the tasks that were lowered. ``whole``: all tasks of the first
    replica, each with the number of the lowered task that it is like; ``end`` and ``seconds`` are their times and durations.
    ``starts`` and ``place``: when task t begins to occupy each thing, from ``starts[place[t]]`` on. ``busy``: seconds of the first
    replica by resource, numbered as in `resources`. ``stands_for``: as of `FewerLayers`."""

    replicas: Replicas
    lowered: TaskGraph
    template: StepTemplate
    whole: WholeStep
    seconds: np.ndarray  # type: ignore[type-arg]
    starts: np.ndarray  # type: ignore[type-arg]
    place: np.ndarray  # type: ignore[type-arg]
    end: np.ndarray  # type: ignore[type-arg]
    busy: np.ndarray  # type: ignore[type-arg]
    occupies: FoldedResources
    stands_for: Mapping[str, tuple[str, ...]]

    @cached_property
    def began(self) -> np.ndarray:  # type: ignore[type-arg]
        """Return when each task of the first replica begins."""
        return np.minimum.reduceat(self.starts, self.place[:-1]) if len(self.starts) else self.starts

    @property
    def makespan(self) -> float:
        """Seconds until the last task ends."""
        return float(self.end.max(initial=0.0))

    def first_replica(self) -> list[tuple[Task, float, float]]:
        """Return the tasks of the first replica, and when each begins and ends. Layers that were lowered as one have the name of
        the first of them."""
        lowered = self.lowered.tasks
        each = zip(self.whole.origin.tolist(), self.began.tolist(), self.end.tolist())
        return [(lowered[origin], began, end) for origin, began, end in each]

    @property
    def tasks(self) -> int:
        """Number of tasks of the step on all replicas."""
        return int(self.alike[self.whole.origin].sum())

    @property
    def transfer_bytes(self) -> int:
        """Bytes that the step moves between processors."""
        nbytes = np.array([task.nbytes if task.kind.travels else 0 for task in self.lowered], np.int64)
        return int((self.alike * nbytes)[self.whole.origin].sum())

    def usage(self, machine: Machine) -> Usage:
        """Return where the time goes; ``critical`` stays empty."""
        count = len(machine.processors)
        processors = [0.0] * count
        own = np.array([not task.kind.travels for task in self.lowered])[self.whole.origin]
        of = np.array([task.processor for task in self.lowered], np.int64)[self.whole.origin]
        busy = np.bincount(of[own], self.seconds[own], count).tolist()  # exact in any order: `on_grid`
        for p, images in self.replicas.images.items():
            for image in images:
                processors[image] = busy[p]
        links = {link: float(self.busy[count + first]) for link, first in self.occupies.links()}
        return Usage(self.makespan, tuple(processors), links, self.transfer_bytes, ())

    @cached_property
    def alike(self) -> np.ndarray:  # type: ignore[type-arg]
        """Return for each lowered task the number of tasks like it: one for each replica, except for collectives among several
        replicas and for tasks that bring the loss to one processor."""
        brought, count, images = set(self.lowered.fetched.values()), self.replicas.count, self.replicas.images
        groups: dict[tuple[int, ...], int] = {}

        def times(task: Task) -> int:
            if not isinstance(task.work, Collective):
                return 1 if task.kind is Kind.COPY and task.writes[0].buffer in brought else count
            if (group := task.work.group) not in groups:
                groups[group] = count * sum(p in images for p in group) // len(group)
            return groups[group]

        return np.array([times(task) for task in self.lowered], np.int64)


def folded_step(
    graph: OperatorGraph, strategy: Strategy, machine: Machine, costs: Costs, rule: UpdateRule | None, clip_norm: float | None,
    checkpoint: Callable[[], object] = lambda: None,
) -> FoldedStep:
    """Predict a training step under a strategy. Raises ValueError if the strategy does not fit the graph (`Strategy.verify`),
    NotAlikeError if the step cannot be lowered in part."""
    strategy.verify_names(graph)
    reason: NotAlikeError | None = None
    ways = [_ways(fewer, machine) for fewer in (fewer_layers(graph, strategy), every_layer(graph, strategy)) if fewer is not None]
    for fewer, found in merge(*ways, key=_lowered_pieces):
        try:
            return _folded(fewer, machine, costs, rule, clip_norm, found, checkpoint)
        except NotAlikeError as error:
            reason = reason or error
    raise reason or NotAlikeError("there are no replicas")


def _ways(fewer: FewerLayers, machine: Machine) -> Iterator[tuple[FewerLayers, Replicas]]:
    """Yield the ways of seeing a network as replicas. Raises ValueError if its strategy does not fit it, and NotAlikeError if its
    micro-batches are not alike."""
    fewer.strategy.verify(fewer.graph)
    if not _even(fewer.graph, fewer.strategy):
        raise NotAlikeError("micro-batches differ in size")
    for found in replicas(fewer.graph, fewer.strategy, machine):
        yield fewer, found


def _lowered_pieces(way: tuple[FewerLayers, Replicas]) -> float:
    """About how much is lowered: operators by processors."""
    fewer, found = way
    return len(fewer.graph) * len(found.images)


def _even(graph: OperatorGraph, strategy: Strategy) -> bool:
    """True if all micro-batches have the same number of samples, in pieces of the same sizes."""
    count = 1 if strategy.pipeline is None else strategy.pipeline.parts
    known: dict[tuple[int, int], bool] = {}
    for node in graph:
        dim, config = sample_dim(node), strategy[node.name]
        if dim is None or config.degrees[dim] == 1:
            continue
        if (key := (id(config), node.dims[dim].size)) not in known:
            known[key] = _repeats(config, dim, node.dims[dim].size, count)
        if not known[key]:
            return False
    return True


def _repeats(config: OpConfig, dim: int, size: int, micro_batches: int) -> bool:
    degree = config.degrees[dim]
    if not config.weights:
        return size % degree == 0
    if any(of for i, of in enumerate(config.weights) if i != dim) or degree % micro_batches:
        return False
    sizes = [b - a for a, b in pairwise(weighted_cuts(size, config.weights[dim]))]
    return sizes == sizes[: degree // micro_batches] * micro_batches


def _folded(
    fewer: FewerLayers, machine: Machine, costs: Costs, rule: UpdateRule | None, clip_norm: float | None,
    found: Replicas, checkpoint: Callable[[], object],
) -> FoldedStep:
    pipeline = fewer.strategy.pipeline
    micro_batches = 1 if pipeline is None else pipeline.micro_batches
    part = StepPart(found.images, found.count, kept(micro_batches), spread=found.spread)
    tasks = lower(
        fewer.graph, fewer.strategy, rule, clip_norm=clip_norm, part=part,
        hides_sums=machine.processors[0].device.hides_sums, checkpoint=checkpoint,
    )
    for i, task in enumerate(tasks.tasks if len(fewer.copies) else ()):  # costs know the nodes of the whole graph
        if isinstance(task.work, Compute):
            tasks.tasks[i] = _of_whole(task, task.work, fewer.whole[task.work.node.number])
    template = make_template(tasks, micro_batches, fewer.labels, fewer.copies, checkpoint)
    whole = expand(template, [] if pipeline is None else pipeline.passes(), checkpoint)
    occupies = FoldedResources(machine, found.images, costs.around, found.blocks)
    for task in template.tasks:
        occupies.join(task)
    routes: dict[tuple[tuple[int, ...], bool], int] = {}
    numbers: dict[int, int] = {}
    count = len(machine.processors)
    place = np.empty(len(template.tasks), np.int64)
    seconds = np.empty(len(template.tasks))
    _wait_in_turn(tasks, whole, template)
    paced = costs.pace(tasks, fewer.strategy, template.copies)
    for i, task in enumerate(template.tasks):
        if not i % 256:
            checkpoint()
        stops = tuple(r if r < count else count + numbers.setdefault(r, len(numbers)) for r in occupies.of(task))
        place[i] = routes.setdefault((stops, together(task.kind, stops, machine)), len(routes))
        seconds[i] = on_grid(paced(task))
    cost = seconds[whole.origin]
    starts, at, end, busy = simulate_arrays(
        count, [stops for stops, _ in routes], [at_once for _, at_once in routes], cost, place[whole.origin],
        whole.after_offset, whole.after, checkpoint,
    )  # fmt: skip
    by_number = np.zeros(max([count, *(r + 1 for r in numbers)]))
    by_number[:count] = busy[:count]
    for r, dense in numbers.items():
        by_number[r] = busy[count + dense]
    return FoldedStep(found, tasks, template, whole, cost, starts, at, end, by_number, occupies, fewer.stands_for)


_TASK, _COMPUTE = ([one.name for one in fields(of)] for of in (Task, Compute))
_task_fields, _compute_fields = attrgetter(*_TASK), attrgetter(*_COMPUTE)


def _of_whole(task: Task, work: Compute, node: Node) -> Task:
    """Return the task with another node. There are tens of thousands, and `replace` takes several times as long."""
    values, of_work = list(_task_fields(task)), list(_compute_fields(work))
    of_work[_COMPUTE.index("node")] = node
    values[_TASK.index("work")] = Compute(*of_work)
    return Task(*values)


def _wait_in_turn(tasks: TaskGraph, whole: WholeStep, template: StepTemplate) -> None:
    """Add dependencies on tasks of earlier passes to lowered tasks: a pass may wait for collectives there (`pace`). If that
    task is not an earlier one, because one micro-batch stands for several, use that of the micro-batch before."""
    for number, before in whole.turns:
        if before >= number:
            before = template.a_micro_batch_before(before)
        if before < number:
            task = tasks.tasks[number]
            tasks.tasks[number] = replace(task, after=tuple(sorted({*task.after, before})))
