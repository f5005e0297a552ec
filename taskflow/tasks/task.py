"""TaskGraph: the tasks of one step, the memory they touch, and the order they must keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Protocol

import numpy as np

from taskflow.collector import quick
from taskflow.graph import Node
from taskflow.mapper import Pass, ranges
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks.topic import OTHER, Topic


class Kind(Enum):
    """Kind of a task."""

    FORWARD = "forward"
    BACKWARD = "backward"
    COPY = "copy"  # between two processors: a message
    MOVE = "move"  # within one processor
    SUM = "sum"
    FILL = "fill"
    NORM = "norm"
    CLIP = "clip"
    UPDATE = "update"
    CALL = "call"  # a user's task
    COLLECTIVE = "collective"  # among several processors at once

    @property
    def travels(self) -> bool:
        """True if it is between processors, and so occupies links."""
        return self is Kind.COPY or self is Kind.COLLECTIVE


@quick
@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory on one processor: an instance of ``rect`` of the region called ``region``.

    A kept buffer persists from step to step, is found again by its name, and holds ``start`` at first. An alias is the
    contiguous part ``part`` of buffer ``base``. ``rect`` has the buffer's shape; a flat buffer's rect is one-dimensional.
    """

    number: int
    region: str
    rect: Rect
    processor: int
    dtype: np.dtype[Any]
    kept: bool = False
    base: int | None = None
    part: Rect | None = None
    start: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rect.shape

    @property
    def nbytes(self) -> int:
        return self.rect.volume * self.dtype.itemsize

    @property
    def name(self) -> str:
        return f"{self.region}{self.rect} @ {self.processor}"


@quick
@dataclass(frozen=True, slots=True)
class Part:
    """The Rect ``rect`` of a buffer, counted from the buffer's own first element."""

    buffer: int
    rect: Rect


Runs = tuple[int, int]
"""In how many stretches of memory a task finds what it reads, and in how many it puts what it writes: of parts the most."""


@quick
@dataclass(frozen=True, slots=True)
class GradientTo:
    """Buffer of a gradient, and whether this task adds to it or is the first to fill it."""

    buffer: int
    accumulate: bool


@dataclass(frozen=True, slots=True)
class OtherHalf:
    """The other half of a backward task that computes only the gradients of inputs or only those of weights.

    ``wanted``: the inputs whose gradients both halves together compute. ``nbytes``: bytes of the gradients that this half does
    not compute, and of what it does not read.
    """

    wanted: tuple[bool, ...]
    nbytes: int


@quick
@dataclass(frozen=True, slots=True)
class Compute:
    """Forward or backward of one piece of an operator; numbers are buffers. ``other``: the other half of a divided backward
    task."""

    node: Node
    piece: Rect
    backward: bool
    inputs: tuple[int | None, ...]  # None: backward does not read it
    weights: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    saved: tuple[int, ...]
    grad_outputs: tuple[int | None, ...] = ()
    grad_inputs: tuple[GradientTo | None, ...] = ()
    grad_weights: tuple[GradientTo | None, ...] = ()
    other: OtherHalf | None = None


@quick
@dataclass(frozen=True, slots=True)
class Transfer:
    """Copy ``source`` to ``target``, between processors or within one; ``add`` (within one only): add instead."""

    source: Part
    target: Part
    add: bool = False


