"""Machine: devices and links with their busy time in the step, and the routes between devices, as JSON values."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskflow.machine import Machine
from taskflow.report.spans import Spans
from taskflow.report.split import PARTS, device_split, link_use
from taskflow.tasks import message_resources


def machine_value(machine: Machine, spans: Spans) -> dict[str, Any]:
    """Return the machine as JSON. ``devices`` and ``links`` (those in use, by number) have busy seconds and bytes. ``routes``:
    "source processor" -> indices into ``links`` that a message occupies. ``copies``: for the same pair, which ends copy the
    message."""
    count = len(machine.processors)
    split = device_split(spans, machine)
    messages = spans.message
    sent = np.bincount(spans.source[messages], spans.nbytes[messages], count)
    received = np.bincount(spans.processor[messages], spans.nbytes[messages], count)
    use = link_use(spans, machine)
    place = {number: i for i, number in enumerate(sorted(use))}
    pairs = np.unique(spans.source[messages] * count + spans.processor[messages]).tolist()
    found = {(s, t): machine.route(s, t) for s, t in (divmod(pair, count) for pair in pairs)}
    links = {link.number: link for route in found.values() for link in route}
    return {
        "name": machine.name,
        "description": str(machine),
        "devices": [
            {
                "kind": p.kind, "node": p.node, "memory_bytes": p.memory_bytes, "flops_per_second": p.flops_per_second,
                "memory_bytes_per_second": p.bytes_per_second, "split": dict(zip(PARTS, split[p.number].tolist())),
                "sent_bytes": int(sent[p.number]), "received_bytes": int(received[p.number]),
            }
            for p in machine.processors
        ],
        "links": [
            {
                "name": use[n][0], "busy_seconds": use[n][1], "bytes": use[n][2], "messages": use[n][3],
                "bytes_per_second": links[n].bytes_per_second, "latency_seconds": links[n].latency_seconds,
            }
            for n in sorted(use)
        ],
        "routes": {f"{s} {t}": [place[link.number] for link in route] for (s, t), route in found.items()},
        "copies": {
            f"{s} {t}": [s in occupied, t in occupied]
            for s, t in found if {s, t} & set(occupied := message_resources(s, t, machine))
        },
    }
