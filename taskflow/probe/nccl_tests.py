"""nccl-tests' text output as messages of a probe (github.com/NVIDIA/nccl-tests: all_reduce_perf and its kin)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskflow.probe.measurements import Measurements

OPERATIONS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "alltoall": "all_to_all",
              "sendrecv": "both_ways", "broadcast": "broadcast"}  # fmt: skip
RANK = re.compile(r"#\s*Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s+(.+)")
ROW = re.compile(r"^\s*\d+\s+\d+\s+(?:float|double|half|bfloat16|u?int\d+|fp8\S*)\s", re.MULTILINE)
COLUMNS = re.compile(r"#\s+size\s+count\s+(.*?)\btime\b")
LACKS = (
    "products, attention, passes over memory and updates of weights: operators are as the other machine has them",
    "what the host needs to start a kernel, FSDP2's units and operators on DTensors: the program is the other machine's",
    "computing beside collectives, free memory, clocks and power",
)
"""What nccl-tests do not say and a probe does."""


def is_nccl_tests(path: str) -> bool:
    """Return whether a file looks like the output of nccl-tests, or a part of it."""
    with open(path, errors="replace") as file:
        head = file.read(20_000)
    return ("# " in head and "algbw" in head and "busbw" in head) or ROW.search(head) is not None


def read_nccl_tests(path: str) -> tuple[dict[str, Any], list[Mapping[str, Any]]]:
    """Return the machine that an output tells of, and its rows of messages (out of place). Raises ValueError if the operation or
    the ranks are not said."""
    text = Path(path).read_text(errors="replace")
    ranks = {int(number): (host, name.strip()) for number, host, name in RANK.findall(text)}
    if not ranks:
        raise ValueError(f"{path}: says no ranks; give the whole output of nccl-tests, from its first line on")
    what = _operation(text, path)
    hosts = [ranks[number][0] for number in sorted(ranks)]
    nodes = [hosts.count(host) for host in dict.fromkeys(hosts)]
    where = "within" if len(nodes) == 1 else "between" if max(nodes) == 1 else "across"
    rows: list[Mapping[str, Any]] = []
    before = COLUMNS.search(text)
    if before is None:
        raise ValueError(f"{path}: has no line that names the columns (size, count, ... time); give the whole output of nccl-tests")
    time = 2 + len(before[1].split())  # from 10 ms on it has no decimal point
    for line in text.splitlines():
        words = line.split()
        if len(words) > time + 2 and words[0].isdigit() and words[1].isdigit() and int(words[0]) > 0:
            rows.append({"what": what, "where": where, "ranks": sorted(ranks), "bytes": int(words[0]),
                         "seconds": float(words[time]) / 1e6, "spread": 0.0})  # fmt: skip
    if not rows:
        raise ValueError(f"{path}: has no rows of sizes and times")
    about = {
        "kind": "cuda", "name": ranks[min(ranks)][1], "ranks": len(ranks), "nodes": nodes, "torch": "none", "backend": "nccl-tests",
        "when": "", "cuda": None, "threads": 1,
    }  # fmt: skip
    return about, rows


def _operation(text: str, path: str) -> str:
    """The program's name, in the output (newer versions), in the file's name, or by the columns that it has."""
    for found in (*re.findall(r"(\w+)_perf", text), *re.findall(r"([a-z_]+?)(?:_perf)?(?:\.|-|$)", Path(path).name.lower())):
        if (what := OPERATIONS.get(found.replace("_", "").lower())) is not None:
            return what
    raise ValueError(
        f"{path}: does not say which operation was timed; call the file as the program, such as all_reduce_perf.txt"
    )


def measurements_of(paths: list[str]) -> Measurements:
    """Return what outputs of nccl-tests on one machine say. Raises ValueError if they are of different machines."""
    every = [read_nccl_tests(path) for path in paths]
    about = every[0][0]
    for path, (other, _) in zip(paths[1:], every[1:]):
        if other["name"] != about["name"]:
            raise ValueError(f"{path}: on {other['name']}, but {paths[0]} is on {about['name']}")
    messages = tuple(row for _, rows in every for row in rows)
    return Measurements(about, messages=messages, missing=LACKS)
