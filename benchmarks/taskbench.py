"""Task Bench (Slaughter et al., SC 2020) on the generic task API: how small tasks may be before half of the time is lost.

    python benchmarks/taskbench.py --json               # all patterns on 1 and on 2 ranks (it starts mpirun itself)

Every time step launches one task a column, one column a core; each task checks the 16 bytes of each of its inputs, computes (64
multiply-adds an iteration), and writes 16 bytes. The iterations per task go down from milliseconds' worth; efficiency is the flop/s
over the best per core. METG(50%) is the task granularity (wall time x cores / tasks) at which efficiency is 50 %, interpolated.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp, log, log2
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click

import taskflow
from taskflow.kernels import busy
from taskflow.partition import Image, Partition, Tile
from taskflow.regions import LogicalRegion, Rect

FLOPS_PER_ITERATION = 128
Interval = tuple[int, int]  # columns, half-open; empty where a column has no such input
Dependencies = Callable[[int, int, int], list[Interval]]  # (time step, column, width) -> the same number of intervals for all


def _fft(step: int, column: int, width: int) -> list[Interval]:
    distance = 1 << step % max(1, ceil(log2(width)))
    return [(at, at + 1) if 0 <= at < width else (0, 0) for at in (column - distance, column, column + distance)]


PATTERNS: dict[str, Dependencies] = {
    "trivial": lambda step, column, width: [],
    "stencil_1d": lambda step, column, width: [(max(0, column - 1), min(column + 2, width))],
    "fft": _fft,
    "tree": lambda step, column, width: [(column // 2, column // 2 + 1)],
    "nearest": lambda step, column, width: [(max(0, column - 2), min(column + 3, width))],  # 5 with itself
    "all_to_all": lambda step, column, width: [(0, width)],
}


@taskflow.task(out="write", inputs="read")
def compute(out: Any, inputs: list[Any], step: int, before: int, iterations: int, color: Any) -> None:
    """Check what came in, compute, and write (step, column)."""
    for rows in inputs:
        if len(rows) and (rows[0, 0] != before or rows[-1, 0] != before or rows[-1, 1] - rows[0, 1] != len(rows) - 1):
            raise AssertionError(f"step {step}, column {color[0]}: got {rows.tolist()} of step {before}")
    busy(iterations)
    out[0, 0] = step
    out[0, 1] = color[0]


@dataclass(frozen=True)
class Timing:
    """One granularity: iterations per task, and wall seconds x cores / tasks."""

    iterations: int
    seconds_per_task: float

    @property
    def flops_per_second(self) -> float:
        """Of one core."""
        return self.iterations * FLOPS_PER_ITERATION / self.seconds_per_task


class Bench:
    """One pattern on this job's ranks."""

    def __init__(self, rt: taskflow.TaskRuntime, pattern: str, width: int, steps: int) -> None:
        self.rt, self.width, self.steps = rt, width, steps
        self._cells = [rt.region((width, 2), name=f"{pattern}-{side}") for side in ("even", "odd")]
        for region in self._cells:
            rt.write(region, [[steps - 1, column] for column in range(width)])
        self._tiles = Tile((width, 2), (width, 1))
        self._inputs = [self._images(PATTERNS[pattern], step) for step in range(steps)]

    def _images(self, needs: Dependencies, step: int) -> list[Partition]:
        def image(k: int) -> Partition:
            def access(rect: Rect) -> Rect:
                first, last = needs(step, rect.lo[0], self.width)[k]
                return Rect((first, 0), (last, 2))

            return Image(self._tiles, access, self._cells[0].rect)

        return [image(k) for k in range(len(needs(step, 0, self.width)))]

    def trace(self, iterations: int) -> Any:
        """``steps`` time steps, run until they are replayed."""

        def body() -> None:
            for step in range(self.steps):
                new, old = self._pair(step)
                self.rt.launch(
                    compute, over=self._tiles, out=(new, self._tiles), inputs=[(old, image) for image in self._inputs[step]],
                    step=step, before=(step - 1) % self.steps, iterations=iterations,
                )

        trace = self.rt.trace(body)
        while not trace.replays:
            trace()
        return trace

    def _pair(self, step: int) -> tuple[LogicalRegion, LogicalRegion]:
        return self._cells[step % 2], self._cells[1 - step % 2]

    def measure(self, iterations: int, repeats: int, seconds: float) -> tuple[Timing, Timing]:
        """The median and the best of ``repeats`` runs of about ``seconds`` each; the same on every rank."""
        trace, barrier = self.trace(iterations), self.rt.transport.barrier

        def run(count: int) -> float:
            barrier()
            began = perf_counter()
            for _ in range(count):
                trace()
            barrier()
            return perf_counter() - began

        count: int = self.rt.transport.broadcast(max(1, round(seconds / max(run(3) / 3, 1e-6))))
        walls = self.rt.transport.broadcast([run(count) for _ in range(repeats)])
        share = self.rt.processors / (count * self.steps * self.width)
        return Timing(iterations, median(walls) * share), Timing(iterations, min(walls) * share)


