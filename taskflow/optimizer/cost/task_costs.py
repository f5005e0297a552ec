"""Costs: what a task's seconds depend on, stated so that costs are available without building the task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from taskflow.graph import Node
from taskflow.machine import Around, Machine, collective
from taskflow.mapper import Strategy
from taskflow.optimizer.cost.accumulated_gradients import added_bytes
from taskflow.regions import Rect
from taskflow.tasks import Collective, Compute, Cost, Kind, Runs, Task, TaskGraph, all_reduce_seconds


class Costs(ABC):
    """Seconds of every task of a step. Answers depend only on the arguments, so they may be cached. Pieces of one cut cost the
    same if their Rects, and those that they read, write and save, have the same shapes, and if they take the same flops and
    bytes (paper, section 5). Evaluators ask for one of them.

    Processors of one `processor_class` cost the same, and so do routes of one `route_class`. A piece's seconds do not fall when
    its bytes rise, and no task takes less time in many runs than in one.
    """

    @property
    def name(self) -> str:
        """The name of these costs in results."""
        return type(self).__name__

    @property
    def by_runs(self) -> bool:
        """True if tasks that move, add or send take longer in many stretches of memory (`Task.runs`) than in one."""
        return False

    @property
    def measures(self) -> bool:
        """True if an answer may have to be measured first, which takes a moment and needs the processor for itself."""
        return False

    @property
    def by_plan(self) -> bool:
        """True if a task's seconds depend on the whole plan also where it has no passes (`pace`)."""
        return False

    def close(self) -> None:
        """End what was started for measuring, for instance processes; it starts again when needed."""

    def pace(self, graph: TaskGraph, strategy: Strategy, copies: Sequence[int] | None = None) -> Cost:
        """Return the seconds of the tasks of a graph, with those of a pipeline adjusted by passes (`paced`), if that differs
        from `task`. ``copies``: how many tasks of a pass each task stands for, if not one."""
        return self.task

    @abstractmethod
    def piece(self, node: Node, piece: Rect, backward: bool, processor: int, flops: int, nbytes: int) -> float:
        """Return the seconds of the forward or backward task of a piece of ``node`` on a processor. ``nbytes``: read and
        written, which for backward depends on whether it adds to gradients that already exist."""

    @abstractmethod
    def other(self, kind: Kind, processor: int, flops: int, nbytes: int, runs: int = 1) -> float:
        """Return the seconds of a task within one processor that belongs to no operator: MOVE, SUM, FILL, NORM, CLIP, UPDATE.
        ``runs``: of what it reads or of what it writes, whichever is more."""

    @abstractmethod
    def copy(self, source: int, target: int, nbytes: int, runs: Runs = (1, 1)) -> float:
        """Return the seconds of a message between two processors."""

    def collective(self, group: Sequence[int], nbytes: int, flops: int, halves: int = 2) -> float:
        """Return the seconds of an all-reduce among ``group``'s processors around a ring in this order, or of one of its
        ``halves``: a reduce-scatter, or an all-gather, which has no flops. ``nbytes`` and ``flops``: what all members send and
        add together."""
        raise TypeError(
            f"{type(self).__name__}: has no costs of collectives; give it a method collective(group, nbytes, flops, halves)"
        )

    def around(self, machine: Machine, group: Sequence[int]) -> Around:
        """Return what a collective among processors of a machine occupies, and how fast it is."""
        return collective(machine, group)

    def least(self, node: Node, backward: bool, processor: int) -> float:
        """Return a lower bound of the seconds that all forward or backward tasks of ``node`` take together on processors of
        this class, however it is cut into pieces; 0 if none is known."""
        return 0.0

    def least_parts(self, node: Node, backward: bool, processor: int) -> tuple[tuple[float, float], ...]:
        """Return what `least` adds up: pairs of seconds of arithmetic and of memory traffic, the larger of which counts. Of some
        share of either on a processor, it takes at least that share of the seconds. As many pairs for every processor; none if
        nothing is known."""
        return ()

    def processor_class(self, processor: int) -> int:
        """Return a number that processors share only if all tasks cost the same on them."""
        return processor

    def route_class(self, source: int, target: int) -> tuple[object, ...]:
        """Return a value that two routes share only if all messages cost the same on them."""
        return (source, target)

    def task(self, task: Task) -> float:
        """Return the seconds of a task of a TaskGraph."""
        if task.kind is Kind.COPY:
            return self.copy(task.source, task.processor, task.nbytes, task.runs)
        if isinstance(task.work, Collective):
            return self.collective(task.work.group, task.nbytes, task.flops, task.work.halves)
        if isinstance(task.work, Compute):
            work = task.work
            if work.other is not None:  # two halves of about the same size, but each adds to its own gradients alone
                adding = task.nbytes + work.other.nbytes
                plain, both = (
                    self.piece(work.node, work.piece, True, task.processor, 2 * task.flops, nbytes)
                    for nbytes in (adding - added_bytes(work), adding)
                )
                return plain / 2 + (both - plain)
            return self.piece(work.node, work.piece, work.backward, task.processor, task.flops, task.nbytes)
        return self.other(task.kind, task.processor, task.flops, task.nbytes, max(task.runs))


