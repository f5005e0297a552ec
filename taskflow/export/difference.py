"""Difference: a part of a plan for an operator that a framework cannot express."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

LATE = "FSDP2 gathers weights during the forward pass; a plan with overlap=all is predicted so"


@dataclass(frozen=True, slots=True)
class Difference:
    """An operator, its cut in the plan, and why the framework cannot express it."""

    operator: str
    cut: str
    why: str

    def __str__(self) -> str:
        return f"{self.operator} ({self.cut}): {self.why}"


def regather_differences(wanted: Set[str], found: Set[str], why: str = "") -> list[Difference]:
    """Return operators, by name, that gather their input again for the backward pass in one plan and only once in the other
    (`Strategy.regather`). ``wanted``, ``found``: those that gather again; ``why``: the reason, if it is another than what the
    export does instead."""
    return [
        Difference(name, "gathers its input again for the backward pass", why or "would keep it") if name in wanted
        else Difference(name, "keeps the input that it gathers for the backward pass", why or "would gather it again")
        for name in sorted(wanted ^ found)
    ]


def rerun_differences(wanted: Set[str], found: Set[str], why: str = "") -> list[Difference]:
    """Return one difference if other operators run again for the backward pass though it reads nothing of theirs
    (`Strategy.rerun`) in the plan than in what a framework does. ``wanted``, ``found``: these operators, by name; ``why``: the
    reason, if it is another than how the framework computes layers again."""
    some, more = sorted(wanted - found), sorted(found - wanted)
    if not some and not more:
        return []
    first = (some or more)[0]
    name = first if len(some or more) == 1 else f"{first} and {len(some or more) - 1} more"
    if some:
        return [Difference(name, "runs again whole", why or "would run again as far as the backward pass reads (recompute=full)")]
    return [Difference(name, "runs again as far as the backward pass reads", why or "would run again whole (recompute=whole)")]
