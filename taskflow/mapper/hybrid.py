"""HybridParallel: tensor, context, pipeline, data and expert parallelism together, in the notation of Megatron-LM's users:
``t8 p4 d16 mb1``.

Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", arXiv 2104.04473; layers are
shared within a group as in `Megatron`. What lies between them is cut along the sequence (Korthikanti et al., arXiv 2205.05198), or
with ``nosp`` done by each of the group. Devices are numbered as there: a group's first, then those that share a sequence, then the
replicas, then the pipeline's ranks. Experts are dealt to neighbouring replicas, which hold all of them together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine, host
from taskflow.mapper.again import HadAgain, again_of
from taskflow.mapper.blocks import block_numbers
from taskflow.mapper.config import Exchange, writes_together
from taskflow.mapper.fitting import fitted
from taskflow.mapper.mapper import Mapper
from taskflow.mapper.megatron import Megatron, is_attention
from taskflow.mapper.pipeline import Pipeline, sample_dim
from taskflow.mapper.placed_devices import placed_devices
from taskflow.mapper.plan import HybridPlan, parse_plan
from taskflow.mapper.stages import stages_of
from taskflow.mapper.sync import Sync, SyncAlgorithm, sync_of
from taskflow.operators.operator import Soap, Work


class HybridParallel(Mapper):
    """A `HybridPlan` on the devices of a machine."""

    name = "hybrid"

    def __init__(self, plan: HybridPlan | str) -> None:
        self._asked = parse_plan(plan) if isinstance(plan, str) else plan
        self.name = str(self._asked)

    def prepare(self, graph: OperatorGraph, machine: Machine) -> None:
        self._numbers = placed_devices(self._asked, machine)
        plan = fitted(self._asked, samples(graph), len(self._numbers))
        if graph.carries and plan.bucket is None and min(plan.zeros) < 2:
            plan = replace(plan, bucket=0)  # steps with carried states are not folded: large ones need the compiled evaluator
        self.plan = plan
        group = plan.tensor * plan.context * (plan.data or 1)
        self._tensor = Megatron(plan.tensor)
        self._tensor.prepare(graph, host(group))
        if plan.tensor > 1 and not any(self._tensor.shared(node) is not None for node in graph):
            raise ValueError(
                f"plan {plan}: no layer of {graph.name} can be shared by t = {plan.tensor} devices; its widest has "
                f"{max((dim.size for node in graph for dim in node.dims if dim.soap is Soap.PARAMETER), default=0)} outputs"
            )
        self._heads = self._by_heads(graph, plan)
        self._sequence = _sequence(graph, plan, self._heads)
        self._experts = _experts(graph, plan)
        self._keys = _keys(graph, plan)
        self._stages = stages_of(graph, plan.pipeline * plan.virtual, plan.stages, f"plan {plan}")
        self._layer_of = _numbered(graph, plan)
        self._group = group
        self._places: dict[tuple[Any, ...], tuple[int, ...]] = {}
        self._micro_batches = samples(graph) // plan.samples_a_pass
        self._parts = self._micro_batches * plan.split
        self._again = again_of(graph, plan, lambda node: self._tensor.shared(node) is not None)

    def slice_task(self, node: Node, machine: Machine) -> Sequence[int]:
        degrees, expert = [1] * len(node.dims), self._experts.get(node.name)
        data = (self.plan.data or 1) // (1 if expert is None else self.plan.experts)
        dim, shared, sequence = sample_dim(node), self._shared(node), self._sequence.get(node.name)
        least = sum(self.plan.shares) // self.plan.split or data  # of each share a whole number of what a sample is cut into
        if dim is not None and node.dims[dim].size >= least * self._parts:
            degrees[dim] = data
        keys = self._keys.get(node.name)
        for of, many in (
            (shared, self.plan.tensor), (sequence, self.plan.context), (expert, self.plan.experts), (keys, self.plan.context),
            (self._heads.get(node.name), self.plan.context),
        ):
            if of is not None:
                degrees[of] *= many
        return degrees

    def map_task(self, node: Node, piece: int, degrees: Sequence[int], machine: Machine) -> int:
        return self.map_tasks(node, prod(degrees) * self.select_copies(node, machine), degrees, machine)[piece]

    def map_tasks(self, node: Node, count: int, degrees: Sequence[int], machine: Machine) -> Sequence[int]:
        key = (
            tuple(degrees), sample_dim(node), self._shared(node), self._sequence.get(node.name), self._experts.get(node.name),
            self._heads.get(node.name), self.plan.schedule.rank(self._stages[node.name], self.plan.pipeline),
            self.select_copies(node, machine), node.of_weights,
        )
        if key not in self._places:  # other operators' pieces lie as this one's do
            self._places[key] = tuple(np.array(self._numbers)[self._place(np.arange(count), *key)].tolist())
        return self._places[key]

    def _place(
        self, piece: Any, degrees: Sequence[int], dim: int | None, shared: int | None, sequence: int | None, expert: int | None,
        heads: int | None, rank: int, copies: int, of_weights: bool,
    ) -> Any:
        """Return the place of each piece, or copy of one, in an array of their numbers. ``dim``, ``shared``, ``sequence``,
        ``expert`` and ``heads``: the dimensions of samples, of the tensor-parallel group, of the sequence, of experts, and of heads
        that the groups of a sequence deal among them."""
        plan = self.plan
        replica = place = 0
        piece, member = divmod(piece, copies)
        if of_weights:  # each replica has it, and each part of one that does not share it
            member, own = divmod(member, 1 if shared is not None else plan.tensor)
            replica, place = divmod(member, 1 if sequence is not None else plan.context)
            member = own
        for i in reversed(range(len(degrees))):
            piece, at = divmod(piece, degrees[i])
            if i == dim:
                replica += at * (1 if expert is None else plan.experts)
                continue
            if i == expert:  # of a member's experts each replica has some
                at, of_replica = divmod(at, plan.experts)
                replica += of_replica
            if i == heads:  # of a member's heads each group has some
                at, place = divmod(at, plan.context)
            if i == sequence:  # a group shares a stretch of the sequence
                place, at = divmod(at, plan.tensor) if i == shared else (at, 0)
            if i == shared:
                member = at
        return rank * self._group + (replica * plan.context + place) * plan.tensor + member

    def select_weights(self, node: Node, degrees: Sequence[int], machine: Machine) -> Sequence[Sequence[float]]:
        dim, shares = sample_dim(node), self.plan.shares
        if dim is None or len(set(shares)) < 2 or degrees[dim] != len(shares):
            return ()
        return [shares if i == dim else () for i in range(len(degrees))]

    def select_reduction(self, layer: str, nbytes: int, holders: Sequence[int], machine: Machine) -> Sync:
        plan = self.plan
        zero = plan.zero_layers[self._layer_of[layer]] if plan.zero_layers else plan.zero
        return sync_of(zero, plan)

    def select_copies(self, node: Node, machine: Machine) -> int:
        plan = self.plan
        if node.of_weights:
            apart = plan.context if self._sequence.get(node.name) is None else 1
            return (plan.data or 1) * apart * (plan.tensor if self._shared(node) is None else 1)
        return plan.tensor if self._everywhere(node) else 1

    def select_pipeline(self, graph: OperatorGraph, machine: Machine) -> Pipeline | None:
        if self.plan.pipeline == 1 and self._parts == 1:
            return None
        try:
            return Pipeline(self._micro_batches, self._stages, self.plan.pipeline, self.plan.schedule, self.plan.split)
        except ValueError as error:
            raise ValueError(f"plan {self.plan}: {error}") from None

    def select_again(self, graph: OperatorGraph, machine: Machine) -> HadAgain:
        return self._again

    def select_sums(self, processors: Sequence[int], machine: Machine) -> SyncAlgorithm:
        return SyncAlgorithm.COLLECTIVE if self._by_collectives() else super().select_sums(processors, machine)

    def select_exchange(self, graph: OperatorGraph, machine: Machine) -> Exchange:
        if self.plan.ring:
            return Exchange.RING
        return Exchange.COLLECTIVES if self._by_collectives() else Exchange.COPIES

    def select_plan(self, graph: OperatorGraph, machine: Machine) -> HybridPlan:
        """Return the plan with every degree set, and with its devices as numbers, so that it means the same elsewhere."""
        in_order = self._numbers == tuple(range(len(machine.processors)))
        return replace(self.plan, devices=() if in_order else self._numbers)

    def _by_collectives(self) -> bool:
        """True if transfers across a group are collectives, as are sums of losses: in all plans except those that only distribute
        samples. What is ordered anyway (`Strategy.ordered`) is more than that: were its loss summed by one replica, replicas would
        not be alike, and would all have to be lowered. So is what costs otherwise than an operator by itself does."""
        plan = self.plan
        degrees = plan.tensor, plan.context, plan.experts, plan.pipeline, self._parts
        ordered = bool(self._again) or any(sync_of(zero, plan).ordered for zero in set(plan.zeros))
        return ordered or max(degrees) > 1 or bool(plan.products)

    def between(self, node: Node) -> bool:
        """True if an operator lies between those that a tensor-parallel group shares, so that it is cut along the sequence, or
        computed by each member. Call after `prepare`."""
        return self.plan.tensor > 1 and self._tensor.shared(node) is None

    def _by_heads(self, graph: OperatorGraph, plan: HybridPlan) -> dict[str, int]:
        """By attention operator, the dimension of its heads, if groups that share a sequence deal them. Raises ValueError if there
        are none, or too few heads."""
        found = {
            node.name: dim for node in graph
            if plan.ulysses and is_attention(node) and (dim := _writing(node, 2)) is not None
        }
        if plan.ulysses and not found:
            raise ValueError(f"plan {plan}: ulysses deals the heads of flash_attention, which {graph.name} does not have")
        for name, dim in found.items():
            heads, shared = graph.node(name).dims[dim].size, self._tensor.shared(graph.node(name))
            pieces = plan.context * (plan.tensor if shared == dim else 1)
            if heads < pieces:
                raise ValueError(f"plan {plan}: ulysses deals the {heads} heads of {name} to {pieces} devices; take a smaller c")
        return found

    def _everywhere(self, node: Node) -> bool:
        """True if every device of a tensor-parallel group computes all of an operator. Not for operators that carry state from
        step to step, or sum over samples or sequences."""
        if self.plan.sequence_parallel or not self.between(node) or node.operator.kind == "state":
            return False
        cut = [dim for dim in (sample_dim(node), self._sequence.get(node.name)) if dim is not None]
        return not any(writes_together(node, dim) for dim in cut)

    def _shared(self, node: Node) -> int | None:
        """The dimension that a tensor-parallel group shares: as in `Megatron`, or otherwise the sequence."""
        t = self.plan.tensor
        if t == 1:
            return None
        found = self._tensor.shared(node)
        if node.operator.kind == "class_blocks" and not self.plan.loss_parallel:
            found = None  # as what lies between
        if found is not None or self._everywhere(node):
            return found
        t *= self.plan.context
        # Positions that are added are cut along the sequence too, which cuts their weight.
        soaps = (Soap.ATTRIBUTE, Soap.PARAMETER) if node.operator.work is Work.MEMORY else (Soap.ATTRIBUTE,)
        return next((
            i for soap in soaps for i, dim in enumerate(node.dims) if dim.soap is soap and dim.divisible and dim.size >= t
        ), None)


def _numbered(graph: OperatorGraph, plan: HybridPlan) -> dict[str, int]:
    """The number of the layer of each operator with weights, if the plan says something of single layers. Raises ValueError if it
    speaks of more or fewer layers than there are."""
    by_layer = [(name, values) for name, values in (("recompute", plan.recompute_layers), ("zero", plan.zero_layers)) if values]
    if not by_layer:
        return {}
    numbers = block_numbers(graph)
    many = max(numbers.values(), default=-1) + 1
    for name, values in by_layer:
        if len(values) != many:
            raise ValueError(f"plan {plan}: {name}= by layer speaks of {len(values)} layers, {graph.name} has {many}")
    found: dict[str, int] = {}
    for node in graph:
        for parameter in node.parameters:
            found.setdefault(parameter.layer, numbers[node.name])
    return found


def _sequence(graph: OperatorGraph, plan: HybridPlan, by_heads: Collection[str]) -> dict[str, int]:
    """By operator that can be cut along the sequence into as many pieces as the plan says, and is not cut ``by_heads``, the
    dimension that does so. The sequence is the second axis of the network's inputs, and is followed through the operators that
    read it. Raises ValueError if no operator can."""
    found: dict[str, int] = {}
    axes: dict[tuple[int, int], int] = {}  # tensor -> the axis along which the sequence lies
    degree = plan.context
    for node in graph if degree > 1 else ():
        dim = _along(node, axes, degree) if node.inputs else _writing(node, 1)
        if dim is not None and node.dims[dim].divisible and node.dims[dim].size >= degree:
            if node.name not in by_heads:
                found[node.name] = dim
            _say(node, dim, axes)
    if degree > 1 and not any(graph.node(name).inputs for name in found):
        shape = graph.nodes[0].space.shape
        raise ValueError(
            f"plan {plan}: c = {degree} devices cannot share the sequences of {graph.name}, whose second axis has {shape[1]} places"
            if len(shape) == 2 and shape[1] < degree else
            f"plan {plan}: c cuts sequences, the second axis of what a network reads; {graph.name} has none that its layers follow"
        )
    return found


def _experts(graph: OperatorGraph, plan: HybridPlan) -> dict[str, int]:
    """By operator of layers of experts, the dimension of the experts. Raises ValueError if there are none, or too few experts."""
    found: dict[str, int] = {}
    axes: dict[tuple[int, int], int] = {}  # tensor -> the axis of its experts
    for node in graph if plan.experts > 1 else ():
        names = [dim.name for dim in node.dims]
        dim = names.index("e") if node.operator.kind == "expert_linear" else None
        if dim is None and node.operator.work is Work.MEMORY and not node.parameters:
            dim = _along(node, axes, plan.experts)
        if dim is not None:
            if node.dims[dim].size < plan.experts * plan.tensor:
                raise ValueError(
                    f"plan {plan}: {node.name} has {node.dims[dim].size} experts, which e x t = {plan.experts} x {plan.tensor} "
                    "devices cannot share"
                )
            found[node.name] = dim
            _say(node, dim, axes)
    if plan.experts > 1 and not found:
        routed = any(node.operator.kind == "routed_linear" for node in graph)
        raise ValueError(
            f"plan {plan}: eN needs layers of experts with places (expert_linear); {graph.name} has none"
            + ("; build it with places for its tokens (--expert-imbalance 1 or more, or with_places in Python), "
               "or share experts by tN" if routed else "")
        )
    return found


def _keys(graph: OperatorGraph, plan: HybridPlan) -> dict[str, int]:
    """By attention operator that works on blocks of keys, the dimension of the blocks, if keys go around a ring: each device
    has all blocks for its queries. Raises ValueError if there are none, or if the blocks do not divide among the devices."""
    found: dict[str, int] = {}
    for node in graph if plan.ring else ():
        if node.operator.kind == "attention_blocks":
            dim = [dim.name for dim in node.dims].index("b")
            if node.dims[dim].size % plan.context:
                raise ValueError(
                    f"plan {plan}: {node.name} has {node.dims[dim].size} blocks of keys, which {plan.context} devices cannot share "
                    f"evenly; build the network with key_blocks={plan.context}"
                )
            found[node.name] = dim
    if plan.ring and not found:
        raise ValueError(
            f"plan {plan}: ring needs attention in blocks of keys, {graph.name} has none; build it with key_blocks={plan.context} "
            f"(flash_attention, or --set key_blocks={plan.context} of Llama)"
        )
    return found


def _writing(node: Node, axis: int) -> int | None:
    """The dimension that cuts an operator's first output along an axis."""
    return next((i for i in range(len(node.dims)) if node.written_axis(i, 0) == axis), None)


def _along(node: Node, axes: Mapping[tuple[int, int], int], degree: int) -> int | None:
    """The dimension that cuts an operator in the same way as its first input in ``axes`` is cut along the axis given there."""
    for index, tensor in enumerate(node.inputs):
        if (lies := axes.get((tensor.node, tensor.index))) is None:
            continue
        for i, dim in enumerate(node.dims):
            cut = dim.divisible and dim.soap not in (Soap.REDUCTION, Soap.SAMPLE) and dim.size >= degree
            if cut and node.read_axis(i, index) == lies:
                return i
    return None


def _say(node: Node, dim: int, axes: dict[tuple[int, int], int]) -> None:
    """Note along which axes an operator's outputs are cut if this dimension is."""
    for tensor in node.outputs:
        axis = node.written_axis(dim, tensor.index)
        if axis is not None:
            axes[tensor.node, tensor.index] = axis


def samples(graph: OperatorGraph) -> int:
    """Return the number of samples of a step."""
    return graph.nodes[0].space.shape[0]
