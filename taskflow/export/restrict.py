"""Restriction to a framework: the space that a search may use, the nearest expressible plan to any plan, and the fastest of
those.

Rules for single operators (`constraints_for`) keep most inexpressible plans out of a search. No such rule can say whether
neighbouring operators go together. So the search's result is replaced by the nearest expressible plan, and compared with the
plans of degrees. Such a search knows no micro-batches, stages, recomputation or shares of weights, without which a large
network fits nowhere: the best plans of the grid that the framework can have are simulated beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from taskflow.export.cuts import NotEven, input_lies, weight_lies
from taskflow.export.export import nearest_plan
from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import HybridParallel, HybridPlan, Strategy, choose, map_graph, samples
from taskflow.operators.operator import Soap
from taskflow.optimizer import Deadline
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.grid import SIMULATED, AnyGrid, GridResult, best_of_grid
from taskflow.optimizer.space import Constraints, SpaceOptions

CUT_WEIGHTS = {"linear", "embedding", "conv2d"}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The fastest of the ``tried`` plans that a framework can express; ``seconds``: of a step."""

    strategy: Strategy
    seconds: float
    tried: int


def space_for(graph: OperatorGraph, space: SpaceOptions, target: str = "torch") -> SpaceOptions:
    """A search's space for a framework with meshes: even pieces on neighbours, and no operator cut as it cannot have it. Of JAX
    the compiler exchanges halos and cuts any weight, so that nothing else is forbidden."""
    forbidden = Constraints() if target == "jax" else constraints_for(graph)
    return replace(space, degrees="even", placements="contiguous", constraints=space.constraints + forbidden)


def constraints_for(graph: OperatorGraph) -> Constraints:
    """Dimensions that no framework with meshes cuts: halos, and weights of other operators than linear layers, embeddings and
    convolutions."""
    rules = {node.name: {"forbid": dims} for node in graph if (dims := _forbidden(node))}
    return Constraints.parse(rules, "constraints of the target")


def _forbidden(node: Node) -> list[str]:
    return [of.name for dim, of in enumerate(node.dims) if of.divisible and of.size > 1 and not _can(node, dim)]


def _can(node: Node, dim: int) -> bool:
    try:
        for k in range(len(node.inputs)):
            input_lies(node, dim, k)
        cut = any(weight_lies(node, dim, k).axis is not None for k in range(len(node.parameters)))
    except NotEven:
        return False
    if node.operator.kind in CUT_WEIGHTS:
        return True
    return not cut and not (node.parameters and node.dims[dim].soap is Soap.REDUCTION)


def plans_of_degrees(graph: OperatorGraph, target: str, devices: int) -> Iterator[HybridPlan]:
    """Plans in notation: for Megatron-LM and torchtitan with pipelines and micro-batches, else tensor and data parallelism, for JAX
    with weights in shares as well."""
    batch, staged = samples(graph), target in ("megatron", "torchtitan")
    stages = (0, 1, 3) if target == "jax" else (0, 1)
    for pipeline in _divisors(devices) if staged else (1,):
        for tensor in _divisors(devices // pipeline):
            data = devices // pipeline // tensor
            if batch % data:
                continue
            for micro in [m for m in _divisors(batch // data) if m & (m - 1) == 0] if pipeline > 1 else (batch // data,):
                for zero in stages if data > 1 else (0,):
                    yield HybridPlan(tensor, pipeline, data, micro, zero=zero)


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def grid_for(
    evaluator: Evaluator, target: str, lacks: Callable[[Strategy], str], deadline: Deadline, share: float = 1.0,
    most: int = SIMULATED, grid: AnyGrid | None = None,
) -> GridResult:
    """The best plan of the grid that a framework can have as it is, in ``share`` of the time; at most ``most`` are simulated."""
    takes = _Expressible(evaluator.graph, evaluator.machine, target)
    return best_of_grid(evaluator, lacks, deadline=deadline, share=share, most=most, grid=grid, takes=takes)


class _Expressible:
    """Whether a framework can have a plan of the grid as it is. Plans that differ in micro-batches or replicas alone are alike in
    that, so that few are looked at."""

    def __init__(self, graph: OperatorGraph, machine: Machine, target: str) -> None:
        self.graph, self.machine, self.target = graph, machine, target
        self.known: dict[HybridPlan, bool] = {}

    def __call__(self, plan: HybridPlan) -> bool:
        alike = replace(plan, micro_batch=None, zero=min(plan.zero, 1))
        if alike not in self.known:
            try:
                strategy = map_graph(HybridParallel(plan), self.graph, self.machine)
                self.known[alike] = nearest_plan(self.graph, strategy, self.target) is strategy
            except ValueError:
                self.known[alike] = False
        return self.known[alike]


def fastest_for(
    graph: OperatorGraph, machine: Machine, evaluator: Evaluator, target: str, found: Strategy | None,
    lacks: Callable[[Strategy], str], over: Callable[[], bool],
) -> Chosen:
    """The fastest of: the nearest plan to what was found, data parallelism, and plans of degrees until time is ``over``.
    ``lacks``: what memory a plan lacks. ValueError if none of them can be exported and fits."""
    best: Chosen | None = None
    tried, why = 0, ""
    for candidate in _candidates(graph, machine, target, found):
        if best is not None and over():
            break
        try:
            plan = nearest_plan(graph, candidate(), target)
        except ValueError as error:
            why = str(error)
            continue
        tried += 1
        if short := lacks(plan):
            why = short
            continue
        seconds = evaluator.set(plan)
        if best is None or seconds < best.seconds:
            best = Chosen(plan, seconds, tried)
    if best is None:
        raise ValueError(f"no plan for {target}: {why}")
    return replace(best, tried=tried)


def _candidates(
    graph: OperatorGraph, machine: Machine, target: str, found: Strategy | None
) -> Iterator[Callable[[], Strategy]]:
    if found is not None:
        yield lambda: found
    yield lambda: choose("data", graph, machine)[0]
    for plan in plans_of_degrees(graph, target, len(machine.processors)):
        yield lambda plan=plan: map_graph(HybridParallel(plan), graph, machine)  # type: ignore[misc]
