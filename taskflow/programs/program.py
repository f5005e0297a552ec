"""TrainingProgram: what drives a machine's devices through a training step, for instance Megatron-LM or PyTorch's eager mode.

What a step takes depends on the machine and on the program: which kernels are fused, which kernel computes attention, how long the
host needs to start one, and how much of what is sent is hidden behind computing.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, replace
from math import inf
from typing import Annotated, Any, Literal

from msgspec import Meta

from taskflow.reading import LEAST, Entry, Name, NotNegative, Positive, Whole

UnitMessage = Literal["gather", "sum", "scatter"]
PassGroup = Literal["norm", "activation", "residual", "rotary", "softmax", "attention", "loss", "update", "sums", "other"]
UNIT_MESSAGES: tuple[UnitMessage, ...] = ("gather", "sum", "scatter")
KINDS = {
    "rms_norm": "norm", "layer_norm": "norm", "swiglu": "activation", "gelu": "activation", "silu": "activation",
    "relu": "activation", "add": "residual", "dropout": "residual", "rotary": "rotary", "cross_entropy": "loss",
    "class_blocks": "loss", "cross_entropy_of_blocks": "loss", "softmax": "softmax", "flash_attention": "attention",
    "attention_blocks": "attention",
}  # fmt: skip
"""Of operators by kind, their group; all others that pass over memory are in ``other``."""


class Passes(Entry, frozen=True):
    """How a program passes over memory in a group of operators."""

    times: Annotated[NotNegative, Meta(description="As many bytes as one fused kernel.")] = 1.0
    kernels: Annotated[NotNegative, Meta(description="As many kernels as a fused implementation.")] = 1.0
    kept: Annotated[
        NotNegative,
        Meta(description="Bytes kept for each number of the result (of a loss for each score of a word, of attention for each pair "
                         "of words), beyond those of such a kernel."),
    ] = 0.0  # fmt: skip


ONE_PASS = Passes()


Part = Annotated[float, Meta(ge=LEAST, le=1)]


def _figure(kind: Any, says: str, default: Any = 0.0) -> Any:
    """A figure as a field: what values a file may give it, and its text."""
    return field(default=default, metadata={"kind": Annotated[kind, Meta(description=says)]})


@dataclass(frozen=True, slots=True)
class TrainingProgram:
    """Training program that launches work on a device. Its figures have their texts beside them, in seconds and bytes; files have
    the same ones (`program_file`). ``gpus``: for a kind of device, what differs there."""

    host_seconds: float = _figure(
        NotNegative, "What its thread needs to start a kernel; 0 for recorded steps (CUDA graphs).", MISSING
    )
    message_seconds: float = _figure(NotNegative, "Waiting for a message of another stage of a pipeline.")
    source: str = ""
    message_bytes_per_second: float = _figure(
        Positive, "How fast such a message goes while it waits. Without it: as links are.", inf
    )
    name: str = ""
    about: str = ""
    collective_seconds: float = _figure(
        NotNegative, "Starting a collective of a tensor group, for each device of it, in pipelines over nodes."
    )
    attention: str = _figure(Name, "Its kernel of attention, as devices name it.", "flash-attention-2")
    products: float = _figure(Part, "Part of the rate that matrix products reach alone.", 1.0)
    memory: float = _figure(Part, "Part of the memory's rate that a fused pass reaches. Without it: the device's own.")
    passes: tuple[tuple[str, Passes], ...] = _figure(
        dict[PassGroup, Passes], "By group of operators, what is not one fused pass.", ()
    )
    exposed: float = _figure(
        Annotated[float, Meta(ge=0, le=1)],
        "Part of gathers of weights and sums of gradients in a pass by which computing beside takes longer.",
    )
    reserved_bytes: int = _figure(Whole, "Memory that no array of a step gets: context, communication, fragmentation.", 0)
    gradient_bytes: int = _figure(Whole, "Of each sum of gradients; 0: float32 for 16-bit weights.", 0)
    whole_scores: bool = _figure(bool, "Whether each device of a tensor group has the scores of all words.", False)
    once_a_node: bool = _figure(
        bool, "Whether a token goes once to each node that has experts of it (DeepEP), not once for each expert.", False
    )
    balances_context: bool = _figure(
        bool,
        "Whether devices that share a sequence compute as much of causal attention each: they have two parts of it, one from "
        "either end.",
        False,
    )
    adds_to_zeros: bool = _figure(
        bool, "Whether the first micro-batch's gradients of weights are added to zeros, not written.", False
    )
    sums_beside_weights: float = _figure(
        Annotated[float, Meta(ge=0, le=1)],
        "Part of a tensor group's sums of gradients of what products read that is hidden while the gradients of these products' "
        "weights are computed; by the rest computing takes longer. Without it: sums come after both.",
    )
    full_times: float = _figure(
        Annotated[float, Meta(ge=1)],
        "As how many times as long a step counts that fills a device's memory, which the allocator then gives back.", 1.0,
    )
    gather_seconds: float = _figure(NotNegative, "Its thread's time for a gather of a unit's weights, beside the message.")
    gather_bytes_per_second: float = _figure(Positive, "How fast it copies what is gathered. Without it: at once.", inf)
    sum_seconds: float = _figure(
        NotNegative, "Its thread's time for a sum of a unit's gradients of which each replica gets all."
    )
    sum_bytes_per_second: float = _figure(Positive, "How fast it copies what is summed so. Without it: at once.", inf)
    scatter_seconds: float = _figure(
        NotNegative, "Its thread's time for a sum of a unit's gradients of which each replica gets its share."
    )
    scatter_bytes_per_second: float = _figure(Positive, "How fast it copies what is summed so. Without it: at once.", inf)
    cut_seconds: float = _figure(
        NotNegative, "Its thread's time more for a function of a network whose layers are cut."
    )
    cut_backward_seconds: float = _figure(NotNegative, "The same for its backward pass.")
    cut_layer_seconds: float = _figure(
        NotNegative, "Its thread's time more for an operator with weights of such a network."
    )
    cut_layer_backward_seconds: float = _figure(NotNegative, "The same for its backward pass.")
    change_seconds: float = _figure(
        NotNegative, "Its thread's time to bring activations into another layout, beside the message."
    )
    change_bytes_per_second: float = _figure(Positive, "How fast it copies what is brought there. Without it: at once.", inf)
    gpus: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()

    def waits(self, nbytes: float) -> float:
        """Return the seconds that the program waits for a message of ``nbytes``."""
        return self.message_seconds + nbytes / self.message_bytes_per_second

    @property
    def by_plan(self) -> bool:
        """Whether its thread needs time for units or for layers that are cut, which not every plan has."""
        of_cuts = self.cut_seconds, self.cut_backward_seconds, self.cut_layer_seconds, self.cut_layer_backward_seconds
        return any(of_cuts) or self.takes_collectives(replicated=True, cut=True)

    def takes_collectives(self, replicated: bool, cut: bool) -> bool:
        """Return whether its thread needs time for collectives: of units, if a plan has replicas (``replicated``), or of
        activations, if its layers are ``cut``."""
        of_units = replicated and any(self.of_unit(what, 1.0) for what in UNIT_MESSAGES)
        return of_units or (cut and self.of_change(1.0) > 0)

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
        """Return the program as it is on a kind of device. What is known of ``a100`` holds for ``a100-40gb`` too."""
        known = dict(self.gpus)
        own = dict(known.get(kind) or known.get(kind.partition("-")[0], ()))
        return replace(self, gpus=(), **own)

    def passing(self, kind: str) -> Passes:
        """Return how it passes over memory in operators of a kind, in updates of weights (``update``), or where it adds a weight's
        gradient to that of earlier micro-batches (``sums``)."""
        group = kind if kind in ("update", "sums") else KINDS.get(kind, "other")
        return next((found for name, found in self.passes if name == group), ONE_PASS)
