"""TaskRuntime: the generic task API: regions, index launches over partitions, futures and traces, as in Legion.

    rt = taskflow.TaskRuntime(processors=4)            # or under mpirun: one processor a rank
    u, v = rt.region((100,)), rt.region((100,))

    @taskflow.task(new="write", old="read")
    def heat(new, old, alpha): ...

    rt.launch(heat, over=tiles, new=(v, tiles), old=(u, halo), alpha=0.1)

Every rank runs the same program and analyses the same launches (control replication). Each runs the point tasks of its own
processors, and sends and receives what the analysis says. Launches take effect in program order. Instances are reused, so that
a stencil copies only its halo; they are kept as long as the TaskRuntime. After an error in a task, the values of the regions
that it changes are undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from taskflow.kernels import default_kernels
from taskflow.machine import host
from taskflow.mapper import Mapper
from taskflow.operators.operator import StepState
from taskflow.regions import INITIAL, Analysis, Instance, LogicalRegion, Rect
from taskflow.runtime.connecting import connect
from taskflow.runtime.profiler import Subject, Tracer, run_observed
from taskflow.runtime.program import PersistentBuffers, Placement, Program, schedule
from taskflow.runtime.tasks.eager import EagerRunner
from taskflow.runtime.tasks.replay import Recorded, Trace
from taskflow.runtime.transport import Transport
from taskflow.tasks import roofline, simulate
from taskflow.tasks.launch import (
    Future,
    Launch,
    LaunchLowering,
    Over,
    Place,
    TaskFunction,
    initial_name,
    make_launch,
    pass_values,
    repeats,
)

_FORGET_EVERY = 32
"""Launches between two times at which the analysis forgets which launches have ended."""


class TaskRuntime:
    """Regions and the launches that compute with them.

    Args: ``processors``: their number (default: one for each rank; more are divided evenly among the ranks). ``transport``: of
    the job (default: that of `taskflow.connect`). Messages use a duplicate of it, so an Executor may use it too. ``mapper``:
    its `memoize` says which traces may be compiled, and its `report_profiling` is called after each replay. Raises ValueError
    for fewer processors than ranks.
    """

    def __init__(
        self, processors: int | None = None, *, transport: Transport | None = None, mapper: Mapper | None = None
    ) -> None:
        self.transport = connect() if transport is None else transport.duplicate()
        self.processors = processors or self.transport.size
        self.changes = 0
        self._placement = Placement(self.processors, self.transport.size)
        self._mapper = mapper
        self._kept = PersistentBuffers()
        self._kernels, self._state = default_kernels(), StepState(seed=0)
        self._analysis = Analysis()
        self._direct = EagerRunner(self.transport, self._placement, self._kept, self._kernels, self._state)
        self._regions: dict[LogicalRegion, np.ndarray[Any, Any] | None] = {}  # with initial contents, if not zero
        self._names: set[str] = set()
        self._active: Program | None = None
        self._programs = 0
        self._replays = 0
        self._tracer: Tracer | None = None
        self._trace: Trace | None = None
        self._recorded: list[Recorded] = []
        self._awaited: Sequence[Recorded] | None = None  # while a trace's body runs that is to be replayed: its launches
        self._followed: list[Recorded] = []  # those of them that came

    @property
    def rank(self) -> int:
        """This rank, from 0: for what only one rank should do, such as printing."""
        return self.transport.rank

    # ---- regions -------------------------------------------------------------------------------------------------
    def region(self, shape: Sequence[int], dtype: Any = "float64", *, name: str | None = None) -> LogicalRegion:
        """Make a new region of zeros. Raises ValueError if the name is taken or contains blanks."""
        name = name or f"r{len(self._regions)}"
        if name in self._names or not name or any(c.isspace() for c in name):
            raise ValueError(f"region {name!r}: the name must be new and without blanks")
        region = LogicalRegion(name, Rect.of(tuple(shape)), np.dtype(dtype))
        self._names.add(name)
        self._regions[region] = None
        return region

    def write(self, region: LogicalRegion, value: Any) -> None:
        """Replace all values by an array of the region's shape, or by a number. It must be the same on every rank; it is
        copied."""
        self.outside(f"write {region.name}")
        self._check(region)
        if np.shape(value) not in (region.rect.shape, ()):
            raise ValueError(f"write {region.name}: shape must be {region.rect.shape}, got {np.shape(value)}")
        home = self._regions[region]
        if home is None:
            home = self._regions[region] = np.empty(region.rect.shape, region.dtype)
            for processor in self._placement.local(self.rank):
                name = Instance(LogicalRegion(initial_name(region), region.rect, region.dtype), region.rect, processor)
                self._kept.arrays[str(name)] = home
        np.copyto(home, value, casting="same_kind")
        self._analysis.initialise(region)
        self.changes += 1

    def read(self, region: LogicalRegion) -> np.ndarray[Any, Any]:
        """Return a copy of all values, on every rank (all must call it). Changes nothing, so traces continue undisturbed."""
        self.outside(f"read {region.name}")
        self._check(region)
        contents = self._analysis.contents(region)
        parts = [*contents.owners, *((c.rect, c.instance) for c in contents.pending)]
        local = set(self._placement.local(self.rank))
        mine = {i: self._values(rect, instance) for i, (rect, instance) in enumerate(parts) if instance.processor in local}
        gathered = self.transport.gather(mine)
        whole = None
        if gathered is not None:
            values = {i: array for table in gathered for i, array in table.items()}
            home = self._regions[region]
            whole = np.zeros(region.rect.shape, region.dtype)
            for i, (rect, instance) in enumerate(parts):
                target = whole[rect.slices(region.rect)]
                if i >= len(contents.owners):
                    target += values[i]
                elif instance.processor != INITIAL:
                    target[...] = values[i]
                elif home is not None:
                    target[...] = home[rect.slices(region.rect)]
        result: np.ndarray[Any, Any] = self.transport.broadcast(whole)
        return result

    def _values(self, rect: Rect, instance: Instance) -> np.ndarray[Any, Any]:
        return np.array(self._kept.arrays[str(instance)][rect.slices(instance.rect)])

    def _check(self, region: LogicalRegion) -> None:
        if region not in self._regions:
            raise ValueError(f"region {region} was not made by this Tasks; make it with its region()")

    # ---- launches ------------------------------------------------------------------------------------------------
    def launch(
        self,
        function: TaskFunction,
        *,
        over: Over = None,
        place: Place | None = None,
        reduce: str | None = None,
        **arguments: Any,
    ) -> Future | None:
        """Launch a task (see `taskflow.task`) once for every color of ``over``, a partition or the extents of a color grid;
        without ``over``, once.

        A region parameter is given as ``(region, partition)``: each point task gets the piece of its color. Or as ``(region,
        Rect)`` or a region: the same for all points. Or as a list of these: the function gets a list of arrays. Empty pieces
        are arrays without elements. Other parameters are given constants, or a Future, whose value is passed. ``place(color)``
        is the processor (default: equally many neighbouring colors on each). ``reduce`` ("sum", "min" or "max"): return a
        Future of the numbers that the point tasks return, reduced in color order.

        Raises TypeError, ValueError or PrivilegeError, naming task and argument, before anything runs.
        """
        if self._awaited is not None:
            entry = self._awaited[len(self._followed)] if len(self._followed) < len(self._awaited) else None
            if entry is not None and repeats(entry.launch, function, over, arguments, place, reduce, self._trace):
                pass_values(entry.launch, arguments)
                self._followed.append(entry)
                return entry.future
            self._leave()
        launch = make_launch(
            function, over, arguments, processors=self.processors, regions=self._regions, place=place, reduce=reduce
        )
        for name, value in launch.constants.items():
            if isinstance(value, Future) and self._trace is not None and value.owner is self._trace:
                self._refuse_old(launch.task.name, name, value)
        future = self._future(f"{reduce} of {function.name}") if reduce is not None else None
        self._issue(launch, future)
        return future

    def _issue(self, launch: Launch, future: Future | None) -> None:
        """Analyse a launch and run it."""
        self._activate(None)
        found = tuple(self._analysis.launch(point.requirements, point.processor) for point in launch.points)
        self.changes += 1
        if self.changes % _FORGET_EVERY == 0:
            self._analysis.forget(self._analysis.launches)
        lowering = LaunchLowering(self.processors, self._written, "future direct")
        lowering.add(launch, found, future)
        self._direct.run(lowering.graph)
        if future is not None:
            future.settle(self._cell(lowering, future).copy())
        if self._trace is not None:
            self._recorded.append(Recorded(launch, found, future))

    def _future(self, name: str) -> Future:
        """A new Future, or in a trace the one that the same launch made before."""
        if self._trace is None:
            return Future(name, lambda: self.outside("get a Future"))
        return self._trace.futures.setdefault(
            (len(self._recorded), name), Future(name, lambda: self.outside("get a Future"), self._trace)
        )

    def _refuse_old(self, task: str, name: str, future: Future) -> None:
        if all(recorded.future is not future for recorded in self._recorded):
            raise RuntimeError(
                f"task {task}, argument {name!r}: {future} is of an earlier iteration of this trace; a replay would "
                f"not see later ones. Keep what goes from one iteration to the next in a region"
            )

    def _written(self, region: LogicalRegion) -> bool:
        return self._regions[region] is not None

    def _cell(self, lowering: LaunchLowering, future: Future) -> Any:
        return self._kept.arrays[lowering.cell(future, self._placement.local(self.rank)[0])]

    # ---- traces --------------------------------------------------------------------------------------------------
    def trace(self, body: Callable[[], Any], *, name: str | None = None) -> Trace:
        """Make a trace: ``step = rt.trace(lambda: (rt.launch(...), rt.launch(...)))``; ``step()`` then runs one iteration.

        Launches are analysed until an iteration leaves the analysis as it found it. From then on they run as one compiled
        program, after the body has run, which says with which values. So values may change from one iteration to the next; they
        are copied where they could change until the program runs (arrays, lists, dicts, sets). If the body launches something
        else (another task, region, piece or place, or fewer launches), or if something else moves the trace's regions, the
        launches of that iteration are analysed.
        """
        name = name or f"trace {self._programs}"
        return Trace(self, body, name, self._mapper is None or self._mapper.memoize(name))

    def record(self, trace: Trace, body: Callable[[], Any]) -> tuple[Any, list[Recorded]]:
        """Run a trace's body; return its result and its launches."""
        self._trace, self._recorded = trace, []
        try:
            return body(), self._recorded
        finally:
            self._trace, self._recorded = None, []

    def follow(
        self, trace: Trace, body: Callable[[], Any], awaited: Sequence[Recorded]
    ) -> tuple[Any, list[Recorded] | None]:
        """Run a trace's body, whose launches are to be the ``awaited`` ones with values of their own. Return its result, and None
        if they are: then nothing has run yet. Otherwise return its launches, which have been analysed and have run."""
        self._trace, self._recorded, self._awaited, self._followed = trace, [], awaited, []
        try:
            value = body()
            if self._awaited is not None and len(self._followed) < len(awaited):
                self._leave()
            return value, None if self._awaited is not None else self._recorded
        except BaseException:
            if self._awaited is not None:  # what was launched before the error has its effects, as without a trace
                self._leave()
            raise
        finally:
            self._trace, self._recorded, self._awaited, self._followed = None, [], None, []

    def _leave(self) -> None:
        """Run the launches that came one by one, since the next one is not the awaited one."""
        followed, self._awaited, self._followed = self._followed, None, []
        for entry in followed:
            self._issue(replace(entry.launch, constants=dict(entry.launch.constants), bound=[]), entry.future)

    def state(self, regions: Collection[LogicalRegion]) -> Hashable:
        """Return the state of the analysis of these regions."""
        return self._analysis.snapshot(regions)

    def compile(self, recorded: Sequence[Recorded]) -> tuple[Program, list[tuple[Future, Any]]]:
        """Compile the launches of a steady iteration into one program; also return where it puts the values of its futures."""
        self._programs += 1
        lowering = LaunchLowering(self.processors, self._written, f"future {self._programs}")
        for entry in recorded:
            lowering.add(entry.launch, entry.found, entry.future)
        graph, machine = lowering.graph, host(self.processors)
        order = simulate(graph, machine, roofline(machine)).begun(graph)
        plan = schedule(graph, order, self._placement, self.rank)
        program = Program(graph, plan, self.transport, self._kernels, self._state, self._kept)
        return program, [(r.future, self._cell(lowering, r.future)) for r in recorded if r.future is not None]

    def replay(self, program: Program) -> None:
        """Run one step of a compiled trace."""
        if program is not self._active:
            self._activate(program)
        number, self._replays = self._replays, self._replays + 1
        run_observed(program, number, self._tracer, self._mapper)

    def record_replays(self, path: str | Path | None, replays: range | None = None) -> Tracer:
        """Write what all ranks do in some replays of a trace to one file for Perfetto or chrome://tracing (gzipped if ``path``
        ends in ``.gz``), as `Executor.trace` does. Every rank calls it.

        ``replays``: numbers of replays, counted from 0 over all traces (default: the third to the fifth from now). Only the
        trace that is replayed first is recorded. The file is written after the last replay, or when the Tracer or this object
        is closed.
        """
        first = self._replays + 2
        chosen = range(first, first + 3) if replays is None else replays
        self._tracer = Tracer(self.transport, path, chosen, Subject(host(self.processors), self._placement))
        return self._tracer

    def _activate(self, program: Program | None) -> None:
        """Before another program (None: direct launches) runs, what the one before has sent must have left its memory."""
        if program is not self._active:
            if self._active is not None:
                self._active.drain()
            else:
                self._direct.drain()
            self._active = program

    def outside(self, what: str) -> None:
        """Raise RuntimeError inside a trace's body."""
        if self._trace is not None:
            raise RuntimeError(
                f"{what}: not inside {self._trace}, whose launches run after its body when they are replayed; do it before or after"
            )

    # ---- end -----------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Wait until all sends have ended, and free the messages."""
        self._activate(None)
        self._direct.drain()
        if self._tracer is not None:
            self._tracer.close()
        self.transport.close()

    def __enter__(self) -> TaskRuntime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
