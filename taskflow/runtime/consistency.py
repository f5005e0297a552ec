"""Consistency: every rank compiles for itself, so before the first step the ranks compare what they have compiled.

If ranks disagree (a mapper that reads a clock, a random number without a seed, different arguments on one rank), they would
wait for messages that nobody sends, or compute wrong numbers silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from taskflow.runtime.transport import Transport


def agree(transport: Transport, who: str, **subjects: Any) -> None:
    """Check that all ranks agree: ``str`` of every subject must be the same on all. Collective. Otherwise raises ValueError on
    every rank, with the first rank and subject that differ."""
    if transport.size == 1:
        return
    mine = {subject: (sha256(str(value).encode()).hexdigest(), _short(value)) for subject, value in subjects.items()}
    difference = transport.broadcast(_difference(transport.gather(mine)))
    if difference is not None:
        raise ValueError(
            f"{who}: every rank must make the same one and get the same answers from its mapper, but {difference}"
        )


def _difference(gathered: list[Mapping[str, tuple[str, str]]] | None) -> str | None:
    """Sentence about the first rank that differs from rank 0; only rank 0 knows."""
    for rank, found in enumerate(gathered or []):
        for subject, (digest, text) in found.items():
            wanted, first = (gathered or [])[0][subject]
            if digest != wanted:
                return f"the {subject.replace('_', ' ')} of rank {rank} is not that of rank 0 ({text}; {first})"
    return None


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{len(text)} characters"


def lines(pieces: Any) -> str:
    """Join several pieces into one text."""
    return "\n".join(map(str, pieces))
