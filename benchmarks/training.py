"""Training speed of the paper's six networks against PyTorch on the same cores: samples/s of one step (forward, backward,
update by SGD), and peak memory.

    python benchmarks/training.py [--json] [--models AlexNet,NMT] [--threads 1 2] [--variants eager,compile] [--rounds 5]
        [--mapper best]

PyTorch runs eagerly, eagerly with channels_last (networks of images), and compiled; each stock, and with the settings
of malloc that spare it page faults ("tuned"). Every variant has a process of its own, and takes steps in turn with
ours: a ratio is that of the medians of one such pair, and beside it stands that of the processor time (on one core),
which other work on the machine disturbs less. On two cores ours runs two ranks of one core each, under the strategy of
--mapper, which is chosen once before, by a job of its own (best: of data parallelism, the expert's and the searched plan the
fastest on this machine, of equally fast ones the smallest), or, with --ours threads, one process with two threads; PyTorch
has two threads. Peak memory is that of all ranks together. --quick takes
small presets, to see whether all works. Needs PyTorch: pip install torch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from several import Several

ROOT = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("training_worker.py")
# Batches for the memory of a small machine and minutes of run time; the paper has 256 for AlexNet and 64 for the others.
BATCHES = {"AlexNet": 64, "Inception-v3": 8, "ResNet-101": 8, "RNNTC": 64, "RNNLM": 64, "NMT": 64}
QUICK = {"AlexNet": 8, "Inception-v3": 4, "ResNet-101": 4, "RNNTC": 6, "RNNLM": 6, "NMT": 6}
PLAN, RANKS, THREADS = "plan", "taskflow", "taskflow-threads"  # ours
SIDES = ("eager", "channels_last", "compile")
IMAGES = ("AlexNet", "Inception-v3", "ResNet-101")
TUNED = {"MALLOC_MMAP_THRESHOLD_": "2000000000", "MALLOC_TRIM_THRESHOLD_": "8000000000", "MALLOC_TOP_PAD_": "400000000"}


class WorkerError(RuntimeError):
    """A worker ended before it answered; the message is the end of what it printed."""


class Worker:
    """A process of training_worker.py."""

    def __init__(
        self, side: str, name: str, batch: int, preset: str, threads: int, tuned: bool, more: Sequence[str] = ()
    ) -> None:
        command = [sys.executable, str(WORKER), side, name, str(batch), preset, str(threads), *more]
        each = threads
        if side in (PLAN, RANKS) and threads > 1:
            mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
            if mpirun is None:
                raise WorkerError("there is no mpirun: pip install mpich")
            command, each = [mpirun, "-n", str(threads), *command], 1
        environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE" and not k.startswith("MALLOC_")}
        environment |= {"OMP_NUM_THREADS": str(each), "OPENBLAS_NUM_THREADS": str(each), "MKL_NUM_THREADS": str(each),
                        "PYTHONPATH": str(ROOT), **(TUNED if tuned else {})}
        self._process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.how = self._answer()["ready"]

    def step(self) -> tuple[float, float, int]:
        """Seconds by the clock, seconds of processor time (of the first rank), and the peak memory in bytes so far."""
        assert self._process.stdin is not None
        self._process.stdin.write("1\n")
        self._process.stdin.flush()
        answer = self._answer()
        return answer["seconds"][0], answer["cpu_seconds"][0], answer["peak_bytes"]

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None and self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it may end by itself meanwhile
                self._process.stdin.write("\n")
                self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None and self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line.startswith("{"):
            self._process.kill()
            said = (line + self._process.stderr.read()).strip().splitlines()
            raise WorkerError(" | ".join(said[-3:]) or "it ended without a word")
        found: dict[str, Any] = json.loads(line)
        return found


@dataclass(frozen=True)
class Pair:
    """Ours beside one variant of PyTorch."""

    variant: str
    ours_seconds: float
    theirs_seconds: float
    cpu_ratio: float
    ours_peak_bytes: int
    theirs_peak_bytes: int
    how: str

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return self.theirs_seconds / self.ours_seconds


def compare(ours: Worker, theirs: Worker, variant: str, rounds: int) -> Pair:
    """Single steps in turn; medians."""
    taken: tuple[list[tuple[float, float, int]], ...] = ([], [])
    for _ in range(rounds):
        for side, worker in enumerate((ours, theirs)):
            taken[side].append(worker.step())
    (our_seconds, our_cpu), (their_seconds, their_cpu) = (
        (median(step[0] for step in side), median(step[1] for step in side)) for side in taken
    )
    return Pair(variant, our_seconds, their_seconds, their_cpu / our_cpu, taken[0][-1][2], taken[1][-1][2], theirs.how)


def planned(name: str, batch: int, preset: str, threads: int, mapper: str, folder: str) -> tuple[str, str]:
    """The file of ``mapper``'s strategy for so many ranks, and what its choice said."""
    file = str(Path(folder) / f"{name}-{threads}.json")
    job = Worker(PLAN, name, batch, preset, threads, False, (mapper, file))
    job.close()
    return file, job.how


