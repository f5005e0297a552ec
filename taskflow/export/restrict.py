"""Restriction to a framework: the space that a search may use, the nearest expressible plan to any plan, and the fastest of
those.

Rules for single operators (`constraints_for`) keep most inexpressible plans out of a search. No such rule can say whether the
cuts of neighbouring operators can be combined. So what a search finds by operators is replaced by the nearest expressible plan,
and compared with the plans of degrees. Of plans in notation it has only those that the framework can express unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Any

from taskflow.export.cuts import NotEven, input_lies, weight_lies
from taskflow.export.export import (
    NAMES,
    PROGRAM_OF,
    RESTRICTING,
    exported,
    nearest_plan,
    require_exportable,
    says_layers,
)
from taskflow.export.tried import TriedCode
from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Cluster, Machine, host
from taskflow.mapper import HybridParallel, HybridPlan, Strategy, choose, map_graph, samples
from taskflow.operators.operator import Soap
from taskflow.optimizer import BudgetExhausted, MemoryCheck
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.space import Constraints, SpaceOptions
from taskflow.programs import load_program

CUT_WEIGHTS = {"linear", "embedding", "conv2d"}
TRIES = 2
DEGREES, PIPELINES = ("tensor", "context", "experts"), ("pipeline", "virtual", "schedule")  # choices alike for all degrees
CHOICES = (*DEGREES, "ulysses", "zero", "recompute", "overlap", "prefetch", "split", *PIPELINES)
"""Words of plans that a framework may not have whatever the others say; those that take longest to look at come last."""
BESIDE = {
    "tensor": ("loss_parallel",), "ulysses": ("context",), "virtual": ("pipeline",), "schedule": ("pipeline", "virtual"),
    "prefetch": ("zero",),
}
"""Words that a choice needs beside it."""
USUAL = HybridPlan()


def kept_gradients(target: str, graph: OperatorGraph, memory: MemoryCheck, strategy: Strategy) -> int:
    """Return the bytes that gradients take in a framework beyond what a plan counts (`MemoryCheck.kept_gradients`). None in JAX,
    where a step is compiled as a whole; nor in PyTorch's modules of 16 bits, whose plans count float32 copies that they do not
    have."""
    if target in ("jax", "onnx") or (target == "torch" and graph.dtype.itemsize == 2):
        return 0
    return memory.kept_gradients(strategy)


class Framework:
    """A framework that a search finds plans for, and a network (`taskflow.optimizer.PlanTarget`)."""

    def __init__(self, name: str, graph: OperatorGraph) -> None:
        self.name, self.graph = name, graph
        self.all_of_a_layer = "whole" if name == "megatron" else "full"
        self._tried = TriedCode(graph, name)
        self._expressible = Expressible(graph, name, tried=self._tried)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What a search left out because the network's code fails under it, and why."""
        why = self._tried.failed.partition("; export a plan")[0].removeprefix("torch: ")
        return (f"plans that cut layers as this code cannot ({why})",) if why else ()

    def driven(self, machine: Machine) -> Machine:
        """Return the machine with the framework's training program, unless it has one or no GPUs."""
        kinds = machine.kinds if isinstance(machine, Cluster) else ()
        if not isinstance(machine, Cluster) or any(kind.program for kind in kinds) or all(kind.kind == "cpu" for kind in kinds):
            return machine
        program = PROGRAM_OF.get(self.name)
        return machine.driven_by(load_program(program)) if program else machine

    def space(self, space: SpaceOptions) -> SpaceOptions:
        """Return a search's space for a framework with meshes: even pieces on neighbouring devices, and only cuts that the
        framework can express. JAX's compiler exchanges halos and cuts any weight, so for JAX no cut is forbidden."""
        forbidden = Constraints() if self.name == "jax" else constraints_for(self.graph)
        degrees = "even" if space.degrees == "any" else space.degrees
        return replace(space, degrees=degrees, placements="contiguous", constraints=space.constraints + forbidden)

    def may_have(self, plan: HybridPlan, over: Callable[[], bool]) -> bool:
        """True if the framework can have each choice of a plan by itself (`Expressible.may_have`)."""
        self._expressible.over = over
        return self._expressible.may_have(plan)

    def has(self, plan: HybridPlan, over: Callable[[], bool]) -> bool:
        """True if the framework can have the plan as it is (`Expressible`)."""
        self._expressible.over = over
        return self._expressible(plan)

    def lacks(self, strategy: Strategy, memory: MemoryCheck | None) -> str:
        """Return why the framework cannot run a strategy that fits the memory: it cannot express it, or keeps more bytes."""
        try:
            found = exported(self.graph, strategy, self.name, NAMES.get(self.name, "plan"))
        except ValueError as error:
            return str(error)
        if found.differences:
            return f"{self.name} cannot express it"
        if why := self._tried(strategy, found):
            return why
        if memory is None or self.name == "jax":
            return ""
        more = found.more_bytes + kept_gradients(self.name, self.graph, memory, strategy)
        least = min(processor.memory_bytes for processor in memory.machine.processors)
        return f"{self.name} keeps {more} bytes more than planned" if max(memory.peaks(strategy)[0]) + more > least else ""

    def fastest(
        self, machine: Machine, evaluator: Evaluator, found: Strategy | None, lacks: Callable[[Strategy], str],
        over: Callable[[], bool], constraints: Constraints, degrees: bool = True,
    ) -> tuple[Strategy, float]:
        """Return the fastest of: the nearest plan to what was found, data parallelism, and (``degrees``) plans of degrees until
        time is ``over``, with its seconds. ``lacks``: returns what memory a plan lacks. Raises ValueError if none can be exported,
        fits and is permitted by a user's ``constraints``."""
        best: tuple[Strategy, float] | None = None
        why = ""

        def checkpoint() -> None:
            if best is not None and over():
                raise BudgetExhausted

        for candidate in _candidates(self.graph, machine, self.name, found, degrees):
            if best is not None and over():
                break
            try:
                plan = nearest_within(self.graph, candidate(), self.name, constraints)
            except ValueError as error:
                why = str(error)
                continue
            try:
                with evaluator.interruptible(checkpoint):
                    short = lacks(plan)
                    seconds = inf if short else evaluator.set(plan)
            except BudgetExhausted:
                break
            if not short and (best is None or seconds < best[1]):
                short = self._tried(plan)
                best = best if short else (plan, seconds)
            why = short or why
        if best is None:
            raise ValueError(f"no plan for {self.name}: {why}")
        return best


