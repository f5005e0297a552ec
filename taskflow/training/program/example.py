"""Turns a function that says what to train into a command: its options, plan, run and report.

A program is a function that returns what to train, decorated with `example`:

    @example(PRESETS, data="FILE", data_help="Text file to train on.")
    @click.option("--level", default="word")              # options of its own
    def main(run: RunConfig, level: str) -> Training: ...

It gets the options that all programs share (``--mapper``, ``--preset``, ``--data``, ``--steps``, ``--json``, ...), works alone
and under mpirun, and prints the losses of the run, which are the same under every mapper.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, redirect_stdout
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from taskflow.option_types import command_path
from taskflow.runtime import connect
from taskflow.runtime.job import (
    ATTEMPT_VARIABLE,
    INTERRUPTED,
    LAUNCHER,
    LaunchError,
    RankRange,
    hosts_of,
    launcher,
    run_elastic,
    say_once,
    speaks,
)
from taskflow.training.program.definition import Preset, RunConfig, Training
from taskflow.training.program.job import finish, prepare
from taskflow.training.program.options import Options, shared_options
from taskflow.writing import one_line

__all__ = ["Preset", "RunConfig", "Training", "example", "run_example"]

Builder = Callable[..., Training]
EXAMPLES = (
    "{program} --processors 4 --steps 20",
    "mpirun -n 4 {program} --mapper search --save-strategy plan.json",
    "mpirun -n 4 {program} --mapper plan.json --checkpoint run.safetensors --json",
)


def example(presets: Mapping[str, Preset], *, data: str, data_help: str) -> Callable[[Builder], click.Command]:
    """Turn a function that takes a `RunConfig` (and options of its own) and returns a `Training` into a command.

    ``data``: placeholder of ``--data`` in help. The help's first paragraph is that of the function's module. ValueError,
    OSError or ImportError from the function means that the user can correct it: one line on stderr, exit code 2.
    """
    shared = shared_options(list(presets), data, data_help)
    names = [option.name for option in fields(Options)]

    def decorate(build: Builder) -> click.Command:
        @wraps(build)
        def command(**given: Any) -> None:
            options = Options(**{name: given.pop(name) for name in names})
            program = _called(click.get_current_context(), build)
            status = run_example(program, presets[options.preset], options, lambda run: build(run, **given))
            if status:
                sys.exit(status)

        whole: Any = command
        for option in reversed(shared):
            whole = option(whole)
        about = (build.__globals__.get("__doc__") or "").split("\n\n")[0]
        short = re.split(",? under a strategy", " ".join(about.split()))[0].rstrip(".") + "."
        epilog = "Swap --mapper and the losses stay the same: only the speed changes."
        return click.command(cls=RankCommand, help=about, short_help=short, epilog=epilog)(whole)

    return decorate


class RankCommand(click.Command):
    """Command that many ranks run: only rank 0 prints help, and one line about a mistake in the arguments."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments. Under mpirun rank 0 alone prints help; a usage error is printed once, with exit code 2."""
        asks = "--help" in args and not speaks()
        try:
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere if asks else sys.stdout):
                return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            name = command_path(parent, info_name or "") if parent is not None else info_name
            say_once(f"{name}: {error.format_message()} (--help lists what there is)")
            sys.exit(2)

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what holds for all programs, and examples with the name by which the program was called."""
        super().format_epilog(context, formatter)
        program = command_path(context) if context.parent is not None else f"python {context.info_name}"
        with formatter.section("Examples"):
            for line in EXAMPLES:
                formatter.write(f"  {line.format(program=program)}\n")


def _called(context: click.Context, build: Builder) -> str:
    """Name by which the user called the program: ``rnnlm.py``, or ``taskflow train rnnlm``."""
    if context.parent is None:
        return Path(inspect.getfile(build)).name
    return command_path(context)


def _going_on(options: Options) -> str:
    """Advice on how an interrupted run continues."""
    if options.checkpoint is not None and Path(options.checkpoint).is_file():
        return f"go on from the last checkpoint with --resume {options.checkpoint}"
    return "with --checkpoint FILE --checkpoint-every N, a run can go on with --resume FILE"


def run_example(program: str, preset: Preset, options: Options, build: Callable[[RunConfig], Training]) -> int:
    """Connect, plan, train, report. Returns the exit status: 2 for what the user can correct, after one line on stderr that
    begins with ``program``. Ctrl-C ends the process with status INTERRUPTED. Every rank runs it."""
    if options.elastic is not None and ATTEMPT_VARIABLE not in os.environ and launcher() is None:
        return _elastic(program, options, options.elastic)
    try:
        transport = connect(watchdog_seconds=options.watchdog)
    except (LaunchError, ValueError) as error:
        say_once(f"{program}: {error}")
        return 2
    first = transport.rank == 0

    def say(text: str) -> None:
        if first and not options.quiet:
            click.echo(text, err=True)

    with ExitStack() as background:
        try:
            job = prepare(preset, options, build, transport, background, say)
        except KeyboardInterrupt:
            if first:
                click.echo(f"{program}: interrupted before the first step", err=True)
            sys.exit(INTERRUPTED)
        except (ValueError, OSError, ImportError) as error:  # what the user can correct: no traceback, said once
            if first:
                click.echo(f"{program}: {one_line(error)}", err=True)
            transport.close()
            if options.debug:
                raise
            return 2
        try:
            status = finish(program, preset, options, job, say)
        except KeyboardInterrupt:
            if first:
                click.echo(f"{program}: interrupted; {_going_on(options)}", err=True)
            sys.exit(INTERRUPTED)  # the other ranks are told by the signal too; nobody waits for anybody
    transport.close()
    return status


def _elastic(program: str, options: Options, ranks: RankRange) -> int:
    """Start this program as a job of several ranks, again and again. Returns its exit status."""
    if options.checkpoint is None:
        say_once(f"{program}: --elastic needs --checkpoint FILE, from which restarted ranks go on")
        return 2

    def say(text: str) -> None:
        if not options.quiet:
            click.echo(f"{program}: {text}", err=True)

    try:
        return run_elastic(
            [sys.executable, *sys.orig_argv[1:]], ranks, max_restarts=options.max_restarts, launcher=options.launcher or LAUNCHER,
            hosts=None if options.discovery is None else hosts_of(options.discovery),
            watchdog_seconds=options.watchdog, say=say,
        )
    except LaunchError as error:
        say_once(f"{program}: {error}")
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
