"""Difference: a part of a plan for an operator that a framework cannot express."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow.mapper import AGAIN_STATES, HadAgain

LATE = "FSDP2 gathers weights during the forward pass; a plan with overlap=all is predicted so"


@dataclass(frozen=True, slots=True)
class Difference:
    """An operator, its cut in the plan, and why the framework cannot express it."""

    operator: str
    cut: str
    why: str

    def __str__(self) -> str:
        return f"{self.operator} ({self.cut}): {self.why}"


def again_differences(wanted: HadAgain, found: HadAgain, why: str = "") -> list[Difference]:
    """Return operators that have something else again for the backward pass in the plan (``wanted``) than in what a framework does
    (``found``). ``why``: the reason, if it is another than what the framework does instead. Of layers that run again whole there is
    one for all."""
    differences = []
    for field, names in wanted.sets().items():
        more, less = (sorted(some) for some in (names - found.sets()[field], found.sets()[field] - names))
        for of, (here, there) in ((more, AGAIN_STATES[field]), (less, AGAIN_STATES[field][::-1])):
            if field == "rerun" and len(of) > 1:
                of = [f"{of[0]} and {len(of) - 1} more"]
            differences += [Difference(name, here, why or f"would be {there}") for name in of]
    return differences
