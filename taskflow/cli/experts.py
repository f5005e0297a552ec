"""--expert-imbalance: how many tokens the busiest device of experts is planned for, and what answers say of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from taskflow.graph import OperatorGraph
from taskflow.mapper import Strategy, is_plan, parse_plan
from taskflow.models import is_dropless, with_places
from taskflow.optimizer import expert_imbalance
from taskflow.option_types import kept
from taskflow.wording import milliseconds

IMBALANCE = "taskflow.expert_imbalance"  # key of a click context's meta
PLANS = ("strategy", "strategies", "starts", "plan", "first", "second")  # parameters of commands that name plans


imbalance_option = click.option(
    "--expert-imbalance", type=click.FloatRange(1), expose_value=False, callback=kept(IMBALANCE), metavar="FACTOR",
    help="Plan for uneven experts: the busiest device gets FACTOR times the mean of tokens. Experts without a capacity get places "
    "for so many, those of others are multiplied (default: places as the network has them; 1 where a plan with eN deals experts "
    "that have none).",
)


def placed(graph: OperatorGraph, context: click.Context | None, recorded: float | None) -> tuple[OperatorGraph, float | None]:
    """Return the network with places for the factor of --expert-imbalance, or else ``recorded``, and that factor; None if it is as
    it was. Raises ValueError if its experts cannot have places."""
    given = context.meta.get(IMBALANCE) if context is not None else None
    factor = recorded if given is None else given
    if factor is None and context is not None and is_dropless(graph) and any(_deals(text) for text in _texts(context)):
        factor = 1.0
    return (graph, None) if factor is None else (with_places(graph, factor), factor)


def _texts(context: click.Context) -> Iterator[str]:
    """Plans that the command line names."""
    for value in map(context.params.get, PLANS):
        yield from (one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, str))


def _deals(text: str) -> bool:
    return is_plan(text) and parse_plan(text).experts > 1


def experts_row(graph: OperatorGraph, strategy: Strategy) -> dict[str, Any]:
    """Return ``experts`` of a plan's row: the factor of its busiest device, and among how many devices a layer's experts are
    dealt; empty without experts that have places."""
    if (factor := expert_imbalance(graph)) is None:
        return {}
    layers = (node for node in graph if node.operator.kind == "expert_linear")
    dealt = max((strategy[node.name].degrees[[dim.name for dim in node.dims].index("e")] for node in layers), default=1)
    return {"experts": {"imbalance": factor, "dealt": dealt}}


def experts_sentence(row: dict[str, Any]) -> str:
    """Return the line about experts of a plan's row (`describe`); empty if there is nothing to say."""
    if (experts := row.get("experts")) is None:
        return ""
    where = f"on {experts['dealt']} devices" if experts["dealt"] > 1 else "every device has all"
    return (
        f"experts ({where}): busiest device has {experts['imbalance']:.4g} times the mean of tokens; predicted step "
        f"{milliseconds(row['iteration_seconds'])} ms"
    )
