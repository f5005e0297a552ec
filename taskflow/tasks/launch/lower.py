"""Lowering of launches to a TaskGraph: the movements that the dependence analysis found, and the point tasks on their
instances.

Every buffer is persistent: an instance is the same memory in every graph. The order within a graph follows from the parts of
memory that its tasks read and write: program order, relaxed as far as memory permits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np

from taskflow.regions import (
    INITIAL,
    CopyNeed,
    Instance,
    Launched,
    LogicalRegion,
    Privilege,
    Rect,
    ReduceNeed,
    Requirement,
    covers,
)
from taskflow.tasks.launch.call import PointCall
from taskflow.tasks.launch.future import Combine, Future
from taskflow.tasks.launch.launch import Launch, Point
from taskflow.tasks.lower import Emitter
from taskflow.tasks.task import Kind, Part, TaskGraph, UserCall
from taskflow.tasks.topic import Purpose, Topic

_NUMBER = np.dtype(np.float64)


class LaunchLowering:
    """Builder of one TaskGraph from launches in program order.

    ``written(region)``: whether the region was given initial contents (otherwise they are zero). ``label``: part of the names
    of the futures' buffers; graphs with the same label share these buffers.
    """

    def __init__(self, processors: int, written: Callable[[LogicalRegion], bool], label: str) -> None:
        self._emitter = Emitter(processors)
        self._processors = processors
        self._written = written
        self._label = label
        self._instances: dict[Instance, int] = {}
        self._scratch: dict[tuple[str, Rect, int], int] = {}
        self._cells: dict[Future, list[int]] = {}  # by processor: the buffer that holds the value there

    @property
    def graph(self) -> TaskGraph:
        return self._emitter.graph

    def add(self, launch: Launch, found: Sequence[Launched], future: Future | None) -> None:
        """Add a launch; ``found``: the result of the analysis for each of its points."""
        results = self._results(launch)
        for i, (point, launched) in enumerate(zip(launch.points, found)):
            for movement in launched.movements:
                if isinstance(movement, CopyNeed):
                    self._copy(movement)
                else:
                    self._sum(movement)
            for clear in launched.clears:
                part = self._part(clear.instance, clear.rect)
                self._emitter.topic = Topic(Purpose.ELEMENTS, clear.instance.region.name)
                self._emitter.fill(f"zero {clear.instance}", part, 0.0)
            result = None if results is None else Part(results[point.processor], Rect((i,), (i + 1,)))
            self._emitter.topic = Topic(Purpose.CALL, launch.task.name)
            self._call(launch, point, launched, result)
        if future is not None and results is not None:
            self._combine(launch, results, future)

    def cell(self, future: Future, processor: int) -> str:
        """Return the name of the buffer that holds a future of this graph on ``processor``."""
        return self.graph.buffers[self._cells[future][processor]].name

    # ---- movements -----------------------------------------------------------------------------------------------
    def _copy(self, copy: CopyNeed) -> None:
        target = self._part(copy.target, copy.rect)
        name = f"{copy.region.name}{copy.rect}"
        self._emitter.topic = Topic(Purpose.ELEMENTS, copy.region.name)
        if copy.origin.processor != INITIAL:
            self._emitter.transfer(name, self._part(copy.origin, copy.rect), target)
        elif self._written(copy.region):
            home = self._buffer(initial_name(copy.region), copy.region.rect, copy.target.processor, copy.region.dtype)
            self._emitter.transfer(f"initial {name}", self._emitter.part(home, copy.rect), target)
        else:
            self._emitter.fill(f"initial {name}", target, 0.0)

    def _sum(self, need: ReduceNeed) -> None:
        processor = need.target.processor
        name = f"{need.region.name}{need.rect}"
        self._emitter.topic = Topic(Purpose.ELEMENTS, need.region.name)
        parts: list[tuple[Rect, Part]] = []
        for contribution in need.contributions:
            source = self._part(contribution.instance, contribution.rect)
            if contribution.instance.processor != processor:
                region = f"sum of {contribution.instance}"
                here = self._emitter.whole(self._buffer(region, contribution.rect, processor, need.region.dtype))
                self._emitter.transfer(f"+{name}", source, here)
                source = here
            parts.append((contribution.rect, source))
        for rect, group in groupby(parts, key=lambda entry: entry[0]):
            self._emitter.sum(f"sum {name}", [source for _, source in group], self._part(need.target, rect))

    # ---- tasks ---------------------------------------------------------------------------------------------------
    def _call(self, launch: Launch, point: Point, launched: Launched, result: Part | None) -> None:
        arguments: list[Part | None] = []
        reads: list[Part] = []
        writes: list[Part] = []
        zeroed: list[bool] = []
        for requirement, instance in zip(point.requirements, launched.instances):
            zeroed.append(instance is not None and _cleared(requirement, instance, launched))
            if instance is None:
                arguments.append(None)
                continue
            part = self._part(instance, requirement.rect)
            arguments.append(part)
            if requirement.privilege is not Privilege.WRITE:
                reads.append(part)
            if requirement.privilege is not Privilege.READ:
                writes.append(part)
        inputs: list[str] = []
        for name, value in launch.constants.items():
            if isinstance(value, Future) and value in self._cells:
                inputs.append(name)
                arguments.append(self._emitter.whole(self._cells[value][point.processor]))
                reads.append(self._emitter.whole(self._cells[value][point.processor]))
        if result is not None:
            arguments.append(result)
            writes.append(result)
        call = PointCall(launch, point, tuple(zeroed), tuple(inputs))
        self._emitter.emit(Kind.CALL, str(call), point.processor, UserCall(call, tuple(arguments)), reads, writes)

    def _results(self, launch: Launch) -> dict[int, int] | None:
        """The buffers, by processor, for the results of all points; those of other processors are unused."""
        if launch.reduce is None:
            return None
        rect = Rect.of((len(launch.points),))
        on = sorted({point.processor for point in launch.points} | {0})
        return {p: self._buffer(f"{self._label} {len(self._cells)} results", rect, p, _NUMBER) for p in on}

    def _combine(self, launch: Launch, results: dict[int, int], future: Future) -> None:
        """Gather the results on processor 0, reduce them there, and send the number to all."""
        assert launch.reduce is not None
        numbered = enumerate(launch.points)
        for processor, run in groupby(numbered, key=lambda entry: entry[1].processor):
            if processor != 0:
                indices = [i for i, _ in run]
                part = Rect((indices[0],), (indices[-1] + 1,))
                self._emitter.transfer(f"results of {future}", Part(results[processor], part), Part(results[0], part))
        cell = Rect.of((1,))
        region = f"{self._label} {len(self._cells)} value"
        cells = [self._buffer(region, cell, p, _NUMBER) for p in range(self._processors)]
        values, total = self._emitter.whole(results[0]), self._emitter.whole(cells[0])
        work = UserCall(Combine(launch.reduce), (values, total))
        self._emitter.emit(Kind.CALL, f"{launch.reduce} of {launch.task.name}", 0, work, (values,), (total,))
        for other in cells[1:]:
            self._emitter.transfer(str(future), total, self._emitter.whole(other))
        self._cells[future] = cells

    # ---- memory --------------------------------------------------------------------------------------------------
    def _part(self, instance: Instance, rect: Rect) -> Part:
        number = self._instances.get(instance)
        if number is None:
            region = f"{'+' if instance.partial else ''}{instance.region.name}"
            number = self._instances[instance] = self._emitter.buffer(
                region, instance.rect, instance.processor, np.dtype(instance.region.dtype), kept=True
            )
        return self._emitter.part(number, rect)

    def _buffer(self, region: str, rect: Rect, processor: int, dtype: np.dtype[np.generic]) -> int:
        key = (region, rect, processor)
        if key not in self._scratch:
            self._scratch[key] = self._emitter.buffer(region, rect, processor, np.dtype(dtype), kept=True)
        return self._scratch[key]


def initial_name(region: LogicalRegion) -> str:
    """Return the name of the buffers that hold a region's initial contents."""
    return f"initial {region.name}"


def _cleared(requirement: Requirement, instance: Instance, launched: Launched) -> bool:
    return covers((c.rect for c in launched.clears if c.instance == instance), requirement.rect)


def movements_first(graph: TaskGraph) -> list[int]:
    """Return an order of one launch's tasks: first those that wait for no point task, then the others, so that all copies
    between processors begin before anybody computes."""
    late: set[int] = set()
    for task in graph.tasks:
        if task.kind is Kind.CALL or any(before in late for before in task.after):
            late.add(task.number)
    return [t.number for t in graph.tasks if t.number not in late] + sorted(late)
