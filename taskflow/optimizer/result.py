"""SearchResult: what a search returned, and how it got there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from taskflow.mapper import HybridPlan, Strategy
from taskflow.wording import listed, milliseconds, sentence

if TYPE_CHECKING:
    from taskflow.optimizer.grid import AnyGrid, GridResult  # which gives results itself


@dataclass(frozen=True, slots=True)
class Improvement:
    """A new best plan: the number of proposals and the seconds of search before it, and the step's predicted seconds."""

    proposal: int
    elapsed: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Progress:
    """Report of a running search to its caller, now and then."""

    algorithm: str
    phase: str
    best: float
    elapsed: float
    proposals: int
    accepted: int

    @property
    def proposals_per_second(self) -> float:
        return self.proposals / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def acceptance(self) -> float:
        """Share of the proposals that were accepted."""
        return self.accepted / self.proposals if self.proposals else 0.0

    def __str__(self) -> str:
        return (
            f"{self.algorithm} {self.phase}: best {milliseconds(self.best)} ms, {self.proposals} proposals "
            f"({self.proposals_per_second:,.0f}/s, {self.acceptance:.0%} accepted), {self.elapsed:.1f} s"
        )


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """What a phase of a search took. ``best``: seconds of the best plan after it, None if there was none. ``barred``: why it did
    not run; empty if it did."""

    name: str
    seconds: float
    proposals: int
    best: float | None
    barred: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        return {
            "name": self.name, "seconds": self.seconds, "proposals": self.proposals, "best_seconds": self.best,
            "not_run": self.barred or None,
        }


@dataclass(frozen=True, slots=True)
class Proof:
    """Figures of an exact search. ``strategies``: the number of strategies in the space. ``renumberings``: the number of
    renumberings of the processors under which plans count as one. ``partial_plans``: looked at. ``pruned``: partial plans that
    were given up, by the bound's argument. ``simulated``: complete plans. ``tolerance``: no strategy is faster by more than
    this share. ``complete``: whether nothing was left undone."""

    strategies: int
    renumberings: int
    partial_plans: int
    pruned: Mapping[str, int]
    simulated: int
    tolerance: float
    complete: bool

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        return {**asdict(self), "pruned": dict(self.pruned)}


@dataclass(frozen=True, slots=True, repr=False)
class SearchResult:
    """The result of a search.

    - ``seconds``: predicted time of a step under ``strategy``.
    - ``starts``: the same for each strategy from which it started or that it had to beat, by name. ``lacking``: those of them
      that are known not to fit the memory.
    - ``lower_bound``: no plan that the default search may return for these options takes fewer seconds (0: not known).
    - ``optimal``: proved that none is faster. ``optimal_among``: the same was proved of some of these plans only, such as those
      with even pieces. ``proof``: figures of an exact search.
    - ``local``: no change of a single operator from the candidate list is faster.
    - ``refused``: the number of better plans that did not fit the memory.
    - ``stopped``: why it ended (``budget``, ``finished``, ``stalled``, ``interrupted``).
    - ``left_out``: what was not done, and why.
    - ``phases``: what each part of the search did (`taskflow.optimizer.phases`).
    - ``grid``: that of the plans in notation which were searched, with the prices found so far; None if none were.
    - ``best_of_grid``: what was found of it before any plan was changed.
    - ``fit``: plans in notation that fit, with their seconds: each was the best for a time.
    """

    strategy: Strategy
    seconds: float
    starts: Mapping[str, float]
    history: tuple[Improvement, ...]
    proposals: int
    accepted: int
    search_seconds: float
    seed: int
    algorithm: str
    stopped: str
    lower_bound: float = 0.0
    optimal: bool = False
    optimal_among: str = ""
    local: bool = False
    refused: int = 0
    proof: Proof | None = None
    left_out: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    phases: tuple[PhaseReport, ...] = ()
    grid: AnyGrid | None = field(default=None, repr=False, compare=False)
    best_of_grid: GridResult | None = field(default=None, repr=False, compare=False)
    fit: tuple[tuple[HybridPlan, float], ...] = field(default=(), repr=False, compare=False)

    @property
    def gap(self) -> float | None:
        """Share of the plan's time by which the lower bound is below it; None if there is no bound."""
        return 1 - self.lower_bound / self.seconds if self.lower_bound > 0 else None

    def speedup(self, start: str) -> float:
        """Return how many times faster the plan is than one of the starts."""
        return self.starts[start] / self.seconds

    def as_json(self) -> dict[str, Any]:
        """Return everything but the strategy, with units in the keys."""
        return {
            "algorithm": self.algorithm,
            "seed": self.seed,
            "iteration_seconds": self.seconds,
            "lower_bound_seconds": self.lower_bound or None,
            "gap": self.gap,
            "optimal": self.optimal,
            "optimal_among": self.optimal_among or None,
            "locally_optimal": self.local,
            "search_seconds": self.search_seconds,
            "proposals": self.proposals,
            "accepted": self.accepted,
            "refused_for_memory": self.refused,
            "stopped": self.stopped,
            "left_out": list(self.left_out),
            "proof": self.proof.as_json() if self.proof else None,
            "starts_iteration_seconds": dict(self.starts),
            "starts_lacking_memory": list(self.lacking),
            "phases": [phase.as_json() for phase in self.phases],
            "history": [
                {"proposal": h.proposal, "elapsed_seconds": h.elapsed, "iteration_seconds": h.seconds} for h in self.history
            ],
        }

    def __str__(self) -> str:
        gap = "" if self.gap is None or self.optimal else f"at most {self.gap:.0%} to gain"
        return sentence(
            f"{milliseconds(self.seconds)} ms a step",
            (
                *(f"{self.speedup(name):.2f}x {name}" for name in self.starts if name not in self.lacking),
                "optimal" if self.optimal else self._among, gap, *(f"{name} does not fit the memory" for name in self.lacking),
            ),
            (
                f"{self.algorithm}, seed {self.seed}, {self.proposals} proposals in {self.search_seconds:.1f} s, {self.stopped}",
                f"left out: {listed(self.left_out)}" if self.left_out else "",
            ),
        )

    @property
    def _among(self) -> str:
        if not self.optimal_among:
            return ""
        outside = any(config.weights or config.copies > 1 for config in self.strategy.configs.values())
        return f"none in {self.optimal_among} is faster" if outside else f"optimal among {self.optimal_among}"

    def __repr__(self) -> str:
        return f"{self.strategy!r}; {self}"

    def _repr_html_(self) -> str:
        return f"<div><div>{escape(str(self))}</div>{self.strategy._repr_html_()}</div>"
