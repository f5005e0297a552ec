"""Cache state: what a core does in a step between two tasks of a kind, and so in which caches a task finds its arrays and its
code.

Three properties of a step matter: how much memory is read before an array is needed again, how much before code is needed
again, and how long arrays are untouched. Time matters beside bytes because the last-level cache and the page tables are shared
with unknown programs, on a rented machine with those of other customers. There an array that is untouched for 20 ms takes up to
three times as long to read as one untouched for 1 ms, however little this step reads meanwhile (docs/benchmarks.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import log2
from random import Random

import numpy as np

from taskflow.graph import OperatorGraph
from taskflow.kernels import KernelSet
from taskflow.machine import Machine
from taskflow.mapper import DataParallel, map_graph
from taskflow.operators.operator import REGISTRY, Array, Spec, iteration_space
from taskflow.optimizer.cost.measured.bench import Surroundings, piece_action
from taskflow.optimizer.cost.measured.store import Measurement
from taskflow.optimizer.memory import memory_use
from taskflow.rules import UpdateRule
from taskflow.tasks import TaskGraph, roofline, simulate
from taskflow.tasks.lower import lower

# Cache eviction: reproduces what a core goes through between two tasks of one kind in a step (`CacheState`), by reading other
# memory and running other code.
# Reading alone is not enough: the instructions and branch histories of the measured code stay in the core's own tables, which
# only other code overwrites. Without that, tasks shorter than a tenth of a millisecond took up to a half longer in steps than
# measured (docs/benchmarks.md).
OTHERS = (
    "avg_pool2d", "concat", "conv2d", "cross_entropy", "dropout", "einsum", "embedding", "group_norm", "layer_norm", "linear",
    "lstm", "max_pool2d", "moments", "reduce", "softmax",
)
"""Kinds that run in between: the same ones for all networks, so that these share measurements."""


class CacheEvictor:
    """Source of other memory and other code. The code is that of small pieces of fifteen kinds of operators, forward and
    backward. The memory, whose size ``between`` states, is allocated at the first measurement."""

    def __init__(self, kernels: KernelSet, between: CacheState) -> None:
        self._kernels, self._between = kernels, between

    def around(self, kind: str | None, fresh: Sequence[Array], twin: Callable[[], object]) -> Surroundings:
        """Return the preparation for a task of an operator of this kind (None: of no operator), whose ``twin`` runs before it
        and whose ``fresh`` arrays are left in near caches."""
        many = self._between.code.get(kind, 0) if kind is not None else 0
        return Surroundings(self._sweep, fresh, twin, self._before(kind, many) if many else None)

    def _before(self, kind: str | None, nbytes: int) -> Callable[[], None]:
        """Reads so many bytes, and runs the other kinds' code."""
        memory = self._sweep[: nbytes // 4]
        others = [action for other, actions in self._actions.items() if other != kind for action in actions]

        def run() -> None:
            memory.sum()
            for action in others:
                action()

        return run

    @cached_property
    def _sweep(self) -> Array:
        return self._kernels.xp.ones(self._between.nbytes // 4, np.float32)

    @cached_property
    def _actions(self) -> dict[str, list[Callable[[], object]]]:
        """Actions by kind. None on a GPU, where tasks of a kind share no such tables."""
        found: dict[str, list[Callable[[], object]]] = {}
        for kind in OTHERS if self._kernels.device.waits else ():
            example = REGISTRY[kind].example(Random(0))
            specs = [Spec(s.shape, np.dtype(np.float32)) if s.differentiable else s for s in example.inputs]
            piece, wanted = iteration_space(example.operator, specs), [s.differentiable for s in specs]
            found[kind] = [piece_action(example.operator, specs, piece, way, wanted, self._kernels)[0] for way in (False, True)]
        return found


LEAST, MOST = 1 << 20, 64 << 20  # bytes: below, all is in the nearest caches; above, in memory
LEAST_CODE = 1 << 18  # bytes: below, code stays in the caches of its core
OLD = 0.1  # of a step: what was used within the last tenth counts as just used
STEPS = 16  # shares are told apart by sixteenths, so that networks share measurements
LONGEST_SECONDS = 0.032  # what lies longer is hardly slower


@dataclass(frozen=True, slots=True)
class Age:
    """Age of a task's data: ``share`` of the bytes that it touches have been untouched for ``seconds``; the others were just
    used."""

    share: float
    seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or self.seconds < 0:
            raise ValueError(f"Age: needs a share from 0 to 1 and seconds from 0 on, got {self}")

    def __str__(self) -> str:
        return f"{self.share:g} of it {self.seconds:g} s old"

    def mix(self, young: Measurement, old: Measurement) -> Measurement:
        """Interpolate between the seconds of a task with only young bytes and those of one with old bytes."""
        seconds = (1 - self.share) * young.seconds + self.share * old.seconds
        interruptions = max(young.interruptions, old.interruptions)
        return Measurement(seconds, max(young.spread, old.spread), young.repeats + old.repeats, interruptions)


FRESH = Age(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class CacheState:
    """State of a core's caches at the start of a task. ``nbytes``: other memory that a processor touches between two uses of an
    array. ``code``: by kind of operator, the memory touched between two runs of its code, forward or backward (kinds that are
    absent: none, and no other code runs). ``age``: how much of a task's data has been untouched for long. By default 16 MiB,
    and nothing else."""

    nbytes: int = 16 << 20
    code: Mapping[str, int] = field(default_factory=dict)
    age: Age = FRESH

    def __post_init__(self) -> None:
        if self.nbytes < 4 or self.nbytes % 4:
            raise ValueError(f"Between: nbytes must be those of one float32 or more, got {self.nbytes}")
        if wrong := {kind: many for kind, many in self.code.items() if not 0 <= many <= self.nbytes}:
            raise ValueError(f"Between: code must be touched again after 0 to {self.nbytes} bytes (nbytes), got {wrong}")

    def __str__(self) -> str:
        often = sum(not many for many in self.code.values())
        code = f", code of {often} of {len(self.code)} kinds near" if self.code else ""
        return f"{self.nbytes / (1 << 20):g} MiB in between{code}" + (f", {self.age}" if self.age.share else "")


TYPICAL = CacheState()


def between(graph: OperatorGraph, machine: Machine, rule: UpdateRule | None) -> CacheState:
    """Return the cache state of a processor of ``machine`` in the middle of training ``graph`` with ``rule``, cut in the sample
    dimension; rounded, so that networks share measurements. Lowers one step and simulates it by the machine's rates, in Python
    (a moment).

    ``nbytes``: a power of two from 1 to 64 MiB. A step goes through its memory forward, then back. The first layer's results
    are needed last, after all of the memory, and the last layer's at once; so on average after half of it. ``age``: the share
    of bytes, in sixteenths, that were last used longer ago than a tenth of a step, and their average age, a power of two of
    milliseconds up to 32. On GPUs nothing is old.
    """
    tasks = lower(graph, map_graph(DataParallel(), graph, machine), rule)
    touched = max(use.nbytes for use in memory_use(tasks, range(len(tasks))))
    nbytes = int(min(MOST, max(LEAST, 2 ** round(log2(max(1, touched / 2))))))
    cores = all(p.kind == "cpu" for p in machine.processors)
    return CacheState(nbytes, code_between(graph, nbytes), _age(tasks, machine) if cores else FRESH)


def code_between(graph: OperatorGraph, nbytes: int) -> dict[str, int]:
    """Return `CacheState.code` of a processor that touches ``nbytes`` between two uses of an array: zero or a power of four
    from 256 KiB.

    A pass over the network goes through twice ``nbytes``, and runs each kind of operator as often as the network has it: once
    (a loss) or hundreds of times. A task whose code has been evicted from the core's caches takes tens of microseconds longer,
    to load instructions and tables of the interpreter, the library and the kernel.
    """
    found = {}
    for kind, count in Counter(node.operator.kind for node in graph).items():
        many = 2 * nbytes // count
        found[kind] = min(nbytes, 4 ** int(log2(many) / 2)) if many >= LEAST_CODE else 0
    return found


def _age(tasks: TaskGraph, machine: Machine) -> Age:
    ages, nbytes, step = _ages(tasks, machine)
    old = ages > OLD * step
    if not old.any():
        return FRESH
    share = round(STEPS * float(nbytes[old].sum() / nbytes.sum())) / STEPS
    seconds = min(LONGEST_SECONDS, float(np.average(ages[old], weights=nbytes[old])))
    return Age(share, 2.0 ** round(log2(max(1.0, 1e3 * seconds))) / 1e3)


def _ages(tasks: TaskGraph, machine: Machine) -> tuple[np.ndarray, np.ndarray, float]:  # type: ignore[type-arg]
    """Seconds since each read or written part's buffer was used before, on the processor with most to do, and the part's bytes;
    seconds of the step."""
    timeline = simulate(tasks, machine, roofline(machine))
    step = timeline.makespan
    work = [0.0] * len(machine.processors)
    for task in tasks.tasks:
        if not task.kind.travels:
            work[task.processor] += timeline.spans[task.number].end - timeline.spans[task.number].start
    busiest = work.index(max(work))
    mine = sorted((timeline.spans[t.number].start, t.number) for t in tasks.tasks if t.processor == busiest and not t.kind.travels)
    used: dict[int, float] = {}
    ages, nbytes = [], []
    for turn in (0, 1):  # the second step finds what the first has left
        for start, number in mine:
            task, end = tasks.tasks[number], timeline.spans[number].end
            for part in (*task.reads, *task.writes):
                if turn:
                    ages.append(max(0.0, start + step - used[part.buffer]))
                    nbytes.append(part.rect.volume * tasks.buffers[part.buffer].dtype.itemsize)
                used[part.buffer] = turn * step + end
    return np.array(ages), np.array(nbytes, dtype=float), step
