"""JSON form of a program, described in docs/guide/machines.md: writing it, and reading it with checks."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from taskflow.programs.program import Passes, TrainingProgram
from taskflow.reading import LEAST, Entry, Name, NotNegative, Positive, Whole, read_as

FORMAT = "taskflow-program"
VERSION = 1

Source = Annotated[str, Meta(description="Where the figures are from.")]
Part = Annotated[float, Meta(ge=LEAST, le=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
PassGroup = Literal["norm", "activation", "residual", "rotary", "softmax", "attention", "loss", "update", "sums", "other"]


class PassesEntry(Entry, frozen=True, kw_only=True):
    """How a program passes over memory in a group of operators."""

    times: Annotated[NotNegative, Meta(description="As many bytes as one fused kernel.")] = 1.0
    kernels: Annotated[NotNegative, Meta(description="As many kernels as a fused implementation.")] = 1.0
    kept: Annotated[NotNegative, Meta(description="Bytes kept for each number of the result, beyond those of such a kernel.")] = 0.0


class Figures(Entry, frozen=True, kw_only=True):
    """What may differ between kinds of devices."""

    host_seconds: Annotated[
        NotNegative, Meta(description="What its thread needs to start a kernel; 0 for recorded steps.")
    ] | UnsetType = UNSET
    message_seconds: Annotated[
        NotNegative, Meta(description="Waiting for a message of another stage of a pipeline.")
    ] | UnsetType = UNSET
    message_bytes_per_second: Annotated[
        Positive, Meta(description="How fast such a message goes while it waits. Without it: as links are.")
    ] | UnsetType = UNSET
    collective_seconds: Annotated[
        NotNegative, Meta(description="Starting a collective of a tensor group, for each device of it, in pipelines over nodes.")
    ] | UnsetType = UNSET
    attention: Annotated[Name, Meta(description="Its kernel of attention, as devices name it.")] | UnsetType = UNSET
    products: Annotated[
        Part, Meta(description="Part of the rate that matrix products reach alone.")
    ] | UnsetType = UNSET
    memory: Annotated[Part, Meta(description="Part of the memory's rate that a fused pass reaches.")] | UnsetType = UNSET
    passes: Annotated[
        dict[PassGroup, PassesEntry], Meta(description="By group of operators, what is not one fused pass.")
    ] | UnsetType = UNSET
    exposed: Annotated[
        Share, Meta(description="Part of gathers of weights and sums of gradients by which computing beside takes longer.")
    ] | UnsetType = UNSET
    reserved_bytes: Annotated[Whole, Meta(description="Memory that no array of a step gets.")] | UnsetType = UNSET
    gradient_bytes: Annotated[Whole, Meta(description="Of each sum of gradients; 0: float32.")] | UnsetType = UNSET
    whole_scores: Annotated[
        bool, Meta(description="Whether each device of a tensor group has the scores of all words.")
    ] | UnsetType = UNSET
    adds_to_zeros: Annotated[
        bool, Meta(description="Whether the first micro-batch's gradients of weights are added to zeros, not written.")
    ] | UnsetType = UNSET
    full_times: Annotated[
        float, Meta(ge=1, description="As how many times as long a step counts that fills a device's memory.")
    ] | UnsetType = UNSET
    gather_seconds: Annotated[
        NotNegative, Meta(description="Its thread's time for a gather of a unit's weights, beside the message.")
    ] | UnsetType = UNSET
    gather_bytes_per_second: Annotated[
        Positive, Meta(description="How fast it copies what is gathered. Without it: at once.")
    ] | UnsetType = UNSET
    sum_seconds: Annotated[
        NotNegative, Meta(description="Its thread's time for a sum of a unit's gradients of which each replica gets all.")
    ] | UnsetType = UNSET
    sum_bytes_per_second: Annotated[
        Positive, Meta(description="How fast it copies what is summed so. Without it: at once.")
    ] | UnsetType = UNSET
    scatter_seconds: Annotated[
        NotNegative, Meta(description="Its thread's time for a sum of a unit's gradients of which each replica gets its share.")
    ] | UnsetType = UNSET
    scatter_bytes_per_second: Annotated[
        Positive, Meta(description="How fast it copies what is summed so. Without it: at once.")
    ] | UnsetType = UNSET
    cut_seconds: Annotated[
        NotNegative, Meta(description="Its thread's time more for a function of a network whose layers are cut.")
    ] | UnsetType = UNSET
    cut_backward_seconds: Annotated[NotNegative, Meta(description="The same for its backward pass.")] | UnsetType = UNSET
    cut_layer_seconds: Annotated[
        NotNegative, Meta(description="Its thread's time more for an operator with weights of such a network.")
    ] | UnsetType = UNSET
    cut_layer_backward_seconds: Annotated[NotNegative, Meta(description="The same for its backward pass.")] | UnsetType = UNSET
    change_seconds: Annotated[
        NotNegative, Meta(description="Its thread's time to bring activations into another layout, beside the message.")
    ] | UnsetType = UNSET
    change_bytes_per_second: Annotated[
        Positive, Meta(description="How fast it copies what is brought there. Without it: at once.")
    ] | UnsetType = UNSET


class ProgramFile(Figures, frozen=True, kw_only=True):
    """A training program."""

    format: Literal["taskflow-program"]
    version: Literal[1]
    name: Annotated[Name, Meta(description="What answers call it.")]
    about: Annotated[str, Meta(description="One sentence about it.")] = ""
    source: Source | UnsetType = UNSET
    gpus: Annotated[dict[Name, Figures], Meta(description="By kind of device, what differs there.")] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.host_seconds is UNSET:
            raise ValueError("'host_seconds' is missing")


def parse(content: Any, where: str) -> TrainingProgram:
    """Return the program that a JSON value describes. Raises ValueError that begins with ``where`` and says what is wrong at which
    key."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{where}: not a program file (its format must be {FORMAT!r})")
    if content.get("version") != VERSION:
        raise ValueError(f"{where}: version {content.get('version')!r} of the format; this taskflow reads {VERSION}")
    file = read_as(ProgramFile, content, where)
    gpus = tuple(sorted((kind, tuple(sorted(figures(own).items()))) for kind, own in (file.gpus or {}).items()))
    return TrainingProgram(name=file.name, about=file.about, source=file.source or "", gpus=gpus, **figures(file))


