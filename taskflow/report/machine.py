"""Machine: devices and links with their busy time in the step, and the routes between devices, as JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taskflow.optimizer.evaluate import Shown
from taskflow.report.spans import Spans
from taskflow.report.split import PARTS, device_split, link_use, occupied


def machine_value(shown: Shown, spans: Spans, peers: Sequence[int]) -> dict[str, Any]:
    """Return the machine as JSON. ``devices`` (those shown) and ``links`` (those in use, by number) have busy seconds and bytes.
    ``peers``: the numbers of other devices with which these exchange messages; they count on after the devices. ``routes``:
    "source processor" -> what a message occupies, one thing after another: devices that copy it, and links, which count on after
    the devices."""
    machine, count = shown.machine, len(shown.machine.processors)
    split = device_split(spans, shown)
    messages = spans.message
    sent = np.bincount(shown.first[spans.source[messages]], spans.nbytes[messages], count)
    received = np.bincount(spans.processor[messages], spans.nbytes[messages], count)
    use = link_use(spans, shown)
    lane = {thing: i for i, thing in enumerate((*shown.processors, *(count + number for number in sorted(use))))}
    at = {number: i for i, number in enumerate((*shown.processors, *peers))}
    pairs = np.unique(spans.source[messages] * count + spans.processor[messages]).tolist()
    things = {(s, t): occupied(shown, s, t) for s, t in (divmod(pair, count) for pair in pairs)}
    return {
        "name": machine.name,
        "description": str(machine),
        "all_devices": count,
        "devices": [
            {
                "number": p.number, "kind": p.kind, "node": p.node, "memory_bytes": p.memory_bytes,
                "flops_per_second": p.flops_per_second, "memory_bytes_per_second": p.bytes_per_second,
                "split": dict(zip(PARTS, parts.tolist())),
                "sent_bytes": int(sent[p.number]), "received_bytes": int(received[p.number]),
            }
            for p, parts in zip((machine.processors[number] for number in shown.processors), split)
        ],
        "peers": list(peers),
        "links": [
            {
                "name": of.link.name, "busy_seconds": of.seconds, "bytes": of.nbytes, "messages": of.messages,
                "bytes_per_second": of.link.bytes_per_second, "latency_seconds": of.link.latency_seconds,
            }
            for of in (use[n] for n in sorted(use))
        ],
        "routes": {f"{at[s]} {at[t]}": [lane[r] for r in used] for (s, t), used in things.items()},
    }
