"""Choice of an evaluator: the compiled one where it is built and can do what is asked, else Python's."""

from __future__ import annotations

from collections.abc import Callable
from warnings import warn

from taskflow.graph import OperatorGraph
from taskflow.kernels import REBUILD
from taskflow.machine import Cluster, Machine
from taskflow.optimizer.cost import (
    ANALYTIC,
    AnalyticCosts,
    CostModel,
    Costs,
    FromTasks,
    ModelCosts,
    Roofline,
    choose_costs,
)
from taskflow.optimizer.evaluate.core_model import MOST_PROCESSORS, unsupported
from taskflow.optimizer.evaluate.evaluator import ALGORITHMS, Evaluator, PythonEvaluator
from taskflow.optimizer.evaluate.ordered import OrderedEvaluator
from taskflow.rules import SGD, UpdateRule

DEFAULT_RULE = SGD(lr=0.1, momentum=0.9)


def evaluator(
    graph: OperatorGraph,
    machine: Machine,
    costs: Costs | Callable[..., float],
    rule: UpdateRule | None,
    clip_norm: float | None = None,
    algorithm: str = "auto",
) -> Evaluator:
    """Return the fastest evaluator for these arguments; all return the same seconds, bit for bit. It has no default costs:
    `make_evaluator` has them for all callers, so that a plan has the same time everywhere.

    ``costs``: a plain function of tasks works with the reference evaluator only. ``rule``: without one, steps are forward only.
    ``algorithm``: ``full`` simulates all of each proposal's step (paper, Algorithm 1); ``delta`` propagates changes from task
    to task of the current strategy's step (Algorithm 2), and is slower; ``auto`` is the faster one (``full``).
    """
    if algorithm == "propagate":
        told = "evaluator: algorithm propagate is now called delta; the old name goes with version 0.3"
        warn(told, DeprecationWarning, stacklevel=2)
        algorithm = "delta"
    if algorithm not in ALGORITHMS:
        raise ValueError(f"evaluator: algorithm must be one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
    if not isinstance(costs, Costs):
        costs = FromTasks(costs)
    try:
        from taskflow.optimizer.evaluate.compiled import CompiledEvaluator
    except ImportError as error:
        told = f"the compiled evaluator is missing ({error}): searches and simulations take many times longer; {REBUILD}"
        warn(told, RuntimeWarning, stacklevel=2)
        return PythonEvaluator(graph, machine, costs, rule, clip_norm)
    if len(machine.processors) > MOST_PROCESSORS and not isinstance(costs, FromTasks):
        return OrderedEvaluator(graph, machine, costs, rule, clip_norm)  # of large plans only what differs is lowered
    if costs.by_plan or unsupported(graph, machine, costs, rule):
        return PythonEvaluator(graph, machine, costs, rule, clip_norm)
    return CompiledEvaluator(graph, machine, costs, rule, clip_norm, "full" if algorithm == "auto" else algorithm)


def make_evaluator(
    graph: OperatorGraph,
    machine: Machine,
    *,
    costs: Costs | CostModel | str | None = None,
    rule: UpdateRule | None = DEFAULT_RULE,
    clip_norm: float | None = None,
    algorithm: str = "auto",
) -> Evaluator:
    """Return the evaluator that `search` uses, with the given or named costs (`choose_costs`). By default they are analytic for
    a described machine, and the machine's roofline for any other. Raises ValueError for arguments of other types."""
    if not isinstance(graph, OperatorGraph) or not len(graph):
        got = "one without operators" if isinstance(graph, OperatorGraph) else type(graph).__name__
        raise ValueError(f"search: graph must be an OperatorGraph, such as taskflow.models.build('mlp'), got {got}")
    if not hasattr(machine, "processors"):
        raise ValueError(f"search: machine must be a machine, such as taskflow.load_machine('p100'), got {machine!r}")
    if not isinstance(rule, (UpdateRule, type(None))):
        raise ValueError(f"search: rule must be an update rule, such as taskflow.Adam(), or None, got {rule!r}")
    if isinstance(costs, str) and costs != ANALYTIC:
        costs = choose_costs(costs, graph, machine, rule)
    if costs is None or isinstance(costs, str):
        costs = AnalyticCosts(machine) if isinstance(machine, Cluster) else Roofline(machine)
    if not isinstance(costs, Costs):
        if not isinstance(machine, Cluster):
            raise ValueError(f"search: {costs.name} needs a described machine (taskflow.machine.Cluster)")
        costs = ModelCosts(costs, graph, machine, rule)
    return evaluator(graph, machine, costs, rule, clip_norm, algorithm)


def with_products(of: Evaluator, products: str) -> Evaluator:
    """Return an evaluator like ``of`` with which every plan has such products (`HybridPlan.products`), closed forms and bounds
    included. Raises ValueError unless its costs are analytic ones of a described machine."""
    if not isinstance(of.costs, ModelCosts):
        got = type(of.costs).__name__
        raise ValueError(f"search: products={products} needs a described machine with analytic costs, got {got}")
    costs = of.costs.of_products(products)
    return evaluator(of.graph, of.machine, costs, of.rule, of.clip_norm)
