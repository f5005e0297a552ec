"""Features: the properties of a plan that determine how far its prediction is off."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from math import log, sqrt

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import Strategy, sample_dim
from taskflow.operators.operator import Work


@dataclass(frozen=True, slots=True)
class Features:
    """Sizes that describe a plan: ``parameters`` of the network; ``tensor`` processors that share a layer, ``pipeline`` ranks,
    ``data`` replicas; ``tokens`` of a micro-batch on one replica."""

    parameters: float
    tensor: int
    pipeline: int
    data: int
    tokens: float

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline * self.data

    def distance(self, other: Features) -> float:
        """Return the distance of two plans in doublings over all sizes. The network's size and the replicas count half, since
        they say less about the error."""
        weights = (0.5, 1.0, 1.0, 0.5, 1.0)
        return sqrt(sum((w * log(a / b, 2)) ** 2 for w, a, b in zip(weights, astuple(self), astuple(other))))


def features(graph: OperatorGraph, strategy: Strategy, machine: Machine) -> Features | None:
    """Return the features of a strategy; None for a network whose samples are not rows of words, or of which a part is frozen, for
    which there are no measurements."""
    first = graph.nodes[0]
    if graph.trained_count < graph.parameter_count:
        return None
    if len(first.space.shape) != 2 or first.outputs[0].dtype.kind not in "iu":
        return None
    samples, words = first.space.shape
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
    return Features(float(graph.parameter_count), tensor, ranks, data, samples * words / count / data)
