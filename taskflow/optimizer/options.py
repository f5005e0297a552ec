"""SearchOptions: the arguments of every search algorithm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from taskflow.mapper import Strategy
from taskflow.optimizer.budget import TEN_SECONDS, Budget, Deadline, SharedIncumbent
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.result import Progress, SearchResult
from taskflow.optimizer.space import SpaceOptions


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Arguments of every search algorithm.

    ``starts``: where to start, instead of the search's own choice. ``rivals``: strategies that the result must not be slower
    than (they may be outside the space). ``lacks``: a function that says what memory a strategy lacks (empty: it fits).
    ``progress``: called about every ``progress_every`` seconds. ``tolerance``: exact search may skip plans that are not faster
    than its own by more than this share. ``incumbent``: the best plan that the workers of a portfolio share. ``deadline``: of
    the budget's seconds (by default counted from the beginning of this search). ``bound``: a function that returns a lower
    bound; its argument says whether its share of the time is over. ``answered``: another search already has a plan, so that
    this one ends on time even if it has found none.
    """

    budget: Budget = TEN_SECONDS
    seed: int = 0
    space: SpaceOptions = field(default_factory=SpaceOptions)
    starts: tuple[Strategy, ...] = ()
    rivals: tuple[Strategy, ...] = ()
    lacks: Callable[[Strategy], str] | None = None
    progress: Callable[[Progress], None] | None = None
    progress_every: float = 0.5
    tolerance: float = 0.0
    incumbent: SharedIncumbent | None = None
    deadline: Deadline | None = None
    bound: Callable[[Callable[[], bool]], float] | None = None
    answered: bool = False


Searcher = Callable[[Evaluator, SearchOptions], SearchResult]
