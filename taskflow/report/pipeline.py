"""Pipeline: the passes of a step in one lane for each rank, for the page and for notebooks: micro-batches as colours, bubbles
hatched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from taskflow.drawing import box, svg, text
from taskflow.mapper import Pipeline, Strategy, ranges
from taskflow.optimizer.evaluate import ShownStep
from taskflow.optimizer.explain import bubble_of
from taskflow.report.units import percent, seconds
from taskflow.tasks import Compute, Purpose

MOST_BLOCKS = 20_000
KINDS = ("forward", "computed again", "backward", "gradients of weights", "all micro-batches together")
TOGETHER = 4
_LIGHTNESS = (82, 90, 66, 50)  # of the others, in percent
_NUMBER = {"F": 0, "B": 2, "W": 3}
LEFT, WIDTH, ROW, TOP = 190, 960, 22, 22


def pipeline_value(strategy: Strategy, step: ShownStep) -> dict[str, Any] | None:
    """Return the pipeline of a simulated step as JSON; None unless it has several stages. ``lanes``: devices that run the same
    stages, with the ``idle_share`` and ``blocks`` of the busiest of them, ``shown``. A block is [number in `KINDS`,
    micro-batch, stage, start, end in seconds]: a part of one pass without a gap. With more than `MOST_BLOCKS`, lanes are left
    out from the middle."""
    pipeline = strategy.pipeline
    starts, ends = step.on.start.tolist(), step.on.end.tolist()
    found = bubble_of(pipeline, step.tasks, starts, ends)
    if pipeline is None or found is None:
        return None
    runs = _by_device(pipeline, step, starts, ends)
    stages: dict[tuple[int, ...], list[int]] = {}
    for device, blocks in runs.items():
        stages.setdefault(tuple(sorted({stage for _, _, stage, _, _ in blocks})), []).append(device)
    lanes: list[dict[str, Any]] = []
    for own in sorted(stages):
        devices = sorted(stages[own])
        shown = min(devices, key=lambda device: (found.idle[device], device))
        lanes.append({
            "stages": list(own), "devices": devices, "shown": shown, "blocks": runs[shown],
            "idle_share": found.idle[shown] / found.seconds if found.seconds > 0 else 0.0,
        })
    all_lanes = len(lanes)
    while len(lanes) > 2 and sum(len(lane["blocks"]) for lane in lanes) > MOST_BLOCKS:
        del lanes[len(lanes) // 2]
    computing = [number for number, task in enumerate(step.tasks) if isinstance(task.work, Compute)]
    return {
        "description": str(pipeline), "schedule": pipeline.schedule.value, "micro_batches": pipeline.micro_batches,
        "stages": pipeline.count, "ranks": pipeline.ranks, "seconds": found.seconds, "idle_share": found.share,
        "closed_form_share": found.closed_form, "all_lanes": all_lanes, "lanes": lanes,
        "begin_seconds": min(starts[number] for number in computing), "end_seconds": max(ends[number] for number in computing),
    }


Block = list[Any]


def _by_device(pipeline: Pipeline, step: ShownStep, starts: list[float], ends: list[float]) -> dict[int, list[Block]]:
    """The blocks of each device, in order of start."""
    least = step.makespan / 2000  # gaps that nobody would see
    owner = {number: one for one, first, last in step.passes for number in range(first, last)}
    runs: dict[int, list[Block]] = {}
    for number, (task, start, end) in enumerate(zip(step.tasks, starts, ends)):
        if not isinstance(task.work, Compute):
            continue
        if (one := owner.get(number)) is None:
            block = [TOGETHER, -1, pipeline.stage(step.names[number]), start, end]
        else:
            kind = 1 if task.topic.purpose is Purpose.RECOMPUTED else _NUMBER[one.kind.value]
            block = [kind, one.micro_batch, one.stage, start, end]
        runs.setdefault(task.processor, []).append(block)
    found: dict[int, list[Block]] = {}
    for device in sorted(runs):
        joined: list[Block] = []
        for block in sorted(runs[device], key=lambda b: (b[3], b[4])):
            if joined and joined[-1][:3] == block[:3] and block[3] - joined[-1][4] <= least:
                joined[-1][4] = max(joined[-1][4], block[4])
            else:
                joined.append(block)
        found[device] = joined
    return found


def colour(micro_batch: int, count: int, kind: int) -> str:
    """Return the colour of a micro-batch of ``count``; darker from forward to backward to gradients of weights."""
    if kind == TOGETHER:
        return "#94a3b8"
    hue = 360 * micro_batch / count if count <= 12 else micro_batch * 137.508
    return f"hsl({hue % 360:.0f} 70% {_LIGHTNESS[kind]}%)"


def pipeline_chart(value: Mapping[str, Any]) -> str:
    """Return the chart of `pipeline_value` as inline SVG. Each lane shows the busiest of the devices that run the same stages."""
    begin, end, count = value["begin_seconds"], value["end_seconds"], value["micro_batches"]
    scale = WIDTH / ((end - begin) or 1.0)
    parts = [
        '<defs><pattern id="bubble" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="var(--faint,#f4f4f4)"/><rect width="2" height="6" fill="var(--line,#ccc)"/></pattern>'
        "</defs>"
    ]
    parts += _axis(begin, end, scale, TOP + ROW * len(value["lanes"]))
    for place, lane in enumerate(value["lanes"]):
        y = TOP + place * ROW
        parts.append(text(0, y + 14, _name(lane)))
        parts.append(text(LEFT - 8, y + 14, percent(lane["idle_share"]), "end"))
        idle = f"device {lane['shown']} is idle for {percent(lane['idle_share'])} of {seconds(end - begin)}"
        parts.append(box(LEFT, y, WIDTH, ROW - 3, "url(#bubble)", idle))
        for kind, micro, stage, start, stop in lane["blocks"]:
            which = f", micro-batch {micro}" * (kind != TOGETHER)
            title = f"{KINDS[kind]}{which}, stage {stage}: {seconds(stop - start)} from {seconds(start)}"
            x, words = LEFT + (start - begin) * scale, "" if kind == TOGETHER else str(micro)
            parts.append(box(x, y, (stop - start) * scale, ROW - 3, colour(micro, count, kind), title, words))
    label = f"pipeline, {value['description']}: {len(value['lanes'])} lanes"
    return svg(LEFT + WIDTH + 4, TOP + ROW * len(value["lanes"]) + 2, parts, label)


def _name(lane: Mapping[str, Any]) -> str:
    stages, devices = ranges(tuple(lane["stages"])), ranges(tuple(lane["devices"]))
    name = f"stage{'s' * (len(lane['stages']) > 1)} {stages}, device{'s' * (len(lane['devices']) > 1)} {devices}"
    return name if len(name) <= 25 else f"{name[:24]}…"


def _axis(begin: float, end: float, scale: float, bottom: float) -> Iterator[str]:
    for i in range(5):
        x, at = LEFT + i * WIDTH / 4, begin + i * (end - begin) / 4
        yield f'<path d="M{x:g} 16V{bottom:g}" stroke="var(--line,#ccc)"/>'
        yield text(x, 11, seconds(at), "start" if i == 0 else "end" if i == 4 else "middle")


def pipeline_section(value: Mapping[str, Any] | None) -> str:
    """Return the page's section about the pipeline; empty without one."""
    if value is None:
        return ""
    left = value["all_lanes"] - len(value["lanes"])
    words = (
        f"{value['description']}. A lane is a group of devices with the same stages, drawn by the busiest of them; the colour is "
        "the micro-batch, whose number stands in it, and is darker in the backward pass. Hatched: the device waits. All devices "
        f"are idle for {percent(value['idle_share'])} of {seconds(value['seconds'])} in the mean; with equal stages and no "
        f"transfers it would be {percent(value['closed_form_share'])}."
        + (f" {left} lanes in the middle are left out." if left > 0 else "")
    )
    kinds = {block[0] for lane in value["lanes"] for block in lane["blocks"]}
    micros = range(min(value["micro_batches"], 16))
    entries = [(KINDS[kind], colour(0, value["micro_batches"], kind)) for kind in sorted(kinds)]
    entries += [(f"micro-batch {m}", colour(m, value["micro_batches"], 0)) for m in micros]
    legend = "".join(f'<span><i style="background:{paint}"></i>{escape(name)}</span>' for name, paint in entries)
    return (
        '<section id="pipeline"><h2>Stages and micro-batches</h2>'
        f'<p class="hint">{escape(words)}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="Lanes of stages">{pipeline_chart(value)}</div>'
        f'<div class="legend">{legend}</div></section>'
    )
