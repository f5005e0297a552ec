"""CompiledChain: a Metropolis-Hastings walk whose proposals are drawn, evaluated and decided in C++ (`algorithms/mcmc.h`).

Python makes an operator's cuts when they are first drawn, checks whether new best plans fit the memory and keeps them, and
reads the clock every few milliseconds. Draws and decisions are the same as those of `mcmc` without a compiled core.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

from taskflow.mapper import OpConfig
from taskflow.optimizer.algorithms.splitmix import SplitMix
from taskflow.optimizer.budget import BudgetPart
from taskflow.optimizer.evaluate import NO_SYNCS, Evaluator
from taskflow.optimizer.session import SearchSession
from taskflow.optimizer.space import PLACEMENTS, CoupledMoves, OperatorSpace, SearchSpace, SpaceOptions

try:
    from taskflow.optimizer.evaluate._core import Walk
    from taskflow.optimizer.evaluate.compiled import CompiledEvaluator
except ImportError:  # not built: no compiler
    Walk = CompiledEvaluator = None  # type: ignore[assignment,misc]

ENDS = ("proposals", "time", "stalled", "missing", "better", "failed")  # as in algorithms/mcmc.h
MOST_CONFIGURATIONS = 1 << 62  # of an operator; drawn as one word
ENDLESS = 1 << 62  # proposals of a walk without a limit
UNWATCHED = 0.005  # seconds of a walk in C++ without a look at the clock


@dataclass(frozen=True, slots=True)
class Patience:
    """Rule by which a chain ends by itself: after ``least`` proposals, when more than ``most`` plus this ``fraction`` of
    all passed without a new best."""

    least: int = 0
    most: float = inf
    fraction: float = 0.0

    def expired(self, count: int, found: int) -> bool:
        """True if the chain ends after ``count`` proposals, of which number ``found`` brought the best."""
        return count >= self.least and count - found > self.most + self.fraction * count


@dataclass(slots=True)
class Chain:
    """Markov chain in progress. ``scale``: seconds, cost / beta. ``timed``: whether it also ends when half of its part's time
    passed without a new best. ``best``: seconds of its best plan, from proposal ``found``, when ``since`` (0 to 1) of the
    part's time had passed."""

    part: BudgetPart
    random: SplitMix
    scale: float
    patience: Patience
    timed: bool
    best: float
    since: float = 0.0
    count: int = 0
    found: int = 0

    @property
    def stalled(self) -> bool:
        """True if the chain ends by itself, given that the last proposal brought no new best."""
        return self.patience.expired(self.count, self.found) or (self.timed and self.part.time - self.since > 0.5)


def core_walk(evaluator: Evaluator, moves: CoupledMoves) -> CompiledChain | None:
    """Return a walk in C++ that makes these moves. None if there is no compiled core, a space is too large for it, or followers
    may have to be repaired (which `SearchSession` does)."""
    if CompiledEvaluator is None or type(evaluator) is not CompiledEvaluator:
        return None
    if any(space.size > MOST_CONFIGURATIONS for space in moves.spaces) or moves.repaired:
        return None
    return CompiledChain(evaluator, moves)


def walks(evaluator: Evaluator, options: SpaceOptions) -> tuple[SearchSpace, CoupledMoves, CompiledChain | None]:
    """Return the space, its moves and a walk in C++ (None: as `core_walk`); made once for an evaluator, so that tables are
    kept."""
    if options not in evaluator.walks:
        space = SearchSpace(evaluator.graph, len(evaluator.machine.processors), options)
        moves = CoupledMoves(evaluator.graph, space)
        evaluator.walks[options] = space, moves, core_walk(evaluator, moves)
    found: tuple[SearchSpace, CoupledMoves, CompiledChain | None] = evaluator.walks[options]
    return found


