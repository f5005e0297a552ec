"""Lazy imports: names of a package that are imported when they are first used, so that importing the package starts nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazily(package: str, where: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` for a package's ``__init__``. ``where``: module -> the names that are taken from it,
    such as ``load``, or ``load as load_strategy``."""
    found = {one.split(" as ")[-1]: (module, one.split(" as ")[0]) for module, names in where.items() for one in names}

    def look_up(name: str) -> Any:
        if name in found:
            module, own = found[name]
            value = getattr(import_module(module), own)
            setattr(sys.modules[package], name, value)
            return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return look_up
