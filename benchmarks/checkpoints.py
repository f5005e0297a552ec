"""By how much checkpoints delay training: blocks of steps with a checkpoint and without one, in turn.

    python benchmarks/checkpoints.py [--ranks 2] [--hidden 256] [--layers 4] [--batch 16] [--every 20] [--blocks 20] [--together]

GPT-2 with Adam under data parallelism. A block is ``--every`` steps; every other one begins with a checkpoint, as training with
``--checkpoint-every`` does. ``--together``: steps wait until the file is complete. One JSON object: medians over blocks, of the
delay by the clock and by the ranks' processor time, which other programs of the machine disturb less.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import click

import taskflow
from taskflow.checkpoint import CheckpointWriter, Written
from taskflow.models import build
from taskflow.runtime.job import launcher
from taskflow.training.data.synthetic import random_feeds


@click.command()
@click.option("--ranks", default=2, show_default=True)
@click.option("--hidden", default=256, show_default=True)
@click.option("--layers", default=4, show_default=True)
@click.option("--batch", default=16, show_default=True)
@click.option("--every", default=20, show_default=True, help="Steps from one checkpoint to the next.")
@click.option("--blocks", default=20, show_default=True)
@click.option("--together", is_flag=True, help="Wait for each file.")
def main(ranks: int, hidden: int, layers: int, batch: int, every: int, blocks: int, together: bool) -> None:
    """Measure it."""
    if launcher() is None and ranks > 1:
        os.execvp("mpirun", ["mpirun", "-n", str(ranks), sys.executable, *sys.argv])
    transport = taskflow.connect()
    machine = taskflow.host(transport.size)
    graph = build("gpt-2", batch, preset="small", steps=64, vocabulary=4000, hidden=hidden, heads=4, layers=layers)
    strategy, mapper = taskflow.choose("data", graph, machine)
    run = taskflow.Executor(graph, strategy, taskflow.Adam(), transport=transport, machine=machine, mapper=mapper)
    feeds = random_feeds(graph)
    times: dict[bool, list[float]] = {True: [], False: []}
    work: dict[bool, list[float]] = {True: [], False: []}
    files: list[Written] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(transport.broadcast(folder)) / "run.safetensors"
        writer = CheckpointWriter(run, path, said=files.append)
        for _ in range(3):
            run.train(feeds)
        for block in range(2 * blocks + 2):
            began, worked = perf_counter(), process_time()
            if saves := block % 2 == 0:
                writer.save()
                if together:
                    writer.wait()
            for _ in range(every):
                run.train(feeds)
            took = perf_counter() - began
            writer.wait()
            worked = sum(transport.gather(process_time() - worked) or ())
            if block > 1:  # the first two touch memory
                times[saves].append(took)
                work[saves].append(worked)
        size = path.stat().st_size if transport.rank == 0 else 0
        writer.close()
    if transport.rank == 0:
        by_clock, by_work = ([100 * (x / y - 1) for x, y in zip(of[True], of[False])] for of in (times, work))
        print(json.dumps({
            "parameters": graph.parameter_count, "ranks": transport.size, "megabytes": round(size / 1e6, 1),
            "step_ms": round(1e3 * median(times[False]) / every, 2),
            "held_ms": round(1e3 * median(one.held for one in files), 2),
            "written_ms": round(1e3 * median(one.seconds for one in files), 2),
            "delay_percent": round(median(by_clock), 2), "more_work_percent": round(median(by_work), 2),
            "blocks": blocks, "every": every,
        }))
    run.close()
    transport.close()


if __name__ == "__main__":
    main()
