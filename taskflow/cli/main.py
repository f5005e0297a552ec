"""The command ``taskflow``: a group whose subcommands are imported when they are asked for."""

from __future__ import annotations

import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from difflib import get_close_matches
from typing import Any, TextIO

import click
from click.shell_completion import CompletionItem

from taskflow.collector import paused_collector
from taskflow.runtime.job import INTERRUPTED, say_once, speaks

# name -> where it is, and what it does in one line. Help lists them in this order.
COMMANDS: dict[str, tuple[str, str]] = {
    # plans
    "fit": ("taskflow.cli.fit:fit_command", "Say which usual ways to train a model fit the memory."),
    "search": ("taskflow.cli.search:search_command", "Find a fast strategy for a model."),
    "simulate": ("taskflow.cli.simulate:simulate_command", "Predict the time of one step under a strategy."),
    "compare": ("taskflow.cli.compare:compare_command", "Compare searched plans with those that people write."),
    "share": ("taskflow.cli.share:share_command", "Divide a machine among several jobs."),
    "explain": ("taskflow.cli.explain:explain_command", "Say why a plan takes as long as it does."),
    "strategy": ("taskflow.cli.strategy:strategy_group", "Show, compare (diff) and check plans."),
    "report": ("taskflow.cli.report:report_command", "Write a plan as one HTML page."),
    "export": ("taskflow.cli.export:export_command", "Write a plan for PyTorch, JAX, Megatron-LM, torchtitan or ONNX."),
    "try": ("taskflow.cli.trial:try_command", "Write a program that runs plans for some steps, with PyTorch alone."),
    # runs
    "train": ("taskflow.cli.train:train_group", "Train a network, alone or under mpirun."),
    "runs": ("taskflow.cli.runs:runs_group", "Keep measured steps, from which to say what to expect."),
    "rank": ("taskflow.cli.rank:rank_command", "Say how often measured plans came in the order predicted."),
    "profile": ("taskflow.cli.profile:profile_command", "Compare measured and predicted times by operator."),
    # what there is
    "doctor": ("taskflow.cli.doctor:doctor_command", "Say what is installed, and how to get what is missing."),
    "probe": ("taskflow.cli.probe:probe_command", "Write a program that measures a machine with PyTorch or JAX."),
    "machine": ("taskflow.cli.machine:machine_group", "Measure or build a machine, or show any."),
    "machines": ("taskflow.cli.listing:machines_command", "List the built-in machines."),
    "programs": ("taskflow.cli.listing:programs_command", "List the training programs whose steps are predicted."),
    "models": ("taskflow.cli.listing:models_command", "List the built-in networks and their sizes."),
}


class Commands(click.Group):
    """The subcommands by name. Each module is imported when its command is used, not to list or complete names, which takes a
    tenth of the time."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return the command of this name, or None if there is none."""
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        with paused_collector():  # imports make little that is given up
            command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), COMMANDS[name]
        return command

    def resolve_command(self, context: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command as click does; for a misspelt name, say which one is like it."""
        try:
            return super().resolve_command(context, args)
        except click.UsageError as error:
            if close := get_close_matches(args[0], COMMANDS, 1):
                raise click.UsageError(f"No such command {args[0]!r}. Did you mean {close[0]!r}?", context) from error
            raise

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands as click does."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, does) for name, (_, does) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names and options as click does."""
        names = [CompletionItem(name, help=does) for name, (_, does) in COMMANDS.items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, context: click.Context) -> Any:
        """Run as click does, but let Ctrl-C during the import of a command end it as Ctrl-C does later, and say a warning in one
        line, without its place in our source."""
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _note
                return super().invoke(context)
        except KeyboardInterrupt:
            say_once("taskflow: interrupted")
            sys.exit(INTERRUPTED)
        except EOFError as error:  # which click would call an interruption, and say no more
            raise RuntimeError(f"a file ended early: {error}") from error

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run as click does. Under mpirun, rank 0 alone prints help and argument errors, and all ranks end with the same exit
        code."""
        for stream in "stdout", "stderr":
            if getattr(sys, stream) is None:  # it was closed before we came (2>&-)
                setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115 (until the process ends)
        if isinstance(sys.stdout, io.TextIOWrapper):  # a path may be no text of this locale; stderr does so by itself
            sys.stdout.reconfigure(errors="backslashreplace")
        if speaks():
            return super().main(args, *rest, **extra)
        words = list(sys.argv[1:] if args is None else args)
        asks = not words or {"-h", "--help", "--version"} & set(words)
        try:
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere if asks else sys.stdout):
                code = super().main(words, *rest, **{**extra, "standalone_mode": False})
        except click.ClickException as error:
            sys.exit(error.exit_code)
        except click.Abort:
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)


def _note(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    if speaks():
        from taskflow.cli.tables import told

        click.echo(told(f"note: {message}", sys.stderr), err=True)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="soap-taskflow", prog_name="taskflow")
def main() -> None:
    """Say how to train a deep network on several devices: what fits, how long a step takes, which plan is fast, and why.

    MODEL is a built-in network (see `taskflow models`), hf:CONFIG.json (Hugging Face), FILE.onnx, FILE.pt2, or a function that
    returns a graph or a torch.nn.Module: path/to/file.py:function or package.module:function. PLAN is a strategy file, a plan
    such as 't2 p2 mb1', a mapper's name (data, model, expert, ...), or package.module:Class.

    \b
    Exit codes:
      0    done; nothing wrong was found
      1    a check failed: a plan does not fit (check), plans differ (diff),
           a framework cannot express a plan (export), the installation
           cannot run (doctor); or a run broke off (train, profile)
      2    a mistake in the command, a file or a model; one line says what to
           do about it (--debug: where it comes from)
      130  ended by Ctrl-C (search prints the best plan so far first)

    \b
    Examples:
      taskflow fit llama --size 70B --dtype bf16 -m h100 -n 64
      taskflow search nmt -m k80 -n 4 --budget 10s --out plan.json
      taskflow explain plan.json
      taskflow simulate net.py:build --set width=512 -m p100 -n 4 --strategy data
    """
