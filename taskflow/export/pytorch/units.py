"""Which modules gather their weights, and add up their gradients, at once: as in a plan, each layer by itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from taskflow.graph import OperatorGraph
from taskflow.models.pytorch import OperatorSite

NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


def units_of(graph: OperatorGraph, module: Any, sites: Mapping[str, OperatorSite]) -> tuple[str, ...]:
    """For each weight the innermost module that has it and in whose code all stands that reads it. Weights of which only the whole
    module is such one (tied ones, mostly) are in none."""
    paths = {site.path for site in sites.values() if site.kind != "input"}
    readers: dict[str, set[str]] = {}
    for node in graph:
        for parameter in node.parameters:
            if node.name in sites:
                readers.setdefault(parameter.name, set()).add(sites[node.name].path)
    places: dict[int, set[str]] = {}  # weight -> paths of the modules that have or read it
    for name, weight in module.named_parameters(remove_duplicate=False):
        places.setdefault(id(weight), set()).update({name.rpartition(".")[0]}, readers.get(name, ()))
    found = (_called(module, _common(of), paths) for of in places.values())
    return patterns(path for path in found if path)


def _common(paths: Iterable[str]) -> str:
    """The innermost module that all of some modules are, or are in."""
    parts = [path.split(".") if path else [] for path in paths]
    shared = 0
    while all(len(part) > shared for part in parts) and len({part[shared] for part in parts}) == 1:
        shared += 1
    return ".".join(parts[0][:shared])


def _called(module: Any, path: str, paths: set[str]) -> str:
    """The innermost module around a path that is called: something stands in its code, and it is no list of others."""
    from torch import nn

    while path:
        is_list = isinstance(module.get_submodule(path), (nn.ModuleList, nn.ModuleDict, nn.Sequential))
        if not is_list and any(other == path or other.startswith(f"{path}.") for other in paths):
            break
        path = path.rpartition(".")[0]
    return path


def patterns(paths: Iterable[str]) -> tuple[str, ...]:
    """Paths with ``#`` for their numbers, each once."""
    return tuple(dict.fromkeys(NUMBER.sub("#", path) for path in paths))
