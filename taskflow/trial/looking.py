"""What an exported module is looked at for before it is written: that it runs on its pieces, and, where that takes seconds, that it
computes the numbers of the module alone."""

from __future__ import annotations

from typing import Any

from taskflow.export import Exported, require_running
from taskflow.graph import OperatorGraph
from taskflow.trial.beside import Beside


def looked_at(graph: OperatorGraph, found: Exported, target: str) -> str:
    """Raise ValueError if an exported module fails, or computes other numbers than the module alone. Returns what was looked at, in
    a sentence; empty for targets that have no module. What is too large for numbers is computed without them."""
    if target != "torch":
        return ""
    from taskflow.models.pytorch import require_origin
    from taskflow.trial.with_numbers import beside_alone

    result = beside_alone(graph, found)
    if result.unknown:
        require_running(graph, found, target)
        return f"numbers are not compared with the module's own: {result.unknown}"
    _raise_wrong(require_origin(graph).module, found.ranks, result)
    ranks = f"{found.ranks} rank{'s' if found.ranks > 1 else ''}"
    return (
        f"a step on {ranks} of this machine gives the module's own numbers: the loss is off by {result.loss:.0e}, gradients by "
        f"{result.gradient:.0e} of the largest"
    )


def _raise_wrong(module: Any, ranks: int, result: Beside) -> None:
    title = type(module).__name__
    if result.failed:
        raise ValueError(
            f"torch: the code of {title} does not work on pieces of what this plan cuts: {result.failed}; export a plan that cuts "
            f"samples alone (such as d{ranks}), or let the code take sizes from what it is given"
        )
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    nowhere = next((of[0] for of in names.values() if not result.names.intersection(of)), "")
    if result.wrong or nowhere:
        what = f"the gradient of {result.name} is off by {result.gradient:.0e} of the largest" if result.name else (
            f"no rank has {nowhere}" if nowhere else f"the loss is off by {result.loss:.0e}"
        )
        raise ValueError(
            f"torch: under this plan {title} has other numbers than alone: {what}. Export a plan that cuts samples alone (such "
            f"as d{ranks}), and report this network"
        )
