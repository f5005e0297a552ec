"""Items: what one rank does in one step, in order, and how long each of its buffers lives. Pure, so the search may call it too.

Every rank walks the same global order of tasks and takes those of its processors. A copy to another rank is a Send. A copy from
another rank is a Receive (the transfer may begin) and, before the first task that needs it, a WaitReceive. Before memory is
overwritten that may still be being sent, a WaitSend waits for those sends. To keep such waits short, what is sent stays in
memory until the turn of the receiver's first task that needs it (Leave).

A collective with other ranks is a StartCollective, at the same place among all collectives on each of them. Its WaitReceive
comes before the first task that depends on it. A rank that only takes part waits where another rank first depends on it: under
a causal mask, the first block of a sequence needs the keys of no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskflow.floats import is_narrow
from taskflow.graph import Node
from taskflow.regions import Rect
from taskflow.tasks.memory import Lifetime
from taskflow.tasks.task import AllGather, AllReduce, AllToAll, Buffer, Collective, Compute, Kind, Part, Task, TaskGraph

LAID_OUT_BLOCK = 64
"""Rows and columns to whose multiple libraries fill up a matrix that they lay out."""


@dataclass(frozen=True, slots=True)
class RunTask:
    """Run a task on a processor of this rank (also a copy between two of them)."""

    task: Task


@dataclass(frozen=True, slots=True)
class Send:
    """Start sending a copy's source to ``rank``."""

    task: Task
    rank: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Start receiving a copy's target from ``rank``."""

    task: Task
    rank: int


@dataclass(frozen=True, slots=True)
class StartCollective:
    """Start a collective of ``ranks`` (ascending) with this rank's ``parts``. Where processors have shares, ``shares`` are this
    rank's and ``counts`` the number of elements in all shares of each rank. Of an all-to-all, ``parts`` are what this rank's
    processors get, and ``shares`` what they give. ``packed``: this rank's buffers for what travels. ``owners``: the ranks of
    the collective's processors."""

    task: Task
    ranks: tuple[int, ...]
    parts: tuple[Part, ...]
    shares: tuple[Part, ...] = ()
    counts: tuple[int, ...] = ()
    packed: tuple[Part, ...] = ()
    owners: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WaitReceive:
    """Wait until the copy has arrived, or the collective is over. ``needed_by``: the task that needs it, of another rank where
    this one only takes part in a collective (None: the end of the step)."""

    copy: Task
    needed_by: Task | None


@dataclass(frozen=True, slots=True)
class Leave:
    """Mark where the receiver of a copy needs it, so that the copy should have left by now; its source lives until here. (Where
    the receiver copies by itself, it often does so no earlier.) Nothing is executed; it only serves to plan memory."""

    copy: Task


@dataclass(frozen=True, slots=True)
class WaitSend:
    """Wait until the copy, perhaps of the previous step, has left, since ``needed_by`` overwrites its source."""

    copy: Task
    needed_by: Task


Item = RunTask | Send | Receive | StartCollective | WaitReceive | WaitSend
Planned = Item | Leave


@dataclass(frozen=True, slots=True)
class Placement:
    """Assignment of processors to ranks: with more processors than ranks, neighbouring processors share a rank."""

    processors: int
    ranks: int

    def __post_init__(self) -> None:
        if self.processors < self.ranks:
            raise ValueError(
                f"{self.ranks} ranks need at least as many processors, got {self.processors}; start fewer ranks"
            )

    def rank(self, processor: int) -> int:
        """Return the rank that drives ``processor``."""
        return processor * self.ranks // self.processors

    def local(self, rank: int) -> list[int]:
        """Return the processors of a rank."""
        return [p for p in range(self.processors) if self.rank(p) == rank]


def items_of(graph: TaskGraph, order: Sequence[int], placement: Placement, rank: int) -> list[Planned]:
    """Return what ``rank`` does of the global ``order`` (a topological order of all tasks), without WaitSends, which depend on
    where memory lies."""
    return _with_arrivals(graph, _own(graph, order, placement, rank))


