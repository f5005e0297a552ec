"""Lines of a user's code: where a function of torch is called, and where an error comes from."""

from __future__ import annotations

import linecache
import os
import sys
from types import CodeType, FrameType, TracebackType

import torch

_NOT_THEIRS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)
_LIBRARY = os.path.dirname(os.__file__) + os.sep  # decorators, context managers


def _theirs(code: CodeType) -> bool:
    name = code.co_filename
    library = name.startswith(_LIBRARY) and "site-packages" not in name
    return not library and not name.startswith(_NOT_THEIRS) and not name.startswith("<")


def calling_line() -> tuple[str, int] | None:
    """File and line of the innermost frame of the module's own code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _theirs(frame.f_code):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def raising_line(trace: TracebackType | None) -> tuple[str, int] | None:
    """File and line of the module's own code that an error came through last."""
    found = None
    while trace is not None:
        if _theirs(trace.tb_frame.f_code):
            found = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return found


def said(place: tuple[str, int] | None) -> str:
    """" (line 7 of model.py: `if x.sum() > 0:`)"; nothing where the source is not there."""
    code = linecache.getline(*place).strip() if place is not None else ""
    if place is None or not code:
        return ""
    return f" (line {place[1]} of {os.path.basename(place[0])}: `{code if len(code) <= 80 else code[:77] + '...'}`)"
