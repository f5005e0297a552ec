"""Tables for people: fitted to the terminal, plain text when piped. Numbers are never cut off."""

from __future__ import annotations

import io
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

import click
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from taskflow.mapper import ranges
from taskflow.wording import some

PIPED = 120  # columns of a table that goes to a file or another program, unless COLUMNS says otherwise
_WIDEST = 10_000  # columns: nothing is folded
MOST_SHORT = 8
MOST_PLACES = 80  # letters that say the device of every piece
MOST_RANGES = 8  # of devices, where each is said once
LONGEST_WHOLE = 40  # letters of a word that is not broken, however narrow the terminal


def render(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[int] = (0,), spare: Sequence[int] = (),
    width: int | None = None,
) -> str:
    """Return a table as text. ``words``: the columns of words, which may be folded over several lines; all other columns hold
    numbers, which are aligned right and stay whole even if the terminal is too narrow. ``spare``: columns that a narrow
    terminal does without, in this order; a line below says so. ``width``: of the terminal. None: the actual width; without a
    terminal, the variable COLUMNS, else 120."""
    terminal = sys.stdout is not None and sys.stdout.isatty()  # None: the shell closed it
    seen = width or (Console(file=sys.stdout).width if terminal else _piped_width())
    text = ""
    for left in ([], *(sorted(spare[:more]) for more in range(len(spare) + 1))):
        kept = [i for i in range(len(headings)) if i not in left]
        fewer = [[row[i] for i in kept] for row in rows]
        close = bool(text)  # the second time, before a column goes, all stand closer
        text = _whole([headings[i] for i in kept], fewer, [kept.index(i) for i in words if i in kept], close, seen, terminal)
        if left:
            text += f"\n(a wider terminal also shows: {', '.join(headings[i] for i in left)})"
        if max(map(cell_len, _plain(text).splitlines())) <= seen:
            break
    return text


def _piped_width() -> int:
    text = os.environ.get("COLUMNS", "").strip()
    return int(text) if text.isdigit() and int(text) else PIPED


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int], close: bool) -> Table:
    """``close``: with less room between columns."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=close, header_style="bold")
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
    return table


def _whole(
    headings: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int], close: bool, width: int, terminal: bool
) -> str:
    """The table in the least width from this one on that cuts no number."""
    table, console = _table(headings, rows, words, close), Console(width=_WIDEST)
    numbers = [text for cells in (headings, *rows) for i, text in enumerate(cells) if i not in words and "\n" not in text]
    need = console.measure(table, options=console.options.update(width=_WIDEST)).minimum
    for more in range(MOST_SHORT + 1):  # what rich measures is a few columns short of what it needs
        text = _printed(table, max(width, need) + more, terminal)
        if all(number in text for number in numbers):
            break
    return text


def _plain(text: str) -> str:
    """Without the terminal's own signs."""
    return Text.from_ansi(text).plain


def _printed(table: Table, width: int, terminal: bool) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal or None, markup=False, highlight=False)
    console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def told(text: str, stream: TextIO | None) -> str:
    """Return a sentence as a stream shows it: on a terminal wrapped between words."""
    return _broken(text, Console(file=stream).width) if stream is not None and stream.isatty() else text


def tell(text: str) -> None:
    """Print text for people. On a terminal, sentences are wrapped between words; tables and piped output stay as they are."""
    click.echo("\n".join(told(line, sys.stdout) for line in text.split("\n")))


def _broken(line: str, width: int) -> str:
    if len(line) <= width or "  " in line.strip() or "\x1b" in line:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line, width, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )


def seconds(value: float) -> str:
    """Return a time such as ``1.234 ms``, in the unit that suits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return "0 s" if value == 0 else f"{value / 1e-6:.3g} us"


def nbytes(value: float) -> str:
    """Return a size such as ``12.3 MB``, in the unit that suits (powers of 1000)."""
    for unit, scale in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(float(f"{value / scale:.3g}")) >= 1:
            return f"{three(value / scale)} {unit}"
    return f"{value:.0f} B"


def three(value: float) -> str:
    """Return a number with three digits that count: ``0.12``, ``12.3``, ``44,900``."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{value:.3g}"


def places(processors: Sequence[int]) -> str:
    """Return the devices of an operator's pieces in order or, where that takes more than a line, each device once."""
    text = ranges(tuple(processors))
    if len(text) <= MOST_PLACES:
        return text
    return f"{some(ranges(tuple(sorted(set(processors)))).split(','), MOST_RANGES)} ({len(processors):,} pieces)"


def percent(part: float, whole: float) -> str:
    """Return a share of a whole in percent."""
    return f"{part / whole:.1%}" if whole > 0 else ""
