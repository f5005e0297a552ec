"""taskflow train: trains a network on real data under any strategy, alone or under mpirun. The examples call the same code."""

from __future__ import annotations

import importlib
import os
import sys

import click

from taskflow.runtime.job import say_once
from taskflow.training.networks import NETWORKS, program


class Programs(click.Group):
    """Training programs by the network's name, and users' own as package.module:command. Imported when they are asked for."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the networks that come with taskflow."""
        return [name.lower() for name in NETWORKS]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return the training program; exit with code 2 after one line if there is none."""
        try:
            return _own(name) if ":" in name else program(name)
        except (ValueError, ImportError) as error:
            say_once(f"taskflow train: {error}")
            sys.exit(2)

    def resolve_command(self, context: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names; its name stays as it was written."""
        return args[0], self.get_command(context, args[0]), args[1:]


def _own(name: str) -> click.Command:
    """A command made with `taskflow.training.program.example.example`, looked for on PYTHONPATH and in the current folder."""
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        raise ValueError(f"train {name}: cannot import {module} ({error})") from error
    except (Exception, SystemExit) as error:  # of the user's own file
        raise ValueError(f"train {name}: cannot import {module} ({type(error).__name__}: {error})") from error
    if not isinstance(found, click.Command):
        raise ValueError(f"train {name}: {module} has no command {attribute} made with @example (docs/guide/training.md says how)")
    return found


@click.group("train", cls=Programs, subcommand_metavar="NAME [OPTIONS]")
def train_group() -> None:
    """Train a network on real data, in this process or under mpirun.

    NAME is one of the networks below, or package.module:command, a command of your own made with
    taskflow.training.program.example. Every mapper, number of ranks and machine gives the same losses; only the speed changes.
    Options that a network has: taskflow train NAME --help.

    \b
    Examples:
      taskflow train rnnlm --processors 4 --steps 50
      mpirun -n 4 taskflow train resnet-101 --mapper search --trace steps.json.gz
      mpirun -n 4 taskflow train nmt --checkpoint run.safetensors --checkpoint-every 100
      mpirun -n 2 taskflow train nmt --resume run.safetensors --steps 600
    """
