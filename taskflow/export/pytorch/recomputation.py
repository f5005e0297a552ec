"""Which modules compute their values again for the backward pass, and which of them do so to their end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taskflow.export.pytorch.units import matching, patterns
from taskflow.graph import OperatorGraph
from taskflow.mapper import Strategy
from taskflow.models.pytorch import OperatorSite


def recomputed_modules(
    graph: OperatorGraph, strategy: Strategy, sites: Mapping[str, OperatorSite], module: Any
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the outermost modules whose intermediate values are all recomputed, as patterns, and the recomputed operators that
    are in none of these. PyTorch's kernels recompute attention's scores in any case."""
    inside = _inside(sites)
    nodes = {node.name: node for node in graph}
    readers: dict[str, set[str]] = {}
    for node in graph:
        for tensor in node.inputs:
            readers.setdefault(graph.nodes[tensor.node].name, set()).add(node.name)

    def whole(path: str, names: set[str]) -> bool:
        kept = names - strategy.again.recompute
        return len(kept) < len(names) and _is_called(module, path) and not any(
            nodes[name].inputs and readers.get(name, set()) <= names for name in kept
        )

    found = [path for path, names in inside.items() if whole(path, names)]
    outer = [path for path in found if not any(path.startswith(f"{other}.") for other in found)]

    def covered(name: str) -> bool:
        site = sites.get(name)
        return site is not None and (
            site.name == "scaled_dot_product_attention" or any(f"{site.path}.".startswith(f"{path}.") for path in outer)
        )

    kept = tuple(node.name for node in graph if node.name in strategy.again.recompute and not covered(node.name))
    return patterns(outer, _paths(module)), kept


def rerun_modules(
    graph: OperatorGraph, strategy: Strategy, sites: Mapping[str, OperatorSite], module: Any, again: Sequence[str]
) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return those of the recomputed modules all of whose operators run again (`Strategy.rerun`), as patterns, and these operators.
    ``again``: the recomputed modules, as patterns."""
    inside = _inside(sites)
    recomputed = matching(module, again)
    paths = [path for path in inside if path in recomputed]
    some = {node.name for node in graph if node.inputs}
    whole = [path for path in paths if inside[path] & some and inside[path] & some <= strategy.again.rerun]
    return patterns(whole, _paths(module)), frozenset(name for path in whole for name in inside[path] & some)


def _inside(sites: Mapping[str, OperatorSite]) -> dict[str, set[str]]:
    """By module, the operators in it and in the modules in it. A module that is an operator is not in itself."""
    inside: dict[str, set[str]] = {}
    for name, site in sites.items():
        parts = site.path.split(".") if site.kind != "input" and site.path else []
        for depth in range(1, len(parts) + (site.kind != "module")):
            inside.setdefault(".".join(parts[:depth]), set()).add(name)
    return inside


def _paths(module: Any) -> list[str]:
    return [path for path, _ in module.named_modules()]


def _is_called(module: Any, path: str) -> bool:
    """True if a module has a forward: a list of modules has none."""
    from torch import nn

    return not isinstance(module.get_submodule(path), (nn.ModuleList, nn.ModuleDict))
