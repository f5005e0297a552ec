"""A pipeline of two stages on two CPU ranks, beside what its own tasks would take without transfers and overhead.

    python benchmarks/pipeline.py [--network gpt] [--micro-batches 8] [--schedule 1f1b] [--rounds 5] [--steps 6] [--json]

A GPT or a Llama of 4 layers of 256 trains under `p2 mb1`, or an RNNLM of 2 layers of 512 and 20 steps under `p2 mb8`, with ten
steps a stage. In each round some steps are taken plainly and timed, then some with each task timed. "ideal" is the simulated
step with the tasks' median seconds and no time for transfers; "reached" is ideal / measured, which is how near the runtime
comes to the closed form's efficiency for these stages. "equal stages" is that efficiency if both stages took equally long. One
BLAS thread a rank. To reach: 0.9.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import product
from statistics import median
from typing import Any

import click
import numpy as np
from distributed import environment, mpirun
from rich.console import Console
from rich.table import Table

VOCABULARY, STEPS_OF_TEXT = 2000, 128
NETWORKS = ("gpt", "llama", "rnnlm")


def network(name: str, micro_batches: int, chunks: int) -> tuple[Any, str]:
    """A network and its plan without the schedule."""
    from taskflow.models.gpt import GPTConfig, gpt
    from taskflow.models.llama import LlamaConfig, llama
    from taskflow.models.rnnlm import RNNLMConfig, rnnlm

    if name == "rnnlm":
        in_time = "stages=6,12" if chunks == 1 else ""  # ten steps each: the first five have no number in their names
        return rnnlm(RNNLMConfig(8 * micro_batches, 20, VOCABULARY, 512, 2, 0.0, 5)), f"p2 mb8 {in_time}"
    layers = f"stages={','.join([str(2 // chunks)] * (2 * chunks))}"
    if name == "llama":
        config = LlamaConfig(
            batch=micro_batches, steps=STEPS_OF_TEXT, vocabulary=VOCABULARY, hidden=256, inner=704, heads=4, key_heads=2, layers=4
        )
        return llama(config), f"p2 mb1 {layers}"
    return gpt(GPTConfig(micro_batches, STEPS_OF_TEXT, VOCABULARY, 256, 4, 4, 0.0)), f"p2 mb1 {layers}"


def worker(name: str, micro_batches: int, schedule: str, rounds: int, steps: int) -> dict[str, Any] | None:
    """One rank; the first one's answer has the figures."""
    import taskflow
    from taskflow.mapper import HybridParallel, map_graph
    from taskflow.optimizer.explain import bubble
    from taskflow.tasks import Compute, simulate

    transport = taskflow.connect()
    machine = taskflow.host(2)
    graph, text = network(name, micro_batches, 2 if schedule == "zbv" else 1)
    plan = map_graph(HybridParallel(f"{text} schedule={schedule}"), graph, machine)
    run = taskflow.Executor(graph, plan, taskflow.SGD(0.01), transport=transport, machine=machine)
    random = np.random.default_rng(0)
    batch = {name: random.integers(0, VOCABULARY, graph.node(name).space.shape) for name in ("tokens", "targets")}
    run.train(batch)
    plain: list[float] = []
    timed: dict[int, list[float]] = {}
    for _ in range(rounds):
        for _ in range(steps):
            transport.barrier()
            begin = time.perf_counter()
            run.train(batch)
            transport.barrier()
            plain.append(time.perf_counter() - begin)
        for _ in range(steps):
            for task in run.train_measured(batch)[1].tasks:
                if task.kind not in ("send", "receive", "waitreceive", "waitsend", "startcollective"):
                    timed.setdefault(task.task, []).append(task.seconds)
    found = transport.gather({number: median(seconds) for number, seconds in timed.items()})
    run.close()
    transport.close()
    if found is None:
        return None
    seconds = {number: s for of_rank in found for number, s in of_rank.items()}
    tasks = run.program("train").graph
    timeline = simulate(tasks, machine, lambda task: 0.0 if task.kind.travels else seconds.get(task.number, 0.0))
    idle = bubble(plan.pipeline, tasks, timeline)
    assert idle is not None
    stages = [sum(s for n, s in seconds.items() if tasks.tasks[n].processor == p and isinstance(tasks.tasks[n].work, Compute))
              for p in range(2)]
    return {
        "network": name, "micro_batches": micro_batches, "schedule": schedule, "step_ms": 1e3 * median(plain),
        "ideal_ms": 1e3 * timeline.makespan, "reached": timeline.makespan / median(plain),
        "stage_ms": [1e3 * s for s in stages], "efficiency": 1 - idle.share, "equal_stages": 1 - idle.closed_form,
        "tasks": len(tasks),
    }


@click.command()
@click.option("--network", "networks", type=click.Choice(NETWORKS), multiple=True, default=("gpt",), show_default=True)
@click.option("--micro-batches", "many", type=click.IntRange(1), multiple=True, default=(8,), show_default=True)
@click.option("--schedule", "schedules", type=click.Choice(["gpipe", "1f1b", "zb-h1", "zbv"]), multiple=True, default=("1f1b",),
              show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--steps", type=click.IntRange(1), default=6, show_default=True, help="Of each kind in a round.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--worker", "is_worker", is_flag=True, hidden=True)
def main(
    networks: tuple[str, ...], many: tuple[int, ...], schedules: tuple[str, ...], rounds: int, steps: int, as_json: bool,
    is_worker: bool,
) -> None:
    """See the file's head."""
    if is_worker:
        answer = worker(networks[0], many[0], schedules[0], rounds, steps)
        if answer is not None:
            print(json.dumps(answer), flush=True)
        return
    rows = []
    for name, schedule, count in product(networks, schedules, many):
        command = [mpirun(), "-n", "2", sys.executable, __file__, "--worker", "--network", name, "--micro-batches", str(count),
                   "--schedule", schedule, "--rounds", str(rounds), "--steps", str(steps)]  # fmt: skip
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=1200)
        if done.returncode:
            raise click.ClickException(f"{name}, {schedule}, {count} micro-batches: {done.stderr.strip()[-500:]}")
        rows.append(json.loads(done.stdout.strip().splitlines()[-1]))
    if as_json:
        print(json.dumps({"benchmark": "pipeline", "rows": rows}))
        return
    table = Table()
    names = ("network", "schedule", "micro-batches", "step ms", "ideal ms", "reached", "stages ms", "efficiency", "equal stages")
    for column in names:
        table.add_column(column)
    for row in rows:
        table.add_row(
            row["network"], row["schedule"], str(row["micro_batches"]), f"{row['step_ms']:.1f}", f"{row['ideal_ms']:.1f}",
            f"{row['reached']:.3f}", " + ".join(f"{s:.1f}" for s in row["stage_ms"]), f"{row['efficiency']:.3f}",
            f"{row['equal_stages']:.3f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
