"""Progress: one line on stderr that changes, on a terminal only, and none with --quiet or --json."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

import click


def wanted(context: click.Context | None = None) -> bool:
    """Whether the command that runs should show progress."""
    context = context or click.get_current_context(silent=True)
    options = context.params if context is not None else {}
    return sys.stderr.isatty() and not options.get("quiet") and not options.get("as_json")


class Display:
    """With it, ``say(text)`` changes the line; it is gone afterwards. Nothing is shown where nobody looks."""

    def __init__(self, text: str, show: bool | None = None) -> None:
        self._text = text
        self._show = wanted() if show is None else show
        self._live: Any = None

    def __enter__(self) -> Display:
        if self._show:
            from rich.console import Console

            self._live = Console(stderr=True).status(self._text)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: object) -> None:
        """What is done now."""
        if self._live is not None:
            self._live.update(str(text))
