"""Pace of passes: one thread of each processor's host launches the kernels of a pass ahead of the device.

A single task takes the time of its kernels or of launching them, whichever is longer. In a pipeline's pass the host gets ahead
during long kernels and collectives and falls back during short ones, so a pass takes the longer of the two sums. When a pass waits
for a message of another stage, or sends one, the program waits too. Collectives of weights and gradients that go on beside a pass
take some of the device from its kernels (`TrainingProgram.exposed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from taskflow.mapper import Strategy
from taskflow.optimizer.cost.library import Spent
from taskflow.programs import TrainingProgram, UnitMessage
from taskflow.tasks import Collective, Compute, Cost, Kind, Purpose, Task, TaskGraph

OF_WEIGHTS = (Purpose.UNSHARDED, Purpose.WEIGHT_GRADIENTS)


@dataclass(frozen=True, slots=True)
class Pacing:
    """What the programs that drive a machine's devices do in passes, at the slowest. ``between``: whether there are several
    nodes. ``replicated``: whether there are replicas, whose units gather weights and sum gradients. ``cut``: whether layers are
    cut, so that activations are brought from one layout into another."""

    programs: tuple[TrainingProgram, ...]
    between: bool
    replicated: bool = True
    cut: bool = False

    def waits(self, nbytes: float) -> float:
        """Return the seconds that a message of another stage is waited for."""
        return max(program.waits(nbytes) for program in self.programs)

    @property
    def cuts(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Seconds more, forward and backward, for a function and for an operator with weights, where layers are cut."""
        of_each = [
            (p.cut_seconds, p.cut_backward_seconds, p.cut_layer_seconds, p.cut_layer_backward_seconds) for p in self.programs
        ]
        ahead, back, layer_ahead, layer_back = (max(some) for some in zip(*of_each))
        return (ahead, back), (layer_ahead, layer_back)

    @property
    def units(self) -> bool:
        """Whether collectives of units, or of activations, take the host any time."""
        return any(program.takes_collectives(self.replicated, self.cut) for program in self.programs)

    def of_collective(self, task: Task) -> float:
        """Return the seconds of the host for a gather of weights or a sum of gradients, and for activations that are brought into
        another layout."""
        work = task.work
        if not isinstance(work, Collective) or not (self.replicated if of_weights(task) else self.cut):
            return 0.0
        nbytes = task.nbytes / (work.halves or 1) / max(1, len(work.group) - 1)
        if not of_weights(task):
            return max(program.of_change(nbytes) for program in self.programs)
        return max(program.of_unit(unit_message(task), nbytes) for program in self.programs)

    @property
    def exposed(self) -> float:
        """Part of collectives of weights and gradients by which a pass takes longer."""
        return max(program.exposed for program in self.programs)

    @property
    def hidden_sums(self) -> float:
        """Part of a tensor group's sums of gradients that is behind products of weights; by the rest a pass takes longer."""
        return min(program.sums_beside_weights for program in self.programs)

    def starts(self, strategy: Strategy) -> float:
        """Return the host's seconds for each member of a collective of a pass."""
        over_nodes = self.between and strategy.pipeline is not None and strategy.pipeline.ranks > 1
        return max(program.collective_seconds for program in self.programs) if over_nodes else 0.0


def paced(
    graph: TaskGraph, strategy: Strategy, spent: Callable[[Task], Spent | None], pacing: Pacing, cost: Cost,
    copies: Sequence[int] | None = None,
) -> Cost:
    """Return ``cost``, with the operators' tasks of each pass stretched or shortened so that they add up to the pass's time.
    ``spent``: seconds of device and host of such a task; None if they are not known (it keeps its cost). ``copies``: how many tasks
    of a pass each task stands for, if not one."""
    times = copies if copies is not None else [1] * len(graph)
    keys, passes, of = _passes(graph)
    pipelined = strategy.pipeline is not None
    messages = _messages(graph, strategy, of) if pipelined and pacing.waits(1.0) else [[] for _ in passes]
    factors: dict[int, float] = {}
    known: dict[int, Spent] = {}
    within = _collectives(graph, of) if pipelined else {}
    shared = pacing.exposed and any(sync.zero > 1 for sync in strategy.syncs.values())
    beside, starts = _in_passes(graph, of_weights) if shared else {}, pacing.starts(strategy)
    summed = _in_passes(graph, _sums_gradient) if pipelined and pacing.hidden_sums else {}
    tasks_of = graph.tasks

    waits = pacing.units and any(program.host_seconds == 0 for program in pacing.programs)  # the host is the device
    hosts = _hosts(graph, pacing) if pacing.units and not waits else {}

    def seconds_of(tasks: Iterable[int]) -> float:
        return sum(cost(graph.tasks[task]) * times[task] for task in tasks)

    for number, (key, tasks, sizes) in enumerate(zip(keys, passes, messages)):
        both = [(task, found) for task in tasks if (found := spent(tasks_of[task])) is not None]
        device, host = sum(s.device * times[task] for task, s in both), sum(s.host * times[task] for task, s in both)
        alone = sum(s.seconds * times[task] for task, s in both)
        host += hosts.get(key, 0.0)
        if alone > 0:
            some, behind = within.get(number, ()), summed.get(key, ())
            host += starts * sum(len(tasks_of[n].processors) * times[n] for n in some if not of_weights(tasks_of[n]))
            waited = [n for n in some if n not in behind]  # for what goes on behind computing the host gets no further ahead
            slower = (1 - pacing.hidden_sums) * seconds_of(behind)
            took = max(device + slower, host - seconds_of(waited)) if pipelined else max(alone, host)
            exposed = pacing.exposed * seconds_of(beside.get(key, ()))
            factor = (took + exposed + sum(map(pacing.waits, sizes))) / alone
            for task, one in both:
                factors[task], known[task] = factor, one

    def seconds(task: Task) -> float:
        factor = factors.get(task.number)
        if waits and task.kind is Kind.COLLECTIVE:
            return cost(task) + pacing.of_collective(task)
        return cost(task) if factor is None else known[task.number].seconds * factor

    return seconds


