"""Small SVG and HTML pieces with which values draw themselves in a notebook: escaping, colours of devices, boxes, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

FONT = "font:11px system-ui,sans-serif"


@dataclass(frozen=True, slots=True)
class Drawing:
    """HTML that a notebook shows; ``str`` returns its text."""

    html: str

    def _repr_html_(self) -> str:
        return self.html

    def __str__(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"Drawing of {len(self.html)} characters; a notebook shows it"


def device_colour(number: int, count: int) -> str:
    """Return a CSS colour for processor ``number`` of ``count``: the hue goes once around the circle, and neighbours differ in
    lightness."""
    hue = round(360 * number / max(1, count)) % 360
    return f"hsl({hue} 62% {(72, 82, 68, 77)[number % 4]}%)"


def svg(width: float, height: float, parts: Iterable[str], label: str) -> str:
    """Return an inline SVG image; ``label`` is what a screen reader says. Text has the colour of the text around the image."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(label, quote=True)}" '
        f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}" '
        f'style="{FONT};margin:2px 8px 2px 0" fill="currentColor">'
        f"{''.join(parts)}</svg>"
    )


def box(x: float, y: float, width: float, height: float, colour: str, title: str, text: str = "") -> str:
    """Return a filled rectangle with a tooltip, and ``text`` in its middle if it fits."""
    inside = ""
    if text and width >= 7 * len(text) + 2 and height >= 12:
        inside = (
            f'<text x="{x + width / 2:g}" y="{y + height / 2 + 4:g}" text-anchor="middle" fill="#111">{escape(text)}</text>'
        )
    return (
        f'<g><title>{escape(title)}</title><rect x="{x:.6g}" y="{y:.6g}" width="{max(width, 0.3):.4g}" height="{height:.4g}" '
        f'fill="{colour}" stroke="#fff" stroke-width="0.5"/>{inside}</g>'
    )


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return a line of text."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "", *, raw: bool = False) -> str:
    """Return an HTML table. Cells are escaped unless ``raw``. Numbers are aligned to the right."""
    parts = ["<table>", f"<caption>{escape(caption)}</caption>" if caption else "", "<thead><tr>"]
    parts += [f'<th scope="col">{escape(name)}</th>' for name in head]
    parts.append("</tr></thead><tbody>")
    for row in rows:
        parts.append("<tr>")
        for place, cell in enumerate(row):
            words = str(cell) if raw else escape(str(cell))
            right = ' style="text-align:right"' if isinstance(cell, (int, float)) else ""
            parts.append(f'<th scope="row">{words}</th>' if place == 0 else f"<td{right}>{words}</td>")
        parts.append("</tr>")
    return "".join([*parts, "</tbody></table>"])
