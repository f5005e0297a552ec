"""The paper's search (sections 6.1 and 6.2): Metropolis-Hastings over strategies, one random operator at a time."""

from __future__ import annotations

from math import log
from random import Random

from taskflow.mapper import Strategy
from taskflow.optimizer.evaluator import Evaluator
from taskflow.optimizer.found import Found, SearchOptions
from taskflow.optimizer.run import Run, Slice
from taskflow.optimizer.space import Space
from taskflow.optimizer.starts import known, random_start
from taskflow.optimizer.together import Together

BETA = 100.0  # a strategy slower by 1 % of the starting time is accepted with probability 1/e


def mcmc(
    evaluator: Evaluator, options: SearchOptions | None = None, *, beta: float = BETA, randoms: int = 1,
    patient: bool = True,
) -> Found:
    """Metropolis-Hastings with p(S) ~ exp(-beta cost(S) / cost of the start): the paper's beta, made independent of the
    network's size.

    Starts (paper, 6.2): data parallel, expert and ``randoms`` random strategies, or ``options.starts``; each gets an equal
    share of what is left of the budget and ends when that is spent, or when half of it went by without a better
    strategy than its best. Not ``patient``: it ends as soon as half of its proposals so far went by without one (and each
    operator could have been drawn once), which needs no budget. ValueError if the budget is endless and it is patient.
    """
    options = options or SearchOptions()
    if patient and not options.budget.finite:
        raise ValueError("mcmc: needs a budget in seconds or proposals")
    if beta <= 0:
        raise ValueError(f"mcmc: beta must be more than 0, got {beta}")
    run, random = Run("mcmc", evaluator, options), Random(f"mcmc {options.seed}")
    space = Space(evaluator.graph, len(evaluator.machine.processors), options.space)
    moves = Together(evaluator.graph, space)
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
            _walk(run, start, moves, random, beta, Slice(run, 1 / (len(starts) - i)), patient) for i, start in enumerate(starts)
        ]
        return reasons[-1]

    return run.conduct(body)


def _walk(
    run: Run, start: Strategy, moves: Together, random: Random, beta: float, part: Slice, patient: bool
) -> str:
    """One Markov chain; why it ended."""
    run.enter(start.name)
    if not run.try_set(start):
        return "budget"
    scale = run.seconds / beta
    best, since, count, found = run.seconds, 0.0, 0, 0
    while not part.over:
        changes = moves.draw(random)
        # Accept if u <= exp((cost - cost*) / scale), with u drawn first: then simulation may stop beyond the limit.
        limit = run.seconds - scale * log(1.0 - random.random())
        run.propose(changes, limit)
        count += 1
        if run.seconds < best:
            best, since, found = run.seconds, part.used, count
        elif part.used - since > 0.5 if patient else count >= len(moves) and count - found > count / 2:
            return "stalled"
    return "budget"
