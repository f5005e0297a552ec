"""Programs of single devices, as machine files name them: by name, or by their figures."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from taskflow.programs.presets import load_program, program_names
from taskflow.programs.program import TrainingProgram
from taskflow.programs.program_file import Figures, Source, entries, figures, verify_whole
from taskflow.reading import Name


class ProgramEntry(Figures, frozen=True, kw_only=True):
    """Program that launches work on a device."""

    name: Name | UnsetType = UNSET
    source: Source | UnsetType = UNSET

    def __post_init__(self) -> None:
        verify_whole(self)


def program_of(entry: str | ProgramEntry, kind: str) -> TrainingProgram:
    """Return the program of a device of a kind. Raises ValueError for an unknown name."""
    if isinstance(entry, str):
        return load_program(entry).on(kind)
    return TrainingProgram(name=entry.name or "", source=entry.source or "", **figures(entry))


def program_entry(program: TrainingProgram, kind: str) -> str | ProgramEntry:
    """Return how a machine file says what drives a device: its name, if that means this program."""
    if program.name in program_names() and load_program(program.name).on(kind) == program:
        return program.name
    return ProgramEntry(name=program.name or UNSET, source=program.source or UNSET, **entries(program))