class Roofline(Costs):
    """Seconds from flops, bytes and the machine's rates, as in `taskflow.tasks.simulate.roofline`."""

    def __init__(self, machine: Machine) -> None:
        self._processors = machine.processors
        self._machine = machine
        rates = [(p.flops_per_second, p.bytes_per_second, p.overhead_seconds) for p in machine.processors]
        self._classes = [rates.index(rate) for rate in rates]

    def piece(self, node: Node, piece: Rect, backward: bool, processor: int, flops: int, nbytes: int) -> float:
        return self._seconds(processor, flops, nbytes)

    def other(self, kind: Kind, processor: int, flops: int, nbytes: int, runs: int = 1) -> float:
        return self._seconds(processor, flops, nbytes)

    def _seconds(self, processor: int, flops: int, nbytes: int) -> float:
        p = self._processors[processor]
        return p.overhead_seconds + max(flops / p.flops_per_second, nbytes / p.bytes_per_second)

    def copy(self, source: int, target: int, nbytes: int, runs: Runs = (1, 1)) -> float:
        links = self._machine.route(source, target)
        return sum(k.latency_seconds for k in links) + nbytes / min(k.bytes_per_second for k in links)

    def collective(self, group: Sequence[int], nbytes: int, flops: int, halves: int = 2) -> float:
        return all_reduce_seconds(self._machine, group, nbytes, flops, self._seconds, halves)

    def processor_class(self, processor: int) -> int:
        return self._classes[processor]

    def route_class(self, source: int, target: int) -> tuple[object, ...]:
        return tuple((k.latency_seconds, k.bytes_per_second) for k in self._machine.route(source, target))


class FromTasks(Costs):
    """Costs from a function of whole tasks. Only the reference evaluator can use it, since it has the tasks."""

    def __init__(self, seconds: Cost) -> None:
        self._seconds = seconds

    def piece(self, node: Node, piece: Rect, backward: bool, processor: int, flops: int, nbytes: int) -> float:
        raise TypeError("FromTasks: this cost needs whole tasks; give an object with piece, other and copy instead")

    def other(self, kind: Kind, processor: int, flops: int, nbytes: int, runs: int = 1) -> float:
        raise TypeError("FromTasks: this cost needs whole tasks; give an object with piece, other and copy instead")

    def copy(self, source: int, target: int, nbytes: int, runs: Runs = (1, 1)) -> float:
        raise TypeError("FromTasks: this cost needs whole tasks; give an object with piece, other and copy instead")

    def task(self, task: Task) -> float:
        return self._seconds(task)
