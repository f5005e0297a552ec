"""Placement only: every operator whole on one processor (the paper's operation dimension; the space that ColocRL, Mirhoseini
et al., "Device Placement Optimization with Reinforcement Learning", ICML 2017, searches)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from taskflow.mapper import ModelParallel, OpConfig, Strategy, map_graph
from taskflow.optimizer.algorithms.guided import guided
from taskflow.optimizer.budget import Deadline
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.result import SearchResult
from taskflow.optimizer.session import NothingFits, SearchSession


def placement(evaluator: Evaluator, options: SearchOptions | None = None) -> SearchResult:
    """Return the best placement, found by the default search's moves within this space, from model parallelism and from a
    single processor. The rivals, which are evaluated first, may be outside the space; if one of them is faster, it is returned."""
    options = options or SearchOptions()
    options = replace(options, deadline=options.deadline or Deadline(options.budget.seconds))
    assert options.deadline is not None
    outside = SearchSession("placement", evaluator, replace(options, bound=None))
    known: SearchResult | None = None
    if options.rivals:
        with suppress(NothingFits):
            known = outside.conduct(lambda: "finished")
    if known is not None and options.deadline.expired:
        return known
    graph, machine = evaluator.graph, evaluator.machine
    whole = {node.name: OpConfig((1,) * len(node.dims), (0,)) for node in graph}
    starts = (
        map_graph(ModelParallel(), graph, machine), Strategy(len(machine.processors), whole, {}, "one processor"),
    )
    inside = replace(
        options, rivals=(), starts=starts, space=replace(options.space, most_pieces=1, placements="arbitrary")
    )
    try:
        found = guided(evaluator, inside)
    except NothingFits:
        if known is None:
            raise
        return known
    name = "placement" if found.strategy.name == "guided" else found.strategy.name
    found = replace(
        found, algorithm="placement", strategy=replace(found.strategy, name=name), starts={**found.starts, **outside.starts},
        lacking=(*found.lacking, *outside.lacking),
    )
    if known is not None and known.seconds < found.seconds:
        found = replace(found, strategy=known.strategy, seconds=known.seconds, local=False, optimal=False)
    return found
