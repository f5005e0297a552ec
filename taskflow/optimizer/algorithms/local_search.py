"""Local search: descent until no change of a single operator makes a plan faster (the paper's local optimum, section 8.4).

The default search's own descent tries a list of likely configurations; this one tries every configuration of the space.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import nextafter

from taskflow.mapper import OpConfig
from taskflow.optimizer.budget import BudgetExhausted
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.result import SearchResult
from taskflow.optimizer.session import SearchSession
from taskflow.optimizer.space import SearchSpace

MayBeEven = Callable[[Mapping[str, OpConfig]], bool]


def _never(changes: Mapping[str, OpConfig]) -> bool:
    return False


def polish(run: SearchSession, space: SearchSpace, may_be_even: MayBeEven = _never) -> None:
    """Descend from the best plan of ``run``. Afterwards ``run.local`` says that no change of a single operator within ``space``
    is faster. ``may_be_even``: on unequal devices, which changes are also tried in even pieces. Raises `BudgetExhausted` when
    the budget ends first; the result then says how many operators were not tried."""
    try:
        _polish(run, space, may_be_even)
    except BudgetExhausted:
        run.leave_out(f"single changes of {run.unpolished} of {len(run.evaluator.graph)} operators (no time)")
        raise


def _polish(run: SearchSession, space: SearchSpace, may_be_even: MayBeEven) -> None:
    assert run.best is not None
    run.enter("polish")
    if run.strategy is not run.best:
        run.set(run.best)
    nodes = [node for node in run.evaluator.graph if not node.of_weights]
    at = unchanged = 0
    while unchanged < len(nodes):
        run.unpolished = len(nodes) - unchanged
        node = nodes[at]
        improved = False
        for config in space[node]:
            if config != run.strategy[node.name]:
                improved |= run.propose({node.name: config}, nextafter(run.seconds, 0.0))
                if may_be_even({node.name: config}):
                    improved |= run.propose({node.name: config}, nextafter(run.seconds, 0.0), even=True)
        # After an improvement the same operator has been tried only in part against the new plan.
        unchanged = 0 if improved else unchanged + 1
        at = at if improved else (at + 1) % len(nodes)
    run.local = True


def polished(evaluator: Evaluator, found: SearchResult, options: SearchOptions | None = None) -> SearchResult:
    """Return a search's result with its plan polished, within ``options.budget``, which is separate from the search's.
    ``SearchResult.local``: whether the descent was completed. ``SearchResult.stopped``: why it ended."""
    options = options or SearchOptions()
    run = SearchSession(found.algorithm, evaluator, replace(options, rivals=(found.strategy,)))
    space = SearchSpace(evaluator.graph, len(evaluator.machine.processors), options.space)

    def body() -> str:
        polish(run, space)
        return "finished"

    result = run.conduct(body)
    history = [
        replace(h, proposal=h.proposal + found.proposals, elapsed=h.elapsed + found.search_seconds)
        for h in result.history if h.seconds < found.seconds
    ]
    return replace(
        result, starts=found.starts, lacking=found.lacking, history=(*found.history, *history),
        proposals=result.proposals + found.proposals, accepted=result.accepted + found.accepted,
        refused=result.refused + found.refused, search_seconds=result.search_seconds + found.search_seconds, seed=found.seed,
        lower_bound=min(found.lower_bound, result.seconds),
    )
