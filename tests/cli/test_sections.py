"""Sections of help: every name that stands in one is an option of some command."""

from __future__ import annotations

import click

from taskflow.cli.main import main
from taskflow.cli.sections import ADVANCED, CONSTRAINTS


def parameters(command: click.Command) -> set[str]:
    names = {parameter.name or "" for parameter in command.params}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            names |= parameters(below) if below is not None else set()
    return names


def test_names_in_sections_are_options() -> None:
    assert parameters(main) >= ADVANCED | CONSTRAINTS
    assert not ADVANCED & CONSTRAINTS