def needs(task: Task, copy: Task) -> bool:
    """True if a task that comes after ``copy`` needs its data: it runs where they arrived, or sends from there. (Other tasks
    only wait until the copy has left.)"""
    return copy.processor in task.processors


def _own(graph: TaskGraph, order: Sequence[int], placement: Placement, rank: int) -> list[Planned]:
    items: list[Planned] = []
    ranks = [placement.rank(p) for p in range(placement.processors)]
    going: dict[int, Task] = {}  # copies that nobody has needed so far
    joined: dict[int, int | None] = {}  # collective -> where another rank first needs it, until this one does
    for number in order:
        task = graph.tasks[number]
        here, giver = ranks[task.processor], ranks[task.source]
        if going:
            for before in task.after:
                if before in going and needs(task, going[before]):
                    items.append(Leave(going.pop(before)))
        if joined:
            own = rank in (here, giver) or any(ranks[p] == rank for p in task.processors)
            for before in task.after:
                if before in joined:
                    if own:
                        joined.pop(before)
                    elif joined[before] is None:
                        joined[before] = len(items)
                        items.append(WaitReceive(graph.tasks[before], task))
        if isinstance(task.work, Collective):
            members = tuple(sorted({ranks[p] for p in task.work.group}))
            if members == (rank,):
                items.append(RunTask(task))
            elif rank in members:
                items.append(_join(task, task.work, members, [ranks[p] for p in task.work.group], rank))
                joined[number] = None
        elif here == rank and giver == rank:
            items.append(RunTask(task))
        elif giver == rank:
            items.append(Send(task, here))
            going[number] = task
        elif here == rank:
            items.append(Receive(task, giver))
    items.extend(map(Leave, going.values()))
    stay = set(joined.values())
    return [item for at, item in enumerate(items) if not isinstance(item, WaitReceive) or at in stay]


def _join(task: Task, work: Collective, members: tuple[int, ...], owners: Sequence[int], rank: int) -> StartCollective:
    """A collective seen from ``rank``; ``owners`` are the ranks of its processors."""
    if isinstance(work, AllToAll):
        given = [block.source for block in work.blocks if owners[block.giver] == rank]
        got = [block.target for block in work.blocks if owners[block.taker] == rank]
        packed = tuple(part for owner, part in zip(owners, work.packed) if owner == rank)
        return StartCollective(task, members, tuple(got), tuple(given), packed=packed, owners=tuple(owners))
    parts = tuple(part for owner, part in zip(owners, work.parts) if owner == rank)
    if isinstance(work, AllReduce):
        return StartCollective(task, members, parts)
    shares = tuple(share for owner, share in zip(owners, work.shares) if owner == rank)
    counts = tuple(sum(s.rect.volume for owner, s in zip(owners, work.shares) if owner == member) for member in members)
    packed = tuple(part for owner, part in zip(owners, work.packed) if owner == rank)
    return StartCollective(task, members, parts, shares, counts, packed, tuple(owners))


def _with_arrivals(graph: TaskGraph, items: Sequence[Planned]) -> list[Planned]:
    """Wait for each received copy before the first item that depends on it, at the latest at the end of the step."""
    result: list[Planned] = []
    pending: dict[int, Task] = {}
    for item in items:
        if isinstance(item, WaitReceive):
            del pending[item.copy.number]
        elif pending and not isinstance(item, (Leave, WaitSend)):
            for before in item.task.after:
                if before in pending:
                    result.append(WaitReceive(pending.pop(before), item.task))
        result.append(item)
        if isinstance(item, (Receive, StartCollective)):
            pending[item.task.number] = item.task
    result.extend(WaitReceive(task, None) for task in pending.values())
    return result


