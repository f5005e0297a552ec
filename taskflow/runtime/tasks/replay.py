"""Trace: repeated launches, analysed until nothing changes any more, then compiled to one program and replayed.

The body runs in every iteration, and says what is launched with which values. What is remembered is the analysis.

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
    recorded: list[Recorded]


class Trace:
    """Body of launches, made by `TaskRuntime.trace`. Calling it runs one iteration, and returns what the body returns; Futures
    have the values of this iteration.

    ``replays`` counts iterations that were replayed, ``analyses`` those whose launches were analysed.
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
        self._departures = 0  # iterations since the last replay whose launches were not those of _present

    def __call__(self) -> Any:
        tasks = self._tasks
        tasks.outside(f"call trace {self.name}")
        present = self._present
        if present is None or tasks.changes != self._changes:
            self._present = present = self._known.get(tasks.state(self._regions)) if self._known else None
            if present is None:
                return self._analyse()
            self._changes = tasks.changes
        before = tasks.state(self._regions) if self._departures else None
        value, others = tasks.follow(self, self._body, present.recorded)
        if others is not None:
            return self._depart(value, others, before)
        if present is not self._settled:
            for future, cell in present.cells:
                future.settle(cell)
            self._settled = present
        tasks.replay(present.program)
        self.replays += 1
        self._departures = 0
        return value

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
        if self._memoize:
            self._look_around(recorded)
            if self.analyses > 1:
                self._compile(recorded, before)
        return value

    def _depart(self, value: Any, recorded: list[Recorded], before: Hashable) -> Any:
        """The body launched something else than before, which was analysed instead. That is compiled if it comes twice in
        turn, so that a body with a rare exception keeps its program."""
        self.analyses += 1
        self._departures += 1
        self._settled = None
        self._look_around(recorded)
        if self._departures > 1:
            self._compile(recorded, before)
        return value

    def _look_around(self, recorded: list[Recorded]) -> None:
        self._regions.update(
            requirement.region for r in recorded for point in r.launch.points for requirement in point.requirements
        )

    def _compile(self, recorded: list[Recorded], before: Hashable) -> None:
        """Compile an iteration if it left the analysis in the state ``before``."""
        after = self._tasks.state(self._regions)
        if before == after and not _from_initial(recorded):
            self._present = self._known[after] = _Compiled(*self._tasks.compile(recorded), recorded)
            self._changes = self._tasks.changes

    def __str__(self) -> str:
        return f"trace {self.name}: {self.analyses} analyses, {self.replays} replays, {len(self._known)} programs"


def _from_initial(recorded: list[Recorded]) -> bool:
    """True if something is copied from initial contents, which `TaskRuntime.write` may replace."""
    return any(
        isinstance(m, CopyNeed) and m.origin.processor == INITIAL
        for r in recorded for launched in r.found for m in launched.movements
    )
