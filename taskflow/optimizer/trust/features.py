"""Features: the properties of a plan that determine how far its prediction is off."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log, sqrt

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import Strategy, sample_dim
from taskflow.operators.operator import Work


@dataclass(frozen=True, slots=True)
class Features:
    """Sizes that describe a plan: ``parameters`` of the network; ``tensor`` processors that share a layer, ``pipeline`` ranks,
    ``data`` replicas; ``tokens`` of a micro-batch on one replica. If the network does not read ``words``, these are samples.
    ``trained``: the share of the parameters that is trained."""

    parameters: float
    tensor: int
    pipeline: int
    data: int
    tokens: float
    trained: float = 1.0
    words: bool = True

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

    @property
    def _sizes(self) -> tuple[float, ...]:
        return self.parameters, self.tensor, self.pipeline, self.data, self.tokens, self.trained


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
    weights = max(1, graph.parameter_count)
    return Features(
        float(weights), tensor, ranks, data, samples * (others[0] if reads_words else 1) / count / data,
        max(1, graph.trained_count) / weights, reads_words,
    )  # fmt: skip