def metg(timings: list[Timing], peak: float, wanted: float = 0.5) -> float | None:
    """Seconds of the smallest task granularity with efficiency ``wanted``; between two measured points by the logarithm.
    ``timings`` from long tasks to short ones; None if the efficiency never crosses ``wanted``."""
    points = [(t.flops_per_second / peak, t.seconds_per_task) for t in timings]
    for (above, long), (below, short) in reversed(list(zip(points, points[1:]))):
        if above >= wanted > below:
            share = (above - wanted) / (above - below)
            return exp(log(long) + share * (log(short) - log(long)))
    return None


def calibrate(rt: taskflow.TaskRuntime, iterations: int = 1 << 16) -> float:
    """Flop/s of the kernel alone on this rank while the others run it too, the best of all."""
    rt.transport.barrier()
    best = 0.0
    for _ in range(20):
        began = perf_counter()
        busy(iterations)
        best = max(best, iterations * FLOPS_PER_ITERATION / (perf_counter() - began))
    gathered = rt.transport.gather(best)
    return float(rt.transport.broadcast(None if gathered is None else max(gathered)))


def sweep(bench: Bench, peak: float, repeats: int, seconds: float) -> tuple[list[Timing], list[Timing]]:
    """Medians and bests, from tasks that are long enough (or as long as is reasonable) down to an efficiency below a quarter."""
    iterations = 1 << 17
    while iterations < 1 << 20 and bench.measure(iterations, 2, seconds)[0].flops_per_second < 0.6 * peak:
        iterations *= 2
    pairs = [bench.measure(iterations, repeats, seconds)]
    while iterations > 1 and pairs[-1][1].flops_per_second > 0.25 * peak:
        iterations //= 2
        pairs.append(bench.measure(iterations, repeats, seconds))
    return [middle for middle, _ in pairs], [best for _, best in pairs]


def work(patterns: list[str], width: int, steps: int, repeats: int, seconds: float) -> dict[str, Any]:
    """All patterns on the ranks of this job."""
    with taskflow.TaskRuntime() as rt:
        width = width or rt.processors
        peak = calibrate(rt)
        found: dict[str, Any] = {}
        for pattern in patterns:
            bench = Bench(rt, pattern, width, steps)
            medians, bests = sweep(bench, peak, repeats, seconds)
            peak = max(peak, *(t.flops_per_second for t in bests))
            found[pattern] = {
                "metg_us": _microseconds(metg(medians, peak)), "metg_best_us": _microseconds(metg(bests, peak)),
                "overhead_us_per_task": _microseconds(bench.measure(0, repeats, seconds)[0].seconds_per_task),
                "efficiency": {str(t.iterations): round(t.flops_per_second / peak, 4) for t in medians},
            }
        return {"ranks": rt.transport.size, "width": width, "peak_flops_per_second": peak, "patterns": found, "rank": rt.rank}


def _microseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e6, 3)


def start(ranks: int, arguments: list[str]) -> dict[str, Any]:
    """The same program as a job of ``ranks`` ranks."""
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", *arguments]
    if ranks > 1:
        beside = Path(sys.executable).parent
        mpirun = shutil.which("mpirun", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
        if mpirun is None:
            raise click.ClickException("no mpirun found beside this python or on PATH; install mpich")
        command = [mpirun, "-n", str(ranks), *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise click.ClickException(f"{ranks} ranks: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--ranks", default="1,2", show_default=True, metavar="LIST", help="Numbers of ranks.")
@click.option("--patterns", default=",".join(PATTERNS), show_default=True, metavar="LIST")
@click.option("--width", type=click.IntRange(0), default=0, help="Columns (default: one a rank).")
@click.option("--steps", type=click.IntRange(2), default=32, show_default=True, help="Time steps of a trace; even.")
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Runs a point; the median counts.")
@click.option("--seconds", type=float, default=0.02, show_default=True, help="Length of a run.")
@click.option("--json", "as_json", is_flag=True, help="Last line of stdout: one JSON object with the results.")
@click.option("--worker", is_flag=True, hidden=True)
def main(
    ranks: str, patterns: str, width: int, steps: int, repeats: int, seconds: float, as_json: bool, worker: bool
) -> None:
    chosen = patterns.split(",")
    if unknown := [p for p in chosen if p not in PATTERNS]:
        raise click.UsageError(f"--patterns: unknown {', '.join(unknown)}; there are {', '.join(PATTERNS)}")
    if steps % 2:
        raise click.UsageError(f"--steps must be even, got {steps}")
    if worker:
        result = work(chosen, width, steps, repeats, seconds)
        if result.pop("rank") == 0:
            click.echo(json.dumps(result))
        return
    passed = ["--patterns", patterns, "--width", str(width), "--steps", str(steps), "--repeats", str(repeats)]
    runs = [start(int(count), [*passed, "--seconds", str(seconds)]) for count in ranks.split(",")]
    for run in runs:
        peak = run["peak_flops_per_second"] / 1e9
        click.echo(f"{run['ranks']} ranks, {run['width']} columns, {peak:.1f} GFLOP/s a core; METG(50%) median (best):", err=True)
        for name, found in run["patterns"].items():
            shown = [f"{us:.2f} us" if us is not None else "not reached" for us in (found["metg_us"], found["metg_best_us"])]
            click.echo(f"  {name:11} {shown[0]} ({shown[1]}), empty task {found['overhead_us_per_task']:.2f} us", err=True)
    if as_json:
        click.echo(json.dumps({"benchmark": "taskbench", "runs": runs}))


if __name__ == "__main__":
    main()
