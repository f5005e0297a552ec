"""Progress of training: a live bar on a terminal, plain lines elsewhere, always on stderr."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from math import inf, isfinite
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from taskflow.training.evaluation import Throughput, perplexity
from taskflow.working import Working, is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINES = 20  # a plain display's lines over a whole run of quick steps
_LONGEST_SILENCE_SECONDS = 15.0


class TrainingProgress:
    """Context manager that shows step, loss, items per second and time left, on rank 0 only.

    ``unit``: of the items. For tokens, whose loss is a mean over tokens, it shows the perplexity too.

    On a terminal it draws a bar that rewrites itself (rich). Elsewhere (a file, a pipe, a rank under mpirun) it prints a plain
    line without control codes for the first and the last step, every ``every`` steps (default: a twentieth of ``total``), and
    after every 15 s of training. It writes to ``stream`` (default: stderr), so that stdout holds results only. ``quiet`` shows
    nothing; ranks other than 0 pass it. Steps are counted either way, for `per_second`.
    """

    def __init__(
        self, total: int, quiet: bool = False, every: int | None = None, stream: TextIO | None = None,
        unit: str = "tokens",
    ) -> None:
        if total < 1:
            raise ValueError(f"TrainingProgress: total must be at least 1 step, got {total}")
        if every is not None and every < 1:
            raise ValueError(f"TrainingProgress: every must be at least 1 step, got {every}")
        self.total = total
        self.unit = unit
        self.done = 0
        self.throughput = Throughput()
        self._quiet = quiet
        self._every = every or max(1, total // LINES)
        self._stream = stream or sys.stderr
        self._silent_seconds = 0.0
        self._live: tuple[Progress, TaskID] | None = None

    @property
    def per_second(self) -> float:
        """Return the median over recent steps; NaN before the first."""
        return self.throughput.per_second

    def __enter__(self) -> TrainingProgress:
        if not self._quiet and is_terminal(self._stream):
            self._live = _start_bar(self._stream, self.total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live[0].stop()
            self._live = None

    def doing(self, text: str) -> AbstractContextManager[object]:
        """Show what is done instead of a step: in the bar, or on a line of its own."""
        if self._live is None:
            return Working(text, self._quiet, self._stream)
        bar, task = self._live
        bar.update(task, numbers=text)
        return nullcontext()

    def step(self, loss: float, items: int, seconds: float) -> None:
        """Report one finished step: its mean cross-entropy in nats, the number of items it trained on, and its duration."""
        self.throughput.add(items, seconds)
        self.done += 1
        if self._quiet:
            return
        if self._live is not None:
            bar, task = self._live
            bar.update(task, completed=self.done, numbers=self._numbers(loss))
            return
        self._silent_seconds += seconds
        if self._line_is_due():
            self._silent_seconds = 0.0
            print(f"step {self.done}/{self.total}  {self._numbers(loss)}", file=self._stream, flush=True)

    def _line_is_due(self) -> bool:
        return (
            self.done in (1, self.total)
            or self.done % self._every == 0
            or self._silent_seconds >= _LONGEST_SILENCE_SECONDS
        )

    def _numbers(self, loss: float) -> str:
        left = max(0, self.total - self.done) * self.throughput.seconds_per_step
        return "  ".join((
            f"loss {loss:.4f}",
            *([f"perplexity {_short(perplexity(loss))}"] if self.unit == "tokens" else []),
            f"{_short(self.per_second)} {self.unit}/s",
            f"{timedelta(seconds=round(left)) if isfinite(left) else '?'} left",
        ))


def _short(value: float) -> str:
    """A number with separators, with one decimal below a thousand; large ones in powers of ten."""
    if not isfinite(value):
        return "inf" if value == inf else "?"
    if value >= 1e9:
        return f"{value:.2e}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def _start_bar(stream: TextIO, total: int) -> tuple[Progress, TaskID]:
    from rich.console import Console  # here, so that ranks without a terminal do not pay for the import
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(bar_width=24), TextColumn("{task.fields[numbers]}"))
    console = Console(file=stream, force_terminal=True)
    # Without redirection rich leaves sys.stdout alone: results that are printed meanwhile stay on stdout.
    bar = Progress(*columns, console=console, redirect_stdout=False, redirect_stderr=stream is sys.stderr)
    bar.start()
    return bar, bar.add_task("train", total=total, numbers="")
