"""Arrays of a network on ranks: their layout, initial values, and memory that processors share."""

from taskflow.runtime.weights.aliased_memory import share_weights
from taskflow.runtime.weights.array_layout import (
    TRAINING,
    ArrayLayout,
    HeldElements,
    carried_of,
    flat_memory,
    masters_of,
    training_state_of,
    weights_of,
)
from taskflow.runtime.weights.from_executor import SharedWeights
from taskflow.runtime.weights.gathered import gathered
from taskflow.runtime.weights.initial import fill_part, initialise
