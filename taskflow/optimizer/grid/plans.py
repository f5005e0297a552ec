"""Plans of a grid as people lay it out: all degrees that divide the devices and the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from taskflow.floats import sum_bytes
from taskflow.graph import OperatorGraph
from taskflow.machine import Machine, PartOfMachine, host
from taskflow.mapper import (
    HybridParallel,
    HybridPlan,
    Megatron,
    Strategy,
    attends,
    block_count,
    heads_dealt,
    map_graph,
    multiplies,
    node_size,
    recomputed,
    samples,
)
from taskflow.optimizer.space import unequal
from taskflow.rules import UpdateRule

MOST_VIRTUAL, MOST_EVEN = 8, 12  # stages of one rank; as long as each other
MOST_CONTEXT = 8  # devices of one node that share a sequence
FAR_TOKENS = 4096  # of a sequence, that each of several nodes' groups has at least
MEMORY_SHARE = 0.01  # of a device's, that weights and state need before a search looks at the grid


class PlanAxes:
    """Values of each degree for a network on a machine. ``all_of_a_layer``: the word for recomputation of all of each layer."""

    def __init__(self, graph: OperatorGraph, machine: Machine, all_of_a_layer: str = "full") -> None:
        self.graph, self.devices, self.batch = graph, len(machine.processors), samples(graph)
        self.node = min(node_size(machine), self.devices)
        self.layers = block_count(graph)
        self.tensor = [t for t in powers(self.node) if t == 1 or _shares(graph, t)]
        self.longest = graph.nodes[0].space.shape[1] if attends(graph) and len(graph.nodes[0].space.shape) > 1 else 1
        self.heads = heads_dealt(graph)
        self.experts = expert_degrees(graph)
        self.divided = takes_micro_batches(graph)
        self.recompute = ["none"]
        if recomputed(graph, "selective"):
            self.recompute.append("selective")
        if self.layers and recomputed(graph, "full"):
            self.recompute.append(all_of_a_layer)

    def plans(self, usual: bool = False) -> Iterator[tuple[HybridPlan, int]]:
        """Yield all plans of t (within a node), c, p, d, e, micro-batch, v, recomputation and ZeRO's stage that divide, under 1F1B,
        each with its number of micro-batches; or only those without features that are less often used (`unusual`). t, c, e and
        micro-batches are powers of two, and so is v where layers do not divide among ranks. Stages are as even as possible."""
        for t in self.tensor:
            for c in [1] if usual else self.contexts(t):
                if self.devices % (t * c):
                    continue
                rest = self.devices // (t * c)
                for p in self._pipelines(rest):
                    yield from self._of(t, c, p, rest // p, usual)

    def contexts(self, tensor: int) -> list[int]:
        """Return how many tensor groups may share a sequence: those of a node, or of several nodes if it is long."""
        return powers(max(min(MOST_CONTEXT, self.node // tensor, self.longest), self.longest // FAR_TOKENS, 1))

    def _pipelines(self, most: int) -> list[int]:
        stages = self.layers or sum(bool(node.inputs) for node in self.graph)
        return [p for p in range(1, most + 1) if most % p == 0 and p <= stages and (p == 1 or self.divided)]

    def _of(self, t: int, c: int, p: int, d: int, usual: bool) -> Iterator[tuple[HybridPlan, int]]:
        if self.batch % d:
            return
        each = self.batch // d
        sizes = [mb for mb in powers(each) if each % mb == 0 and (self.divided or mb == each)]
        for mb in dict.fromkeys((*sizes, *([each] if p == 1 else []))):
            count = each // mb
            for v in [1] if usual else self._virtual(p, count):
                shape = HybridPlan(tensor=t, pipeline=p, data=d, micro_batch=mb, virtual=v, context=c)
                yield from ((plan, count) for plan in self.variants(shape) if not usual or not self.unusual(plan))

    def variants(self, shape: HybridPlan) -> Iterator[HybridPlan]:
        """Yield a plan with every way to distribute experts, to recompute and to shard state."""
        replicas = shape.data or 1
        for e in self.experts:
            if replicas % e or (e > 1 and self.experts[-1] < e * shape.tensor):
                continue
            for recompute in self.recompute:
                for zero in (3, 2, 1, 0) if shape.context * replicas > 1 else (0,):
                    yield replace(shape, experts=e, recompute=recompute, zero=zero)

    def unusual(self, plan: HybridPlan) -> int:
        """Return how many unusual features a plan has. If time is short, plans with more of them are left out. Weights by shares
        are usual where there are no stages, experts and sequences that are shared are within a node."""
        shares = plan.zero == 2 or (plan.zero == 3 and plan.pipeline > 1)
        far = max(plan.experts, plan.context) > 1 and plan.tensor * plan.context * plan.experts > self.node
        return shares + far + (plan.context > 1) + (plan.virtual > 1) + (plan.recompute == "selective")

    def usual_like(self, plan: HybridPlan) -> HybridPlan:
        """Return the plan without its unusual features."""
        near = max(1, self.node // plan.tensor)
        shares = plan.zero == 2 or (plan.zero == 3 and plan.pipeline > 1)
        return replace(
            plan, virtual=1, context=1, data=(plan.data or 1) * plan.context, experts=min(plan.experts, near),
            recompute="none" if plan.recompute == "selective" else plan.recompute, zero=1 if shares else plan.zero,
        )

    def _virtual(self, p: int, count: int) -> list[int]:
        """Stages a rank: where layers divide among ranks, those that are as long as each other."""
        if p == 1 or count % p:
            return [1]
        if self.layers and self.layers % p == 0:
            return [v for v in range(1, MOST_EVEN + 1) if self.layers // p % v == 0]
        return [v for v in powers(MOST_VIRTUAL) if v * p <= max(p, self.layers)]


def powers(most: int) -> list[int]:
    """Return 1, 2, 4, ... up to ``most``."""
    return [1 << i for i in range(most.bit_length()) if 1 << i <= most]


def _shares(graph: OperatorGraph, t: int) -> bool:
    mapper = Megatron(t)
    mapper.prepare(graph, host(t))
    return any(mapper.shared(node) is not None for node in graph)


def expert_degrees(graph: OperatorGraph) -> list[int]:
    """Return the degrees of expert parallelism, powers of two up to the number of experts; 1 if none have places."""
    counts = [node.dims[[dim.name for dim in node.dims].index("e")].size for node in graph if node.operator.kind == "expert_linear"]
    return powers(min(counts)) if counts else [1]


def takes_micro_batches(graph: OperatorGraph) -> bool:
    """Return whether micro-batches can go through the network one after the other. A batch of one sample has none."""
    return _in_micro_batches(graph) is not None


def _in_micro_batches(graph: OperatorGraph) -> Strategy | None:
    """A strategy of one device with as few micro-batches as divide the batch; None if they cannot be had."""
    if (batch := samples(graph)) < 2:
        return None
    count = next(k for k in range(2, batch + 1) if batch % k == 0)
    try:
        return map_graph(HybridParallel(HybridPlan(data=1, micro_batch=batch // count)), graph, host(1))
    except ValueError:
        return None


def runs_after_micro_batches(graph: OperatorGraph) -> bool:
    """True if some operators run once all micro-batches are through (`Pipeline.last`), as losses that are sums over samples."""
    strategy = _in_micro_batches(graph)
    return strategy is not None and strategy.pipeline is not None and bool(strategy.pipeline.last(graph, strategy.configs))


def no_grid(graph: OperatorGraph, machine: Machine, rule: UpdateRule | None) -> str:
    """Return why a search of a network does not try the grid; empty if it does. It is not trained, or has no layers with matrix
    products, or is small: it needs less than `MEMORY_SHARE` of a device's memory, and devices hold all that a step makes."""
    if rule is None:
        return "the network is not trained"
    if not multiplies(graph) or block_count(graph) < 2:
        return "the network has no layers with matrix products"
    if graph.carries:
        return "the network carries states from step to step"
    if isinstance(machine, PartOfMachine) and unequal(machine):
        return "devices of several kinds are a part of a machine"
    memory = min(processor.memory_bytes for processor in machine.processors)
    if held_bytes(graph, rule) <= MEMORY_SHARE * memory and _made_bytes(graph) <= memory * len(machine.processors):
        return f"weights and state need less than {MEMORY_SHARE:.0%} of a device's memory"
    return ""


