"""Notation: a configuration as strategies are described, ``n/4 c/2 @ 0-7``, and a synchronisation, ``ring/every``. That of plans is
in `plan_words`."""

from __future__ import annotations

import re
from math import prod
from typing import Any

from taskflow.graph import Node
from taskflow.mapper.config import OpConfig
from taskflow.mapper.sync import BLOCK, Sync, SyncAlgorithm, UpdatePlacement

_WEIGHT = r"(?:\d+\.?\d*(?:e[+-]?\d+)?)"
_SIZES = rf"{_WEIGHT}(?::{_WEIGHT})+"


def parse_config(text: str, node: Node, processors: int) -> OpConfig:
    """Return the configuration that `OpConfig.describe` writes as ``text``: cuts (``whole`` for none) and, after an ``@``, a
    processor for each piece (``(0-3)*8`` if they repeat); without it pieces run on 0, 1, 2, ... For uneven pieces their
    proportions replace their number: ``n/3:3:1:1``, or ``n/(3:1)*8`` if they repeat. ``n/2 x4``: four processors run each piece.
    Raises ValueError if ``text`` is malformed or does not fit the operator."""
    cuts, at, places = text.partition("@")
    degrees = [1] * len(node.dims)
    weights: list[tuple[float, ...]] = [()] * len(node.dims)
    names = [dim.name for dim in node.dims]
    words = cuts.split()
    if not words:
        raise ValueError(f"operator {node.name}: {text!r} has no cut; write whole @ 0, or for example {_example(node)}")
    copies = int(words.pop()[1:]) if re.fullmatch(r"x[1-9]\d*", words[-1]) else 1
    for word in words if words != ["whole"] else ():
        match = re.fullmatch(rf"(.+?)/(?:(\d+|{_SIZES})|\(({_SIZES})\)\*([1-9]\d*))", word)
        if match is None or match.group(1) not in names:
            raise ValueError(
                f"operator {node.name}: {word!r} in {text!r} is not a cut; write DIMENSION/PIECES with one of the dimensions "
                f"{', '.join(names) or '(none)'}, for example {_example(node)}"
            )
        pieces = match.group(2).split(":") if match.group(2) else match.group(3).split(":") * int(match.group(4))
        dim = names.index(match.group(1))
        degrees[dim] = len(pieces) if len(pieces) > 1 else int(pieces[0])
        weights[dim] = tuple(map(float, pieces)) if len(pieces) > 1 else ()
    pieces_in_all = prod(degrees) * copies
    found = _places(places, f"operator {node.name}: {text!r}", pieces_in_all) if at else tuple(range(pieces_in_all))
    config = OpConfig(tuple(degrees), found, tuple(weights) if any(weights) else (), copies)
    config.verify(node, processors)
    return config


_STAGES = {"zero2": 2, "zero3": 3, "fsdp": 3}
_SYNC_NUMBER = re.compile(r"(hsdp|replicas|prefetch|bucket|)(\d+)|(block)")
_SYNC_FIELDS = {"": "chunks", "hsdp": "shard_group", "replicas": "replicas", "prefetch": "prefetch", "bucket": "bucket"}


def parse_sync(text: str, who: str) -> Sync:
    """Return the synchronisation that `Sync` prints as ``text``: ``ring/every``, ``owner/spread/8`` with chunks, or
    ``collective/zero3/hsdp4/prefetch2``. Raises ValueError that begins with ``who``."""
    words = text.replace(" ", "").split("/")
    overlap = words[-1] != "after"
    words = words if overlap else words[:-1]
    late = words[-1] == "late"
    words = words[:-1] if late else words
    algorithms, placements = [t.value for t in SyncAlgorithm], [p.value for p in UpdatePlacement]
    numbers = [_SYNC_NUMBER.fullmatch(word) for word in words[2:]]
    kinds = [_SYNC_FIELDS[match[1] or ""] if match[2] else "prefetch" for match in numbers if match is not None]
    if (
        len(words) < 2 or words[0] not in algorithms or words[1] not in (*placements, *_STAGES) or None in numbers
        or len(set(kinds)) < len(kinds)
    ):
        raise ValueError(
            f"{who}: write ALGORITHM/PLACEMENT or ALGORITHM/PLACEMENT/CHUNKS, such as ring/every or owner/spread/8; for shares of "
            f"gradients or weights collective/zero2 or collective/zero3, which hsdpN, replicasN and prefetchN or block may follow; "
            f"after another collective bucketN, late (new weights are gathered in the next step) and after. ALGORITHM is one of "
            f"{', '.join(algorithms)} and PLACEMENT one of {', '.join(placements)}; got {text!r}"
        )
    options: dict[str, Any] = {
        kind: int(match[2]) if match[2] else BLOCK for kind, match in zip(kinds, numbers) if match is not None
    }
    options |= {"overlap": overlap, "late_gather": late}
    if words[1] in _STAGES:
        return Sync.of(SyncAlgorithm(words[0]), UpdatePlacement.SHARDED, zero=_STAGES[words[1]], **options)
    return Sync.of(SyncAlgorithm(words[0]), UpdatePlacement(words[1]), **options)


def _places(text: str, who: str, most: int) -> tuple[int, ...]:
    """The processors of ``0-3,8`` or ``(0-3)*8``, not many more than ``most``."""
    match = re.fullmatch(r"\((.+)\)\*([1-9]\d*)", text.replace(" ", ""))
    if match is None:
        return parse_ranges(text, who)
    once = parse_ranges(match[1], who)
    return once * min(int(match[2]), most // len(once) + 1)


def parse_ranges(text: str, who: str) -> tuple[int, ...]:
    """Return ``0-3,8`` as (0, 1, 2, 3, 8). Raises ValueError that begins with ``who``."""
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
