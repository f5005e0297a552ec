"""Units: modules that gather all their weights, and reduce their gradients, at once. As in a plan, each block or layer is one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any

from taskflow.graph import OperatorGraph
from taskflow.mapper import block_of
from taskflow.models.pytorch import OperatorSite

NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


def units_of(
    graph: OperatorGraph, module: Any, sites: Mapping[str, OperatorSite], in_blocks: bool = False
) -> tuple[str, ...]:
    """Return the modules that are units, as patterns: for each weight, the innermost module that holds it and contains all code
    that reads it; ``in_blocks``: if that is in a block (a module with a number), the block. Weights for which that is the whole
    module (mostly tied ones) are in no unit. No unit holds a weight that is read outside of it: it would take it from there."""
    paths = {path for site in sites.values() if site.kind != "input" for path in _upwards(site.path)}
    readers: dict[str, set[str]] = {}
    for node in graph:
        for parameter in node.parameters:
            if node.name in sites:
                readers.setdefault(parameter.name, set()).add(sites[node.name].path)
    places: dict[int, set[str]] = {}  # weight -> paths of the modules that have or read it
    for name, weight in module.named_parameters(remove_duplicate=False):
        places.setdefault(id(weight), set()).update({name.rpartition(".")[0]}, readers.get(name, ()))
    found = [_called(module, _common(of), paths) for of in places.values()]
    if in_blocks:
        found = [_block(module, path, paths) for path in found]
    shared = {path for of in places.values() for holder in of for path in _between(_called(module, _common(of), paths), holder)}
    return patterns((path for path in found if path and path not in shared), _with_parameters(module))


def _between(outer: str, inner: str) -> Iterator[str]:
    """Yield the paths of ``inner`` and of what it is in, until ``outer``, which is not one of them."""
    return takewhile(lambda path: path != outer, _upwards(inner))


def _block(module: Any, path: str, paths: set[str]) -> str:
    """The block that a module is in; itself if it is in none, or in one that is not called."""
    block = block_of(path)
    return block if block and _called(module, block, paths) == block else path


def _common(paths: Iterable[str]) -> str:
    """The innermost module that contains all of some modules, or is one of them."""
    parts = [path.split(".") if path else [] for path in paths]
    shared = 0
    while all(len(part) > shared for part in parts) and len({part[shared] for part in parts}) == 1:
        shared += 1
    return ".".join(parts[0][:shared])


def _upwards(path: str) -> Iterator[str]:
    """Yield a module's path and those of the modules that it is in."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _called(module: Any, path: str, paths: set[str]) -> str:
    """The innermost module at or above a path that is called: it has code of its own (``paths``: with those modules that they are
    in), and is no list of modules."""
    from torch import nn

    while path:
        is_list = isinstance(module.get_submodule(path), (nn.ModuleList, nn.ModuleDict, nn.Sequential))
        if not is_list and path in paths:
            break
        path = path.rpartition(".")[0]
    return path


def patterns(paths: Iterable[str], among: Iterable[str]) -> tuple[str, ...]:
    """Return paths with ``#`` for their numbers, each pattern once, where ``among`` others none has this pattern; those of other
    patterns as they are."""
    found: dict[str, dict[str, None]] = {}
    for path in paths:
        found.setdefault(NUMBER.sub("#", path), {})[path] = None
    known = Counter(NUMBER.sub("#", path) for path in among)
    return tuple(one for pattern, some in found.items() for one in ([pattern] if known[pattern] <= len(some) else some))


def _with_parameters(module: Any) -> set[str]:
    """The paths of the modules that have parameters, also in modules that they have."""
    return {path for name, _ in module.named_parameters() for path in _upwards(name.rpartition(".")[0])}


def matching(module: Any, some: Iterable[str]) -> set[str]:
    """Return the paths of the modules that patterns mean."""
    wanted = set(some)
    return {path for path, _ in module.named_modules() if path and (path in wanted or NUMBER.sub("#", path) in wanted)}
