"""Training on two ranks of one core each: taskflow, data parallel and under the plan it searches for, against PyTorch's
DistributedDataParallel over gloo. The same network, batch (of both ranks together), float32, one thread a rank.

    python benchmarks/distributed.py [--json] [--models RNNLM,NMT,AlexNet] [--rounds 5] [--budget 20s] [--quick]

Every side is a job of two processes under mpirun, which takes a step when told to; the sides take steps in turn, so that other
work on the machine disturbs all alike, and a ratio is that of medians. "tuned" is PyTorch with the settings of malloc that
spare it page faults. The links and cores of this machine are measured first, for the search. --quick takes small presets, to
see whether all works. Needs PyTorch: pip install torch.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from training import ROOT, TUNED, Worker, WorkerError, geomean

WORKER = Path(__file__).with_name("distributed_worker.py")
RANKS = 2
BATCHES = {"RNNLM": 64, "NMT": 64, "AlexNet": 64}
QUICK = {"RNNLM": 8, "NMT": 8, "AlexNet": 8}
DDP, TUNED_DDP, DATA, SEARCH = "ddp", "ddp tuned", "data", "search"
SIDES = (DDP, TUNED_DDP, DATA, SEARCH)


class Job(Worker):
    """Two ranks of distributed_worker.py."""

    def __init__(self, side: str, name: str, batch: int, preset: str, machine: str, budget: str) -> None:
        which = side.split()[0]
        command = [mpirun(), "-n", str(RANKS), sys.executable, str(WORKER), which, name, str(batch), preset, machine, budget]
        with socket.socket() as one, socket.socket() as other:  # where PyTorch's ranks meet, and where orders are passed on
            for free in (one, other):
                free.bind(("127.0.0.1", 0))
            ports = {"MASTER_PORT": str(one.getsockname()[1]), "ORDERS_PORT": str(other.getsockname()[1])}
        more = {**(TUNED if side == TUNED_DDP else {}), "MASTER_ADDR": "127.0.0.1", **ports}
        self._process = subprocess.Popen(
            command, env=environment() | more, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.how = self._answer()["ready"]


def mpirun() -> str:
    """The mpirun beside this python, or on PATH."""
    found = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        raise click.ClickException("there is no mpirun: pip install mpich")
    return found


def environment() -> dict[str, str]:
    """One thread a rank; BLAS chooses its own kernels."""
    kept = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE" and not k.startswith("MALLOC_")}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**kept, **threads, "PYTHONPATH": str(ROOT)}


def measure_machine(folder: str) -> str:
    """A machine file of this machine's two ranks."""
    path = str(Path(folder) / "this.json")
    command = [mpirun(), "-n", str(RANKS), sys.executable, "-m", "taskflow", "machine", "measure", "--out", path, "--quiet"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise click.ClickException(f"machine measure failed: {done.stderr.strip()[-300:]}")
    return path


def measure(name: str, rounds: int, quick: bool, machine: str, budget: str, note: Any) -> dict[str, Any]:
    """All sides of one network, in turn."""
    preset, batch = ("small", QUICK[name]) if quick else ("paper", BATCHES[name])
    jobs: dict[str, Job] = {}
    taken: dict[str, list[tuple[float, float, int]]] = {side: [] for side in SIDES}
    try:
        for side in SIDES:
            jobs[side] = Job(side, name, batch, preset, machine, budget)
            note(f"{name}, {side}: {jobs[side].how}")
        for _ in range(rounds):
            for side, job in jobs.items():
                taken[side].append(job.step())
    except WorkerError as error:
        raise click.ClickException(f"{name}: {error}") from error
    finally:
        for job in jobs.values():
            job.close()
    seconds = {side: median(step[0] for step in steps) for side, steps in taken.items()}
    return {
        "model": name, "batch": batch, "preset": preset, "rounds": rounds, "seconds": seconds,
        "fastest_seconds": {side: min(step[0] for step in steps) for side, steps in taken.items()},
        "cpu_seconds": {side: median(step[1] for step in steps) for side, steps in taken.items()},
        "peak_bytes": {side: steps[-1][2] for side, steps in taken.items()},
        "samples_per_second": {side: batch / each for side, each in seconds.items()},
        "vs_ddp": seconds[DDP] / seconds[SEARCH], "vs_tuned_ddp": seconds[TUNED_DDP] / seconds[SEARCH],
        "vs_own_data_parallel": seconds[DATA] / seconds[SEARCH], "data_vs_ddp": seconds[DDP] / seconds[DATA],
        "how": {side: job.how for side, job in jobs.items()},
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What --json prints."""
    keys = ("vs_ddp", "vs_tuned_ddp", "vs_own_data_parallel", "data_vs_ddp")
    return {"ranks": RANKS, "networks": rows, **{f"geomean_{key}": geomean([row[key] for row in rows]) for key in keys}}


def show(result: dict[str, Any], console: Console) -> None:
    """The same as a table."""
    table = Table("network", "batch", "DDP", "DDP tuned", "ours, data", "ours, searched", "vs DDP", "vs tuned", "vs own data",
                  title="two ranks of one core: milliseconds a step, and how many times faster the searched plan is")
    for row in result["networks"]:
        table.add_row(
            row["model"], str(row["batch"]), *(f"{row['seconds'][side] * 1e3:.1f}" for side in SIDES),
            *(f"{row[key]:.2f}" for key in ("vs_ddp", "vs_tuned_ddp", "vs_own_data_parallel")),
        )
    console.print(table)
    console.print(
        f"geometric mean: {result['geomean_vs_ddp']:.2f} of DDP, {result['geomean_vs_tuned_ddp']:.2f} of tuned DDP, "
        f"{result['geomean_vs_own_data_parallel']:.2f} of our data parallelism"
    )


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--models", default=",".join(BATCHES), show_default=True, help="Names, separated by commas.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="Steps of each side.")
@click.option("--budget", default="20s", show_default=True, help="Of the search for each network's plan.")
@click.option("--machine", type=click.Path(exists=True, dir_okay=False), help="A machine file (default: measured now).")
@click.option("--quick", is_flag=True, help="Small presets: whether it works, not how fast.")
def main(as_json: bool, models: str, rounds: int, budget: str, machine: str | None, quick: bool) -> None:
    """Measure and print."""
    names = [name.strip() for name in models.split(",") if name.strip()]
    if unknown := [name for name in names if name not in BATCHES]:
        raise click.BadParameter(f"no network {unknown[0]!r}; there are {', '.join(BATCHES)}", param_hint="--models")
    with tempfile.TemporaryDirectory() as folder:
        file = machine or measure_machine(folder)
        note = Console(stderr=True).print
        result = summary([measure(name, rounds, quick, file, budget, note) for name in names])
    if as_json:
        print(json.dumps(result, indent=1))
    else:
        show(result, Console())


if __name__ == "__main__":
    main()
