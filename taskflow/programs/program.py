"""TrainingProgram: what drives a machine's devices through a training step, for instance Megatron-LM or PyTorch's eager mode.

What a step takes depends on the machine and on the program: which kernels are fused, which kernel computes attention, how long the
host needs to start one, and how much of what is sent is hidden behind computing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

UnitMessage = Literal["gather", "sum", "scatter"]
UNIT_MESSAGES: tuple[UnitMessage, ...] = ("gather", "sum", "scatter")
KINDS = {
    "rms_norm": "norm", "layer_norm": "norm", "swiglu": "activation", "gelu": "activation", "silu": "activation",
    "relu": "activation", "add": "residual", "dropout": "residual", "rotary": "rotary", "cross_entropy": "loss",
    "class_blocks": "loss", "cross_entropy_of_blocks": "loss", "softmax": "softmax", "flash_attention": "attention",
    "attention_blocks": "attention",
}  # fmt: skip
"""Of operators by kind, their group; all others that pass over memory are in ``other``."""


@dataclass(frozen=True, slots=True)
class Passes:
    """How a program passes over memory in a group of operators: ``times`` as many bytes as one fused kernel, in ``kernels`` for
    each that a fused implementation has. ``kept``: bytes that it keeps beyond what such a kernel keeps, for each number of the
    result (of a loss for each score of a word, of attention for each pair of words)."""

    times: float = 1.0
    kernels: float = 1.0
    kept: float = 0.0


ONE_PASS = Passes()


@dataclass(frozen=True, slots=True)
class TrainingProgram:
    """Training program that launches work on a device.

    ``host_seconds``: time that its one thread needs to launch a kernel; kernels start no faster than that. 0 where steps are
    recorded and replayed (CUDA graphs). ``message_seconds``: extra time that it waits for a message from or to another pipeline
    stage; ``message_bytes_per_second``: the rate of such a message (infinite: the links' rate). ``collective_seconds``: what
    its thread needs for each device of a tensor-parallel group to start a collective of that group, in pipelines over several
    nodes. ``attention``: name of its kernel. ``products``: part of the rate that products reach alone, in a step. ``memory``:
    part of the memory's rate that a fused pass reaches (0: the device's own). ``passes``: by group (`KINDS`, ``update`` and
    ``sums``). ``exposed``: part of the time of gathers of weights and sums of gradients in a pass by which computing beside
    them takes longer. ``reserved_bytes``: memory of a device that no array of a step gets (context, communication,
    fragmentation). ``gradient_bytes``: of each sum of gradients (0: float32 for 16-bit weights). ``whole_scores``: each device
    of a tensor-parallel group has the scores of all words. ``adds_to_zeros``: every backward pass adds gradients of weights to
    sums, the first one to zeros; without it the first one writes them. ``full_times``: as how many times as long a step counts
    that fills a device's memory, since the allocator then gives memory back and asks for it again. ``gather_seconds``: what its
    thread needs for a gather of a unit's weights, beside the message. ``sum_seconds``: for a sum of a unit's gradients of which
    each replica gets all. ``scatter_seconds``: for one of which each gets its share. Each of these reaches its
    ``_bytes_per_second`` beside that. ``cut_seconds`` and ``cut_backward_seconds``: what it needs more for each function of a
    network whose layers are cut. ``cut_layer_seconds`` and ``cut_layer_backward_seconds``: for each operator there that has
    weights. ``change_seconds`` and ``change_bytes_per_second``: for a collective that brings activations of such a network into
    another layout, beside the message. ``gpus``: for a kind of device, what differs there.
    """

    host_seconds: float
    message_seconds: float = 0.0
    source: str = ""
    message_bytes_per_second: float = inf
    name: str = ""
    about: str = ""
    collective_seconds: float = 0.0
    attention: str = "flash-attention-2"
    products: float = 1.0
    memory: float = 0.0
    passes: tuple[tuple[str, Passes], ...] = ()
    exposed: float = 0.0
    reserved_bytes: int = 0
    gradient_bytes: int = 0
    whole_scores: bool = False
    adds_to_zeros: bool = False
    full_times: float = 1.0
    gather_seconds: float = 0.0
    gather_bytes_per_second: float = inf
    sum_seconds: float = 0.0
    sum_bytes_per_second: float = inf
    scatter_seconds: float = 0.0
    scatter_bytes_per_second: float = inf
    cut_seconds: float = 0.0
    cut_backward_seconds: float = 0.0
    cut_layer_seconds: float = 0.0
    cut_layer_backward_seconds: float = 0.0
    change_seconds: float = 0.0
    change_bytes_per_second: float = inf
    gpus: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()

    def waits(self, nbytes: float) -> float:
        """Return the seconds that the program waits for a message of ``nbytes``."""
        return self.message_seconds + nbytes / self.message_bytes_per_second

    @property
    def by_plan(self) -> bool:
        """Whether its thread needs time for units or for layers that are cut, which not every plan has."""
        of_cuts = self.cut_seconds, self.cut_backward_seconds, self.cut_layer_seconds, self.cut_layer_backward_seconds
        return any((*of_cuts, self.of_change(1.0), *(self.of_unit(what, 1.0) for what in UNIT_MESSAGES)))

    def of_unit(self, what: UnitMessage, nbytes: float) -> float:
        """Return the seconds of its thread for a unit's weights or gradients of ``nbytes``, beside the message."""
        if what == "gather":
            return self.gather_seconds + nbytes / self.gather_bytes_per_second
        if what == "sum":
            return self.sum_seconds + nbytes / self.sum_bytes_per_second
        return self.scatter_seconds + nbytes / self.scatter_bytes_per_second

    def of_change(self, nbytes: float) -> float:
        """Return the seconds of its thread for bringing an array of ``nbytes`` into another layout."""
        return self.change_seconds + nbytes / self.change_bytes_per_second

    def on(self, kind: str) -> TrainingProgram:
        """Return the program as it is on a kind of device."""
        own = dict(dict(self.gpus).get(kind, ()))
        return replace(self, gpus=(), **own)

    def passing(self, kind: str) -> Passes:
        """Return how it passes over memory in operators of a kind, in updates of weights (``update``), or where it adds a weight's
        gradient to that of earlier micro-batches (``sums``)."""
        group = kind if kind in ("update", "sums") else KINDS.get(kind, "other")
        return next((found for name, found in self.passes if name == group), ONE_PASS)
