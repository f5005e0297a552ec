"""Restriction to a framework: the space that a search may use, the nearest expressible plan to any plan, and the fastest of
those.

Rules for single operators (`constraints_for`) keep most inexpressible plans out of a search. No such rule can say whether the
cuts of neighbouring operators can be combined. So the search's result is replaced by the nearest expressible plan, and compared
with the plans of degrees. Such a search tries no micro-batches, stages, recomputation or shares of weights, without which no
large network fits. So the best plans of the grid that the framework can express are simulated too.
"""

from __future__ import annotations

from collections import Counter
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
TRIES = 2


@dataclass(frozen=True, slots=True)
class Chosen:
    """The fastest of the ``tried`` plans that a framework can express; ``seconds`` of a step."""

    strategy: Strategy
    seconds: float
    tried: int


def space_for(graph: OperatorGraph, space: SpaceOptions, target: str = "torch") -> SpaceOptions:
    """Return a search's space for a framework with meshes: even pieces on neighbouring devices, and only cuts that the
    framework can express. JAX's compiler exchanges halos and cuts any weight, so for JAX no cut is forbidden."""
    forbidden = Constraints() if target == "jax" else constraints_for(graph)
    return replace(space, degrees="even", placements="contiguous", constraints=space.constraints + forbidden)


def constraints_for(graph: OperatorGraph) -> Constraints:
    """Forbid the dimensions that no framework with meshes cuts: those with halos, and those of weights of operators other than
    linear layers, embeddings and convolutions."""
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
    """Yield plans in notation: for Megatron-LM and torchtitan with pipelines and micro-batches, for others tensor and data
    parallelism, for JAX also with weights in shares."""
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
    """Return the best plan of the grid that a framework can express unchanged, using ``share`` of the time and simulating at
    most ``most`` plans."""
    takes = _Expressible(evaluator.graph, evaluator.machine, target)
    return best_of_grid(evaluator, lacks, deadline=deadline, share=share, most=most, grid=grid, takes=takes)


class _Expressible:
    """Test whether a framework can have a plan of the grid as it is. To look takes seconds for a large network, so plans that
    differ in the sizes of groups of one kind alone are taken to be alike, and what was refused `TRIES` times and never had is
    given up."""

    def __init__(self, graph: OperatorGraph, machine: Machine, target: str) -> None:
        self.graph, self.machine, self.target = graph, machine, target
        self.known: dict[tuple[object, ...], bool] = {}
        self.refused: Counter[str] = Counter()  # by what is in a plan
        self.had: set[str] = set()

    def __call__(self, plan: HybridPlan) -> bool:
        alike = plan.tensor > 1, plan.context > 1, plan.experts > 1, plan.pipeline, plan.virtual, plan.recompute
        if alike not in self.known:
            degrees = {"context": plan.context, "experts": plan.experts, "pipeline": plan.pipeline, "virtual": plan.virtual}
            parts = [name for name, degree in degrees.items() if degree > 1]
            if any(self.refused[name] >= TRIES and name not in self.had for name in parts):
                return False
            self.known[alike] = self._can(plan)
            if self.known[alike]:
                self.had.update(parts)
            else:
                self.refused.update(parts)
        return self.known[alike]

    def _can(self, plan: HybridPlan) -> bool:
        try:
            strategy = map_graph(HybridParallel(plan), self.graph, self.machine)
            return nearest_plan(self.graph, strategy, self.target) is strategy
        except ValueError:
            return False


def fastest_for(
    graph: OperatorGraph, machine: Machine, evaluator: Evaluator, target: str, found: Strategy | None,
    lacks: Callable[[Strategy], str], over: Callable[[], bool],
) -> Chosen:
    """Return the fastest of: the nearest plan to what was found, data parallelism, and plans of degrees until time is ``over``.
    ``lacks``: returns what memory a plan lacks. Raises ValueError if none can be exported and fits."""
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
