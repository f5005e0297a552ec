"""Programs by name or file: those of taskflow/programs, and the user's own JSON files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from taskflow.programs.program import TrainingProgram
from taskflow.programs.program_file import parse
from taskflow.reading import read_json

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
        return parse(read_json(Path(name), "program file"), text)
    if text.lower() not in program_names():
        raise ValueError(f"no program {text!r}; use {', '.join(program_names())}, or a program file FILE.json")
    return _preset(text.lower())


@lru_cache(maxsize=64)
def _preset(name: str) -> TrainingProgram:
    path = FOLDER / f"{name}.json"
    return parse(read_json(path, "program file"), str(path))