def target(name: str, graph: OperatorGraph) -> Framework:
    """Return a framework as a search's target. Raises ValueError if there is none of this name, or if no plan of the network can be
    exported to it; ImportError without PyTorch, where that is needed."""
    if name not in RESTRICTING:
        raise ValueError(f"search: target must be one of {', '.join(RESTRICTING)}, got {name!r}")
    require_exportable(graph, name)
    return Framework(name, graph)


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


class Expressible:
    """Test whether a framework can have plans of the grid as they are. To look at a plan takes seconds for a large network, so the
    smallest plan of its kind is looked at: with as few replicas and micro-batches as it can have. ``may_have`` asks for each
    choice of a plan by itself, which is soon done; calling this asks for all of them together. ``over``: true once time has run
    out; then what is not known counts as refused. ``tried``: says whether the network's code works on pieces."""

    def __init__(
        self, graph: OperatorGraph, target: str, over: Callable[[], bool] = lambda: False, tried: TriedCode | None = None
    ) -> None:
        self.graph, self.target, self.over, self.batch = graph, target, over, samples(graph)
        self.tried = tried or TriedCode(graph, target)
        self.known: dict[HybridPlan, bool] = {}
        self.layers: dict[tuple[object, ...], bool] = {}
        self.alone: dict[tuple[object, ...], HybridPlan] = {}  # by words and micro-batches: a grid asks for few of them, often
        # By the choice that plans share, such as that of all pipelines, and whether weights are in shares beside it.
        self.refused: Counter[tuple[object, ...]] = Counter()
        self.had: set[tuple[object, ...]] = set()

    def __call__(self, plan: HybridPlan) -> bool:
        return self.may_have(plan) and self._can(self._small(plan))

    def may_have(self, plan: HybridPlan) -> bool:
        """True if the framework can have each choice of a plan by itself. Of pipelines one that it can have, or the first `TRIES`
        if it can have none of these, say it for all: code around stages is recorded for each, which takes seconds."""
        if plan.recompute_layers and not self._says_layers(plan):
            return False
        for name in CHOICES:
            one = self._alone(plan, name)
            if one is None:
                continue
            few = name in PIPELINES and self._count(plan) < plan.pipeline  # micro-batches, with which some have no pipeline
            key = name if name in ("pipeline", "virtual") else f"{name}={getattr(one, name)}", one.zero, few, one.loss_parallel
            if self.refused[key] >= TRIES and key not in self.had:
                return False
            new = one not in self.known
            if new and name in PIPELINES and key in self.had:
                continue
            if not self._can(one):
                self.refused[key] += new
                return False
            self.had.add(key)
        return True

    def _says_layers(self, plan: HybridPlan) -> bool:
        """`says_layers`, kept by stages and levels."""
        key = plan.pipeline * plan.virtual, plan.stages, plan.recompute_layers
        if key not in self.layers:
            self.layers[key] = says_layers(self.graph, plan, self.target)
        return self.layers[key]

    def _alone(self, plan: HybridPlan, name: str) -> HybridPlan | None:
        """Return the smallest plan that has one choice of a plan alone; None if the plan does not have it. Targets that are told
        words have some degrees only beside shares of weights (torchtitan's c), which are beside it if the plan has some."""
        value = getattr(plan, name)
        if value == getattr(USUAL, name) or (name in PIPELINES[:2] and plan.schedule is not USUAL.schedule):
            return None  # a schedule says it for its pipeline
        chosen: dict[str, Any] = {name: 2 if name in DEGREES else value}
        chosen |= {word: getattr(plan, word) for word in BESIDE.get(name, ())}
        if name == "overlap":  # of all layers, if some are at stage 3
            chosen["zero"] = min(plan.zero, 2)
        if plan.zero and self.target not in ("torch", "jax"):  # where a look takes seconds
            chosen.setdefault("zero", 1)
        most = self._count(plan) if name in PIPELINES else 2
        if (key := (most, *chosen.items())) not in self.alone:
            self.alone[key] = self._sized(HybridPlan(**chosen), most)
        return self.alone[key]

    def _small(self, plan: HybridPlan) -> HybridPlan:
        """Return the smallest plan of the kind of a plan."""
        return self._sized(plan, self._count(plan))

    def _count(self, plan: HybridPlan) -> int:
        """Return the number of micro-batches of a plan."""
        return max(1, self.batch // plan.samples_a_pass) if plan.micro_batch else self.batch

    def _sized(self, plan: HybridPlan, most: int) -> HybridPlan:
        """Return a plan with as few replicas and micro-batches as its choices need; of these at ``most`` so many."""
        data = max(plan.experts, 2 if plan.zero and plan.context == 1 else 1)
        count = min(max(2, plan.pipeline), most)
        if self.batch % (data * count):
            return plan
        return replace(plan, data=data, micro_batch=self.batch // (data * count))

    def _can(self, plan: HybridPlan) -> bool:
        if plan not in self.known:
            if self.over():
                return False
            try:
                ranks = plan.tensor * plan.context * plan.pipeline * (plan.data or 1)
                strategy = map_graph(HybridParallel(plan), self.graph, host(ranks))
                self.known[plan] = nearest_plan(self.graph, strategy, self.target) is strategy and not self.tried(strategy)
            except ValueError:
                self.known[plan] = False
        return self.known[plan]


def nearest_within(graph: OperatorGraph, strategy: Strategy, target: str, constraints: Constraints) -> Strategy:
    """Return the nearest plan to a strategy that a framework can express and a user's constraints permit; the strategy itself if
    it is one. Raises ValueError if what the framework can express is not permitted."""
    plan = nearest_plan(graph, constraints.repair(strategy, graph), target)
    constraints.verify(plan, graph)
    return plan


def _candidates(
    graph: OperatorGraph, machine: Machine, target: str, found: Strategy | None, degrees: bool
) -> Iterator[Callable[[], Strategy]]:
    if found is not None:
        yield lambda: found
    yield lambda: choose("data", graph, machine)[0]
    for plan in plans_of_degrees(graph, target, len(machine.processors)) if degrees else ():
        yield lambda plan=plan: map_graph(HybridParallel(plan), graph, machine)  # type: ignore[misc]
