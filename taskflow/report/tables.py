"""Tables: the parts of the page that are plain HTML, so that they can be read, searched and copied without any script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from taskflow.optimizer import RULE
from taskflow.report.spans import BACKWARD, FORWARD, GRADIENTS, SUM, UPDATE, VALUES, WEIGHTS
from taskflow.report.units import nbytes, percent, rate, seconds
from taskflow.wording import a_second, listed

LINKS = 400  # rows of the table of links, the busiest ones; the page says how many there are


def headline(value: dict[str, Any]) -> str:
    """Return the most important figures."""
    plan = value["plan"]
    units, devices = plan["units"], value["machine"]["all_devices"]
    cards = [
        ("step", seconds(plan["seconds"]), "predicted"),
        *((f"{what} a second", a_second(all_of), f"{a_second(all_of / devices)} a device") for what in ("samples", "tokens")
          if (all_of := units[f"{what}_per_second"])),
    ]
    if units["mfu"]:
        cards.append(("MFU", percent(units["mfu"]), units["mfu_is"].removeprefix("MFU: ")))
    cards.append(("cost of a step", f"{units['device_hours']:.3g} h", "hours of all devices together"))
    for row in value["baselines"]:
        if row["name"] in ("data parallel", "expert") and row["name"] != plan["name"] and plan["seconds"] > 0:
            lacks = "" if row["fits_memory"] else "does not fit the memory"
            cards.append((
                f"against {row['name']}", "–" if lacks else f"{row['seconds'] / plan['seconds']:.2f}×",
                listed((seconds(row["seconds"]), lacks)),
            ))  # fmt: skip
    limit = min(d["memory_bytes"] for d in value["machine"]["devices"])
    cards += [
        ("moved a step", nbytes(plan["transfer_bytes"]), "between devices"),
        ("peak memory", _peak(plan),
         f"fits in {nbytes(limit)}" if plan["fits_memory"] else f"{_refused(plan)} fit: {nbytes(limit)} a device"),
    ]
    bad = {"peak memory"} if not plan["fits_memory"] else set()
    return "".join(
        f'<div class="card{" bad" if name in bad else ""}"><dt>{escape(name)}</dt><dd>{escape(figure)}</dd>'
        f"<small>{escape(note)}</small></div>"
        for name, figure, note in cards
    )


def facts(value: dict[str, Any]) -> str:
    """List what was planned, for which machine, and where the figures come from."""
    model, machine = value["model"], value["machine"]
    same = f" (the same as {' and '.join(value['same_as'])})" if value["same_as"] else ""
    entries = [
        ("model", f"{model['name']}: {model['operators']} operators, {model['parameters']:,} parameters, {model['dtype']}, "
                  f"{value['plan']['units']['samples_per_step']:,} samples a step{_tokens(value)}"),
        ("machine", machine["description"]),
        ("plan", f"{value['plan']['name']}{same}, {value['plan']['tasks']:,} tasks a step"),
        *_shown(value),
        *_pipeline(value),
        *_estimated(value),
        ("update rule", value["rule"] or "none: forward only"),
        ("costs", f"{value['costs']}; all times here are predicted by simulation"),
        ("made by", f"taskflow {value['taskflow']}"),
    ]
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(words)}</dd></div>" for name, words in entries)


def _shown(value: dict[str, Any]) -> list[tuple[str, str]]:
    """A row if only the devices of the first replica are shown."""
    shown, every = len(value["machine"]["devices"]), value["machine"]["all_devices"]
    if shown == every:
        return []
    return [("shown", f"the first replica: {shown:,} of {every:,} devices, which stand for all others; totals are of all")]


def _tokens(value: dict[str, Any]) -> str:
    tokens = value["plan"]["units"]["tokens_per_step"]
    return f" ({tokens:,} tokens)" if tokens else ""


def _pipeline(value: dict[str, Any]) -> list[tuple[str, str]]:
    found = value["pipeline"]
    if found is None:
        return []
    idle, least = percent(found["idle_share"]), percent(found["closed_form_share"])
    return [("pipeline", f"{found['description']}; devices are idle for {idle} of it, {least} with equal stages and no transfers")]


def _peak(row: dict[str, Any]) -> str:
    return f"{'' if row['peak_memory_is'] == 'planned' else '~'}{nbytes(row['peak_memory_bytes'])}"


def _refused(row: dict[str, Any]) -> str:
    return "does not" if row["peak_memory_is"] == "planned" else "may not"


def _estimated(value: dict[str, Any]) -> list[tuple[str, str]]:
    """A row if the verdict on the plan's memory is an estimate: the rule, and what the runtime will take."""
    if value["plan"]["peak_memory_is"] == "planned":
        return []
    taken = nbytes(max(memory["peak_bytes"] for memory in value["memory"]))
    return [("memory", f"{value['plan']['lacks'] or RULE}; as the runtime plans this step, at most {taken} a device")]


