"""Explanations for people: tables and sentences made from what `taskflow explain --json` gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taskflow.cli.tables import nbytes, percent, render, seconds
from taskflow.mapper.config import ranges
from taskflow.optimizer.explain import Explanation, Stretch
from taskflow.optimizer.explain_labels import Work

NAMED = 3  # operators of a stretch that are named


def in_words(found: Explanation, top: int) -> str:
    """A plan's explanation."""
    return "\n\n".join((_limits(found), _path(found, top), _operators(found, top)))


def _limits(found: Explanation) -> str:
    whole = found.seconds
    parts = ", ".join(f"{work.value} {percent(s, whole)}" for work, s in found.shares.items() if s > 0)
    lines = [f"A step takes {seconds(whole)}. On its critical path: {parts}."]
    for link, called in ((False, "device"), (True, "link")):
        of = [b for b in found.busy if b.link is link]
        if of:
            names = ", ".join(f"{b.name} {percent(b.seconds, whole)}" for b in of[:4])
            lines.append(f"Busiest {called}{'s' if len(of) > 1 else ''}: {names}.")
    verb = "carries data" if found.limit.link else "computes"
    lines.append(f"What limits it: {found.limit.name}, which {verb} for {percent(found.limit.seconds, whole)} of the step.")
    return "\n".join(lines)


def _path(found: Explanation, top: int) -> str:
    rows = []
    shown = found.stretches
    if len(shown) > top:  # the longest, in their order
        least = sorted((s.seconds for s in shown), reverse=True)[top - 1]
        shown = tuple(s for s in shown if s.seconds >= least)
    for stretch in shown:
        rows.append([
            stretch.kind, _named(stretch), _where(stretch), seconds(stretch.start), seconds(stretch.seconds),
            percent(stretch.seconds, found.seconds), nbytes(stretch.nbytes) if stretch.nbytes else "",
        ])
    left = len(found.stretches) - len(shown)
    rest = f"\n{left} shorter stretches are left out (--top)." if left else ""
    table = render(["critical path", "of", "where", "from", "takes", "share", "bytes"], rows, words=(0, 1, 2))
    return f"{table}\nThe path is as long as the step: each task starts when the one before it ends.{rest}"


def _named(stretch: Stretch) -> str:
    named = [f"{name or 'all'} {seconds(s)}" for name, s in stretch.operators[:NAMED]]
    more = len(stretch.operators) - NAMED
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def _where(stretch: Stretch) -> str:
    if len(stretch.links) > NAMED:
        return f"devices {ranges(tuple(sorted(stretch.processors)))}, {len(stretch.links)} links"
    if stretch.links:
        return f"{'-'.join(str(p) for p in stretch.processors)} over {', '.join(stretch.links)}"
    return f"device{'s' * (len(stretch.processors) > 1)} {ranges(tuple(sorted(stretch.processors)))}"


def _operators(found: Explanation, top: int) -> str:
    ranked = sorted(found.operators, key=lambda c: -(c.critical or 0.0))
    rows = [
        [
            c.operator, seconds(c.critical), percent(c.critical, found.seconds), seconds(c.seconds[Work.COMPUTE]),
            seconds(c.seconds[Work.TRANSFER]), seconds(c.seconds[Work.SYNC] + c.seconds[Work.UPDATE]), seconds(c.waiting),
            nbytes(c.transfer_bytes), nbytes(c.sync_bytes),
        ]
        for c in ranked[:top]
    ]
    headings = [
        "operator", "on the path", "share", "computation", "transfers", "sync", "waiting", "moved", "sync bytes",
    ]
    rest = f" {len(ranked) - top} more with --top." if len(ranked) > top else ""
    return (
        f"{render(headings, rows)}\nSums over all tasks on all devices and links; waiting: from ready to start. "
        f"Transfers are of what the operator makes, sync of its weights.{rest}"
    )


def operator_in_words(value: Mapping[str, Any], top: int) -> str:
    """One operator's explanation."""
    lines = [f"{value['is']}\nconfiguration: {value['configuration']}; the step takes {seconds(value['iteration_seconds'])}"]
    lines += [f"weights of {layer}: synchronised by {sync}" for layer, sync in value["syncs"].items()]
    rows = [
        [t["task"], t["direction"], str(t["device"]), seconds(t["end_seconds"] - t["start_seconds"]), seconds(t["start_seconds"]),
         seconds(t["start_seconds"] - t["ready_seconds"])]
        for t in value["tasks"][: 2 * top]
    ]
    lines.append("\n" + render(["task", "", "device", "takes", "starts", "waited"], rows, words=(0, 1)))
    if len(value["tasks"]) > 2 * top:
        lines.append(f"{len(value['tasks']) - 2 * top} more tasks with --top or --json.")
    rows = [
        [a["configuration"], a["reason"], seconds(a["iteration_seconds"]), f"{a['against_plan']:+.1%}", _grows(a)]
        for a in value["alternatives"]
    ]
    if rows:
        headings = ["instead", "which is", "step", "against", "what changes on the critical path"]
        lines.append("\n" + render(headings, rows, words=(0, 1, 4)))
        lines.append("Each simulated with everything else as it is, and the layer's synchronisation unchanged.")
    best = min((a["against_plan"] for a in value["alternatives"]), default=0.0)
    if best < 0:
        lines.append(f"One of them is {-best:.1%} faster: search further, or start from it.")
    return "\n".join(lines)


def _grows(alternative: Mapping[str, Any]) -> str:
    change = alternative["critical_path_change_seconds"]
    if change is None:
        return ""
    names = {work.name.lower(): work.value for work in Work}
    parts = [(abs(s), f"{names[k]} {'+' if s > 0 else '-'}{seconds(abs(s))}") for k, s in change.items() if abs(s) > 1e-9]
    return ", ".join(text for _, text in sorted(parts, reverse=True)) or "nothing"


def what_if_in_words(outcomes: Sequence[Mapping[str, Any]], now: float) -> str:
    """What-if scenarios."""
    rows = [["as it is", seconds(now), "1.00x", "", ""]]
    for o in outcomes:
        memory = "fits" if o["fits_memory"] else "does not fit"
        rows.append([o["what_if"], seconds(o["iteration_seconds"]), f"{o['speedup']:.2f}x", o["limit"], memory])
    lines = [render(["what if", "step", "faster", "then limited by", "memory"], rows, words=(0, 3, 4))]
    for o in outcomes:
        told = [(o["now_fit"], "would fit"), (o["no_longer_fit"], "would no longer fit")]
        if o["now_fit"] or o["no_longer_fit"]:
            said = "; ".join(f"{', '.join(names)} {what}" for names, what in told if names)
            lines.append(f"{o['what_if']}: {said} the memory.")
        elif "memory" in o["what_if"]:
            lines.append(f"{o['what_if']}: the same plans fit (of this one, data, expert and model).")
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
