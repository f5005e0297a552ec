"""collectives: what an XLA program sends, read from its text."""

from __future__ import annotations

import re
from math import prod

SIZES = {"f64": 8, "s64": 8, "u64": 8, "f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "s8": 1, "u8": 1, "pred": 1}
KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|ragged-all-to-all|collective-broadcast"
LINE = re.compile(rf"= (\(.*?\)|\S+) ({KINDS})(-start)?\(")
ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) .*\{$")
WHILE = re.compile(r"while\(.*body=%?([\w.-]+).*?(?:\"known_trip_count\":\{\"n\":\"(\d+)\"\})")


def collectives(text: str, devices: int) -> dict[str, list[int]]:
    """Kind -> how many run in the program, and the bytes that all devices send in them together, as rings would send them. A loop's
    body counts as often as XLA says it runs; a loop of whose turns it says nothing is a ValueError if it sends anything."""
    times, own, inner = {}, {}, {}
    name = ""
    for line in text.splitlines():
        if found := COMPUTATION.match(line):
            name = found[1]
            own[name], inner[name] = [], []
            if line.startswith("ENTRY"):
                times[name] = 1
        if " while(" in line:
            said = WHILE.search(line)
            body = re.search(r"body=%?([\w.-]+)", line)
            assert body is not None, line
            inner[name].append((body[1], int(said[2]) if said else None))
        if found := LINE.search(line):
            own[name].append((found[2], _sent(found[1], found[2], line, devices, found[3] is not None)))
    waiting = list(times)
    while waiting:
        name = waiting.pop()
        for body, turns in inner[name]:
            if turns is None and (own[body] or inner[body]):
                raise ValueError(f"XLA does not say how often {body} runs, which sends something")
            times[body] = times.get(body, 0) + times[name] * (turns or 0)
            waiting.append(body)
    if lost := [name for name, sends in own.items() if sends and name not in times]:
        raise ValueError(f"computations with collectives that no loop runs: {lost}")
    total: dict[str, list[int]] = {}
    for name, sends in own.items():
        for kind, nbytes in sends:
            row = total.setdefault(kind, [0, 0])
            row[0] += times[name]
            row[1] += times[name] * nbytes
    return total


def _sent(shape: str, kind: str, line: str, devices: int, start: bool) -> int:
    arrays = [SIZES[dtype] * prod(int(n) for n in dims.split(",") if n) for dtype, dims in ARRAY.findall(shape) if dtype in SIZES]
    if start and kind in ("all-gather", "collective-permute"):  # (operand, result)
        arrays = arrays[1:2]
    result = sum(arrays)
    if kind == "collective-permute":
        pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", line)
        assert pairs is not None, line
        return result * sum(a != b for a, b in re.findall(r"\{?(\d+),(\d+)\}?", pairs[0]))
    size = _group(line, devices)
    each = {
        "all-reduce": 2 * result * (size - 1) // size, "all-gather": result * (size - 1) // size,
        "reduce-scatter": result * (size - 1), "all-to-all": result * (size - 1) // size,
    }[kind]
    return each * devices


def _group(line: str, devices: int) -> int:
    """Devices of a group; groups are alike and hold all devices."""
    if found := re.search(r"replica_groups=\[(\d+),(\d+)\]", line):
        return int(found[2])
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return len(found[1].split(","))
    return devices