class CompiledChain:
    """Tables of the walks over one space from an evaluator's current plan; they grow from walk to walk."""

    def __init__(self, evaluator: CompiledEvaluator, moves: CoupledMoves) -> None:
        self._evaluator, self._moves = evaluator, moves
        self._accepted = 0  # of the present chain, as far as the run has been told
        self._walk = Walk(evaluator._core)
        choices: dict[int, int] = {}
        self._kinds: list[tuple[object, ...]] = []  # by leader; those of one kind have the same cuts and places, row by row
        self._rows: dict[tuple[object, ...], list[tuple[int, list[int]]]] = {}  # of a kind's row: cuts and places
        for leader, space in enumerate(moves.spaces):
            if id(space) not in choices:
                choices[id(space)] = self._choices(space)
            self._walk.add_leader(choices[id(space)])
            alike = tuple([evaluator.alike(name) for name in moves.members(leader)])
            self._kinds.append((choices[id(space)], alike, moves.shape(leader)))

    def _choices(self, space: OperatorSpace) -> int:
        pin = space.permitted.pin if space.permitted is not None else None
        return self._walk.add_choices(
            PLACEMENTS.index(space.options.placements), space.processors, space.tuples, space.ends,
            list(space.devices), list(pin.processors) if pin is not None else [],
        )

    def processors(self, leader: int, number: int) -> tuple[int, ...]:
        """Return the processors of a configuration's pieces, as the core numbers them."""
        return tuple(self._walk.processors(leader, number))

    def chain(self, run: SearchSession, chain: Chain) -> str | None:
        """Run one chain from the session's current plan; return why it ended. None if `SearchSession.admission` has to be asked
        about each proposal, which only Python can do."""
        patience, walk = chain.patience, self._walk
        walk.begin(chain.random.state, run.seconds, chain.scale, patience.least, patience.most, patience.fraction)
        self._accepted = 0
        try:
            while not run.admission.counts:
                if chain.part.expired:
                    return "budget"
                found = chain.found
                left = min(chain.part.proposals, run.options.budget.proposals - run.proposals + chain.count)
                try:
                    end = ENDS[walk.run(run.best_seconds, ceil(left) if left < ENDLESS else ENDLESS, UNWATCHED)]
                finally:
                    self._count(run, chain)
                if end == "missing":
                    self._fill()
                if end == "better":
                    self._decide(run)
                    self._count(run, chain)
                if chain.found != found:
                    chain.since = chain.part.time
                if end == "stalled" or chain.stalled:
                    return "stalled"
            return None
        finally:
            chain.random.state = walk.state
            self._settle()

    def _count(self, run: SearchSession, chain: Chain) -> None:
        """Tell the session and the chain what has become of them."""
        before = chain.count
        seconds, chain.best, chain.count, chain.found, accepted = self._walk.chain
        self._evaluator.proposals += chain.count - before
        run.walked(chain.count - before, accepted - self._accepted, seconds)
        self._accepted = accepted

    def _settle(self) -> None:
        """Bring the evaluator's configurations up to what was accepted."""
        changes: dict[str, OpConfig] = {}
        for leader, number in self._walk.settle():
            changes |= self._moves.numbered(leader, number)
        if changes:
            self._evaluator.moved(changes, self._walk.chain[0])

    def _decide(self, run: SearchSession) -> None:
        """Decide whether the last proposal, which is better than all plans before, is accepted."""
        leader, _, number, seconds = self._walk.proposal
        self._settle()
        changes = self._moves.numbered(leader, number)
        self._evaluator.hold(changes, seconds)
        if run.decide(changes, NO_SYNCS, seconds):
            self._walk.take()
            self._accepted += 1

    def _fill(self) -> None:
        """Make the cuts of the configuration that was drawn last."""
        leader, row, number, _ = self._walk.proposal
        changes = self._moves.numbered(leader, number)
        key = (self._kinds[leader], row)
        if key not in self._rows:
            cuts = {name: self._evaluator.cut_of(name, config) for name, config in changes.items()}
            self._rows[key] = [(cuts[name], places) for name, places in self._moves.places(leader, changes)]
        for name, (cut, places) in zip(self._moves.members(leader), self._rows[key]):
            self._walk.add_member(leader, row, self._evaluator.number(name), cut, places)
