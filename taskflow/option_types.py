"""Types of command-line options, with the errors for values that cannot be; what callbacks and errors of commands need."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf, isfinite
from typing import Any, ClassVar

import click

from taskflow.floats import FLOATS, float_type

MOST_VIRTUAL = 4096
"""Virtual processors of a run: as many as compiled simulation takes. A step of the MLP compiles in seconds then, in minutes for a
million."""


class Seconds(click.FloatRange):
    """Option type: a finite number of seconds. click's own ranges accept NaN, which no wait ever exceeds, and infinity."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> float:
        """Return the number; otherwise raise a usage error that says what was required."""
        seconds = click.FLOAT.convert(value, param, context)
        if not isfinite(seconds) or seconds < 0 or (self.min_open and seconds == 0):
            least = "more than 0" if self.min_open else "0 (never) or more"
            self.fail(f"{value} is no such time; give a number of seconds, {least}.", param, context)
        return float(seconds)


class Duration(click.ParamType):  # type: ignore[type-arg]
    """Option type: a time such as 480ms, 90s, 10m, 8h or 2d; the option's value is in seconds."""

    name = "time"
    _UNITS: ClassVar = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> float:
        """Return the seconds; otherwise raise a usage error that says how to write a time."""
        match = re.fullmatch(r"(\d+\.?\d*|\.\d+)(ms|s|m|min|h|d)", str(value).strip())
        if match is None or not 0 < (seconds := float(match[1]) * self._UNITS[match[2]]) < inf:
            return self.fail(f"{value!r} is no such time; write 480ms, 90s, 10m, 8h or 2d.", param, context)
        return seconds


class FloatName(click.ParamType):  # type: ignore[type-arg]
    """Option type: a float type by its long or short name; the option's value is the long name."""

    name = "float type"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return the placeholder that help shows."""
        return f"[{'|'.join(FLOATS)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the type's name; otherwise raise a usage error that lists the types, or says what has to be installed."""
        try:
            return float_type(str(value)).name
        except (ValueError, ImportError) as error:
            self.fail(f"{error}.", param, ctx)


def check_processors(processors: int | None, ranks: int) -> int:
    """Return the number of processors of a run with this many ranks. Raises ValueError if there are too many virtual ones."""
    if processors is not None and processors > max(ranks, MOST_VIRTUAL):
        raise ValueError(
            f"--processors {processors}: must be at most {MOST_VIRTUAL}. Virtual processors take turns on the cores of "
            f"{ranks} rank{'s' * (ranks != 1)}, so more of them make nothing faster, while compiling takes time and memory "
            "for each; give as many as the machine has that you plan for"
        )
    return ranks if processors is None else processors


def kept(key: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback that keeps an option's value in the context's meta, where all that run under it find it."""

    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        context.meta[key] = value
        return value

    return keep


def command_path(context: click.Context, *names: str) -> str:
    """Return a command as it is typed, such as ``taskflow machine show``; ``names``: of commands below it."""
    path = list(names)
    here: click.Context | None = context
    while here is not None and here.parent is not None:
        path.insert(0, here.info_name or "")
        here = here.parent
    return " ".join(["taskflow", *path])
