"""Units: figures for people, three digits and a unit."""

from __future__ import annotations


def seconds(value: float) -> str:
    """Return ``1.23 s``, ``45.6 ms`` or ``7.89 µs``."""
    if value == 0:
        return "0"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= 0.9995 * factor:
            return f"{_three(value / factor)} {unit}"
    return f"{_three(value / 1e-9)} ns"


def nbytes(value: float) -> str:
    """Return ``1.23 GB``: decimal units, as vendors count."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= 0.9995 * factor:
            return f"{_three(value / factor)} {unit}"
    return f"{value:.0f} B" if value else "0"


def rate(value: float) -> str:
    """Return a rate in bytes a second."""
    return f"{nbytes(value)}/s"


def percent(share: float) -> str:
    """Return ``12 %``, with one more digit below ten."""
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"


def _three(value: float) -> str:
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:,.{digits}f}"