@quick
@dataclass(frozen=True, slots=True)
class Summation:
    """Sum: target += the sources, in this order (``fresh``: target = the first one, then += the others)."""

    sources: tuple[Part, ...]
    target: Part
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class AllReduce:
    """All-reduce: each of the parts, one on each processor of ``group`` (ascending), becomes the sum of all."""

    halves: ClassVar[int] = 2  # of a ring's two ways round
    group: tuple[int, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class ReduceScatter:
    """Reduce-scatter: of the sum of the parts, one on each processor of ``group`` (ascending), each processor gets its share;
    some shares may be empty. Without ``places`` the parts are one-dimensional, and the shares follow each other in them.
    ``places``: where each share lies in a part (counted from the part's first element); shares then go to buffers of their own.
    Afterwards a part is undefined except for a share in it. ``packed``: where shares are not consecutive in memory, for each
    processor a one-dimensional buffer as long as a part, in which they are while they travel."""

    halves: ClassVar[int] = 1
    group: tuple[int, ...]
    parts: tuple[Part, ...]
    shares: tuple[Part, ...]
    places: tuple[Rect, ...] = ()
    packed: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class AllGather:
    """All-gather: each of the parts, one on each processor of ``group`` (ascending), gets the others' shares. ``shares``,
    ``places`` and ``packed`` as of a ReduceScatter. If a processor has everything, its share is its part."""

    halves: ClassVar[int] = 1
    group: tuple[int, ...]
    parts: tuple[Part, ...]
    shares: tuple[Part, ...]
    places: tuple[Rect, ...] = ()
    packed: tuple[Part, ...] = ()


@quick
@dataclass(frozen=True, slots=True)
class Block:
    """Part of an all-to-all that one member gives to another, or to itself. Members are numbered by their places in the group."""

    giver: int
    taker: int
    source: Part
    target: Part


@dataclass(frozen=True, slots=True)
class AllToAll:
    """All-to-all: each processor of ``group`` (ascending) gives the others what they want: the ``blocks``, by giver and then by
    taker. ``packed``: for each processor a one-dimensional buffer that holds, during the transfer, what it gives to others and
    then what it gets."""

    halves: ClassVar[int] = 0  # it goes from each to each, around no ring
    group: tuple[int, ...]
    blocks: tuple[Block, ...]
    packed: tuple[Part, ...]


Collective = AllReduce | ReduceScatter | AllGather | AllToAll


@dataclass(frozen=True, slots=True)
class Filling:
    """Fill: every element of ``target`` becomes ``value``; if ``scaled``, times the step's loss scale, if it has one."""

    target: Part
    value: float
    scaled: bool = False


@dataclass(frozen=True, slots=True)
class Norm:
    """Sum of squares of ``source``, written to target (one double) or added to it."""

    source: Part
    target: int
    accumulate: bool


@dataclass(frozen=True, slots=True)
class Clip:
    """Clipping factor: target (one double) = min(1, limit / sqrt(sum of the sources)), as in torch.nn.utils.clip_grad_norm_."""

    sources: tuple[int, ...]
    target: int
    limit: float


@dataclass(frozen=True, slots=True)
class Update:
    """One step of the update rule on a flat range of weights. ``master``: for 16-bit weights, the float32 copy that the rule
    changes; the weights become its values, rounded."""

    rule: UpdateRule
    weights: Part
    gradients: Part
    state: tuple[int, ...]
    scale: int | None  # buffer of one double: what the gradient is multiplied by
    master: int | None = None


class Callback(Protocol):
    """Interface of the function that a UserCall calls."""

    def bind(self, arrays: Sequence[Any]) -> Callable[[], object]:
        """Return the function that runs the task on these arrays, any number of times."""

    def explain(self, error: Exception) -> Exception | None:
        """Return a clearer exception to raise from this one, which running the task raised; None if there is none."""


@dataclass(frozen=True, slots=True)
class UserCall:
    """Task of the generic task API: ``call.bind`` gets the arrays of ``arguments`` (None: an empty Rect) and returns the
    function that runs it."""

    call: Callback
    arguments: tuple[Part | None, ...]


Work = Compute | Transfer | Summation | Collective | Filling | Norm | Clip | Update | UserCall


@quick
@dataclass(frozen=True, slots=True)
class Task:
    """One action of a processor, of the link between two processors, or of several together (COLLECTIVE). ``number``: its place
    in program order, which breaks ties. ``after``: the tasks that must end before it starts. ``nbytes``: bytes moved by a copy
    or a collective, touched by others. ``topic``: its purpose and its operator or layer. ``runs``: contiguous stretches of the
    source and target of a COPY, MOVE or SUM; short stretches take a processor longer than the same bytes in one."""

    number: int
    kind: Kind
    name: str
    processor: int  # of a collective, the first of its group
    source: int  # the sending processor of a copy; else the same as processor
    work: Work
    reads: tuple[Part, ...]
    writes: tuple[Part, ...]
    after: tuple[int, ...]
    flops: int
    nbytes: int
    topic: Topic = OTHER
    runs: Runs = (1, 1)

    @property
    def processors(self) -> tuple[int, ...]:
        """All processors that take part."""
        if isinstance(self.work, Collective):
            return self.work.group
        return (self.processor,) if self.source == self.processor else (self.source, self.processor)

    def __str__(self) -> str:
        if isinstance(self.work, Collective):
            return f"{self.name} @ {ranges(self.work.group)}"
        where = f"{self.source}->{self.processor}" if self.kind is Kind.COPY else f"@ {self.processor}"
        return f"{self.name} {where}"


@dataclass(frozen=True, slots=True)
class Cell:
    """Rect of one parameter at ``offset`` of its bundle's flat buffer."""

    parameter: str
    rect: Rect
    offset: int


@dataclass(frozen=True, slots=True)
class Bundle:
    """Cells of one layer, or of all layers that are gathered together, that the same processors hold: one flat buffer of weights on
    each. ``layer``: the first such layer, as which all are synchronised; ``unit``: the name of all of them."""

    name: str
    layer: str
    unit: str
    group: tuple[int, ...]
    cells: tuple[Cell, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        return sum(cell.rect.volume for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Turn:
    """Order of tasks of a ``kind`` on a processor, pass after pass. With ``back`` 0, ``task`` ends a turn there; otherwise it
    begins one and waits for the ``back``th last turn that ended in the passes before. With ``own``, the number of the turn that
    it begins in its pass, it waits for the ``back``th turn before that one, in this pass or those before. ``seen``: what others of
    the pass wait for, if that is another task than what ends the turn (weights that are read again later)."""

    kind: str
    processor: int
    task: int
    back: int = 0
    own: int | None = None
    seen: int | None = None


@dataclass(slots=True)
class TaskGraph:
    """Tasks of one step in program order, which is a topological order, and the buffers they use."""

    processors: int
    tasks: list[Task] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    bundles: list[Bundle] = field(default_factory=list)
    weights: dict[tuple[str, int], int] = field(default_factory=dict)  # (bundle, processor) -> flat buffer
    fetched: dict[str, int] = field(default_factory=dict)  # tensor name -> buffer on processor 0
    passes: list[tuple[Pass, int, int]] = field(default_factory=list)  # in order, each with its tasks from first to last - 1
    turns: list[Turn] = field(default_factory=list)  # across passes, where only some of these are lowered

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    @property
    def transfer_bytes(self) -> int:
        """Bytes that one step moves between processors."""
        return sum(task.nbytes for task in self.tasks if task.kind.travels)

    @property
    def flops(self) -> int:
        return sum(task.flops for task in self.tasks)

    def __repr__(self) -> str:
        copies = sum(task.kind.travels for task in self.tasks)
        return (
            f"{len(self.tasks)} tasks ({copies} copies, {self.transfer_bytes / 1e6:.1f} MB) on {self.processors} "
            f"processors"
        )
