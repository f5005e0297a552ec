"""Explanations for people: tables and sentences made from the JSON of `taskflow explain --json`."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from taskflow.cli.tables import nbytes, percent, places, render, seconds
from taskflow.mapper import ranges
from taskflow.optimizer.explain import Bubble, Busy, Explanation, Stretch, TaskPurpose, closed_form
from taskflow.wording import listed, some

NAMED = 3  # operators of a stretch, or devices that are equally busy, that are named
BUSY = 0.75  # of the step: what is in use for less does not limit it alone


def in_words(found: Explanation, top: int) -> str:
    """Return a plan's explanation as text."""
    return "\n\n".join((_limits(found), _path(found, top), _operators(found, top)))


def _limits(found: Explanation) -> str:
    whole, limit = found.seconds, found.limit
    parts = ", ".join(f"{work.value} {percent(s, whole)}" for work, s in found.shares.items() if s > 0)
    lines = [f"A step takes {seconds(whole)}. On its critical path: {parts}."]
    used = [_used([b for b in found.busy if b.link is link], "link" if link else "device", whole) for link in (False, True)]
    lines.append(f"In use: {'; '.join(text for text in used if text)}.")
    verb = "carries data" if limit.link else "is at work"
    lines.append(f"What limits it: {limit.name}, which {verb} for {percent(limit.seconds, whole)} of the step.")
    if limit.seconds < BUSY * whole:
        lines[-1] += " Nothing is in use longer: in the rest, tasks wait for each other, in the order of the critical path."
    if found.bubble is not None:
        lines.append(_bubble(found.bubble))
    if found.explained < found.devices:
        shown = f"{found.explained:,} devices, which stand" if found.explained > 1 else "one device, which stands"
        lines.append(f"All this, and the path below, is of {shown} for all {found.devices:,}: replicas do the same.")
    return "\n".join(lines)


def _bubble(found: Bubble) -> str:
    """Text on how much of a pipeline is idle, why, and what would reduce it."""
    pipeline, idle = found.pipeline, found.idle
    least, most = (percent(extreme(idle.values()), found.seconds) for extreme in (min, max))
    text = (
        f"The pipeline ({pipeline}) takes {seconds(found.seconds)}; its devices are idle for {percent(found.share, 1)} of that "
        f"({least} to {most}). With equal stages and no transfers it would be {percent(found.closed_form, 1)}: the bubble."
    )
    if found.share > 1.5 * found.closed_form + 0.02:
        text += f" The rest is waiting for transfers and for the heaviest stage, with device {found.fullest}."
    twice = replace(pipeline, micro_batches=2 * pipeline.micro_batches)
    return f"{text} Twice as many micro-batches would have a bubble of {percent(closed_form(twice), 1)}."


def _used(busy: Sequence[Busy], called: str, whole: float) -> str:
    """Text on how busy the devices or links in use are, the busiest first."""
    if not busy:
        return ""
    most, least = (percent(b.seconds, whole) for b in (busy[0], busy[-1]))
    if len(busy) == 1:
        return f"{busy[0].name} for {most} of the step"
    if most == least:
        return f"{len(busy)} {called}s for {most} of the step each"
    return f"{len(busy)} {called}s for {least} to {most} of the step, most of all {_first(busy, most, whole)}"


def _first(busy: Sequence[Busy], most: str, whole: float) -> str:
    names = [b.name for b in busy if percent(b.seconds, whole) == most]
    return some(names, NAMED)


def _path(found: Explanation, top: int) -> str:
    rows = []
    alike: dict[tuple[str, ...], list[Stretch]] = {}  # as of micro-batches, in the order of the first ones
    for stretch in found.stretches:
        alike.setdefault((stretch.kind, _named(stretch), _where(stretch)), []).append(stretch)
    groups = sorted(alike.values(), key=lambda group: -sum(s.seconds for s in group))[:top]
    shown = [s for group in groups for s in group]
    for texts, group in alike.items():
        if group not in groups:
            continue
        takes, moved = sum(s.seconds for s in group), sum(s.nbytes for s in group)
        often = f"{len(group)} x " if len(group) > 1 else ""
        rows.append([
            *texts, seconds(group[0].start), f"{often}{seconds(takes / len(group))}", percent(takes, found.seconds),
            nbytes(moved) if moved else "",
        ])
    left = len(found.stretches) - len(shown)
    many = "stretches with less of the path are" if left > 1 else "stretch with less of the path is"
    rest = f"\n{left} {many} left out (--top)." if left else ""
    table = render(["critical path", "of", "where", "from", "takes", "share", "bytes"], rows, words=(0, 1, 2), spare=(6, 3, 5))
    mixed = " A stretch includes short tasks of other kinds between its own." if any(s.others for s in shown) else ""
    return f"{table}\nThe path is as long as the step: each task starts when the one before it ends.{mixed}{rest}"


def _named(stretch: Stretch) -> str:
    groups = layers_alike(stretch.operators, lambda one: one[0])
    ranked = sorted(((sum(s for _, s in group), name) for name, group in groups), reverse=True)
    named = some([f"{name or 'all'} {seconds(s)}" for s, name in ranked], NAMED)
    between = ", ".join(f"{kind} {seconds(s)}" for kind, s in stretch.others)
    return listed((named, f"between: {between}" if between else ""), "; ")


