"""Working: a progress line on stderr for work that takes its time."""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_SECONDS = 5.0
# Of the process, not of a context as `before_measuring` is: one person sees one line, whichever of a search's threads measures.
_SHOWN: list[Working] = []  # those that a person may see now, the innermost last


class Working:
    """Context manager that shows what is being done while there is no other output (reading, searching, validating), on
    ``stream`` (default: stderr).

    On a terminal it is a moving line, which `say` changes and which vanishes afterwards. ``elsewhere`` (in a file, a pipe, or a
    rank under mpirun): "late" prints one plain line if it takes longer than ``patience`` (seconds), "each" one for
    every `say`, "nothing" none. ``quiet`` shows nothing anywhere.
    """

    def __init__(
        self, text: str, quiet: bool = False, stream: TextIO | None = None,
        elsewhere: Literal["late", "each", "nothing"] = "late", patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._text, self._quiet, self._elsewhere = text, quiet, elsewhere
        self._note, self._patience = "", patience
        self._stream = stream or sys.stderr
        self._live: Progress | None = None
        self._later: threading.Timer | None = None

    def __enter__(self) -> Working:
        if self._quiet:
            return self
        _SHOWN.append(self)
        if is_terminal(self._stream):
            self._live = _line(self._stream, self._text)
        elif self._elsewhere == "late":
            self._later = threading.Timer(self._patience, self._print)
            self._later.daemon = True
            self._later.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt) and not hasattr(error, "taskflow_at"):  # the innermost line comes first
            error.taskflow_at = self._text  # type: ignore[attr-defined]
        if self in _SHOWN:
            _SHOWN.remove(self)
        if self._live is not None:
            self._live.stop()
        if self._later is not None:
            self._later.cancel()

    def say(self, text: object) -> None:
        """Show what is being done now."""
        self._text = str(text)
        self._show()
        if self._live is None and self._elsewhere == "each" and not self._quiet:
            self._print("")

    def note(self, text: str) -> None:
        """Show a side note after it; the note stays until the next one."""
        self._note = text
        self._show()

    @property
    def _whole(self) -> str:
        return f"{self._text}; {self._note}" if self._note else self._text

    def _show(self) -> None:
        if self._live is not None:
            self._live.update(self._live.task_ids[0], description=self._whole)

    def _print(self, after: str = " ...") -> None:
        print(f"{self._whole}{after}", file=self._stream, flush=True)


def note(text: str) -> None:
    """Show a note from deep inside the work (tasks are being measured) after the innermost line that is shown."""
    if _SHOWN:
        _SHOWN[-1].note(text)


def interruption(error: KeyboardInterrupt) -> str:
    """Return that Ctrl-C ended the work, and at what: the last text of the innermost progress line."""
    return f"interrupted ({error.taskflow_at})" if hasattr(error, "taskflow_at") else "interrupted"


def is_terminal(stream: TextIO) -> bool:
    """True if the stream is a terminal that takes control codes. (rich would also believe variables such as FORCE_COLOR, and
    fill log files with control codes.)"""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def _line(stream: TextIO, text: str) -> Progress:
    from rich.console import Console  # here, so that who shows nothing does not pay for the import
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    text_column = TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold"))  # goes on in a next line
    columns = (SpinnerColumn(), text_column, TimeElapsedColumn(table_column=Column(no_wrap=True)))
    console = Console(file=stream, force_terminal=True)
    line = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=stream is sys.stderr)
    line.add_task(text, total=None)
    line.start()
    return line
