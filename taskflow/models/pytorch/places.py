"""Lines of a user's code: where a function of torch is called, and where an error comes from."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple

_NOT_THEIRS = (
    *(os.path.dirname(spec.origin) + os.sep for spec in map(find_spec, ("torch", __package__)) if spec is not None and spec.origin),
    str(Path(__file__).resolve().parents[2] / "export") + os.sep,
)
_LIBRARY = os.path.dirname(os.__file__) + os.sep  # decorators, context managers


class CodePlace(NamedTuple):
    """A line of the module's code; ``code``: its text, where it is known without the file."""

    file: str
    line: int
    code: str = ""


def at_place(place: CodePlace | None, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function for the line of code that it was recorded from, which then is the calling and the raising line."""
    return function(*args, **options)


def is_theirs(file: str) -> bool:
    """True for a file of the module's own code: not of torch, nor of Python, nor of these packages."""
    library = file.startswith(_LIBRARY) and "site-packages" not in file
    return not library and not file.startswith(_NOT_THEIRS) and not file.startswith("<")


def _place_of(code: CodeType, line: int) -> CodePlace | None:
    return CodePlace(code.co_filename, line) if is_theirs(code.co_filename) else None


def calling_line(within: CodeType) -> CodePlace | None:
    """The line of the innermost frame of the module's own code, which ``within`` calls; None where only torch's own containers
    stand between: the line of whoever called that is not the module's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not within:
        if frame.f_code is at_place.__code__:
            return frame.f_locals["place"]  # type: ignore[no-any-return]
        if (found := _place_of(frame.f_code, frame.f_lineno)) is not None:
            return found
        frame = frame.f_back
    return None


def raising_line(trace: TracebackType | None) -> CodePlace | None:
    """The line of the module's own code that an error came through last."""
    found = None
    while trace is not None:
        code = trace.tb_frame.f_code
        found = trace.tb_frame.f_locals["place"] if code is at_place.__code__ else _place_of(code, trace.tb_lineno) or found
        trace = trace.tb_next
    return found


def place_text(place: CodePlace | None) -> str:
    """" (line 7 of model.py: `if x.sum() > 0:`)"; nothing where the source is not there."""
    code = (place.code or linecache.getline(place.file, place.line)).strip() if place is not None else ""
    if place is None or not code:
        return ""
    return f" (line {place.line} of {os.path.basename(place.file)}: `{code if len(code) <= 80 else code[:77] + '...'}`)"
