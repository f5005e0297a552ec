"""The paper's search (sections 6.1 and 6.2): Metropolis-Hastings over strategies, one random operator at a time."""

from __future__ import annotations

from taskflow.mapper import Strategy
from taskflow.optimizer.algorithms.initial import known, random_start
from taskflow.optimizer.algorithms.splitmix import SplitMix, acceptance_limit
from taskflow.optimizer.budget import BudgetPart
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.result import SearchResult
from taskflow.optimizer.session import SearchSession
from taskflow.optimizer.space import CoupledMoves, SearchSpace

BETA = 100.0  # a strategy slower by 1 % of the starting time is accepted with probability 1/e


def mcmc(
    evaluator: Evaluator, options: SearchOptions | None = None, *, beta: float = BETA, randoms: int = 1,
    patient: bool = True,
) -> SearchResult:
    """Run Metropolis-Hastings with p(S) ~ exp(-beta cost(S) / cost of the start): the paper's beta, made independent of the
    network's size.

    Starts (paper, 6.2) are data parallel, expert and ``randoms`` random strategies, or ``options.starts``. Each gets an equal
    share of what is left of the budget. Its chain ends when that is spent, or when half of it passed without a new best. If not
    ``patient``, it ends as soon as half of its proposals so far passed without one (and each operator could have been drawn
    once), which needs no budget. Raises ValueError if the budget is endless and it is patient.
    """
    options = options or SearchOptions()
    if patient and not options.budget.finite:
        raise ValueError("mcmc: needs a budget in seconds or proposals")
    if beta <= 0:
        raise ValueError(f"mcmc: beta must be more than 0, got {beta}")
    run, random = SearchSession("mcmc", evaluator, options), SplitMix(f"mcmc {options.seed}")
    space = SearchSpace(evaluator.graph, len(evaluator.machine.processors), options.space)
    moves = CoupledMoves(evaluator.graph, space)
    rivals = {strategy.name for strategy in options.rivals}
    starts = list(options.starts)
    if not starts:
        starts = [*known(evaluator.graph, evaluator.machine)[:2]]
        for i in range(randoms):
            starts.append(random_start(evaluator.graph, evaluator.machine, space, random, f"random {i}"))

    def body() -> str:
        # All starts count from the beginning, also those that the budget does not reach.
        for start in starts:
            if start.name not in rivals:
                run.try_set(start, start=True)
        reasons = [
            _walk(run, start, moves, random, beta, BudgetPart(run, 1 / (len(starts) - i)), patient)
            for i, start in enumerate(starts)
        ]
        return reasons[-1]

    return run.conduct(body)


def _walk(
    run: SearchSession, start: Strategy, moves: CoupledMoves, random: SplitMix, beta: float, part: BudgetPart, patient: bool
) -> str:
    """One Markov chain; why it ended."""
    run.enter(start.name)
    if not run.try_set(start):
        return "budget"
    scale, best, half = run.seconds / beta, run.seconds, 0.5 * part.proposals
    count = found = 0  # proposals of this chain, and which of them brought its best plan
    since = 0.0  # when that was, as a share of the part's time
    while not part.expired:
        changes = moves.draw(random)
        run.propose(changes, acceptance_limit(run.seconds, scale, random))
        count += 1
        if run.seconds < best:
            best, found, since = run.seconds, count, part.time
        elif patient:
            if count - found > half or part.time - since > 0.5:
                return "stalled"
        elif count >= len(moves) and count - found > 0.5 * count:
            return "stalled"
    return "budget"
