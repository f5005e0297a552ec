"""The paper's search (sections 6.1 and 6.2): Metropolis-Hastings over strategies, one random operator at a time.

The compiled twin is optimizer/algorithms/mcmc.h; tests/optimizer/algorithms/test_walk.py holds them equal.
"""

from __future__ import annotations

from taskflow.mapper import Strategy
from taskflow.optimizer.algorithms.initial import known, random_start
from taskflow.optimizer.algorithms.mcmc_compiled import Chain, CompiledChain, Patience, walks
from taskflow.optimizer.algorithms.splitmix import SplitMix, acceptance_limit
from taskflow.optimizer.budget import BudgetPart
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.result import SearchResult
from taskflow.optimizer.session import SearchSession
from taskflow.optimizer.space import CoupledMoves

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
    space, moves, compiled = walks(evaluator, options.space)
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
            _walk(run, start, moves, compiled, random, beta, BudgetPart(run, 1 / (len(starts) - i)), patient)
            for i, start in enumerate(starts)
        ]
        return reasons[-1]

    return run.conduct(body)


def _walk(
    run: SearchSession, start: Strategy, moves: CoupledMoves, compiled: CompiledChain | None, random: SplitMix, beta: float,
    part: BudgetPart, patient: bool,
) -> str:
    """One Markov chain; why it ended."""
    run.enter(start.name)
    if not run.try_set(start):
        return "budget"
    patience = Patience(most=0.5 * part.proposals) if patient else Patience(len(moves), 0.0, 0.5)
    chain = Chain(part, random, run.seconds / beta, patience, patient, run.seconds, part.time)
    ended = compiled.chain(run, chain) if compiled is not None else None
    return ended or _chain(run, moves, chain)


def _chain(run: SearchSession, moves: CoupledMoves, chain: Chain) -> str:
    """Run what `CompiledChain.chain` runs, proposal by proposal."""
    while not chain.part.expired:
        changes = moves.draw(chain.random)
        limit = acceptance_limit(run.seconds, chain.scale, chain.random)
        run.propose(changes, limit)
        chain.count += 1
        if run.seconds < chain.best:
            chain.best, chain.found, chain.since = run.seconds, chain.count, chain.part.time
        elif chain.stalled:
            return "stalled"
    return "budget"
