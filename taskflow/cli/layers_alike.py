"""Layers that are alike, as one: operators whose names differ in the number of a layer alone, and whose figures are the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from taskflow.mapper import ranges

T = TypeVar("T")
_NUMBER = re.compile(r"(?:^|(?<=\.))\d+(?=\.)")


def layers_alike(
    items: Iterable[T], name: Callable[[T], str], figures: Callable[[T], Hashable] = lambda item: None
) -> list[tuple[str, list[T]]]:
    """Return the items of each group of layers, in the order of the groups' first ones, with the group's name: ``h.0-31.mlp``.
    Those of a group have the same ``figures``."""
    groups: dict[Hashable, list[tuple[int, T]]] = {}
    for at, item in enumerate(items):
        number = _NUMBER.search(name(item))
        key = (_NUMBER.sub("*", name(item), 1), figures(item)) if number else at
        groups.setdefault(key, []).append((int(number[0]) if number else 0, item))
    return [(_named(name(group[0][1]), sorted({number for number, _ in group})), [item for _, item in group])
            for group in groups.values()]  # fmt: skip


def _named(name: str, numbers: list[int]) -> str:
    return _NUMBER.sub(ranges(tuple(numbers)), name, 1) if len(numbers) > 1 else name
