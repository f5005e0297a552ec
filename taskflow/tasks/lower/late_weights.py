"""Weights' gradients that a stage's backward pass computes while a tensor group sums those of what its products read.

Each device of the group gives a part of the gradient of what a product reads whole. Megatron-LM starts the sum of these parts (an
all-reduce, or along the sequence a reduce-scatter) before it computes the gradient of the weights (its
LinearWithGradAccumulationAndAsyncCommunication). Products of the same tensor, as of queries, keys and values, are one there; here
the gradients of the weights of all of them come after the last that adds to the tensor's gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taskflow.operators.operator import Soap
from taskflow.tasks.lower.part_turns import Divided
from taskflow.tasks.lower.state import Lowering

LateWeights = Mapping[int, tuple[int, ...]]
"""By place of an operator in its stage, the places of those whose weights' gradients follow its backward tasks; none for one whose
own come later."""


def late_weights(state: Lowering, stage: Sequence[Divided]) -> LateWeights:
    """Return the operators of a stage that have gradients of their weights after those of what they read."""
    by_tensor: dict[tuple[int, int], list[int]] = {}
    for at, (node, _) in enumerate(stage):
        if not node.operator.splits_backward or node.operator.frozen or node.number not in state.active or not node.parameters:
            continue
        tensor = node.inputs[0]
        key = tensor.node, tensor.index
        degrees = state.strategy[node.name].degrees
        if key in state.needs_gradient and any(k > 1 and dim.soap is Soap.PARAMETER for k, dim in zip(degrees, node.dims)):
            by_tensor.setdefault(key, []).append(at)
    found: dict[int, tuple[int, ...]] = {}
    for places in by_tensor.values():  # the backward pass comes to the first one last
        found |= dict.fromkeys(places, ()) | {places[0]: tuple(reversed(places))}
    return found
