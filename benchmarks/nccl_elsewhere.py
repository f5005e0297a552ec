"""Predicted against measured collectives of others: every row of NCCL's tables, and the fit of a preset's curves to them.

    python benchmarks/nccl_elsewhere.py --data DIR [--json] [--fit h100]

--data has files nccl-*.csv with the columns device, op_name, nccl_dtype, num_gpus, message_size (in elements of that type: of the
whole array for an all-reduce, of what all members have together for an all-gather and before a reduce-scatter, of what each sends
to all for an all-to-all) and latency (milliseconds). nccl-allreduce-a100.csv has columns of its own (gpus, bytes, nanoseconds): its
all-reduces were called from a program, so they take the preset's `start_seconds` more. Files with other columns are left out.

A row's machine is the preset whose name its device has; more processors than a node has lie on several nodes. The switch does not
add up 8-bit integers. For each GPU and operation: the mean absolute error in per cent of the measured time of the rows that the
curves were fitted to (every other size: even powers of two), and of the others. --fit prints the curves of a preset's file, fitted
to these rows alone.
"""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Column, Table

from taskflow.machine import (
    Collectives,
    Curve,
    SwitchSums,
    collective,
    exchange,
    load_machine,
    preset_names,
    ring_bytes,
)

HALVES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1, "alltoall": 0, "all_to_all": 0}
ITEM = {"half": 2, "bfloat16": 2, "float": 4, "int8": 1}
INTEGERS = ("int8",)
CALLED_WEIGHT = 8  # of rows that a program called: 54 of one table stand against 126 of the other
MOST_SHARE, MOST_COPY = 1.0, 1e16
ONE_PROTOCOL = (8e-6, 1e-6, 2e-5, 0.9, 1e12)  # where fits of a curve begin
TWO_PROTOCOLS = (6e-6, 1e-7, 1e-6, 0.9, 1e12, 5e-6, 0.03)
GAINED = 0.85  # of the error of one protocol, with which two have to be off for a curve to have them
SOFT = 0.1  # errors above this count less in a fit: some rows are four times as slow as their neighbours


@dataclass(frozen=True, slots=True)
class Row:
    """A measured collective of ``nbytes``; ``called``: from a program, not in a loop of its own."""

    machine: str
    operation: str
    members: int
    nbytes: int
    dtype: str
    seconds: float
    called: bool = False

    @property
    def fitted(self) -> bool:
        """Whether constants were fitted to it."""
        return round(math.log2(self.nbytes)) % 2 == 0


def rows_of(data: Path) -> list[Row]:
    """The rows of all files."""
    found = []
    for path in sorted(data.glob("nccl-*.csv")):
        with path.open() as file:
            for row in csv.DictReader(file):
                if "message_size" in row and row["op_name"] in HALVES and (name := preset_of(row["device"])):
                    nbytes = int(row["message_size"]) * ITEM[row["nccl_dtype"]]
                    found.append(Row(
                        name, row["op_name"], int(row["num_gpus"]), nbytes, row["nccl_dtype"], float(row["latency"]) / 1e3,
                    ))  # fmt: skip
                elif "nanoseconds" in row:
                    found.append(Row(
                        "a100", "all_reduce", int(row["gpus"]), int(row["bytes"]), "half", float(row["nanoseconds"]) / 1e9, True,
                    ))  # fmt: skip
    return found


@lru_cache(maxsize=64)
def preset_of(device: str) -> str | None:
    """The preset for a device as a driver names it ("NVIDIA H100 80GB HBM3")."""
    words = device.lower().replace("-", " ").split()
    return next((name for name in preset_names() if name in words), None)


# ---- predicting ------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=256)
def around(name: str, members: int, exchanging: bool) -> Any:
    """The collective (or all-to-all) among the first processors of a preset."""
    machine = load_machine(name)
    if len(machine.processors) < members:
        machine = load_machine(name, members)
    return (exchange if exchanging else collective)(machine, range(members))


def library_of(own: Collectives, row: Row) -> Collectives:
    """The machine's library as the row ran it."""
    if own.halves is not None and not row.called:
        own = replace(own, start_seconds=0.0)
    return replace(own, switch=None) if row.dtype in INTEGERS else own


def predicted(row: Row, own: Collectives | None = None) -> float:
    """Seconds of a row, with the library's figures or the preset's own."""
    halves = HALVES[row.operation]
    found = around(row.machine, row.members, not halves)
    if hasattr(found, "library"):
        found = replace(found, library=library_of(own or found.library, row))
    nbytes = ring_bytes(row.members, row.nbytes, halves) if halves else row.nbytes * (row.members - 1)
    return float(found.seconds(nbytes, halves))


