"""Groups of measured rows that are priced, not simulated: steps of networks in `measured_rows`, and matrix products.

For each group: errors in time over all rows, over the half that constants were fitted to (every other row, the first with it) and
over the half held back; bias; the largest error; and over tasks, the plans that were measured for one network, batch and number of
GPUs: Kendall's tau, of the pairs within twice the best that differ by a tenth how many are in order, and the regret of the plan
that is predicted to be the fastest. Of rows whose memory was measured its error, and of rows that did or did not fit how many are
told right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

from decoders import Priced
from measured_rows import READERS, StepRow, products, step_files

from taskflow.machine import Cluster, Device, load_machine
from taskflow.optimizer.cost.library import tiled
from taskflow.optimizer.cost.products import product_seconds as seconds_of_product
from taskflow.optimizer.grid import kendall
from taskflow.optimizer.trust.measured import pairs_in_order, regret
from taskflow.programs import Passes, TrainingProgram, load_program

TWICE = 2.0  # times the best of a task: of plans within that pairs are looked at
MOST_NODES = 256  # GPUs, 32 nodes
SHARED_MOST = 8  # t, up to which memory is judged
UNFUSED = (("attention", Passes(kept=4.0)),)  # the scores before and after their softmax
TYPES = {"fp8": "float8"}  # of tables, as machine files name them
STRIDE = 7  # of a table of products every so many rows are predicted: it has tens of thousands


@dataclass(frozen=True, slots=True)
class Predicted:
    """A row with its predicted seconds and bytes."""

    row: StepRow
    seconds: float
    memory: float
    capacity: float

    @property
    def error(self) -> float:
        return self.seconds / (self.row.seconds or 1.0) - 1

    def __str__(self) -> str:
        row = self.row
        took = f"measured {row.seconds:.4g}: {self.error:+.1%}" if row.seconds else "did not fit"
        needs = f"{self.memory / 1e9:.1f} GB" + (f", measured {row.memory / 1e9:.1f}" if row.memory else "")
        return f"{row.group}, {row.of}, {row.plan}, {row.program}: {self.seconds:.4g} s, {took}; {needs}"


def machine_of(row: StepRow) -> Cluster:
    """The cluster of a row, at least a node of it."""
    machine = load_machine(row.machine, max(8, row.gpus))
    machine = machine.driven_by(program_of(row))
    if not row.card:
        return machine
    nodes = tuple(
        replace(node, wires=tuple(replace(w, bytes_per_second=row.card) if "network" in w.between else w for w in node.wires))
        for node in machine.nodes
    )
    return replace(machine, nodes=nodes)


def program_of(row: StepRow) -> TrainingProgram:
    """The program of a row, with the kernels that it ran."""
    name, *kernels = row.program.split(":")
    program = load_program(name)
    if not kernels:
        return program
    scores = () if kernels[0].startswith("flash") else UNFUSED
    without = tuple(one for one in program.passes if one[0] != "norm" or "fused" not in kernels)
    return replace(program, attention=kernels[0], passes=(*without, *scores))


class Rows:
    """Predictions of rows. Machines and tables are kept from row to row."""

    def __init__(self) -> None:
        self._priced = Priced()
        self._machines: dict[object, Cluster] = {}

    def predict(self, row: StepRow) -> Predicted:
        key = row.machine, row.gpus, row.card, row.program
        if key not in self._machines:
            self._machines[key] = machine_of(row)
        machine = self._machines[key]
        seconds, memory = self._priced.step(row.decoder, row.batch, machine, row.plan)
        return Predicted(row, seconds, memory, min(p.memory_bytes for p in machine.processors))


def predicted_groups(data: Path, sample: int) -> dict[str, list[Predicted]]:
    """Predict the rows of all files, by group."""
    found: dict[str, list[Predicted]] = {}
    rows = Rows()
    for name, path in step_files(data):
        for row in list(READERS[name](path))[::sample]:
            found.setdefault(row.group, []).append(rows.predict(row))
    if every := found.pop("ultrascale", []):
        steady = [one for one in every if one.row.gpus <= MOST_NODES and not one.row.stalls]
        found |= {
            "ultrascale, one stage or node, t to 8": [one for one in steady if one.row.healthy],
            "ultrascale, to 32 nodes, no stalls": steady, "ultrascale, all": every,
        }
    return {name: some for name, some in found.items() if some}


def summary(rows: Sequence[Predicted]) -> dict:
    """What a group's predictions are worth."""
    timed = [one for one in rows if one.row.seconds]
    errors = [one.error for one in timed]
    found: dict = {
        "rows": len(rows), "timed": len(timed), "mean_error": mean(map(abs, errors)), "bias": mean(errors),
        "largest_error": max(errors, key=abs), "mean_error_fitted": mean(map(abs, errors[::2])),
        "mean_error_held": mean(map(abs, errors[1::2])) if len(errors) > 1 else None,
    }
    tasks: dict[str, list[tuple[float, float]]] = {}
    for one in timed:
        tasks.setdefault(one.row.of, []).append((one.seconds, one.row.seconds))
    several = [pairs for pairs in tasks.values() if len(pairs) > 2]
    if several:
        many, right = pairs_in_order(several, TWICE)
        regrets = list(map(regret, several))
        found |= {
            "tasks": len(several), "tau": median(map(kendall, several)), "pairs": many, "pairs_right": right / max(1, many),
            "regret": median(regrets), "mean_regret": mean(regrets), "largest_regret": max(regrets),
        }
    kept = [one for one in rows if one.row.memory and _shared(one.row) <= SHARED_MOST]
    if kept:
        memory = [one.memory / one.row.memory - 1 for one in kept]
        found |= {"memory_error": mean(map(abs, memory)), "memory_bias": mean(memory)}
    if len(timed) < len(rows):
        fits = [one.memory <= one.capacity for one in rows]
        found["fits_right"] = mean(fit == (one.row.seconds is not None) for one, fit in zip(rows, fits))
    return found


