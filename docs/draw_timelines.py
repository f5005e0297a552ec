"""Draw timelines of plans, one above the other on one time axis, as an SVG picture.

docs/timelines.svg is made so, and tests/test_prose.py holds it to what these commands make (about two seconds):

    taskflow search RNNLM --machine p100 --devices 4 --budget 1000p --out plan.json
    taskflow simulate RNNLM --machine p100 --devices 4 --strategy data --timeline data.json
    taskflow simulate RNNLM --machine p100 --devices 4 --strategy plan.json --timeline found.json
    python docs/draw_timelines.py docs/timelines.svg "data parallelism=data.json" "the plan that the search found=found.json"
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Any

COLOURS = {"forward": "#3f83f8", "backward": "#7c5cf2", "update": "#ea6a25"}
OTHER, MESSAGE = "#b0a160", "#14a38b"
LEGEND = {
    "forward": COLOURS["forward"], "backward": COLOURS["backward"], "update": COLOURS["update"], "sums and moves": OTHER,
    "receiving": MESSAGE,
}
LEFT, WIDTH, COMPUTE, RECEIVE, TITLE, AXIS = 70, 690, 16, 6, 30, 24
Bar = tuple[float, float, str]
"""Start and end in seconds, and a colour."""


def computing(tasks: Iterable[dict[str, Any]], device: int) -> list[Bar]:
    """What the device computes."""
    return [
        (task["start_seconds"], task["end_seconds"], COLOURS.get(task["direction"], OTHER))
        for task in tasks if f"processor {device}" in task["resources"]
    ]


def receiving(tasks: Iterable[dict[str, Any]], device: int) -> list[Bar]:
    """When a link that ends at the device is in use."""
    return [
        (start, task["end_seconds"], MESSAGE)
        for task in tasks for name, start in zip(task["resources"], task["resource_start_seconds"])
        if name.endswith(f"->gpu{device}")
    ]


def joined(bars: Iterable[Bar], least: float) -> Iterator[Bar]:
    """The bars in order; those of one colour that are less than ``least`` seconds apart are one."""
    last: Bar | None = None
    for start, end, colour in sorted(bars):
        if last is not None and colour == last[2] and start - last[1] < least:
            last = (last[0], max(end, last[1]), colour)
            continue
        if last is not None:
            yield last
        last = (start, end, colour)
    if last is not None:
        yield last


def words(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{more}>{escape(text)}</text>'


def picture(plans: dict[str, dict[str, Any]]) -> str:
    """``plans``: by title, what ``taskflow simulate --timeline`` wrote."""
    longest = max(plan["iteration_seconds"] for plan in plans.values())
    scale = (WIDTH - 10) / longest
    parts, y = [], 0.0
    for title, plan in plans.items():
        parts.append(words(0, y + 20, f"{title}: {plan['iteration_seconds'] * 1e3:.1f} ms a step", ' font-weight="bold"'))
        y += TITLE
        devices = sorted({int(r.split()[1]) for task in plan["tasks"] for r in task["resources"] if r.startswith("processor")})
        for device in devices:
            parts.append(words(0, y + 13, f"device {device}"))
            for bars, height in ((computing(plan["tasks"], device), COMPUTE), (receiving(plan["tasks"], device), RECEIVE)):
                for start, end, colour in joined(bars, 0.5 / scale):
                    place = f'x="{LEFT + start * scale:.1f}" y="{y:g}" width="{max((end - start) * scale, 0.3):.1f}"'
                    parts.append(f'<rect {place} height="{height}" fill="{colour}"/>')
                y += height + 1
            y += 4
    for tick in range(0, int(longest * 1e3) + 1, 50):
        x = LEFT + tick * 1e-3 * scale
        parts.append(f'<path d="M{x:.1f} {TITLE} V{y:g}" stroke="#999" stroke-width="0.5" stroke-dasharray="2 3"/>')
        parts.append(words(x, y + 14, f"{tick} ms", ' text-anchor="middle" fill="#555"'))
    y += AXIS + 6
    for place, (name, colour) in enumerate(LEGEND.items()):
        parts.append(f'<rect x="{LEFT + 125 * place}" y="{y:g}" width="12" height="12" fill="{colour}"/>')
        parts.append(words(LEFT + 125 * place + 17, y + 10, name))
    size = f"0 0 {LEFT + WIDTH} {y + 18:g}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" font-family="sans-serif" font-size="12" role="img">'
    label = f"<title>{escape(' and '.join(plans))}, as predicted</title>"
    return "\n".join([head, label, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])


def main() -> None:
    target, *titled = sys.argv[1:]
    split = (entry.split("=", 1) for entry in titled)
    Path(target).write_text(picture({title: json.loads(Path(name).read_text()) for title, name in split}))


if __name__ == "__main__":
    main()
