"""Gantt: a timeline as a small SVG chart; reports have the large one."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from taskflow.drawing import box, svg, text
from taskflow.tasks.task import Kind, Task, TaskGraph

if TYPE_CHECKING:
    from taskflow.tasks.simulate import Timeline

WIDTH, ROW, LEFT, MOST_ROWS = 720, 16, 110, 48
COLOURS = {
    Kind.FORWARD: "#3f83f8", Kind.BACKWARD: "#7c5cf2", Kind.COPY: "#14a38b", Kind.UPDATE: "#ea6a25", Kind.CALL: "#3f83f8",
    Kind.COLLECTIVE: "#14a38b",
}
OTHER = "#b0a160"
Bar = tuple[float, float, str, str]  # start, end, colour, title


def gantt(timeline: Timeline, tasks: TaskGraph | None = None) -> str:
    """Return HTML: a line of text and the chart. Bars narrower than half a pixel are joined to the previous bar of their
    colour, so a chart of any number of tasks stays small."""
    rows = _by_processor(timeline, tasks) if tasks is not None else _packed(timeline)
    scale = WIDTH / (timeline.makespan or 1.0)
    parts: list[str] = []
    for place, (name, bars) in enumerate(rows[:MOST_ROWS]):
        y = place * ROW
        parts.append(text(0, y + 11, name))
        for start, end, colour, title in _joined(sorted(bars), 0.5 / scale):
            parts.append(box(LEFT + start * scale, y, (end - start) * scale, ROW - 3, colour, title))
    image = svg(LEFT + WIDTH, max(1, min(len(rows), MOST_ROWS)) * ROW, parts, repr(timeline))
    left = len(rows) - MOST_ROWS
    more = f"<div>and {left} more rows</div>" if left > 0 else ""
    return f"<div><div>{escape(repr(timeline))}</div>{image}{more}</div>"


def _by_processor(timeline: Timeline, tasks: TaskGraph) -> list[tuple[str, list[Bar]]]:
    work: dict[int, list[Bar]] = {p: [] for p in range(tasks.processors)}
    messages: dict[int, list[Bar]] = {p: [] for p in range(tasks.processors)}
    for task, span in zip(tasks, timeline.spans):
        bar = (span.start, span.end, COLOURS.get(task.kind, OTHER), _title(task, span.start, span.end))
        for processor in task.processors if task.kind is Kind.COLLECTIVE else (task.processor,):
            (messages if task.kind.travels else work)[processor].append(bar)
    rows: list[tuple[str, list[Bar]]] = []
    for p in range(tasks.processors):
        rows.append((f"processor {p}", work[p]))
        if messages[p]:
            rows.append(("  receives", messages[p]))
    return rows


def _packed(timeline: Timeline) -> list[tuple[str, list[Bar]]]:
    """Each span in the first row that is free."""
    rows: list[list[Bar]] = []
    free: list[tuple[float, int]] = []
    for span in sorted(timeline.spans, key=lambda s: (s.start, s.task)):
        if free and free[0][0] <= span.start:
            _, row = heapq.heappop(free)
        else:
            row = len(rows)
            rows.append([])
        rows[row].append((span.start, span.end, COLOURS[Kind.FORWARD], f"task {span.task}"))
        heapq.heappush(free, (span.end, row))
    return [(f"row {i}", bars) for i, bars in enumerate(rows)]


def _joined(bars: Iterable[Bar], least: float) -> list[Bar]:
    found: list[Bar] = []
    for start, end, colour, title in bars:
        if found and end - start < least and colour == found[-1][2] and start - found[-1][1] < least:
            found[-1] = (found[-1][0], max(end, found[-1][1]), colour, found[-1][3])
        else:
            found.append((start, end, colour, title))
    return found


def _title(task: Task, start: float, end: float) -> str:
    return f"{task}: {start * 1e3:.4g} to {end * 1e3:.4g} ms"
