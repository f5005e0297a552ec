"""Sentences from parts, each of which may have nothing to say: ``2.4 ms a step (2.1x data, optimal); guided, seed 0``."""

from __future__ import annotations

from collections.abc import Iterable


def listed(parts: Iterable[str], between: str = ", ") -> str:
    """Return the parts that say something, with ``between`` between them."""
    return between.join(part for part in parts if part)


def sentence(head: str, aside: Iterable[str] = (), more: Iterable[str] = ()) -> str:
    """Return ``head (aside, aside); more; more``. A part that is empty is left out, with its comma, brackets or semicolon."""
    said = listed(aside)
    return listed((listed((head, f"({said})" if said else ""), " "), *more), "; ")