def _passes(graph: TaskGraph) -> tuple[list[tuple[int, int]], list[list[int]], dict[int, int]]:
    """The operators' tasks by pass and processor, and which of these a task belongs to. What is computed once more belongs to the
    backward pass that it is for."""
    passes: dict[tuple[int, int], list[int]] = {}  # (pass, processor) -> tasks
    for number, (first, last) in enumerate(_ranges(graph)):
        for task in graph.tasks[first:last]:
            if isinstance(task.work, Compute):
                passes.setdefault((number, task.processor), []).append(task.number)
    tasks = list(passes.values())
    return list(passes), tasks, {task: number for number, of_pass in enumerate(tasks) for task in of_pass}


def _ranges(graph: TaskGraph) -> list[tuple[int, int]]:
    """The tasks of each pass, from the first to behind the last; of a step that has no passes its two halves."""
    if graph.passes:
        return [(first, last) for _, first, last in graph.passes]
    back = (task.number for task in graph.tasks if isinstance(task.work, Compute) and task.work.backward)
    middle = next(back, len(graph))
    return [(0, middle), (middle, len(graph))]


def _hosts(graph: TaskGraph, pacing: Pacing) -> dict[tuple[int, int], float]:
    """The host's seconds for gathers and sums of units in each pass, by pass and processor."""
    found: dict[tuple[int, int], float] = {}
    for number, (first, last) in enumerate(_ranges(graph)):
        for task in graph.tasks[first:last]:
            if task.kind is Kind.COLLECTIVE and (needed := pacing.of_collective(task)):
                for processor in task.processors:
                    found[number, processor] = found.get((number, processor), 0.0) + needed
    return found


def of_weights(task: Task) -> bool:
    """Return whether a task is about weights or their gradients."""
    return task.topic.purpose in OF_WEIGHTS


def unit_message(task: Task) -> UnitMessage:
    """Return what a collective of weights or gradients does."""
    if getattr(task.work, "halves", 2) == 2:
        return "sum"
    return "scatter" if task.flops else "gather"


def _in_passes(graph: TaskGraph, which: Callable[[Task], bool]) -> dict[tuple[int, int], dict[int, None]]:
    """The collectives of one kind in each pass, by pass and processor, in order."""
    found: dict[tuple[int, int], dict[int, None]] = {}
    for number, (first, last) in enumerate(_ranges(graph)):
        for task in graph.tasks[first:last]:
            if task.kind is Kind.COLLECTIVE and which(task):
                for processor in task.processors:
                    found.setdefault((number, processor), {})[task.number] = None
    return found


def _sums_gradient(task: Task) -> bool:
    """Whether a collective sums the gradient of a tensor within a group."""
    return task.topic.purpose is Purpose.GRADIENT and task.flops > 0


def _collectives(graph: TaskGraph, of: dict[int, int]) -> dict[int, list[int]]:
    """The collectives that each pass waits for, directly or behind what is done with what they brought, and that no pass of its
    processor before has waited for."""
    behind: dict[int, frozenset[int]] = {}  # task of no operator -> collectives since the operators' tasks before it
    found: dict[int, dict[int, None]] = {}
    known: dict[int, set[int]] = {}  # by processor, those that it has waited for
    for task in graph.tasks:
        since = [behind[before] for before in task.after if before in behind]
        if task.number in of:
            there = known.setdefault(task.processor, set())
            for some in since:
                found.setdefault(of[task.number], {}).update(dict.fromkeys(sorted(some - there)))
                there |= some
        elif task.kind is Kind.COLLECTIVE:
            behind[task.number] = frozenset((task.number, *(number for some in since for number in some)))
        elif since:
            behind[task.number] = frozenset().union(*since)
    return {number: list(tasks) for number, tasks in found.items()}


def _messages(graph: TaskGraph, strategy: Strategy, of: dict[int, int]) -> list[list[int]]:
    """Bytes of what each pass exchanges with another stage's processors: with each other stage one message in a direction."""
    assert strategy.pipeline is not None
    home: dict[int, int] = {}
    last: dict[tuple[int, int], tuple[int, ...]] = {}  # layers lie alike; of a processor of several ranks the last counts
    for name, config in strategy.configs.items():
        placed = id(config.processors), strategy.pipeline.rank(name)
        last.pop(placed, None)
        last[placed] = config.processors
    for (_, rank), processors in last.items():
        home.update(dict.fromkeys(processors, rank))
    found: dict[int, dict[tuple[int, bool], int]] = {}
    arriving: dict[int, tuple[int, int]] = {}  # copy -> rank that it comes from, and bytes

    def add(number: int, message: tuple[int, bool], nbytes: int) -> None:
        of_pass = found.setdefault(number, {})
        of_pass[message] = of_pass.get(message, 0) + nbytes

    for task in graph.tasks:
        if task.kind is Kind.COPY and home.get(task.source) != home.get(task.processor):
            arriving[task.number] = home.get(task.source, -1), task.nbytes
            senders = {of[n] for n in task.after if n in of and graph.tasks[n].processor == task.source}
            for sender in senders:
                add(sender, (home.get(task.processor, -1), True), task.nbytes)
        elif task.number in of and arriving:
            for before in task.after:
                if before in arriving:  # others that read it need not wait again
                    rank, nbytes = arriving.pop(before)
                    add(of[task.number], (rank, False), nbytes)
    return [list(found.get(number, {}).values()) for number in range(max(of.values(), default=-1) + 1)]
