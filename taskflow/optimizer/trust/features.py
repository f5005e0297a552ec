"""Features: the properties of a plan that determine how far its prediction is off."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, log, sqrt
from typing import Annotated, Any, Literal

from msgspec import Meta

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import Strategy, sample_dim
from taskflow.operators.operator import Work
from taskflow.reading import Count, Positive

Reach = Literal["replicas", "stages", "layers"]
"""What of a plan lies on several nodes: whole replicas alone, stages of a pipeline, or the shares of a layer."""
EXPERTS = ("routed_linear", "expert_linear")  # operators by kind


@dataclass(frozen=True, slots=True)
class Features:
    """What plans are compared by."""

    parameters: Positive
    tensor: Annotated[Count, Meta(description="Processors that share a layer.")]
    pipeline: Annotated[Count, Meta(description="Ranks of the pipeline.")]
    data: Annotated[Count, Meta(description="Replicas.")]
    tokens: Annotated[Positive, Meta(description="Of a micro-batch on one replica; samples if the network reads no words.")]
    trained: Annotated[Positive, Meta(description="Share of the parameters that is trained.")] = 1.0
    words: Annotated[bool, Meta(description="Whether the network reads words.")] = True
    reach: Annotated[Reach, Meta(description="What of the plan lies on several nodes.")] = "replicas"
    experts: Annotated[bool, Meta(description="Whether the network has experts.")] = False
    context: Annotated[bool, Meta(description="Whether devices share sequences.")] = False

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline * self.data

    def distance(self, other: Features) -> float:
        """Return the distance of two plans in doublings over all sizes; infinity if only one of them is for a network that reads
        words. The network's size and the replicas count half, since they say less about the error."""
        if self.words != other.words:
            return inf
        weights = (0.5, 1.0, 1.0, 0.5, 1.0, 1.0)
        return sqrt(sum((w * log(a / b, 2)) ** 2 for w, a, b in zip(weights, self._sizes, other._sizes)))

    def within(self, least: Features, most: Features) -> Features:
        """Return the same with sizes that are no smaller than those of ``least`` and no larger than those of ``most``."""
        sizes = zip(_SIZES, self._sizes, least._sizes, most._sizes)
        within: dict[str, Any] = {name: min(max(size, low), high) for name, size, low, high in sizes}
        return replace(self, **within)

    @property
    def _sizes(self) -> tuple[float, ...]:
        return self.parameters, self.tensor, self.pipeline, self.data, self.tokens, self.trained


_SIZES = ("parameters", "tensor", "pipeline", "data", "tokens", "trained")


def reach_of(tensor: int, pipeline: int, devices: int, node: int) -> Reach:
    """Return what of a plan lies on several nodes of ``node`` devices."""
    if tensor > node:
        return "layers"
    return "stages" if pipeline > 1 and devices > node else "replicas"


def features(graph: OperatorGraph, strategy: Strategy, machine: Machine) -> Features:
    """Return the features of a strategy. A network reads words if its first input has integers, in rows."""
    first = graph.nodes[0]
    samples, *others = first.space.shape
    reads_words = len(others) == 1 and first.outputs[0].dtype.kind in "iu"
    pipeline = strategy.pipeline
    ranks, count = (pipeline.ranks, pipeline.micro_batches) if pipeline is not None else (1, 1)
    shares: list[int] = []
    for node in graph:
        dim = sample_dim(node)
        if node.operator.work is Work.CONTRACTION and node.parameters and dim is not None:
            shares.append(max(1, strategy[node.name].degrees[dim] // count))
    data = max(set(shares), key=shares.count) if shares else 1
    places = {id(config.processors): config.processors for config in strategy.configs.values()}  # layers are alike
    used = len(set().union(*places.values()))
    tensor = max(1, used // (ranks * data))
    weights, first_node = max(1, graph.parameter_count), machine.processors[0].node
    per_node = sum(processor.node == first_node for processor in machine.processors)
    return Features(
        float(weights), tensor, ranks, data, samples * (others[0] if reads_words else 1) / count / data,
        max(1, graph.trained_count) / weights, reads_words, reach_of(tensor, ranks, used, per_node),
        any(one.operator.kind in EXPERTS for one in graph), strategy.plan is not None and strategy.plan.context > 1,
    )  # fmt: skip