def _where(stretch: Stretch) -> str:
    if len(stretch.links) > NAMED:
        return f"devices {ranges(tuple(sorted(stretch.processors)))}, {len(stretch.links)} links"
    if stretch.links:
        return f"{'-'.join(str(p) for p in stretch.processors)} over {', '.join(stretch.links)}"
    return f"device{'s' * (len(stretch.processors) > 1)} {ranges(tuple(sorted(stretch.processors)))}"


def _operators(found: Explanation, top: int) -> str:
    alike = layers_alike(found.operators, lambda c: c.operator, lambda c: f"{c.seconds[TaskPurpose.COMPUTE]:.2g}")
    ranked = sorted(alike, key=lambda one: -sum(c.critical or 0.0 for c in one[1]))
    rows = []
    for name, of in ranked[:top]:
        work = {purpose: sum(c.seconds[purpose] for c in of) for purpose in TaskPurpose}
        critical = sum(c.critical or 0.0 for c in of)
        rows.append([
            name, seconds(critical), percent(critical, found.seconds), seconds(work[TaskPurpose.COMPUTE]),
            seconds(work[TaskPurpose.TRANSFER]), seconds(work[TaskPurpose.SYNC] + work[TaskPurpose.UPDATE]),
            seconds(sum(c.waiting for c in of)), nbytes(sum(c.transfer_bytes for c in of)), nbytes(sum(c.sync_bytes for c in of)),
        ])
    headings = [
        "operator", "on the path", "share", "computation", "transfers", "sync", "waiting", "moved", "sync bytes",
    ]
    rest = f"\n{len(ranked) - top} operators with less on the path are left out (--top)." if len(ranked) > top else ""
    if len(ranked) < len(found.operators):
        rest = f" Layers that are alike are one row, added up.{rest}"
    devices = sum(not b.link for b in found.busy) if found.explained == found.devices else found.devices
    return (
        f"{render(headings, rows, spare=(8, 7, 2, 6, 4))}\nFrom the fourth column on: sums over all tasks, of {devices} "
        f"device{'s' * (devices != 1)} and the links between them, which work at the same time.\n"
        "Transfers: of what the operator makes. Sync: adding up its weights' gradients, updating, sending new weights. "
        f"Waiting: for a busy device or link.{rest}"
    )


def operator_in_words(value: Mapping[str, Any], top: int) -> str:
    """Return one operator's explanation as text."""
    tasks, alternatives = value["tasks"], value["alternatives"]
    lines = [value["is"], f"configuration: {_placed(value)}", *_cost_of(value)]
    shown, every = value["shown_devices"], value["all_devices"]
    if shown < every:
        lines.append(f"tasks are those of the first replica: {shown:,} of {every:,} devices, which stand for all others")
    lines += [f"weights of {layer}: synchronised by {sync}" for layer, sync in value["syncs"].items()]
    if value["sums"]:
        lines.append(f"partial values of several devices: summed by {value['sums']}")
    for direction in ("forward", "backward"):
        if of := [t for t in tasks if t["direction"] == direction]:
            lines.append(f"{direction}: {_together(of)}")
    rows = [
        [t["task"], str(t["device"]), seconds(t["end_seconds"] - t["start_seconds"]), seconds(t["start_seconds"]),
         seconds(t["start_seconds"] - t["ready_seconds"])]
        for t in tasks[:top]
    ]
    lines.append("\n" + render(["task", "device", "takes", "starts", "waited"], rows))
    if len(tasks) > top:
        lines.append(f"{len(tasks) - top} more tasks with --top or --json.")
    rows = [
        [_placed(a), a["reason"], seconds(a["iteration_seconds"]), f"{a['against_plan']:+.1%}", _grows(a)]
        for a in alternatives
    ]
    if not rows and shown < every:
        lines.append("No other configuration of it was simulated within the budget (--budget).")
    if rows:
        headings = ["instead", "which is", "step", "against", "what changes on the critical path"]
        lines.append("\n" + render(headings, rows, words=(0, 1, 4)))
        lines.append("Each simulated with everything else as it is, and the layer's synchronisation unchanged.")
        lines.append(_verdict(min(a["against_plan"] for a in alternatives), len(alternatives)))
    return "\n".join(lines)


def _placed(value: Mapping[str, Any]) -> str:
    return f"{value['configuration'].partition(' @ ')[0]} @ {places(value['devices'])}"


def _verdict(best: float, tried: int) -> str:
    if best < 0:
        return f"One of them is {-best:.1%} faster: search further, or start from it."
    if best == 0:
        return f"None of these {tried} is faster, and some are as fast."
    return f"None of these {tried} is faster: the best of them makes the step {best:.1%} longer."


