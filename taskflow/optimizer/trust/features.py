"""Features: what of a plan decides how far its prediction is off."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from math import log, sqrt

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import Strategy, sample_dim
from taskflow.operators.operator import Work


@dataclass(frozen=True, slots=True)
class Features:
    """A plan in a few sizes: ``parameters`` of the network; ``tensor`` processors share a layer, ``pipeline`` ranks, ``data``
    replicas; ``tokens`` of a micro-batch on one replica."""

    parameters: float
    tensor: int
    pipeline: int
    data: int
    tokens: float

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline * self.data

    def distance(self, other: Features) -> float:
        """How far two plans are apart: in doublings, all sizes taken together; of the network and its replicas, which say less
        about the error, a half."""
        weights = (0.5, 1.0, 1.0, 0.5, 1.0)
        return sqrt(sum((w * log(a / b, 2)) ** 2 for w, a, b in zip(weights, astuple(self), astuple(other))))


def features(graph: OperatorGraph, strategy: Strategy, machine: Machine) -> Features | None:
    """Those of a strategy; None for a network whose samples are not rows of words, of which nothing measured is known."""
    first = graph.nodes[0]
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
    used = len({p for config in strategy.configs.values() for p in config.processors})
    tensor = max(1, used // (ranks * data))
    return Features(float(graph.parameter_count), tensor, ranks, data, samples * words / count / data)
