"""Progress: one line on stderr that is updated in place, only on a terminal, and not with --quiet or --json."""

from __future__ import annotations

import sys

import click

from taskflow.working import Working


def wanted(context: click.Context | None = None) -> bool:
    """True if the running command should show progress."""
    context = context or click.get_current_context(silent=True)
    options = context.params if context is not None else {}
    return sys.stderr.isatty() and not options.get("quiet") and not options.get("as_json")


def working(text: str, show: bool | None = None) -> Working:
    """Return a progress line; ``say(text)`` changes it. It shows nothing without a terminal. ``show``: by default `wanted`."""
    return Working(text, quiet=not (wanted() if show is None else show), elsewhere="nothing")
