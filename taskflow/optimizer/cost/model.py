"""CostModel: how many seconds a task takes. All models share the classes of tasks, and the cache of answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence

from taskflow.machine import Device, Machine, transfer_seconds
from taskflow.operators.cost_key import cost_key
from taskflow.operators.operator import Operator, Spec
from taskflow.optimizer.cost.accumulated_gradients import Adding, added_bytes, adding, target_bytes
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks import Collective, Compute, Kind, Runs, Task, Update, all_reduce_seconds

Gradients = tuple[bool, ...]  # for each input of an operator: whether backward must give its gradient


class CostModel(ABC):
    """Base of all cost models, which the simulator and the search use. ``seconds`` serves as a `tasks.simulate.Cost`; the other
    methods need no task graph, and give the same answers. Each distinct piece is computed once: pieces with equal cost keys cost
    the same (paper, section 5). Concrete models say how."""

    by_runs: bool = False
    """True if ``runs`` (`Task.runs`) change any answer."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._pieces: dict[Hashable, float] = {}
        self._keys: dict[Hashable, float] = {}

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the model and its device, as results show it: ``analytic k80``, ``measured AMD EPYC``."""

    def seconds(self, task: Task) -> float:
        """Return the seconds of a task of a task graph."""
        work = task.work
        if task.kind is Kind.COPY:
            return self.transfer_seconds(task.source, task.processor, task.nbytes, task.runs)
        if isinstance(work, Collective):
            return all_reduce_seconds(self.machine, work.group, task.nbytes, task.flops, self._sum, work.halves)
        device = self.machine.processors[task.processor].device
        if isinstance(work, Compute):
            wanted = tuple(t is not None for t in work.grad_inputs) if work.backward else None
            asked = work.node.operator, work.node.specs, work.piece, work.backward
            wanted = wanted if work.other is None else work.other.wanted
            both = self.compute_seconds(
                *asked, device=device, gradients=wanted, added_bytes=added_bytes(work) if work.backward else 0
            )
            if work.other is None:
                return both
            plain = self.compute_seconds(*asked, device=device, gradients=wanted, added_bytes=0)
            return both - plain / 2  # two halves of about the same size, and its own adding
        rule = work.rule if isinstance(work, Update) else None
        return self.memory_seconds(task.kind, task.nbytes, task.flops, device=device, rule=rule, runs=max(task.runs))

    def compute_seconds(
        self,
        operator: Operator,
        inputs: Sequence[Spec],
        piece: Rect,
        backward: bool,
        *,
        device: Device | None = None,
        gradients: Gradients | None = None,
        added_bytes: int = 0,
    ) -> float:
        """Return the seconds of forward or backward of one piece of an operator whose whole inputs are ``inputs``, on a kind of
        device (None: that of processor 0). ``gradients`` (None: of all float inputs): which input gradients backward computes.
        ``added_bytes``: the bytes of all gradients, including the weights', that it adds to instead of replacing."""
        device = device or self.machine.processors[0].device
        inputs = tuple(inputs)
        wanted = _wanted(inputs, gradients) if backward else ()
        exact = (operator, inputs, piece, backward, wanted, added_bytes, device.kind)
        if (known := self._pieces.get(exact)) is not None:
            return known
        adds = adding(target_bytes(operator, inputs, piece, wanted), len(inputs), added_bytes) if backward else ()
        key = (cost_key(operator, inputs, piece, backward), wanted, adds, device.kind)
        if (seconds := self._keys.get(key)) is None:
            seconds = self._keys[key] = self._compute(operator, inputs, piece, backward, wanted, adds, device)
        self._pieces[exact] = seconds
        return seconds

    def memory_seconds(
        self, kind: Kind, nbytes: int, flops: int, *, device: Device | None = None, rule: UpdateRule | None = None,
        runs: int = 1,
    ) -> float:
        """Return the seconds of a MOVE, SUM, FILL, NORM, CLIP or UPDATE (by ``rule``) that touches ``nbytes`` (read and
        written), in ``runs`` stretches of memory on at least one side."""
        return self._memory(kind, nbytes, flops, device or self.machine.processors[0].device, rule, runs)

    def _sum(self, processor: int, flops: int, nbytes: int) -> float:
        return self.memory_seconds(Kind.SUM, nbytes, flops, device=self.machine.processors[processor].device)

    def transfer_seconds(self, source: int, target: int, nbytes: int, runs: Runs = (1, 1)) -> float:
        """Return the seconds of a COPY between two processors: the route's latencies, and the bytes at the rate of its slowest
        link."""
        return transfer_seconds(self.machine.route(source, target), nbytes)

    @abstractmethod
    def _compute(
        self, operator: Operator, inputs: tuple[Spec, ...], piece: Rect, backward: bool, wanted: Gradients, adds: Adding,
        device: Device,
    ) -> float:
        """Seconds of one piece; asked once a cost key, device kind, set of wanted gradients and set of those added to."""

    @abstractmethod
    def _memory(self, kind: Kind, nbytes: int, flops: int, device: Device, rule: UpdateRule | None, runs: int) -> float:
        """Seconds of a task that is no operator's."""


def _wanted(inputs: Sequence[Spec], gradients: Gradients | None) -> Gradients:
    if gradients is None:
        return tuple(spec.differentiable for spec in inputs)
    if len(gradients) != len(inputs):
        raise ValueError(f"compute_seconds: gradients must say yes or no for each of {len(inputs)} inputs, got {gradients}")
    return tuple(spec.differentiable and bool(g) for spec, g in zip(inputs, gradients))
