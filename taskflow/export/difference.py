"""Difference: what a framework cannot express of an operator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """An operator, its cut in the plan, and why the framework cannot have it so."""

    operator: str
    cut: str
    why: str

    def __str__(self) -> str:
        return f"{self.operator} ({self.cut}): {self.why}"