def _shared(row: StepRow) -> int:
    return int(row.plan.split()[0][1:]) if row.plan.startswith("t") else 1


def said(name: str, found: dict) -> str:
    """A summary as a line."""
    text = f"{name}: {found['timed']} rows off by {found['mean_error']:.1%} (fitted {found['mean_error_fitted']:.1%}"
    text += f", held {found['mean_error_held']:.1%})" if found["mean_error_held"] is not None else ")"
    text += f", bias {found['bias']:+.1%}, at most {found['largest_error']:+.0%}"
    if "tau" in found:
        text += (
            f"; {found['tasks']} tasks: tau {found['tau']:.2f}, {found['pairs_right']:.0%} of {found['pairs']} pairs in order, "
            f"regret {found['regret']:.1%} (mean {found['mean_regret']:.1%}, {found['largest_regret']:.0%} at most)"
        )
    if "memory_error" in found:
        text += f"; memory off by {found['memory_error']:.1%} ({found['memory_bias']:+.1%})"
    if "fits_right" in found:
        text += f"; fits or not right in {found['fits_right']:.0%} of {found['rows']}"
    return text


# ---- matrix products -------------------------------------------------------------------------------------------------
def product_groups(data: Path) -> dict[str, dict]:
    """Errors of matrix products by GPU and type."""
    found = {}
    for path in sorted(data.glob("gemm-*.csv*")):
        device = _device(path.name.split("-")[1].split(".")[0])
        if device is None:
            continue
        rows = products(path)
        for dtype in sorted({row.dtype for row in rows}):
            of_type = [row for row in rows if row.dtype == dtype]
            halves = [[row for row in of_type[half::2]][::STRIDE] for half in (0, 1)]
            errors = [
                [product_seconds(device, dtype, row.m, row.n, row.k) / row.seconds - 1 for row in half] for half in halves
            ]
            both = [*errors[0], *errors[1]]
            found[f"products, {device.kind} {dtype}"] = {
                "rows": len(both), "timed": len(both), "mean_error": mean(map(abs, both)), "bias": mean(both),
                "largest_error": max(both, key=abs), "mean_error_fitted": mean(map(abs, errors[0])),
                "mean_error_held": mean(map(abs, errors[1])),
            }
    return found


def _device(name: str) -> Device | None:
    try:
        return load_machine(name, 1).kinds[0]
    except ValueError:
        return None


def product_seconds(device: Device, dtype: str, m: int, n: int, k: int) -> float:
    """Seconds of a product of this type as costs have it."""
    if (rates := device.products_of(TYPES.get(dtype, dtype))) is not None:
        size = 1 if "8" in dtype else 2
        return seconds_of_product(device, rates, device.rate(TYPES.get(dtype, dtype)), size, m, n, k, 1)
    rate = device.product_rate(dtype) * 0.75
    nbytes = 2 * (m * k + k * n + m * n)
    return device.launch_seconds + max(
        tiled(m, n, k, 1, device.multiprocessors, rate), nbytes / (device.memory_bytes_per_second * device.reaches("memory", 0.8))
    )