def comparison(value: dict[str, Any]) -> str:
    """Return a table of the plan and the baselines, a row each."""
    plan = value["plan"]
    rows = []
    for row in [plan, *value["baselines"]]:
        split, mean = row["split"], row["seconds"] or 1.0
        parts = [split["compute"], split["local values"] + split["copy messages"] + split["wait for values"],
                 split["synchronise"] + split["wait for weights"], split["wait for others"]]
        rows.append([
            row["name"] + (" (this plan)" if row is plan else ""), seconds(row["seconds"]),
            f"{row['seconds'] / plan['seconds']:.2f}×" if plan["seconds"] else "–",
            percent(row["units"]["mfu"]) if row["units"]["mfu"] else "–",
            *(f"{seconds(p)} ({percent(p / mean)})" for p in parts), nbytes(row["transfer_bytes"]),
            f"{_peak(row)}{'' if row['fits_memory'] else ' !'}",
        ])
    head = ["plan", "step", "takes", "MFU", "computing", "values", "synchronisation", "waiting", "moved", "memory"]
    return _table("comparison", "Plans on this machine: mean seconds of a device", head, rows)


def operator_table(value: dict[str, Any]) -> str:
    """Return a table of operators, whose rows the scripts make selectable."""
    rows, attributes = [], []
    for number, operator in enumerate(value["operators"]):
        times, moved = operator["seconds"], operator["bytes"]
        rows.append([
            operator["name"], operator["kind"], operator["configuration"], operator["sync"] or "",
            seconds(times[FORWARD]), seconds(times[BACKWARD]), seconds(times[SUM] + times[UPDATE]),
            nbytes(moved[VALUES]), nbytes(moved[GRADIENTS] + moved[WEIGHTS]), f"{operator['parameters']:,}",
        ])
        attributes.append(f' data-operator="{number}" tabindex="0"')
    head = ["operator", "kind", "configuration", "sync", "forward", "backward", "update", "values moved",
            "weights moved", "parameters"]
    return _table("operator-table", "Operators: seconds and bytes of all devices together", head, rows, attributes)


def machine_tables(value: dict[str, Any]) -> str:
    """Return tables of the devices, and of the links in use, the busiest first."""
    step = value["plan"]["seconds"] or 1.0
    devices = []
    for device, memory in zip(value["machine"]["devices"], value["memory"]):
        split = device["split"]
        busy = split["compute"] + split["local values"] + split["synchronise"] + split["copy messages"]
        devices.append([
            f"device {device['number']}", device["kind"], device["node"], percent(busy / step), percent(split["compute"] / step),
            nbytes(device["sent_bytes"]), nbytes(device["received_bytes"]),
            nbytes(memory["peak_bytes"]), nbytes(memory["limit_bytes"]),
        ])
    links = sorted(value["machine"]["links"], key=lambda k: (-k["busy_seconds"], k["name"]))
    shown = [
        [k["name"], percent(k["busy_seconds"] / step), seconds(k["busy_seconds"]), nbytes(k["bytes"]),
         f"{k['messages']:,}", rate(k["bytes_per_second"]), seconds(k["latency_seconds"])]
        for k in links[:LINKS]
    ]
    note = f", the {LINKS} busiest of {len(links)}" if len(links) > LINKS else ""
    return _table(
        "device-table", "Devices", ["device", "kind", "node", "busy", "computing", "sent", "received", "peak memory", "has"],
        devices,
    ) + _table(
        "link-table", f"Links in use{note}", ["link", "busy", "time", "bytes", "messages", "bandwidth", "latency"], shown
    )


def _table(
    name: str, caption: str, head: Sequence[str], rows: Iterable[Sequence[object]], attributes: Sequence[str] = ()
) -> str:
    body = []
    for place, row in enumerate(rows):
        first, *others = (escape(str(cell)) for cell in row)
        body.append(
            f'<tr{attributes[place] if attributes else ""}><th scope="row">{first}</th>'
            + "".join(f"<td>{cell}</td>" for cell in others) + "</tr>"
        )
    columns = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption, quote=True)}"><table id="{name}"><caption>'
        f"{escape(caption)}</caption><thead><tr>{columns}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )
