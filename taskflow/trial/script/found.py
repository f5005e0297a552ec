"""What was found of all plans: a table, and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import Any

FORMAT = "taskflow-try 1"


def row_of(plan: Mapping[str, Any], visits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a plan's entry with what its visits found: seconds of all steps, and the most bytes that any rank needed."""
    failed = next((visit for visit in visits if "error" in visit), None)
    seconds = [second for visit in visits for second in visit.get("seconds", ())]
    every = [rank for visit in visits for rank in visit.get("ranks", ())]

    def most(what: str) -> int | None:
        return max((rank[what] for rank in every if rank[what] is not None), default=None)

    return {
        **plan, "error": failed["error"] if failed else None, "step_seconds": seconds,
        "median_seconds": median(seconds) if seconds else None, "quartile_seconds": quartiles(seconds) if seconds else None,
        "memory_bytes": most("allocated"), "reserved_bytes": most("reserved"), "resident_bytes": most("resident"),
    }


def quartiles(seconds: Sequence[float]) -> list[float]:
    """Return the first and the third quartile."""
    values = sorted(seconds)
    return [values[len(values) // 4], values[3 * len(values) // 4]]


def places(values: Mapping[int, float]) -> dict[int, int]:
    """Return the place of each key's value, the smallest first, from 1 on."""
    return {key: number for number, key in enumerate(sorted(values, key=lambda key: values[key]), 1)}


def table(rows: Sequence[Mapping[str, Any]], gpu: bool) -> str:
    """Return the rows as text, in the order of what was measured; what has failed is at the end, with its error."""
    ran = {i: row["median_seconds"] for i, row in enumerate(rows) if row["error"] is None}
    predicted, measured = places({i: rows[i]["predicted_seconds"] for i in ran}), places(ran)
    lines = [[
        "plan", "predicted ms", "measured ms", "quartiles", "measured/predicted", "place", "memory GB",
        "measured GB" if gpu else "process GB",
    ]]
    for i in sorted(ran, key=lambda i: measured[i]):
        row, memory = rows[i], rows[i]["memory_bytes" if gpu else "resident_bytes"]
        low, high = row["quartile_seconds"]
        lines.append([
            row["name"], f"{1e3 * row['predicted_seconds']:.4g}", f"{1e3 * ran[i]:.4g}", f"{1e3 * low:.4g} to {1e3 * high:.4g}",
            f"{ran[i] / row['predicted_seconds']:.2f}", f"{measured[i]} (predicted {predicted[i]})",
            f"{row['predicted_memory_bytes'] / 1e9:.2f}", f"{memory / 1e9:.2f}",
        ])
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    text = [
        "  ".join(word.ljust(width) if k == 0 else word.rjust(width) for k, (word, width) in enumerate(zip(line, widths)))
        for line in lines
    ] if ran else []
    pairs = [(predicted[a] < predicted[b]) == (measured[a] < measured[b]) for a, b in combinations(ran, 2)]
    if pairs:
        text.append(f"{sum(pairs)} of {len(pairs)} pairs are in the predicted order")
    if ran and not gpu:
        text.append("process GB: the most that a rank's process had, Python and PyTorch included, which nothing predicts")
    return "\n".join([*text, *(f"{row['name']}: failed: {row['error']}" for row in rows if row["error"] is not None)])
