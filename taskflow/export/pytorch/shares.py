"""Memory of shares: what FSDP2 keeps of weights beside what a plan counts."""

from __future__ import annotations

from collections import Counter
from math import prod

from taskflow.export.cuts import weight_lies
from taskflow.export.mesh import Mesh
from taskflow.graph import OperatorGraph
from taskflow.mapper import Pipeline


def bytes_of_shares(graph: OperatorGraph, mesh: Mesh, pipeline: Pipeline | None, replicas: int) -> int:
    """Return the bytes of the shares of weights, among so many replicas, of the rank that has most. FSDP2 updates its shares, and
    computes with copies that it gathers of them. With zero1 and zero2 these copies are the whole weights that a plan counts, and
    the shares come in addition. Without ZeRO a share is the whole weight (one replica)."""
    found: Counter[int] = Counter()
    seen: set[tuple[int, str]] = set()
    for node in graph:
        rank = pipeline.rank(node.name) if pipeline is not None else 0
        for number, parameter in enumerate(node.parameters):
            if (rank, parameter.name) in seen or node.name not in mesh.assignments:
                continue
            seen.add((rank, parameter.name))
            along = zip(mesh.assignments[node.name], mesh.sizes)
            pieces = prod(size for dim, size in along if weight_lies(node, dim, number, size).axis is not None)
            found[rank] += parameter.spec.nbytes // pieces
    return max(found.values(), default=0) // replicas
