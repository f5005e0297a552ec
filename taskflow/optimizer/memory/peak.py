"""Peak memory: the bytes that each processor needs for a strategy's training step, and which processors lack
them; also what lives when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine, host
from taskflow.mapper import Strategy
from taskflow.operators.tensor import Tensor
from taskflow.rules import UpdateRule
from taskflow.tasks import (
    ALIGNMENT,
    Cost,
    Kind,
    Leave,
    Lifetime,
    Part,
    Placement,
    Planned,
    Task,
    TaskGraph,
    Timeline,
    WaitReceive,
    WaitSend,
    items_of,
    lifetimes,
    needs,
    plan_memory,
    roofline,
    simulate,
)
from taskflow.tasks.lower import contiguous, lower

NO_COPIES: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes that one processor needs in a step.

    ``weights``: its parts of the parameters. ``state``: other arrays that are kept from step to step (the update rule's, a
    recurrent network's state). ``buffers``: the most that lives at once of gradients, activations, saved values and arriving
    copies. ``packed``: for messages whose part of an array is not contiguous, which are packed before sending and unpacked
    after arrival. ``holes``: what lies between buffers in the arena that holds them (`plan_memory`).
    """

    processor: int
    weights: int
    state: int
    buffers: int
    packed: int
    holes: int = 0

    @property
    def nbytes(self) -> int:
        return self.weights + self.state + self.buffers + self.packed + self.holes


def peak_bytes(
    graph: OperatorGraph,
    strategy: Strategy,
    rule: UpdateRule,
    *,
    machine: Machine | None = None,
    cost: Cost | None = None,
    clip_norm: float | None = None,
    fetch: Sequence[Tensor] = (),
) -> tuple[MemoryUse, ...]:
    """Return the memory that every processor needs to train ``graph`` under ``strategy``, as the runtime plans it with one rank
    for each processor.

    The order of tasks determines how long a buffer lives; it is the simulator's on ``machine`` under ``cost`` (default: the
    runtime's own). Raises ValueError if the strategy does not fit the graph.
    """
    tasks = lower(graph, strategy, rule, clip_norm=clip_norm, fetch=fetch)
    machine = machine or host(strategy.processors)
    return memory_use(tasks, simulate(tasks, machine, cost or roofline(machine)).begun(tasks))


def memory_use(tasks: TaskGraph, order: Sequence[int]) -> tuple[MemoryUse, ...]:
    """Return the same for a step that is already lowered, run in ``order``."""
    count = tasks.processors
    placement = Placement(count, count)
    kept = kept_bytes(tasks)
    return tuple(
        use_of(p, kept, lifetimes(tasks, items_of(tasks, own, placement, p), {p}))
        for p, own in enumerate(orders(tasks, order))
    )


def orders(tasks: TaskGraph, order: Sequence[int]) -> list[list[int]]:
    """Return by processor the tasks of ``order`` that run there, arrive there or leave from there; and those elsewhere that first
    need what has left, or what a collective with this processor brought. `items_of` ignores all others, and is faster without
    them."""
    found: list[list[int]] = [[] for _ in range(tasks.processors)]
    going: dict[int, Task] = {}  # copies and collectives that nobody has needed so far
    for number in order:
        task = tasks.tasks[number]
        for before in task.after:
            if before in going and (going[before].kind is Kind.COLLECTIVE or needs(task, going[before])):
                over = going.pop(before)
                for processor in over.processors if over.kind is Kind.COLLECTIVE else (over.source,):
                    found[processor].append(number)
        for processor in task.processors:
            found[processor].append(number)
        if task.source != task.processor or task.kind is Kind.COLLECTIVE:
            going[number] = task
    return [list(dict.fromkeys(numbers)) for numbers in found]


def kept_bytes(tasks: TaskGraph, copies: Mapping[int, int] = NO_COPIES) -> tuple[list[int], list[int], list[int]]:
    """Return bytes by processor: of weights, of other arrays kept from step to step, and of packed messages. ``copies``: for
    buffers that stand for several, their number."""
    count = tasks.processors
    weights, state, packed = [0] * count, [0] * count, [0] * count
    flat = set(tasks.weights.values())
    used = {part.buffer for task in tasks for part in (*task.reads, *task.writes)}
    for buffer in tasks.buffers:
        if buffer.kept and buffer.base is None:
            if buffer.number in flat:
                weights[buffer.processor] += buffer.nbytes * copies.get(buffer.number, 1)
            elif buffer.number in used:  # what no task touches is never made
                state[buffer.processor] += buffer.nbytes * copies.get(buffer.number, 1)
    for task in tasks:
        if task.kind is Kind.COPY:
            packed[task.source] += packed_bytes(tasks, task.reads[0])
            packed[task.processor] += packed_bytes(tasks, task.writes[0])
    return weights, state, packed