def uses(item: Planned) -> tuple[Sequence[Part], Sequence[Part]]:
    """Return the parts of this rank's memory that an item reads and writes."""
    if type(item) is RunTask:  # what most are; a match statement would take as long as all that is done with the answer
        return item.task.reads, item.task.writes
    match item:
        case RunTask(task):
            return task.reads, task.writes
        case Send(task, _):
            return task.reads, ()
        case Receive(task, _):
            return (), task.writes
        case StartCollective(task, _, parts, shares, _, packed):
            if isinstance(task.work, AllToAll) or (isinstance(task.work, AllGather) and task.work.places):
                return shares, (*(part for part in parts if part not in shares), *packed)
            return (*parts, *shares), (*parts, *shares, *packed)  # sums are made in what is added
        case WaitReceive(copy, _):  # what a collective takes it may read until it is over
            return copy.reads if copy.kind is Kind.COLLECTIVE else (), copy.writes
        case Leave(copy):
            return copy.reads, ()
        case WaitSend():
            return (), ()


def rooms(work: object) -> dict[int, int]:
    """Return the bytes that a forward task wants for prepacking weights, by the weight's buffer."""
    if not isinstance(work, Compute) or work.backward:
        return {}
    sizes = laid_out_bytes(work.node, work.piece)
    return {buffer: n for which, n in sizes.items() if (buffer := work.weights[which]) is not None}


def laid_out_bytes(node: Node, piece: Rect) -> dict[int, int]:
    """Return the bytes for prepacking each weight that the forward task of a piece may prepack (`Operator.lays_out`); none for
    16-bit weights, which kernels get as float32 copies."""
    found = {}
    for which in node.operator.lays_out(node.specs, piece):
        weight, dtype = node.reads(piece).weights[which], node.parameters[which].spec.dtype
        if is_narrow(dtype):
            continue
        rows, columns = weight.volume // weight.shape[-1], weight.shape[-1]
        blocks = -(-rows // LAID_OUT_BLOCK) * -(-columns // LAID_OUT_BLOCK)
        found[which] = blocks * LAID_OUT_BLOCK**2 * dtype.itemsize
    return found


def root_of(graph: TaskGraph, buffer: int) -> Buffer:
    """Return the buffer whose memory this one is."""
    of = graph.buffers[buffer]
    return of if of.base is None else graph.buffers[of.base]


def lifetimes(graph: TaskGraph, items: Sequence[Planned], local: set[int]) -> list[Lifetime]:
    """Return when each buffer that is not persistent is in use, by position in ``items``. ``local``: the rank's processors."""
    # By buffer: the one whose memory it is, and whether that is neither kept nor elsewhere.
    roots = [number if (base := of.base) is None else base for number, of in enumerate(graph.buffers)]
    counted = [not graph.buffers[r].kept and graph.buffers[r].processor in local for r in roots]
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, item in enumerate(items):
        for parts in uses(item):
            for part in parts:
                if counted[part.buffer]:
                    root = roots[part.buffer]
                    if root not in first:
                        first[root] = position
                    last[root] = position
    for buffer in graph.fetched.values():
        if roots[buffer] in last:
            last[roots[buffer]] = len(items)
    found = [Lifetime(b, graph.buffers[b].nbytes, first[b], last[b]) for b in first]
    return found + _rooms_of(graph, items)


def _rooms_of(graph: TaskGraph, items: Sequence[Planned]) -> list[Lifetime]:
    """The rooms of a training step, each from the first forward task with its weight to the last; ``~b`` stands for that of
    weight b. (Where weights stay the same from run to run, as in evaluation, what is laid out shall last too.)"""
    if not any(task.kind is Kind.UPDATE for task in graph.tasks):
        return []
    found: dict[int, Lifetime] = {}
    for position, item in enumerate(items):
        if type(item) is RunTask and item.task.kind is Kind.FORWARD:
            for buffer, nbytes in rooms(item.task.work).items():
                first = found[buffer].first if buffer in found else position
                found[buffer] = Lifetime(~buffer, nbytes, first, position)
    return list(found.values())
