"""SearchOptions: what every search takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from taskflow.mapper import Strategy
from taskflow.optimizer.budget import TEN_SECONDS, Budget, Deadline, SharedIncumbent
from taskflow.optimizer.result import Progress
from taskflow.optimizer.space import SpaceOptions


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """What every search takes.

    ``starts``: where to start, instead of the search's own choice. ``rivals``: strategies that the result must not be
    slower than (they may be outside the space). ``fits``: given a strategy, what memory it lacks (empty: it fits).
    ``progress``: called about every ``progress_every`` seconds. ``tolerance``: exact search may leave undone what is not
    faster than its plan by more than this share. ``incumbent``: what the workers of a portfolio share.
    ``deadline``: of the budget's seconds (by default counted from the search's own beginning). ``bound``: asked for a lower
    bound, told how to ask whether its share of the time is over. ``answered``: there is a plan already, so that the search
    ends with the time even if it has found none.
    """

    budget: Budget = TEN_SECONDS
    seed: int = 0
    space: SpaceOptions = field(default_factory=SpaceOptions)
    starts: tuple[Strategy, ...] = ()
    rivals: tuple[Strategy, ...] = ()
    fits: Callable[[Strategy], str] | None = None
    progress: Callable[[Progress], None] | None = None
    progress_every: float = 0.5
    tolerance: float = 0.0
    incumbent: SharedIncumbent | None = None
    deadline: Deadline | None = None
    bound: Callable[[Callable[[], bool]], float] | None = None
    answered: bool = False
