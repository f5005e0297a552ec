"""JSON form of a program, described in docs/guide/machines.md: writing it, and reading it with checks."""

from __future__ import annotations

from dataclasses import fields
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, defstruct

from taskflow.programs.program import TrainingProgram
from taskflow.reading import Entry, Name, read_format

Source = Annotated[str, Meta(description="Where the figures are from.")]
if TYPE_CHECKING:
    Figures = Entry
else:
    Figures = defstruct(
        "Figures", [(of.name, of.metadata["kind"] | UnsetType, UNSET) for of in fields(TrainingProgram) if of.metadata],
        bases=(Entry,), namespace={"__doc__": "What may differ between kinds of devices."}, module=__name__, frozen=True,
        kw_only=True,
    )


def verify_whole(entry: Figures) -> None:
    """Raise ValueError if an entry that is a program by itself lacks what has no usual value."""
    if "host_seconds" not in figures(entry):
        raise ValueError("'host_seconds' is missing")


class ProgramFile(Figures, frozen=True, kw_only=True):
    """A training program. With ``like`` it begins as another, and says what differs (`composed`)."""

    format: Literal["taskflow-program"]
    version: Literal[1]
    name: Annotated[Name, Meta(description="What answers call it.")]
    like: (
        Annotated[Name, Meta(description="The program as which this one begins: a preset, or a program file beside this one.")]
        | UnsetType
    ) = UNSET
    about: Annotated[str, Meta(description="One sentence about it.")] = ""
    source: Source | UnsetType = UNSET
    gpus: Annotated[dict[Name, Figures], Meta(description="By kind of device, what differs there.")] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.like is UNSET:
            verify_whole(self)


def read_file(content: Any, where: str) -> ProgramFile:
    """Return what a JSON value says as a program file. Raises ValueError that begins with ``where`` and says what is wrong at
    which key."""
    return read_format(ProgramFile, content, where, "a program file")


def composed(content: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON value of a whole program for a file that begins as the program ``base``. Its keys replace those there; of
    each kind of device in ``gpus`` they do so one by one."""
    own, there = content.get("gpus", {}), base.get("gpus", {})
    gpus = {kind: {**there.get(kind, {}), **own.get(kind, {})} for kind in {**there, **own}}
    return {**base, **{key: value for key, value in content.items() if key != "like"}, "gpus": gpus}


def program_in(file: ProgramFile) -> TrainingProgram:
    """Return the program of a file that is whole."""
    gpus = tuple(sorted((kind, tuple(sorted(figures(own).items()))) for kind, own in (file.gpus or {}).items()))
    return TrainingProgram(name=file.name, about=file.about, source=file.source or "", gpus=gpus, **figures(file))


def figures(entry: Figures) -> dict[str, Any]:
    """The fields of a program that an entry says."""
    found = {name: value for name in Figures.__struct_fields__ if (value := getattr(entry, name)) is not UNSET}
    return found | ({"passes": tuple(sorted(found["passes"].items(), key=itemgetter(0)))} if "passes" in found else {})


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
    found = {name: value for name, value in figures.items() if value != inf}
    return found | ({"passes": dict(found["passes"])} if "passes" in found else {})
