"""Picture: a partition's pieces as an SVG image, coloured by piece or by the processor that has it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from taskflow.drawing import box, device_colour, svg
from taskflow.regions import Rect

if TYPE_CHECKING:
    from taskflow.partition.partition import Partition

SIDE = 220  # pixels of the longer side of one panel
MOST_PANELS, MOST_PIECES = 8, 1024


def picture(partition: Partition, processors: Sequence[int] | None = None) -> str:
    """Return HTML: a line of text and a drawing of the pieces. ``processors[k]`` has piece k, in color order (default: piece k
    is coloured as processor k). With more than two dimensions, the two that are cut most are drawn, in one panel for each place
    in the others. Pieces that overlap (halos, replicas) get a panel each, or in one dimension a row each.

    Raises ValueError unless there is a processor for every piece.
    """
    pieces = list(partition)
    if processors is not None and len(processors) != len(pieces):
        raise ValueError(f"draw: {len(pieces)} pieces need as many processors, got {len(processors)}")
    owners = list(processors) if processors is not None else list(range(len(pieces)))
    count = max(owners, default=0) + 1
    shown = [(c, partition.rect(c), p) for c, p in zip(pieces[:MOST_PIECES], owners)]
    shown = [piece for piece in shown if not piece[1].empty]
    word = "on" if processors is not None else "piece"
    panels = _panels(partition, shown)
    drawn = "".join(_panel(partition.space, axes, group, count, word) for axes, group in panels[:MOST_PANELS])
    more = len(panels) - MOST_PANELS
    return (
        f"<div><div>{escape(repr(partition))}</div>{drawn}"
        + (f"<div>and {more} more panels</div>" if more > 0 else "") + "</div>"
    )


Piece = tuple[tuple[int, ...], Rect, int]  # color, rect, owner


def _panels(partition: Partition, pieces: list[Piece]) -> list[tuple[tuple[int, ...], list[Piece]]]:
    """(dimensions across and down, pieces) of each panel."""
    starts = [len({rect.lo[i] for _, rect, _ in pieces}) for i in range(partition.space.ndim)]
    by_cuts = sorted(range(len(starts)), key=lambda i: (-starts[i], i))[:2]
    axes = tuple(sorted(by_cuts, reverse=True))  # the later dimension runs across, as arrays are written
    if len(axes) < 2:
        return [(axes, pieces)]
    if not partition.disjoint:
        return [(axes, [piece]) for piece in pieces]
    groups: dict[tuple[int, ...], list[Piece]] = {}
    for piece in pieces:
        groups.setdefault(tuple(x for i, x in enumerate(piece[1].lo) if i not in axes), []).append(piece)
    return [(axes, group) for group in groups.values()]


def _panel(space: Rect, axes: tuple[int, ...], pieces: list[Piece], count: int, word: str) -> str:
    if len(axes) < 2:
        return _line(space, axes, pieces, count, word)
    across, down = axes
    wide, tall = space.shape[across], space.shape[down]
    # Neither side is drawn shorter than a quarter of the other: (20000, 4) would be a hair.
    width = SIDE * min(1.0, max(0.25, wide / max(1, tall)))
    height = SIDE * min(1.0, max(0.25, tall / max(1, wide)))
    parts = [
        box(0, 0, width, height, "none", str(space)),
        *(
            box(
                (rect.lo[across] - space.lo[across]) / max(1, wide) * width,
                (rect.lo[down] - space.lo[down]) / max(1, tall) * height,
                rect.shape[across] / max(1, wide) * width, rect.shape[down] / max(1, tall) * height,
                device_colour(owner, count), f"{color}: {rect} {word} {owner}", str(owner),
            )
            for color, rect, owner in pieces
        ),
    ]
    return svg(width, height, parts, f"{len(pieces)} pieces of {space}")


def _line(space: Rect, axes: tuple[int, ...], pieces: list[Piece], count: int, word: str) -> str:
    """One dimension: a row a piece, so that overlaps can be seen."""
    row, parts = 16, []
    size = max(1, space.shape[axes[0]]) if axes else 1
    for place, (color, rect, owner) in enumerate(pieces):
        low, length = (rect.lo[axes[0]] - space.lo[axes[0]], rect.shape[axes[0]]) if axes else (0, 1)
        parts.append(box(
            low / size * 2 * SIDE, place * row, length / size * 2 * SIDE, row - 2, device_colour(owner, count),
            f"{color}: {rect} {word} {owner}", f"{owner}: {rect}",
        ))
    return svg(2 * SIDE, max(1, len(pieces)) * row, parts, f"{len(pieces)} pieces of {space}")