def use_of(processor: int, kept: tuple[list[int], list[int], list[int]], lives: Sequence[Lifetime]) -> MemoryUse:
    """Return the memory of one processor, from `kept_bytes` and the lifetimes of its other buffers."""
    weights, state, packed = kept
    plan = plan_memory(lives)
    return MemoryUse(
        processor, weights[processor], state[processor], plan.peak_bytes, packed[processor], plan.nbytes - plan.peak_bytes
    )


def packed_bytes(tasks: TaskGraph, part: Part) -> int:
    """Return the bytes for packing a part of an array for a message: none if it is contiguous."""
    buffer = tasks.buffers[part.buffer]
    return 0 if contiguous(part.rect, buffer.shape) else part.rect.volume * buffer.dtype.itemsize


def exceeding(machine: Machine, uses: Sequence[MemoryUse]) -> tuple[MemoryUse, ...]:
    """Return the processors that need more memory than they have."""
    return tuple(use for use in uses if use.nbytes > machine.processors[use.processor].memory_bytes)


def fits(machine: Machine, uses: Sequence[MemoryUse]) -> bool:
    """True if every processor has the memory it needs."""
    return not exceeding(machine, uses)


def explain(machine: Machine, uses: Sequence[MemoryUse]) -> str:
    """Return one line about what does not fit, for the message that refuses a plan; empty if everything fits."""
    over = exceeding(machine, uses)
    if not over:
        return ""
    worst = max(over, key=lambda use: use.nbytes - machine.processors[use.processor].memory_bytes)
    have = machine.processors[worst.processor].memory_bytes
    return (
        f"{len(over)} of {len(machine.processors)} processors lack memory; processor {worst.processor} "
        f"({machine.processors[worst.processor].kind}) needs {worst.nbytes / 1e9:.3g} GB "
        f"(weights {worst.weights / 1e9:.3g}, state {worst.state / 1e9:.3g}, buffers {worst.buffers / 1e9:.3g}, "
        f"packed messages {worst.packed / 1e9:.3g}, holes between buffers {worst.holes / 1e9:.3g}) and has {have / 1e9:.3g}"
    )


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Memory over time: ``nbytes[i]`` live on the processor from ``seconds[i]`` to ``seconds[i + 1]`` (the last one to the end
    of the step), including what is kept from step to step, packed messages and holes between buffers. The largest equals
    ``use.nbytes``."""

    use: MemoryUse
    seconds: NDArray[np.float64]
    nbytes: NDArray[np.int64]


def memory_profile(tasks: TaskGraph, timeline: Timeline) -> tuple[MemoryProfile, ...]:
    """Return one profile for each processor, with one rank for each. A buffer lives from the item that first writes it to the
    item that last uses it, in the order in which the runtime takes them. The time of a task is its start, of a send when it may
    leave, and of an arrival when the message is there; but never before the time of the previous item."""
    placement = Placement(tasks.processors, tasks.processors)
    kept = kept_bytes(tasks)
    profiles = []
    for processor, order in enumerate(orders(tasks, timeline.begun(tasks))):
        items = items_of(tasks, order, placement, processor)
        lives = lifetimes(tasks, items, {processor})
        use = use_of(processor, kept, lives)
        constant = use.nbytes - use.buffers
        profiles.append(MemoryProfile(use, _times(items, timeline), constant + _live(lives, len(items))))
    return tuple(profiles)


def _live(lives: list[Lifetime], items: int) -> NDArray[np.int64]:
    """Bytes that live at each item, rounded up to cache lines as the planner does."""
    changes = np.zeros(items + 2, np.int64)
    for life in lives:
        size = max(ALIGNMENT, -(-life.nbytes // ALIGNMENT) * ALIGNMENT)
        changes[life.first] += size
        changes[life.last + 1] -= size
    return np.cumsum(changes[: max(1, items)])


def _times(items: list[Planned], timeline: Timeline) -> NDArray[np.float64]:
    at = [0.0]
    for item in items:
        if isinstance(item, (WaitReceive, Leave, WaitSend)):  # a message is there, or has left
            at.append(timeline.spans[item.copy.number].end)
        else:
            span = timeline.spans[item.task.number]
            at.append(span.start if len(item.task.processors) == 1 else span.ready)
    return np.maximum.accumulate(np.array(at[1:] or [0.0]))
