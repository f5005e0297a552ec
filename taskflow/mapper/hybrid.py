"""HybridParallel: tensor, pipeline and data parallelism together, in the notation of Megatron-LM's users: ``t8 p4 d16 mb1``.

Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", arXiv 2104.04473; layers are
shared within a group as in `Megatron`, and what lies between them is cut along the sequence (Korthikanti et al., arXiv
2205.05198). Devices are numbered as there: a group's first, then the replicas, then the pipeline's ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine, host
from taskflow.mapper.config import Sync, SyncAlgorithm, UpdatePlacement
from taskflow.mapper.mapper import Mapper
from taskflow.mapper.megatron import Megatron
from taskflow.mapper.notation import HybridPlan, parse_plan
from taskflow.mapper.pipeline import Pipeline, sample_dim
from taskflow.operators.operator import Soap, Work

_LAYER = re.compile(r"(?:^|.*?\.)\d+(?=\.|$)")


class HybridParallel(Mapper):
    """A `HybridPlan` on the devices of a machine."""

    name = "hybrid"

    def __init__(self, plan: HybridPlan | str) -> None:
        self._asked = parse_plan(plan) if isinstance(plan, str) else plan
        self.name = str(self._asked)

    def prepare(self, graph: OperatorGraph, machine: Machine) -> None:
        self.plan = plan = self._fitting(graph, len(machine.processors))
        group = plan.tensor * (plan.data or 1)
        self._tensor = Megatron(plan.tensor)
        self._tensor.prepare(graph, host(group))
        self._stages = stages_of(graph, plan.pipeline * plan.virtual, plan.stages)
        self._group = group
        self._micro_batches = samples(graph) // ((plan.data or 1) * (plan.micro_batch or 1))

    def slice_task(self, node: Node, machine: Machine) -> Sequence[int]:
        degrees, data = [1] * len(node.dims), self.plan.data or 1
        dim, shared = sample_dim(node), self._shared(node)
        if dim is not None and node.dims[dim].size >= data * self._micro_batches:
            degrees[dim] = data
        if shared is not None:
            degrees[shared] = self.plan.tensor
        return degrees

    def map_task(self, node: Node, piece: int, degrees: Sequence[int], machine: Machine) -> int:
        dim, shared = sample_dim(node), self._shared(node)
        replica = member = 0
        for i in reversed(range(len(degrees))):
            piece, at = divmod(piece, degrees[i])
            if i == dim:
                replica = at
            elif i == shared:
                member = at
        rank = self._stages[node.name] % self.plan.pipeline
        return rank * self._group + replica * self.plan.tensor + member

    def select_reduction(self, layer: str, nbytes: int, holders: Sequence[int], machine: Machine) -> Sync:
        place = UpdatePlacement.SPREAD if self.plan.zero else UpdatePlacement.EVERY
        return Sync(SyncAlgorithm.COLLECTIVE, place)

    def select_pipeline(self, graph: OperatorGraph, machine: Machine) -> Pipeline | None:
        if self.plan.pipeline == 1 and self._micro_batches == 1:
            return None
        return Pipeline(self._micro_batches, self._stages, self.plan.pipeline, self.plan.schedule)

    def select_recompute(self, graph: OperatorGraph, machine: Machine) -> frozenset[str]:
        return recomputed(graph, self.plan.recompute)

    def _fitting(self, graph: OperatorGraph, devices: int) -> HybridPlan:
        """The plan with nothing left open. ValueError says what does not divide."""
        asked, batch = self._asked, samples(graph)
        shards = asked.tensor * asked.pipeline
        data = asked.data or max(1, devices // shards)
        if shards * data != devices:
            raise ValueError(
                f"plan {asked}: t x p x d must be the {devices} devices, got {asked.tensor} x {asked.pipeline} x {data} = "
                f"{shards * data}"
            )
        micro_batch = asked.micro_batch or (1 if asked.pipeline > 1 else max(1, batch // data))
        if batch % (data * micro_batch):
            raise ValueError(
                f"plan {asked}: {batch} samples a step cannot be taken in micro-batches of d x mb = {data} x {micro_batch} = "
                f"{data * micro_batch}"
            )
        return replace(asked, data=data, micro_batch=micro_batch)

    def _shared(self, node: Node) -> int | None:
        """The dimension that a tensor-parallel group shares: as in `Megatron`, or else the sequence."""
        t = self.plan.tensor
        if t == 1:
            return None
        found = self._tensor.shared(node)
        if found is not None:
            return found
        return next((
            i for i, dim in enumerate(node.dims) if dim.soap is Soap.ATTRIBUTE and dim.divisible and dim.size >= t
        ), None)


def samples(graph: OperatorGraph) -> int:
    """Samples of a step."""
    return graph.nodes[0].space.shape[0]


def stages_of(graph: OperatorGraph, count: int, layers: Sequence[int] = ()) -> dict[str, int]:
    """Operators in ``count`` stages along the graph. Layers (operators whose names share a number, as ``h.3``) are not divided:
    ``layers`` says how many each stage has; if not given, they are dealt evenly, first and last stage getting fewer. What comes
    before the first layer is with it, what comes after the last is with that. Without enough layers, operators are dealt by
    their flops. What has no inputs is where it is read first. ValueError if ``layers`` are not those that there are."""
    if count == 1:
        return {node.name: 0 for node in graph}
    numbers = layer_numbers(graph)
    many = max(numbers.values(), default=-1) + 1
    if layers and (sum(layers) != many or min(layers) < 1):
        raise ValueError(f"plan: stages= needs 1 layer or more a stage and {many} in all, got {','.join(map(str, layers))}")
    if many >= count:
        ends = list(accumulate(layers or _dealt(many, count)))
        found = {name: next(s for s, end in enumerate(ends) if layer < end) for name, layer in numbers.items()}
    else:
        found = _by_flops(graph, count)
    for node in reversed(graph.nodes):
        readers = [found[n.name] for n in graph if any(t.node == node.number for t in n.inputs)] if not node.inputs else []
        if readers:
            found[node.name] = min(readers)
    return found


def _dealt(layers: int, stages: int) -> list[int]:
    """Layers by stage; where they do not divide, stages in the middle get one more, since first and last have more to do."""
    whole, extra = divmod(layers, stages)
    first = (stages - extra) // 2
    return [whole + (first <= s < first + extra) for s in range(stages)]


def layer_numbers(graph: OperatorGraph) -> dict[str, int]:
    """Operator -> which layer it belongs to, counted in the order of the graph; empty if operators have no such names."""
    keys: dict[str, int] = {}
    found: dict[str, int] = {}
    last = 0
    for node in graph:
        if match := _LAYER.match(node.name):
            last = max(last, keys.setdefault(match[0], len(keys)))
        found[node.name] = last
    return found if keys else {}


def _by_flops(graph: OperatorGraph, count: int) -> dict[str, int]:
    """Stretches of the graph of about equal flops, none of them empty. What has no inputs does not count."""
    nodes = [node for node in graph if node.inputs]
    if len(nodes) < count:
        raise ValueError(f"plan: {count} stages need as many operators with inputs, {graph.name} has {len(nodes)}")
    flops = [node.operator.flops(node.specs, node.space) for node in nodes]
    total, before, stage = max(1, sum(flops)), 0, 0
    found: dict[str, int] = {node.name: 0 for node in graph}
    for number, (node, own) in enumerate(zip(nodes, flops)):
        full, scarce = (before + own / 2) * count >= (stage + 1) * total, len(nodes) - number < count - stage
        if number and stage < count - 1 and (full or scarce):
            stage += 1
        found[node.name] = stage
        before += own
    return found


def recomputed(graph: OperatorGraph, rule: str) -> frozenset[str]:
    """The operators that a rule recomputes. ``full``: all of each layer (operators whose names share a number) but its last one,
    whose output the next layer reads. ``selective``: of attention what grows with the square of the sequence, from the
    product of queries and keys to what the product with the values reads (Korthikanti et al., arXiv 2205.05198)."""
    if rule == "selective":
        return frozenset(_attention(graph))
    if rule == "none":
        return frozenset()
    layers: dict[str, list[Node]] = {}
    for node in graph:
        if node.inputs and (match := _LAYER.match(node.name)):
            layers.setdefault(match[0], []).append(node)
    if not layers:
        raise ValueError(f"plan: recompute=full needs layers with numbers in their names, as h.3; {graph.name} has none")
    return frozenset(node.name for nodes in layers.values() for node in nodes[:-1])


def _attention(graph: OperatorGraph) -> Iterable[str]:
    """From one product of two activations to what the next reads, with nothing but passes over memory in between."""
    products = {node.number for node in graph if node.operator.kind == "matmul"}
    for node in graph:
        if node.number not in products:
            continue
        for tensor in node.inputs:
            path, at = [], graph.nodes[tensor.node]
            while at.number not in products and at.operator.work is Work.MEMORY and at.inputs and not at.parameters:
                path.append(at.name)
                at = graph.nodes[at.inputs[0].node]
            if at.number in products:
                yield from (*path, at.name)
