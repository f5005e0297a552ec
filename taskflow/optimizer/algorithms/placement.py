"""Placement only: every operator whole on one processor (the paper's operation dimension; the space that ColocRL, Mirhoseini
et al., "Device Placement Optimization with Reinforcement Learning", ICML 2017, searches)."""

from __future__ import annotations

from dataclasses import replace

from taskflow.mapper import ModelParallel, OpConfig, Strategy, map_graph
from taskflow.optimizer.algorithms.guided import guided
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.result import SearchOptions, SearchResult
from taskflow.optimizer.run import NothingFits, Run


def placement(evaluator: Evaluator, options: SearchOptions | None = None) -> SearchResult:
    """The best placement, by the default search's moves within this space, from model parallelism and from a single
    processor. The rivals may be outside the space; if one of them is faster, it is what is returned."""
    options = options or SearchOptions()
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
    except NothingFits:  # a rival may, which need not be in the space
        found = Run("placement", evaluator, replace(options, bound=None)).conduct(lambda: "finished")
    if found.strategy.name == "guided":
        found = replace(found, strategy=replace(found.strategy, name="placement"))
    found = replace(found, algorithm="placement")
    return against(found, evaluator, options)


def against(found: SearchResult, evaluator: Evaluator, options: SearchOptions) -> SearchResult:
    """The result, or the fastest rival that fits, if that is faster."""
    starts = dict(found.starts)
    for rival in options.rivals:
        rival = options.space.constraints.mend(rival, evaluator.graph)
        seconds = starts[rival.name] = evaluator.set(rival)
        if seconds < found.seconds and not (options.fits and options.fits(rival)):
            found = replace(found, strategy=rival, seconds=seconds, local=False, optimal=False)
    return replace(found, starts=starts)