def _cost_of(value: Mapping[str, Any]) -> list[str]:
    """Text on the operator's cost, and how much of it is on the critical path."""
    cost, whole = value["costs"], value["iteration_seconds"]
    if cost is None:
        return [f"a step takes {seconds(whole)}; this operator has no tasks in it"]
    work = [("computation", cost["compute_seconds"]), ("transfers", cost["transfer_seconds"]),
            ("synchronisation", cost["sync_seconds"]), ("update", cost["update_seconds"]), ("waiting", cost["waiting_seconds"])]
    sums = ", ".join(f"{name} {seconds(s)}" for name, s in work if s > 0) or "nothing that takes time"
    moved = [(cost["transfer_bytes"], "of values"), (cost["sync_bytes"], "of weights and their gradients")]
    sent = " and ".join(f"{nbytes(n)} {what}" for n, what in moved if n)
    return [
        f"a step takes {seconds(whole)}; on its critical path this operator has {seconds(cost['critical_seconds'])} "
        f"({percent(cost['critical_seconds'], whole)})",
        f"sums over all its tasks: {sums}" + (f"; moved: {sent}" if sent else ""),
    ]


def _together(tasks: Sequence[Mapping[str, Any]]) -> str:
    """Tasks of one direction in one line."""
    took = [t["end_seconds"] - t["start_seconds"] for t in tasks]
    low, high = seconds(min(took)), seconds(max(took))
    number = f"{len(tasks)} task{'s' * (len(tasks) != 1)} of {low if low == high else f'{low} to {high}'}"
    begin, end = min(t["start_seconds"] for t in tasks), max(t["end_seconds"] for t in tasks)
    waited = max(t["start_seconds"] - t["ready_seconds"] for t in tasks)
    return (
        f"{number} on {len({t['device'] for t in tasks})} device{'s' * (len({t['device'] for t in tasks}) != 1)}, between "
        f"{seconds(begin)} and {seconds(end)}" + (f", waiting up to {seconds(waited)}" if waited > 0 else "")
    )


def _grows(alternative: Mapping[str, Any]) -> str:
    change = alternative["critical_path_change_seconds"]
    if change is None:
        return ""
    names = {work.name.lower(): work.value for work in TaskPurpose}
    parts = [(abs(s), f"{names[k]} {'+' if s > 0 else '-'}{seconds(abs(s))}") for k, s in change.items() if abs(s) > 1e-9]
    return ", ".join(text for _, text in sorted(parts, reverse=True)) or "nothing"


def what_if_in_words(outcomes: Sequence[Mapping[str, Any]], now: float) -> str:
    """Return the results of what-if scenarios as text."""
    rows = [["as it is", seconds(now), "1.00x", "", ""]]
    for o in outcomes:
        memory = "fits" if o["fits_memory"] else "does not fit"
        rows.append([o["what_if"], seconds(o["iteration_seconds"]), f"{o['speedup']:.2f}x", o["limit"], memory])
    lines = [render(["what if", "step", "faster", "then limited by", "memory"], rows, words=(0, 3, 4))]
    for o in outcomes:
        told = [(o["now_fit"], "would fit"), (o["no_longer_fit"], "would no longer fit")]
        if o["now_fit"] or o["no_longer_fit"]:
            changes = "; ".join(f"{', '.join(names)} {what}" for names, what in told if names)
            lines.append(f"{o['what_if']}: {changes} the memory.")
        elif "memory" in o["what_if"]:
            lines.append(f"{o['what_if']}: the same plans fit (of {listed(o['plans'])}).")
        if o["search_interrupted"]:
            lines.append(f"{o['what_if']}: the search was interrupted, so there is nothing to compare.")
        if o["search_found_none"]:
            lines.append(f"{o['what_if']}: {o['search_found_none']}")
        if (s := o["search"]) is not None:
            there, here = s["iteration_seconds"], s["here_iteration_seconds"]
            lines.append(
                f"{o['what_if']}: searching again gives {seconds(there)}, {here / there:.2f}x as fast as the same search on the "
                f"machine as it is ({seconds(here)}). Refused for memory: {s['refused_for_memory']} plans instead of "
                f"{s['here_refused_for_memory']}."
                + ("" if s["plan_fits_here"] else " The plan found would not fit the machine as it is.")
            )
    return "\n".join(lines)


T = TypeVar("T")
_NUMBER = re.compile(r"(?:^|(?<=\.))\d+(?=\.)")


def layers_alike(
    items: Iterable[T], name: Callable[[T], str], figures: Callable[[T], Hashable] = lambda item: None
) -> list[tuple[str, list[T]]]:
    """Return the items of each group of layers, in the order of the groups' first ones, with the group's name: ``h.0-31.mlp``.
    Those of a group have the same ``figures``."""
    groups: dict[Hashable, list[tuple[int, T]]] = {}
    for at, item in enumerate(items):
        number = _NUMBER.search(name(item))
        key = (_NUMBER.sub("*", name(item), 1), figures(item)) if number else at
        groups.setdefault(key, []).append((int(number[0]) if number else 0, item))
    return [(_of_numbers(name(group[0][1]), sorted({number for number, _ in group})), [item for _, item in group])
            for group in groups.values()]  # fmt: skip


def _of_numbers(name: str, numbers: list[int]) -> str:
    return _NUMBER.sub(ranges(tuple(numbers)), name, 1) if len(numbers) > 1 else name
