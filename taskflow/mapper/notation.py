"""Notation: a configuration as strategies are described, ``n/4 c/2 @ 0-7``, and a synchronisation, ``ring/every``, read back."""

from __future__ import annotations

import re
from math import prod

from taskflow.graph import Node
from taskflow.mapper.config import OpConfig, Sync, SyncAlgorithm, UpdatePlacement


def parse_config(text: str, node: Node, processors: int) -> OpConfig:
    """The configuration that `OpConfig.describe` writes as ``text``: cuts (``whole`` for none) and, after an ``@``, a processor
    for each piece; without them pieces run on 0, 1, 2, ... ValueError says what is wrong or does not fit the operator."""
    cuts, at, places = text.partition("@")
    degrees = [1] * len(node.dims)
    names = [dim.name for dim in node.dims]
    words = cuts.split()
    if not words:
        raise ValueError(f"operator {node.name}: {text!r} has no cut; write whole @ 0, or for example {_example(node)}")
    for word in words if words != ["whole"] else ():
        match = re.fullmatch(r"(.+)/(\d+)", word)
        if match is None or match.group(1) not in names:
            raise ValueError(
                f"operator {node.name}: {word!r} in {text!r} is not a cut; write DIMENSION/PIECES with one of the dimensions "
                f"{', '.join(names) or '(none)'}, for example {_example(node)}"
            )
        degrees[names.index(match.group(1))] = int(match.group(2))
    found = parse_ranges(places, f"operator {node.name}: {text!r}") if at else tuple(range(prod(degrees)))
    config = OpConfig(tuple(degrees), found)
    config.verify(node, processors)
    return config


def parse_sync(text: str, who: str) -> Sync:
    """The synchronisation that `Sync` prints as ``text``: ``ring/every``, or ``owner/spread/8`` with chunks. ValueError that
    begins with ``who``."""
    words = text.replace(" ", "").split("/")
    travels, places = [t.value for t in SyncAlgorithm], [p.value for p in UpdatePlacement]
    if (
        len(words) not in (2, 3) or words[0] not in travels or words[1] not in places
        or not all(word.isdecimal() for word in words[2:])
    ):
        raise ValueError(
            f"{who}: write TRAVEL/PLACE or TRAVEL/PLACE/CHUNKS, such as ring/every or owner/spread/8, with TRAVEL one of "
            f"{', '.join(travels)} and PLACE one of {', '.join(places)}; got {text!r}"
        )
    return Sync(SyncAlgorithm(words[0]), UpdatePlacement(words[1]), int(words[2]) if len(words) == 3 else 0)


def parse_ranges(text: str, who: str) -> tuple[int, ...]:
    """``0-3,8`` as (0, 1, 2, 3, 8). ValueError that begins with ``who``."""
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise ValueError(f"{who}: processors must be numbers and ranges such as 0-3,8, got {text.strip()!r}")
        low, high = int(match.group(1)), int(match.group(2) or match.group(1))
        if high < low:
            raise ValueError(f"{who}: range {part} runs backwards; write the processors one by one, for example {low},{low - 1}")
        if high - low > 1_000_000:
            raise ValueError(f"{who}: range {part} is longer than any machine")
        found += range(low, high + 1)
    return tuple(found)


def _example(node: Node) -> str:
    first = next((dim.name for dim in node.dims if dim.divisible), None)
    return f"{first}/2 @ 0-1" if first else "whole @ 0"