def measure(
    name: str, threads: int, rounds: int, quick: bool, variants: Sequence[str], side_of_ours: str, mapper: str, note: Any
) -> dict[str, Any]:
    """The variants of one network at one number of cores."""
    preset, batch = ("small", QUICK[name]) if quick else ("paper", BATCHES[name])
    sides = [side for side in variants if side != "channels_last" or name in IMAGES]
    strategy = "whole"
    with tempfile.TemporaryDirectory() as folder:
        more: tuple[str, ...] = ()
        if threads > 1 and side_of_ours == RANKS:
            file, strategy = planned(name, batch, preset, threads, mapper, folder)
            note(f"{name}, {threads} ranks, strategy {strategy}")
            more = (file,)
        ours = Worker(side_of_ours, name, batch, preset, threads, False, more)
    pairs, absent = [], {}
    try:
        for side in sides:
            for tuned in (False, True):
                variant = f"{side}{' tuned' if tuned else ''}"
                if tuned and side in absent:
                    continue
                try:
                    theirs = Worker(side, name, batch, preset, threads, tuned)
                except WorkerError as error:
                    absent[side] = str(error)
                    note(f"{name}: torch {side} does not run here and is left out: {error}")
                    continue
                try:
                    pairs.append(compare(ours, theirs, variant, rounds))
                    note(f"{name}, {threads} cores, {variant}: {pairs[-1].ratio:.2f}, processor time {pairs[-1].cpu_ratio:.2f}")
                finally:
                    theirs.close()
    finally:
        ours.close()
    stock, tuned = ([p for p in pairs if p.variant.endswith("tuned") is which] for which in (False, True))
    if not stock or not tuned:
        raise click.ClickException(f"{name}: no variant of PyTorch runs: {absent}")
    return {
        "model": name, "threads": threads, "batch": batch, "preset": preset, "ours": ours.how, "strategy": strategy,
        "samples_per_second": batch / median(p.ours_seconds for p in pairs),
        "vs_stock": min(p.ratio for p in stock), "vs_tuned": min(p.ratio for p in tuned),
        "cpu_vs_stock": min(p.cpu_ratio for p in stock), "cpu_vs_tuned": min(p.cpu_ratio for p in tuned),
        "best_stock": min(stock, key=lambda p: p.ratio).variant, "best_tuned": min(tuned, key=lambda p: p.ratio).variant,
        "peak_bytes": max(p.ours_peak_bytes for p in pairs),
        "torch_peak_bytes": {p.variant: p.theirs_peak_bytes for p in pairs},
        "variants": {
            p.variant: {
                "ratio": p.ratio, "cpu_ratio": p.cpu_ratio, "ours_s": p.ours_seconds,
                "torch_s": p.theirs_seconds, "torch": p.how,
            } for p in pairs
        },
        "left_out": absent,
    }


