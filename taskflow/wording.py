"""Sentences from parts, each of which may have nothing to say: ``2.4 ms a step (2.1x data, optimal); guided, seed 0``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def listed(parts: Iterable[str], between: str = ", ") -> str:
    """Return the parts that say something, with ``between`` between them."""
    return between.join(part for part in parts if part)


def some(names: Sequence[str], most: int, between: str = ", ", of: str = "") -> str:
    """Return the first ``most`` of the names and how many more there are: ``a, b and 3 more``, ``a; b; and 3 more kinds``."""
    rest = len(names) - most
    if rest <= 0:
        return between.join(names)
    return f"{between.join(names[:most])}{' ' if between == ', ' else between}and {rest} more{f' {of}' if of else ''}"


def sentence(head: str, aside: Iterable[str] = (), more: Iterable[str] = ()) -> str:
    """Return ``head (aside, aside); more; more``. A part that is empty is left out, with its comma, brackets or semicolon."""
    text = listed(aside)
    return listed((listed((head, f"({text})" if text else ""), " "), *more), "; ")


def milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds with four digits that count: ``2.4``, ``6317``, ``63,870``."""
    rounded = float(f"{seconds * 1e3:.4g}")
    return f"{rounded:,.0f}" if rounded >= 1e4 else f"{rounded:.4g}"


def a_second(rate: float) -> str:
    """Return how many a second as a whole number, of few with three digits that count: ``60,400``, ``8.81``."""
    return f"{rate:,.0f}" if rate >= 99.5 else f"{rate:.3g}"


def duration(seconds: float) -> str:
    """Return a time for people: ``0.12 s``, ``36 s``, ``5.2 min``, ``8 h``, ``1.5 d``."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size or (unit == "h" and seconds >= size):
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
