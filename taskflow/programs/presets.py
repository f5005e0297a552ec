"""Programs by name or file: those of taskflow/programs, and the user's own JSON files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from taskflow.programs.program import TrainingProgram
from taskflow.programs.program_file import composed, program_in, read_file
from taskflow.reading import like_path, read_json

FOLDER = Path(__file__).parent
DEFAULT = "megatron"
"""The program of plans in notation that name none."""
PROBED = "probed"  # the name of a program whose figures a probe has measured


@lru_cache(maxsize=1)
def program_names() -> tuple[str, ...]:
    """Return the names that `load_program` knows."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def load_program(name: str | Path) -> TrainingProgram:
    """Return a program by name, or that of a file (any path that ends in ``.json``). Raises ValueError for an unknown name or a
    broken file; FileNotFoundError for a missing file."""
    text = str(name)
    if text.endswith(".json"):
        return _of_file(Path(name))
    if text.lower() not in program_names():
        raise ValueError(f"no program {text!r}; use {', '.join(program_names())}, or a program file FILE.json")
    return _preset(text.lower())


@lru_cache(maxsize=64)
def _preset(name: str) -> TrainingProgram:
    return _of_file(FOLDER / f"{name}.json")


def _of_file(path: Path) -> TrainingProgram:
    return program_in(read_file(program_content(path), str(path)))


def program_content(path: Path, on_the_way: tuple[Path, ...] = ()) -> Any:
    """Return the JSON value of a program file, made whole if it begins as another program. ``on_the_way``: the files that begin as
    this one. Raises as `load_program` does."""
    content = read_json(path, "program file")
    file = read_file(content, str(path))
    if not file.like:
        return content
    there = like_path(file.like, path, FOLDER, "program", on_the_way)
    return composed(content, program_content(there, (path, *on_the_way)))