def figures(entry: Figures) -> dict[str, Any]:
    """The fields of a program that an entry says."""
    found = {name: value for name in Figures.__struct_fields__ if (value := getattr(entry, name)) is not UNSET}
    if "passes" in found:
        passes: Mapping[str, PassesEntry] = found["passes"]
        found["passes"] = tuple(sorted((group, Passes(one.times, one.kernels, one.kept)) for group, one in passes.items()))
    return found


def unparse(program: TrainingProgram) -> dict[str, Any]:
    """Return the JSON value of a program, from which `parse` makes the same program."""
    file = ProgramFile(
        format="taskflow-program", version=1, name=program.name or "unnamed", about=program.about, source=program.source or UNSET,
        gpus={kind: Figures(**_written(dict(own))) for kind, own in program.gpus} or UNSET,
        **entries(program),
    )  # fmt: skip
    content: dict[str, Any] = msgspec.to_builtins(file)
    return content


def entries(program: TrainingProgram) -> dict[str, Any]:
    """Return the figures of a program as a file has them; those that mean nothing are left out."""
    plain = TrainingProgram(0.0)
    return _written({
        name: value for name in Figures.__struct_fields__
        if (value := getattr(program, name)) != getattr(plain, name) or name == "host_seconds"
    })  # fmt: skip


def _written(figures: dict[str, Any]) -> dict[str, Any]:
    if "passes" in figures:
        figures["passes"] = {
            group: PassesEntry(times=one.times, kernels=one.kernels, kept=one.kept) for group, one in figures["passes"]
        }
    return {name: value for name, value in figures.items() if value != inf}
