"""OptCNN's search: dynamic programming over an additive cost (paper, section 8.2.3;
`taskflow.optimizer.algorithms.elimination`).

The cost of a plan is the sum of each operator's time, of the transfers between each pair of operators, and of each layer's
synchronisation, as if nothing overlapped (`taskflow.optimizer.traffic.additive`). As in the paper's comparison, the steps of a
recurrent layer are decided about together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig, Strategy, depths, follow
from taskflow.optimizer.algorithms.elimination import eliminate
from taskflow.optimizer.algorithms.initial import known, with_syncs
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.result import SearchResult
from taskflow.optimizer.session import SearchSession
from taskflow.optimizer.space import OperatorSpace, SearchSpace, SpaceOptions
from taskflow.optimizer.traffic import Additive

MOST_PAIRED = 256  # between all pairs of which routes and messages are added up


def optcnn(evaluator: Evaluator, options: SearchOptions | None = None) -> SearchResult:
    """Return the plan with the least additive cost, judged by the evaluator. It makes no proposals. If the budget's seconds do
    not suffice, it returns the best of the known strategies. Raises ValueError if the costs are only known for whole tasks."""
    options = options or SearchOptions()
    run = SearchSession("optcnn", evaluator, options)

    def body() -> str:
        run.enter("elimination")
        try:
            plan = additive_plan(evaluator, options.space, lambda: run.expired)
        except TimeoutError as error:
            run.leave_out(str(error))
            if run.best is None:
                run.set(known(evaluator.graph, evaluator.machine)[0], start=True)
            return "budget"
        run.try_set(plan)
        return "finished"

    return run.conduct(body)


def additive_plan(
    evaluator: Evaluator, options: SpaceOptions | None = None, over: Callable[[], bool] | None = None
) -> Strategy:
    """Return the strategy with the least additive cost among `choices`, with the default synchronisation. Raises TimeoutError
    if ``over`` says that the time has ended; also, if ``over`` may say so at all, on more than MOST_PAIRED."""
    if over is not None and len(evaluator.machine.processors) > MOST_PAIRED:
        raise TimeoutError(f"dynamic programming (more than {MOST_PAIRED} processors)")
    try:
        cost = additive(evaluator, options or SpaceOptions(), over or (lambda: False))
    except TypeError as error:
        raise ValueError(f"optcnn: needs costs of pieces, not only of whole tasks ({error})") from error
    return planned(evaluator, cost, eliminate(cost.vertices, cost.edges).chosen)


def additive(evaluator: Evaluator, options: SpaceOptions, over: Callable[[], bool] = lambda: False) -> Additive:
    """Return the additive cost of the `choices` of operators that are `fused`. Raises TypeError if the evaluator's costs are
    only known for whole tasks, TimeoutError if ``over`` returns true meanwhile."""
    n = len(evaluator.machine.processors)
    most = 64 if n <= 8 else 32 if n <= 16 else 16
    groups, space = fused(evaluator.graph), SearchSpace(evaluator.graph, n, options)
    listed: dict[int, list[OpConfig]] = {}  # of operators that share a space, one list
    for group in groups:
        if id(space[group[0]]) not in listed:
            listed[id(space[group[0]])] = choices(space[group[0]], most)
    return Additive(evaluator, groups, [listed[id(space[group[0]])] for group in groups], over)


def planned(evaluator: Evaluator, cost: Additive, chosen: Sequence[int]) -> Strategy:
    """Return the plan that follows from a choice for every group, with the default synchronisation."""
    configs = {}
    for group, listed, choice in zip(cost.groups, cost.configs, chosen):
        for node in group:
            configs[node.name] = follow(group[0], listed[choice], node)
    graph, machine = evaluator.graph, evaluator.machine
    plain = Strategy(len(machine.processors), {node.name: configs[node.name] for node in graph}, {}, "optcnn")
    return with_syncs(plain, graph, machine)


def fused(graph: OperatorGraph) -> list[list[Node]]:
    """Return groups of operators that are decided about together: those that share weights, and in a network with such ones
    also the equal operators of one depth between them."""
    shares = len({n.parameters[0].name for n in graph if n.parameters}) < sum(bool(n.parameters) for n in graph)
    depth = depths(graph)
    groups: dict[object, list[Node]] = {}
    for node in graph:
        key: object = node.name
        if node.parameters:
            key = node.parameters[0].name
        elif shares:
            key = (node.operator, node.specs, depth[node.name])
        groups.setdefault(key, []).append(node)
    return list(groups.values())


def choices(space: OperatorSpace, most: int) -> list[OpConfig]:
    """Return at most ``most`` configurations on the first processors, contiguous: those with the most pieces first, powers of
    two and even divisions before others."""
    tuples = sorted(
        space.tuples, key=lambda t: (-(prod(t) & -prod(t)), any(d.size % k for d, k in zip(space.dims, t)), -prod(t), t)
    )
    whole = tuple(1 for _ in space.dims)
    kept = [t for t in tuples if t != whole][: most - 1]
    return list(dict.fromkeys(space.at(t) for t in [*kept, whole]))  # a pinned operator has one