def _made_bytes(graph: OperatorGraph) -> int:
    """Return the bytes of all that operators make of a whole batch."""
    return sum(spec.rect.volume * spec.dtype.itemsize for node in graph for spec in (made.spec for made in node.outputs))


def held_bytes(graph: OperatorGraph, rule: UpdateRule | None) -> int:
    """Return the bytes that are kept from step to step, if nothing is kept twice: weights, with the update rule's state."""
    total = 0
    for parameter in graph.parameters:
        size = parameter.spec.dtype.itemsize
        wide = sum_bytes(size) * parameter.trained
        updated = wide if rule is not None and wide > size else 0  # beside weights of 16 bits
        state = rule.state_bytes(size) * parameter.trained if rule is not None else 0
        total += parameter.spec.rect.volume * (size + updated + state)
    return total


def has_no_order(plan: HybridPlan, micro_batches: int) -> bool:
    """True if a plan only distributes samples, without buckets, so that its strategy has no order (`Strategy.ordered`)."""
    zeros = set(plan.zeros)
    degrees = plan.tensor, plan.context, plan.experts, plan.pipeline, micro_batches, plan.split
    return max(degrees) == 1 and max(zeros) < 2 and not any(map(plan.bucket_of, zeros)) and set(plan.levels_of(1)) == {"none"}
