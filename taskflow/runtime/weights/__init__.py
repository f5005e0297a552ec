"""Where a network's arrays lie on ranks: their layout, initial values, and memory that processors share."""

from taskflow.runtime.weights.aliased_memory import share_weights
from taskflow.runtime.weights.array_layout import (
    TRAINING,
    ArrayLayout,
    carried_of,
    flat_memory,
    training_state_of,
    weights_of,
)
from taskflow.runtime.weights.from_executor import SharedWeights
from taskflow.runtime.weights.initial import initialise

__all__ = [
    "TRAINING",
    "ArrayLayout",
    "SharedWeights",
    "carried_of",
    "flat_memory",
    "initialise",
    "share_weights",
    "training_state_of",
    "weights_of",
]
