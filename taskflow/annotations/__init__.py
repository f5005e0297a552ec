"""Annotations of single tensors, propagated to a whole network as GShard does.

    from taskflow.annotations import replicate, split, weight

    x = split(x, 0, 8)             # pieces along dimension 0 on processors 0 to 7
    replicate(weight(scores))      # the weight of the layer that makes the scores
    sent = split(sent, 1, 8)       # read by experts, whoever made it
    strategy, mapper = taskflow.choose("taskflow.annotations:Annotated", graph, machine)
"""

from taskflow.annotations.annotated import Annotated
from taskflow.annotations.annotation import (
    Annotation,
    Weight,
    annotate,
    annotations_of,
    replicate,
    shard,
    split,
    weight,
)
from taskflow.annotations.links import FREE, MIXED, CutLinks, links
from taskflow.annotations.propagation import Conflict, Layout, Propagated, Reason, TensorRow, propagate, recut

__all__ = [
    "FREE", "MIXED", "Annotated", "Annotation", "Conflict", "CutLinks", "Layout", "Propagated", "Reason", "TensorRow", "Weight",
    "annotate", "annotations_of", "links", "propagate", "recut", "replicate", "shard", "split", "weight",
]