def geomean(values: list[float]) -> float:
    """The geometric mean."""
    return exp(sum(map(log, values)) / len(values))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What --json prints."""
    result: dict[str, Any] = {"networks": rows}
    for key in ("vs_stock", "vs_tuned"):
        result[f"geomean_{key}"] = geomean([row[key] for row in rows])
        for threads in sorted({row["threads"] for row in rows}):
            result[f"geomean_{key}_{threads}"] = geomean([row[key] for row in rows if row["threads"] == threads])
        if alone := [row for row in rows if row["threads"] == 1]:
            result[f"geomean_cpu_{key}_1"] = geomean([row[f"cpu_{key}"] for row in alone])
    result["least_vs_stock"] = min(row["vs_stock"] for row in rows)
    return result


def short(strategy: str) -> str:
    """``expert`` of "best: expert (data 940 ms ...)"."""
    return strategy.removeprefix("best: ").split()[0].rstrip(":")


def show(result: dict[str, Any], console: Console) -> None:
    """The same as a table."""
    table = Table("network", "cores", "batch", "strategy", "samples/s", "stock", "best stock", "tuned", "best tuned", "MB",
                  "torch MB", title="taskflow's speed over PyTorch's best variant, and peak memory")
    for row in result["networks"]:
        least = min(row["torch_peak_bytes"].values())
        table.add_row(
            row["model"], str(row["threads"]), str(row["batch"]), short(row["strategy"]), f"{row['samples_per_second']:.2f}",
            f"{row['vs_stock']:.2f}", row["best_stock"], f"{row['vs_tuned']:.2f}", row["best_tuned"],
            f"{row['peak_bytes'] / 1e6:.0f}", f"{least / 1e6:.0f}",
        )
    console.print(table)
    console.print(
        f"geometric mean: {result['geomean_vs_stock']:.2f} of stock, {result['geomean_vs_tuned']:.2f} of tuned; "
        f"least of stock: {result['least_vs_stock']:.2f}"
    )


@click.command(cls=Several, help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--models", default=",".join(BATCHES), show_default=True, help="Names, separated by commas.")
@click.option("--threads", multiple=True, type=click.IntRange(1), help="Numbers of cores. [default: 1 2]")
@click.option("--variants", default=",".join(SIDES), show_default=True, help="Of PyTorch, separated by commas.")
@click.option("--ours", type=click.Choice(["ranks", "threads"]), default="ranks", show_default=True,
              help="How ours uses several cores.")
@click.option("--mapper", default="best", show_default=True,
              help="Of our ranks' strategy: data, expert, search, best, or a strategy FILE.json.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="Steps of each side in a pair.")
@click.option("--quick", is_flag=True, help="Small presets: whether it works, not how fast.")
def main(
    as_json: bool, models: str, threads: tuple[int, ...], variants: str, ours: str,
    mapper: str, rounds: int, quick: bool,
) -> None:
    """Measure and print."""
    names = [name.strip() for name in models.split(",") if name.strip()]
    for name in names:
        if name not in BATCHES:
            raise click.BadParameter(f"no network {name!r}; there are {', '.join(BATCHES)}", param_hint="--models")
    sides = [side.strip() for side in variants.split(",") if side.strip()]
    if not sides or any(side not in SIDES for side in sides):
        raise click.BadParameter(f"must be some of {', '.join(SIDES)}, got {variants!r}", param_hint="--variants")
    counts = threads or (1, 2)
    errors = Console(stderr=True)
    side = RANKS if ours == "ranks" else THREADS
    rows = [measure(name, count, rounds, quick, sides, side, mapper, errors.print) for count in counts for name in names]
    result = summary(rows)
    if as_json:
        print(json.dumps(result, indent=1))
    else:
        show(result, Console())


if __name__ == "__main__":
    main()
