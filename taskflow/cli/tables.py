"""Tables for people: fitted to the terminal, plain text when piped, and never with a number cut off."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

PIPED = 10_000  # columns: no line of a file is wrapped
MOST_SHORT = 8
LONGEST_WHOLE = 14  # letters of a word that is not broken, however narrow the terminal


def render(headings: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[int] = (0,), width: int | None = None) -> str:
    """A table as text. ``words``: the columns that hold words, which may be folded over several lines; all others hold
    numbers, which stand at the right and stay whole even if the terminal is too narrow. ``width``: of the terminal (None:
    as it is; what is not a terminal has no width)."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for i, heading in enumerate(headings):
        if i in words:
            words_here = [word for text in (heading, *(row[i] for row in rows)) for word in text.split()]
            whole = max((len(word) for word in words_here if len(word) <= LONGEST_WHOLE), default=1)
            table.add_column(heading, overflow="fold", min_width=whole)
        else:
            longest = max((len(line) for line in heading.split("\n")), default=0)
            longest = max([longest, *(len(row[i]) for row in rows)])
            table.add_column(heading, justify="right", no_wrap=True, min_width=longest)
    for row in rows:
        table.add_row(*row)
    terminal = sys.stdout.isatty()
    if not terminal and width is None:
        return _printed(table, PIPED, terminal)
    numbers = [text for cells in (headings, *rows) for i, text in enumerate(cells) if i not in words and "\n" not in text]
    console = Console(width=PIPED)
    need = console.measure(table, options=console.options.update(width=PIPED)).minimum
    seen = max(width or Console(file=sys.stdout).width, need)
    for more in range(MOST_SHORT + 1):  # what rich measures is a few columns short of what it needs to cut no number off
        text = _printed(table, seen + more, terminal)
        if all(number in text for number in numbers):
            break
    return text


def _printed(table: Table, width: int, terminal: bool) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal or None, markup=False, highlight=False)
    console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def seconds(value: float) -> str:
    """``1.234 ms`` in the unit that suits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return "0 s" if value == 0 else f"{value / 1e-6:.3g} us"


def nbytes(value: float) -> str:
    """``12.3 MB`` in the unit that suits (powers of 1000)."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def percent(part: float, whole: float) -> str:
    """The share of a whole."""
    return f"{part / whole:.1%}" if whole > 0 else ""
