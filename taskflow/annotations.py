"""Annotations of single tensors, and what follows from them for a whole network (GShard's way).

    from taskflow.annotations import replicate, split, weight

    x = split(x, 0, 8)             # pieces along dimension 0 on processors 0 to 7
    replicate(weight(scores))      # the weight of the layer that makes the scores
    sent = split(sent, 1, 8)       # read by experts, whoever made it
    strategy, mapper = taskflow.choose("taskflow.annotations:Annotated", graph, machine)
"""

from taskflow.mapper import (
    Annotated,
    Annotation,
    Propagated,
    annotate,
    annotations_of,
    propagate,
    recut,
    replicate,
    shard,
)
from taskflow.mapper import split_tensor as split
from taskflow.mapper import weight_of as weight

__all__ = [
    "Annotated", "Annotation", "Propagated", "annotate", "annotations_of", "propagate", "recut", "replicate", "shard", "split",
    "weight",
]