def error(row: Row, own: Collectives | None = None) -> float:
    return predicted(row, own) / row.seconds - 1


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Errors of some rows of one machine and operation."""
    errors = [(row, error(row)) for row in rows]
    members = sorted({row.members for row in rows})
    return {
        "rows": len(rows), "mean_error": mean(abs(e) for _, e in errors), "bias": mean(e for _, e in errors),
        "fitted_error": mean([abs(e) for row, e in errors if row.fitted] or [math.nan]),
        "other_error": mean([abs(e) for row, e in errors if not row.fitted] or [math.nan]),
        "by_members": {n: mean(abs(e) for row, e in errors if row.members == n) for n in members},
    }  # fmt: skip


# ---- fitting ---------------------------------------------------------------------------------------------------------
def fitted(
    rows: Sequence[Row], make: Callable[[np.ndarray], Collectives], start: Sequence[float], most: Sequence[float]
) -> Collectives:
    """The figures with the least errors, found by Levenberg's and Marquardt's way in their logarithms: errors are of the
    logarithm of seconds, and large ones count less (2 (sqrt(1 + e^2) - 1) of e in units of SOFT)."""
    weights = np.sqrt([CALLED_WEIGHT if row.called else 1.0 for row in rows])

    def misses(x: np.ndarray) -> np.ndarray:
        own = make(np.exp(np.minimum(x, limits)))
        plain = weights * np.log([predicted(row, own) / row.seconds for row in rows]) / SOFT
        return np.sign(plain) * np.sqrt(2 * (np.sqrt(1 + plain**2) - 1))

    x, limits, damping = np.log(start), np.log(most), 1e-2
    now = misses(x)
    for _ in range(120):
        slopes = np.stack([(misses(x + step) - now) / 1e-4 for step in 1e-4 * np.eye(len(x))], 1)
        square = slopes.T @ slopes
        step = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-9), -slopes.T @ now)
        there = np.minimum(x + np.clip(step, -1, 1), limits)
        then = misses(there)
        if then @ then < now @ now:
            done = now @ now - then @ then < 1e-9 * (now @ now)
            x, now, damping = there, then, damping / 3
            if done:
                break
        else:
            damping *= 4
    return make(np.exp(x))


def _missed(rows: Sequence[Row], own: Collectives) -> float:
    return mean(abs(error(row, own)) for row in rows)


def curves(name: str, rows: Sequence[Row]) -> Collectives:
    """The preset's library with curves fitted to rows."""
    own = load_machine(name).collectives
    assert own is not None
    rows = [row for row in rows if row.machine == name and row.fitted]
    least = own.switch.members if own.switch else 0
    switch = [row for row in rows if least and row.dtype not in INTEGERS and HALVES[row.operation] == 2
              and least <= row.members]  # fmt: skip
    own = replace(own, switch=None)
    most = (1e-3, 1e-3, 1e-3, MOST_SHARE, MOST_COPY)
    for key, halves in (("halves", 1), ("all_to_all", 0), ("all_reduce", 2)):
        there = [row for row in rows if HALVES[row.operation] == halves and row not in switch]
        called = any(row.called for row in there)
        base = own

        def make(x: np.ndarray, key: str = key, base: Collectives = base, called: bool = called) -> Collectives:
            start, step, ramp, share, *others = map(float, x[called:])
            curve = Curve(start, share, step, ramp, *others)
            return replace(base, **({key: curve} | ({"start_seconds": float(x[0])} if called else {})))  # type: ignore

        start, more = [1.5e-5] * called, [1e-3] * called
        one = fitted(there, make, (*start, *ONE_PROTOCOL), (*more, *most))
        two = fitted(there, make, (*start, *TWO_PROTOCOLS), (*more, *most, 1e-3, MOST_SHARE))
        own = two if _missed(there, two) < GAINED * _missed(there, one) else one
    if switch:
        assert own.all_reduce is not None
        base = replace(own, all_reduce=replace(own.all_reduce, start_seconds=1.0))  # so that the switch is what is faster
        found = fitted(
            switch, lambda x: replace(base, switch=SwitchSums(least, *map(float, x))), (2e-5, 0.5, 2e-5), (1e-3, MOST_SHARE, 1e-3)
        )
        own = replace(own, switch=found.switch)
    return own


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--fit", "fit", multiple=True, help="Print this preset's curves, fitted anew.")
def main(data: Path, as_json: bool, fit: tuple[str, ...]) -> None:
    """Predict every row."""
    rows = rows_of(data)
    if fit:
        from taskflow.reading import table_of

        for name in fit:
            print(name, _rounded(table_of(curves(name, rows))))
        return
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.machine, "called all_reduce" if row.called else row.operation].append(row)
        if not row.called:
            groups[row.machine, "all"].append(row)
    found = {f"{machine} {operation}": summary(own) for (machine, operation), own in sorted(groups.items())}
    if as_json:
        print(json.dumps(found, indent=1))
        return
    columns = [Column(name, justify="right") for name in ("rows", "error", "fitted", "others", "bias", "by GPUs")]
    table = Table("GPU, operation", *columns, box=None)
    for name, of in found.items():
        by = ", ".join(f"{n}: {100 * e:.1f}" for n, e in of["by_members"].items())
        errors = [f"{100 * of[key]:.1f} %" for key in ("mean_error", "fitted_error", "other_error", "bias")]
        table.add_row(name, str(of["rows"]), *errors, by)
    Console(width=120).print(table)


def _rounded(value: Any) -> Any:
    """Numbers to three digits."""
    if isinstance(value, dict):
        return {key: _rounded(of) for key, of in value.items()}
    if isinstance(value, float):
        return float(f"{value:.3g}")
    return value


if __name__ == "__main__":
    main()
