"""What ranks bring: tokens/s of examples/rnnlm.py's model at 1 and 2 ranks, 16 ranks against the same 16 pieces run one
after another by one process, the share of transfer time that is hidden, bytes moved, and memory a rank.

    python benchmarks/scaling.py [--json] [--rounds 5] [--steps 12]

Runs are interleaved; figures are medians, ratios are medians of the ratios of neighbouring runs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

import click

ROOT = Path(__file__).resolve().parents[1]


def run(ranks: int, processors: int, mapper: str, steps: int) -> dict:
    """One run in a process (or ranks) of its own; what rank 0 printed."""
    command = [sys.executable, __file__, "--worker", str(processors), "--mapper", mapper, "--steps", str(steps)]
    if ranks > 1:
        mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        command = [mpirun, "-n", str(ranks), *command]
    # One thread a rank everywhere: "one process on one core" is one core. A benchmark may lift the machine's setting
    # that holds OpenBLAS to AVX2; both sides run alike.
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"} | {
        "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def work(processors: int, mapper: str, steps: int) -> None:
    """What each rank does."""
    import resource

    import numpy as np

    import taskflow
    from taskflow.mapper import OpConfig, cut_only
    from taskflow.models import RNNLMConfig, rnnlm
    from taskflow.operators.operator import Soap

    transport = taskflow.connect()
    count = max(processors, transport.size)
    graph = rnnlm(RNNLMConfig(batch=256, steps=20, vocabulary=4000, hidden=128))
    machine = taskflow.host(count)
    strategy, _ = taskflow.choose("data", graph, machine)
    if mapper == "channel-softmax":  # the layer with most weights cut in the channel dimension: each rank holds its rows
        configs = dict(strategy.configs)
        for node in graph:
            if node.operator.kind in ("linear", "embedding"):
                configs[node.name] = OpConfig(cut_only(node, Soap.PARAMETER, count), tuple(range(count)))
        strategy = replace(strategy, configs=configs)
    executor = taskflow.Executor(graph, strategy, taskflow.Adam(4e-3), transport=transport, machine=machine, clip_norm=5.0)
    random = np.random.default_rng(0)
    feeds = {name: random.integers(0, 4000, (256, 20)) for name in ("tokens", "targets")}
    for _ in range(3):
        executor.train(feeds)
    seconds = []
    for _ in range(steps):
        start = perf_counter()
        executor.train(feeds)
        seconds.append(perf_counter() - start)
    transport.barrier()
    _, profile = executor.train_measured(feeds)
    kinds = profile.by_kind()
    waits = transport.gather((kinds.get("arrive", 0.0) + kinds.get("flush", 0.0), profile.seconds))
    memory = transport.gather((
        executor.program("train").plan.memory.nbytes + executor.kept.nbytes, executor.kept.nbytes,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    ))
    moved = executor.moved_bytes_per_step()
    if transport.rank == 0:
        transfer = sum(
            machine.route(t.source, t.processor)[0].latency_seconds
            + t.nbytes / machine.route(t.source, t.processor)[0].bytes_per_second
            for t in executor.program("train").graph if t.kind.value == "copy"
        ) / max(1, transport.size)
        weights = sum(p.spec.nbytes for p in graph.parameters)
        print(json.dumps({
            "tokens_per_second": 5120 / median(seconds),
            "step_seconds": median(seconds),
            "wait_seconds": median(w for w, _ in waits),
            "transfer_seconds": transfer,
            "bytes_moved_per_step": moved,
            "planned_bytes_per_rank": max(m for m, _, _ in memory),
            "kept_bytes_per_rank": max(m for _, m, _ in memory),
            "resident_bytes_per_rank": max(m for _, _, m in memory),
            "weight_bytes": weights,
        }))
    executor.close()
    transport.close()


@click.command()
@click.option("--json", "as_json", is_flag=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--steps", default=12, show_default=True)
@click.option("--worker", type=int, hidden=True)
@click.option("--mapper", default="data", hidden=True)
def main(as_json: bool, rounds: int, steps: int, worker: int | None, mapper: str) -> None:
    if worker:
        work(worker, mapper, steps)
        return
    from rich.console import Console
    from rich.table import Table

    cases = {
        "1 rank": (1, 1, "data"), "2 ranks": (2, 2, "data"), "2 ranks, channel-split softmax": (2, 2, "channel-softmax"),
        "16 pieces, 1 process": (1, 16, "data"), "16 ranks": (16, 16, "data"),
    }
    rows: dict[str, list[dict]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, (ranks, processors, which) in cases.items():
            rows[name].append(run(ranks, processors, which, steps))

    def ratio(a: str, b: str) -> float:
        return median(x["tokens_per_second"] / y["tokens_per_second"] for x, y in zip(rows[a], rows[b]))

    result: dict = {"cases": {n: {k: median(r[k] for r in rs) for k in rs[0]} for n, rs in rows.items()}}
    result["speedup_2_ranks"] = ratio("2 ranks", "1 rank")
    result["speedup_16_ranks_over_1_process"] = ratio("16 ranks", "16 pieces, 1 process")
    two = result["cases"]["2 ranks"]
    result["wait_fraction_2_ranks"] = two["wait_seconds"] / two["step_seconds"]
    table = Table("case", "tokens/s", "step ms", "waiting ms", "MB moved", "planned MB a rank", "kept MB a rank",
                  title="RNNLM small")
    for name, row in result["cases"].items():
        table.add_row(name, f"{row['tokens_per_second']:,.0f}", *(f"{1e3 * row[k]:.1f}" for k in ("step_seconds", "wait_seconds")),
                      *(f"{row[k] / 1e6:.1f}" for k in ("bytes_moved_per_step", "planned_bytes_per_rank", "kept_bytes_per_rank")))
    console = Console(stderr=as_json)
    console.print(table)
    console.print(f"2 ranks / 1 rank: {result['speedup_2_ranks']:.2f}; 16 ranks / 16 pieces in one process: "
                  f"{result['speedup_16_ranks_over_1_process']:.2f}; weights {two['weight_bytes'] / 1e6:.1f} MB")
    if as_json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
