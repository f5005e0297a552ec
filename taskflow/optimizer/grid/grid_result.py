"""What a search of the grid has found, and how long its simulations took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, nan
from typing import Any

from taskflow.mapper import HybridPlan, Strategy
from taskflow.optimizer.grid.priced import PricedPlan
from taskflow.optimizer.result import Improvement

SECONDS_A_PIECE = 1e-3
"""That a piece takes to be lowered and simulated, before any has been: about four tasks, of which a million takes a minute and
more."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that simulations took, and the pieces that were lowered for them (`PlanTrial.work`): before the first one, an
    estimate. A plan of many pieces tells more of others of many than one of few, most of whose seconds are not of its pieces."""

    pieces: float = 0.0
    seconds: float = 0.0

    @property
    def of_a_piece(self) -> float:
        """Seconds that a piece is expected to take."""
        return self.seconds / self.pieces if self.pieces else SECONDS_A_PIECE

    def after(self, pieces: float, seconds: float) -> Pace:
        """Return the pace with another simulation."""
        return Pace(self.pieces + pieces, self.seconds + seconds)


@dataclass(frozen=True, slots=True)
class GridResult:
    """Result of a search of the grid. ``best``: the fastest plan that was simulated and fits the memory; None if there is none.
    ``plans``: their number. ``fitting``: how many were found to fit in closed form, in the time that there was. ``simulated``:
    price and simulated seconds of each simulated plan. ``refused``: how many of these did not fit after all. ``left_out``: why
    others were not simulated. ``pace``: how long simulation took. ``history``: when each plan became the best.
    ``spare``: bytes that the best one leaves of the memory. ``late``: plans for which there was no time, the best price first.
    ``tried``: plans that were begun to be simulated. ``fit``: plans that fit, with their seconds: each was the best for a time."""

    best: HybridPlan | None
    strategy: Strategy | None
    seconds: float
    plans: int
    fitting: int
    simulated: tuple[tuple[float, float], ...]
    refused: int
    left_out: tuple[str, ...]
    search_seconds: float
    pace: Pace = Pace()
    history: tuple[Improvement, ...] = ()
    spare: float = inf
    late: tuple[PricedPlan, ...] = ()
    tried: frozenset[HybridPlan] = frozenset()
    fit: tuple[tuple[HybridPlan, float], ...] = ()

    @property
    def tau(self) -> float:
        """Kendall's rank correlation of price and simulation; NaN for fewer than three plans."""
        return kendall(self.simulated)

    def __str__(self) -> str:
        fit = max(self.fitting, len(self.simulated) - self.refused)  # one may be simulated before others are priced
        counts = f"{self.plans:,} plans, {fit:,} known to fit, {len(self.simulated)} simulated"
        return counts if self.tau != self.tau else f"{counts}, tau {self.tau:.2f}"

    def as_json(self) -> dict[str, Any]:
        """Return everything but the strategy as a JSON value."""
        return {
            "plan": str(self.best) if self.best is not None else None,
            "iteration_seconds": self.seconds if self.best is not None else None,
            "plans": self.plans, "fitting": self.fitting, "simulated": len(self.simulated), "refused_for_memory": self.refused,
            "tau": None if self.tau != self.tau else self.tau, "left_out": list(self.left_out),
            "search_seconds": self.search_seconds,
        }


def kendall(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Kendall's rank correlation (tau a) of pairs of numbers; NaN for fewer than three pairs."""
    signs = [(a[0] - b[0]) * (a[1] - b[1]) for a, b in combinations(pairs, 2)]
    return sum((s > 0) - (s < 0) for s in signs) / len(signs) if len(pairs) > 2 else nan
