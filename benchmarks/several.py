"""Options of benchmarks that take several values: ``--devices 8 64`` says the same as ``--devices 8 --devices 64``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import click


class Several(click.Command):
    """A command whose options with ``multiple=True`` take all values up to the next option. It must have no arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names = {
            name for option in self.params if isinstance(option, click.Option) and option.multiple and not option.is_flag
            for name in option.opts
        }
        return super().parse_args(ctx, repeated(args, names))


def repeated(args: Sequence[str], names: Collection[str]) -> list[str]:
    """``args`` with the option's name before each value of the options ``names``."""
    found: list[str] = []
    name, values = "", 0
    for arg in args:
        if arg.startswith("-"):  # no benchmark takes negative numbers
            name, values = arg if arg in names else "", 0
        elif name:
            if values:
                found.append(name)
            values += 1
        found.append(arg)
    return found


def one_of(names: Iterable[str]) -> click.Choice[str]:
    """One of these names; case does not matter, and the command gets it as it stands here."""
    return click.Choice(tuple(names), case_sensitive=False)
