"""NodeTable: arrays of what one device computes, moves and keeps of each operator for one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class GroupTransfer:
    """A tensor of ``nbytes`` that a device reads. ``forward``, ``backward``: seconds of collectives within the group, each among
    ``members``; ``local``: the device already has it in the form in which it is read. ``together``: seconds in which a group puts
    it together that reads it whole in another stage; ``beside``: seconds of computing weights' gradients, beside which it sums the
    tensor's."""

    nbytes: int
    local: bool
    forward: float = 0.0
    backward: float = 0.0
    members: int = 0
    together: float = 0.0
    beside: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeTable:
    """Arrays for one micro-batch on one device, in the order of the graph's nodes and of all their reads and outputs.
    ``seconds`` (nodes, 6): of device and host, forward and backward; then the sums over tasks, each by itself, forward and
    backward. ``alone``: the same where gradients of weights are not added to those of earlier micro-batches, as under ZeRO's stages
    2 and 3. ``saved``: bytes that each node saves; ``more``: what a program keeps beyond that. ``outputs``: bytes of each output
    tensor. ``read_bytes``, ``read_local``,
    ``read_seconds`` (reads, 2): for each read, with collectives' seconds forward and backward; for several reads of the same
    Rect, those of the first. ``read_members`` (reads, 2): the members of these collectives, 0 where there is none.
    ``read_hidden`` (reads): seconds of these that computing weights' gradients hides in passes, which ``read_seconds`` does not
    have. ``read_beside``: seconds of collectives that are beside it. ``read_together``: seconds in which a
    group puts together what it reads whole from another stage. ``read_rect``: a number shared by reads of the same Rect of a
    tensor. ``weight_elements``, ``weight_bytes``: for each parameter of each node; ``weight_holders``: how many of t x c x e
    devices have the same part of it."""

    seconds: Array
    alone: Array
    saved: Array
    more: Array
    outputs: Array
    read_bytes: Array
    read_local: Array
    read_rect: Array
    read_seconds: Array
    read_members: Array
    read_hidden: Array
    read_beside: Array
    read_together: Array
    weight_elements: Array
    weight_bytes: Array
    weight_holders: Array
