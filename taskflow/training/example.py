"""A program that trains one network, written once: its options, its plan, its run and its report.

An example is a function that says what to train, under `example`:

    @example(PRESETS, data="FILE", data_help="Text file to train on.")
    @click.option("--level", default="word")              # options of its own
    def main(run: Run, level: str) -> Training: ...

It gets the options that all examples share (``--mapper``, ``--preset``, ``--data``, ``--steps``, ``--json``, ...), works
alone and under mpirun, and prints the losses of the run, which are the same under every mapper.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from taskflow.runtime.launch import LaunchError, connect, launcher
from taskflow.training.job import finish, one_line, prepare
from taskflow.training.options import Options, shared_options
from taskflow.training.subject import Preset, Run, Training

__all__ = ["Preset", "Run", "Training", "example", "run_example"]

Builder = Callable[..., Training]


def example(presets: Mapping[str, Preset], *, data: str, data_help: str) -> Callable[[Builder], click.Command]:
    """Make a command of a function that takes a `Run` (and options of its own) and returns a `Training`.

    ``data``: what ``--data`` names, for its help. The help's first paragraph is that of the function's module. What the
    function raises as ValueError, OSError or ImportError is what the user can mend: one line on stderr, exit code 2.
    """
    shared = shared_options(list(presets), data, data_help)
    names = [option.name for option in fields(Options)]

    def decorate(build: Builder) -> click.Command:
        @wraps(build)
        def command(**given: Any) -> None:
            options = Options(**{name: given.pop(name) for name in names})
            context = click.get_current_context()
            program = context.command_path if context.parent is not None else Path(inspect.getfile(build)).name
            status = run_example(program, presets[options.preset], options, lambda run: build(run, **given))
            if status:
                sys.exit(status)

        whole: Any = command
        for option in reversed(shared):
            whole = option(whole)
        about = (build.__globals__.get("__doc__") or "").split("\n\n")[0]
        epilog = "Swap --mapper and the losses stay the same: only the speed changes."
        return click.command(help=about, epilog=epilog)(whole)

    return decorate


def run_example(program: str, preset: Preset, options: Options, build: Callable[[Run], Training]) -> int:
    """Connect, plan, train, report. Returns the exit status: 2 for what the user can mend, after one line on stderr that
    begins with ``program``. Every rank runs it."""
    try:
        transport = connect(watchdog_seconds=options.watchdog)
    except (LaunchError, ValueError) as error:
        if (started := launcher()) is None or started.rank == 0:
            click.echo(f"{program}: {error}", err=True)
        return 2
    first = transport.rank == 0

    def say(text: str) -> None:
        if first and not options.quiet:
            click.echo(text, err=True)

    with ExitStack() as background:
        try:
            job = prepare(preset, options, build, transport, background, say)
        except (ValueError, OSError, ImportError) as error:  # what the user can mend: no traceback, said once
            if first:
                click.echo(f"{program}: {one_line(error)}", err=True)
            transport.close()
            return 2
        status = finish(program, preset, options, job, say)
    transport.close()
    return status
