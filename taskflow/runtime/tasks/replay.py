"""Trace: repeated launches, analysed until nothing changes any more, then compiled to one program and replayed.

An iteration is steady if the analysis is in the same state after it as before. Then the next one needs the same copies and
sums, and so does every later one. A steady iteration is lowered as a whole, so that messages of one launch overlap with tasks
of others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskflow.regions import INITIAL, CopyNeed, Launched, LogicalRegion
from taskflow.runtime.program import Program
from taskflow.tasks.launch import Future, Launch

if TYPE_CHECKING:
    from taskflow.runtime.tasks.api import TaskRuntime


@dataclass(frozen=True, slots=True)
class Recorded:
    """One launch of a trace's body, and the result of the analysis for its points."""

    launch: Launch
    found: tuple[Launched, ...]
    future: Future | None


@dataclass(frozen=True, slots=True)
class _Compiled:
    program: Program
    cells: list[tuple[Future, Any]]
    value: Any


class Trace:
    """Body of launches, made by `TaskRuntime.trace`. Calling it runs one iteration. It returns what the body returned when it
    last ran; Futures have the values of this iteration.

    ``replays`` counts iterations that were replayed, ``analyses`` those in which the body ran.
    """

    def __init__(self, tasks: TaskRuntime, body: Callable[[], Any], name: str, memoize: bool) -> None:
        self.name = name
        self.replays = 0
        self.analyses = 0
        self.futures: dict[tuple[int, str], Future] = {}  # by the launch's place in the body, and name
        self._tasks, self._body, self._memoize = tasks, body, memoize
        self._regions: set[LogicalRegion] = set()
        self._known: dict[Hashable, _Compiled] = {}  # by state of the analysis
        self._present: _Compiled | None = None
        self._settled: _Compiled | None = None  # whose values the futures have
        self._changes = -1  # the number of changes of the analysis at which _present was found to fit

    def __call__(self) -> Any:
        tasks = self._tasks
        present = self._present
        if present is None or tasks.changes != self._changes:
            tasks.outside(f"call trace {self.name}")
            self._present = present = self._known.get(tasks.state(self._regions)) if self._known else None
            if present is None:
                return self._analyse()
            self._changes = tasks.changes
        if present is not self._settled:
            for future, cell in present.cells:
                future.settle(cell)
            self._settled = present
        tasks.replay(present.program)
        self.replays += 1
        return present.value

    @property
    def program(self) -> Program | None:
        """Program that the next call replays if nothing changes until then."""
        return self._present.program if self._present is not None else None

    def _analyse(self) -> Any:
        """Run the body; compile it if that changed nothing in the analysis."""
        tasks = self._tasks
        before = tasks.state(self._regions)
        self._settled = None
        value, recorded = tasks.record(self, self._body)
        self.analyses += 1
        if not self._memoize:
            return value
        self._regions.update(
            requirement.region for r in recorded for point in r.launch.points for requirement in point.requirements
        )
        after = tasks.state(self._regions)
        if self.analyses > 1 and before == after and not _from_initial(recorded):
            self._present = self._known[after] = _Compiled(*tasks.compile(recorded), value)
            self._changes = tasks.changes
        return value

    def __str__(self) -> str:
        return f"trace {self.name}: {self.analyses} analyses, {self.replays} replays, {len(self._known)} programs"


def _from_initial(recorded: list[Recorded]) -> bool:
    """True if something is copied from initial contents, which `TaskRuntime.write` may replace."""
    return any(
        isinstance(m, CopyNeed) and m.origin.processor == INITIAL
        for r in recorded for launched in r.found for m in launched.movements
    )
