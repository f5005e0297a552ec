"""Topic: a task's purpose, and its operator or layer. Lowering records it; reports and traces read it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Purpose(Enum):
    """Purpose of a task. All but the first three may be messages between processors, or work within one."""

    FORWARD = "forward"
    RECOMPUTED = "recomputed"  # forward once more, for the backward pass
    BACKWARD = "backward"
    OUTPUT = "output"  # elements of a tensor come to where they are read
    PARTIAL = "partial output"  # partial values of a tensor are added
    GRADIENT = "gradient of output"  # gradients of a tensor come together at its owners, and go to who computed partial values
    CARRIED = "next step's state"
    GATHERED = "weights put together"  # of a parameter that a task reads in one piece and that lies in several
    UNSHARDED = "weights gathered from shares"  # for a pass that reads them
    WEIGHT_GRADIENTS = "gradients of weights"
    NEW_WEIGHTS = "new weights"
    NORM = "gradient norm"
    UPDATE = "update"
    CALL = "call"  # a user's task
    ELEMENTS = "elements"  # of a user's region
    OTHER = "other"


SYNCHRONISATION = (Purpose.WEIGHT_GRADIENTS, Purpose.NEW_WEIGHTS, Purpose.NORM, Purpose.UPDATE, Purpose.UNSHARDED)
"""What is done with the gradients of weights to make new weights of them, and with shares of weights to bring them together."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A task's purpose and what it belongs to. ``name``: the operator; for weights the layer, which has the name of its first
    operator; for a user's task its function; for movements of a user's task the region; empty for what serves all layers
    (clipping).

    A transfer of a tensor, or of its gradient, belongs to the operator that makes the tensor, whoever reads it.
    """

    purpose: Purpose
    name: str


OTHER = Topic(Purpose.OTHER, "")
