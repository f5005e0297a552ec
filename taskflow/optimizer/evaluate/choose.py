"""Choice of an evaluator: the compiled one where it is built and can do what is asked, else Python's."""

from __future__ import annotations

from collections.abc import Callable
from warnings import warn

from taskflow.graph import OperatorGraph
from taskflow.kernels import REBUILD
from taskflow.machine import Machine
from taskflow.optimizer.cost import Costs, FromTasks
from taskflow.optimizer.evaluate.evaluator import ALGORITHMS, Evaluator, PythonEvaluator
from taskflow.optimizer.evaluate.ordered import OrderedEvaluator
from taskflow.optimizer.evaluate.support import MOST_PROCESSORS, unsupported
from taskflow.rules import UpdateRule


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
