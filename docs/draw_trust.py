"""Draw predicted against measured step times of the plans in `taskflow.optimizer.trust`, as an SVG picture (docs/trust.svg).

    python docs/draw_trust.py docs/trust.svg
"""

from __future__ import annotations

import sys
from math import log10
from pathlib import Path

from taskflow.drawing import svg, text
from taskflow.optimizer.trust import MEASURED

SIZE, LEFT, BELOW = 360, 60, 40
LOW, HIGH = -1.2, 2.4  # powers of ten of seconds
COLOURS = {
    "vTrain": ("#3f83f8", "Bang et al."), "SC21": ("#ea6a25", "Narayanan et al."), "2205.05198": ("#7c5cf2", "Korthikanti et al."),
    "BigScience": ("#14a38b", "BLOOM"), "torchtitan": ("#b45309", "torchtitan (H100)"),
}  # fmt: skip
"""By a part of the source: colour and name."""


def place(seconds: float) -> float:
    """How far along an axis."""
    return SIZE * (log10(seconds) - LOW) / (HIGH - LOW)


def drawn() -> str:
    """The picture: a dot a plan, the diagonal, and lines 20 % beside it."""
    parts = [f'<rect x="{LEFT}" y="0" width="{SIZE}" height="{SIZE}" fill="none" stroke="#999"/>']
    low, high = 10**LOW, 10**HIGH
    for ratio, dash in ((1.0, ""), (1.2, ' stroke-dasharray="4 4"'), (1 / 1.2, ' stroke-dasharray="4 4"')):
        first, last = max(low, low / ratio), min(high, high / ratio)
        parts.append(
            f'<line x1="{LEFT + place(first):.1f}" y1="{SIZE - place(first * ratio):.1f}" x2="{LEFT + place(last):.1f}" '
            f'y2="{SIZE - place(last * ratio):.1f}" stroke="#999"{dash}/>'
        )
    for tick in (0.1, 1, 10, 100):
        parts.append(text(LEFT + place(tick), SIZE + 16, f"{tick:g} s", "middle"))
        parts.append(text(LEFT - 6, SIZE - place(tick) + 4, f"{tick:g} s", "end"))
    parts.append(text(LEFT + SIZE / 2, SIZE + 34, "measured", "middle"))
    parts.append(text(LEFT + 8, 18, "predicted"))
    for one in MEASURED:
        colour = next(colour for key, (colour, _) in COLOURS.items() if key in one.source)
        parts.append(
            f'<circle cx="{LEFT + place(one.seconds):.1f}" cy="{SIZE - place(one.predicted):.1f}" r="4" fill="{colour}" '
            f'fill-opacity="0.7"><title>{one}: measured {one.seconds:g} s, predicted {one.predicted:g} s</title></circle>'
        )
    for row, (colour, name) in enumerate(COLOURS.values()):
        y = SIZE - 88 + 18 * row
        parts.append(f'<circle cx="{LEFT + SIZE - 130}" cy="{y}" r="4" fill="{colour}"/>')
        parts.append(text(LEFT + SIZE - 120, y + 4, name))
    return svg(LEFT + SIZE + 10, SIZE + BELOW, parts, "Predicted against measured step times") + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(drawn())
