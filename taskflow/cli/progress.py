"""Progress: one line on stderr that moves, on a terminal only, and none with --quiet or --json."""

from __future__ import annotations

import sys

import click

from taskflow.working import Working


def wanted(context: click.Context | None = None) -> bool:
    """True if the command that runs should show progress."""
    context = context or click.get_current_context(silent=True)
    options = context.params if context is not None else {}
    return sys.stderr.isatty() and not options.get("quiet") and not options.get("as_json")


def working(text: str, show: bool | None = None) -> Working:
    """What a command shows while it works: ``say(text)`` changes the line. Nothing where nobody looks. ``show``: by default as
    `wanted` says."""
    return Working(text, quiet=not (wanted() if show is None else show), elsewhere="nothing")
