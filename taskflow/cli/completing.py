"""Shell completion (click's): names of models, machines and mappers, and files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from glob import glob

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def names_and_files(names: Callable[[], Sequence[str]], *endings: str) -> Complete:
    """Complete one of ``names`` (case does not matter), or a file with one of the endings."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found = [name for name in names() if name.lower().startswith(incomplete.lower())]
        for ending in endings:
            found += sorted(glob(f"{incomplete}*{ending}"))
        if not found and endings:  # perhaps within a folder: the shell knows how
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(name) for name in found]

    return complete


def _models() -> Sequence[str]:
    from taskflow.models import MODELS

    return list(MODELS)


def _sizes() -> Sequence[str]:
    from taskflow.models import MODELS

    return ["paper", "small", *dict.fromkeys(size for model in MODELS.values() for size in model.sizes)]


def _machines() -> Sequence[str]:
    from taskflow.machine import preset_names

    return preset_names()


def _programs() -> Sequence[str]:
    from taskflow.programs import program_names

    return program_names()


def _mappers() -> Sequence[str]:
    from taskflow.mapper import MAPPERS

    return list(MAPPERS)


models = names_and_files(_models, ".py")
sizes = names_and_files(_sizes)
machines = names_and_files(_machines, ".json")
programs = names_and_files(_programs, ".json")
strategies = names_and_files(_mappers, ".json")
json_files = names_and_files(tuple, ".json")
