"""--constraints, --pin, --pin-sync, --forbid and --limit: constraints on plans, from the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from taskflow.cli import completing
from taskflow.export import RESTRICTING, require_exportable
from taskflow.graph import OperatorGraph
from taskflow.optimizer.space import Constraints

F = TypeVar("F", bound=Callable[..., Any])
_NAMES = ("constraints_file", "pins", "pin_syncs", "forbids", "limits")


def constraint_options(command: F) -> F:
    """Add the five options to a command; `taken_from` turns their values into constraints."""
    for option in (
        click.option("--limit", "limits", multiple=True, metavar="'OPERATOR:...'",
                     help="Limit degrees, pieces or devices: 'lstm*: n<=2, pieces<=4 @ 0-3'; degree<=4 is of any dimension."),
        click.option("--forbid", "forbids", multiple=True, metavar="'OPERATOR:DIM,...'",
                     help="Dimensions that must not be cut: 'lstm*:c'."),
        click.option("--pin-sync", "pin_syncs", multiple=True, metavar="'LAYER=ALGORITHM/PLACEMENT'",
                     help="Fix how a layer's weights are synchronised, written as plans are shown: 'fc*=ring/every'."),
        click.option("--pin", "pins", multiple=True, metavar="'OPERATOR=CUT @ DEVICES'",
                     help="Fix a configuration, written as plans are shown: 'conv1=n/4 @ 0-3', 'fc*=whole @ 0'."),
        click.option("--constraints", "constraints_file", type=click.Path(dir_okay=False), shell_complete=completing.json_files,
                     help="A JSON file: operator pattern -> {pin, forbid, devices, max_degree, max_pieces, sync}."),
    ):
        command = option(command)
    return command


def target_option(command: F) -> F:
    """Add the option --for to a command."""
    return click.option(
        "--for", "target", type=click.Choice(RESTRICTING),
        help="Only plans that this framework can express (see `taskflow export`).",
    )(command)


def require_target(graph: OperatorGraph, target: str) -> None:
    """Raise ValueError that begins with the option if no plan of a network can be exported to this framework."""
    try:
        require_exportable(graph, target)
    except ValueError as error:
        raise ValueError(f"--for {target}: {error}") from None


def taken_from(options: dict[str, Any]) -> Constraints:
    """Remove the five options from a command's arguments and return the constraints that they state. Raises ValueError or
    FileNotFoundError if one cannot be read."""
    return gathered(*[options.pop(name) for name in _NAMES])


def gathered(
    file: str | None, pins: tuple[str, ...], syncs: tuple[str, ...], forbids: tuple[str, ...], limits: tuple[str, ...]
) -> Constraints:
    """Join the constraints of a file with those of the options. Raises ValueError or FileNotFoundError if one cannot be read."""
    found = Constraints.load(file) if file is not None else Constraints()
    for text in pins:
        pattern, equals, pin = text.partition("=")
        if not equals or not pattern.strip() or not pin.strip():
            raise ValueError(f"--pin {text!r}: write OPERATOR=CUT @ DEVICES, for example 'conv1=n/4 @ 0-3'")
        found += Constraints.parse({pattern.strip(): {"pin": pin.strip()}}, f"--pin {text!r}")
    for text in syncs:
        pattern, equals, sync = text.partition("=")
        if not equals or not pattern.strip() or not sync.strip():
            raise ValueError(f"--pin-sync {text!r}: write LAYER=ALGORITHM/PLACEMENT, for example 'fc*=ring/every'")
        found += Constraints.parse({pattern.strip(): {"sync": sync.strip()}}, f"--pin-sync {text!r}")
    for text in forbids:
        pattern, colon, dims = text.rpartition(":")
        names = dims.replace(",", " ").split()
        if not colon or not pattern.strip() or not names:
            raise ValueError(f"--forbid {text!r}: write OPERATOR:DIMENSION, for example 'lstm*:c' or 'fc*:n,c'")
        found += Constraints.parse({pattern.strip(): {"forbid": names}}, f"--forbid {text!r}")
    for text in limits:
        found += Constraints.parse(_limit(text), f"--limit {text!r}")
    return found


def _limit(text: str) -> dict[str, Any]:
    pattern, colon, rest = text.partition(":")
    caps, at, devices = rest.partition("@")
    entry: dict[str, Any] = {}
    degrees: dict[str, int] = {}
    for word in caps.replace(",", " ").split():
        match = re.fullmatch(r"(\S+?)<=(\d+)", word)
        if match is None:
            raise ValueError(f"--limit {text!r}: {word!r} is not a limit; write n<=2, degree<=4 or pieces<=8, without spaces")
        name, most = match.group(1), int(match.group(2))
        if name == "pieces":
            entry["max_pieces"] = most
        else:
            degrees["" if name == "degree" else name] = most
    if degrees:
        entry["max_degree"] = degrees
    if at:
        entry["devices"] = devices.strip()
    if not colon or not pattern.strip() or not entry:
        raise ValueError(f"--limit {text!r}: write OPERATOR: LIMITS, for example 'lstm*: n<=2, pieces<=4 @ 0-3'")
    return {pattern.strip(): entry}
