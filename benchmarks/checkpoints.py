"""By how much checkpoints delay training: blocks of steps with a checkpoint and without one, in turn.

    python benchmarks/checkpoints.py [--ranks 2] [--hidden 512] [--layers 8] [--batch 8] [--steps 64] [--vocabulary 8000]
        [--every 20] [--pairs 6] [--together] [--json]

GPT-2 with Adam under data parallelism. A block is ``--every`` steps; every other one begins with a checkpoint, as training with
``--checkpoint-every`` does. ``--together``: steps wait until the file is complete. A table, or with ``--json`` an object: medians
over pairs of blocks, of the delay by the clock and by the ranks' processor time, which other programs of the machine disturb less.
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
from taskflow.cli.tables import render
from taskflow.models import build
from taskflow.runtime.job import launcher
from taskflow.training.data.synthetic import random_feeds


@click.command()
@click.option("--ranks", default=2, show_default=True)
@click.option("--hidden", default=512, show_default=True)
@click.option("--layers", default=8, show_default=True)
@click.option("--batch", default=8, show_default=True, help="Sequences a step.")
@click.option("--steps", default=64, show_default=True, help="Tokens of a sequence.")
@click.option("--vocabulary", default=8000, show_default=True)
@click.option("--every", default=20, show_default=True, help="Steps from one checkpoint to the next.")
@click.option("--pairs", default=6, show_default=True, help="Blocks with a checkpoint, and as many without one.")
@click.option("--together", is_flag=True, help="Wait for each file.")
@click.option("--json", "as_json", is_flag=True)
def main(
    ranks: int, hidden: int, layers: int, batch: int, steps: int, vocabulary: int, every: int, pairs: int, together: bool,
    as_json: bool,
) -> None:
    """Measure it."""
    if launcher() is None and ranks > 1:
        os.execvp("mpirun", ["mpirun", "-n", str(ranks), sys.executable, *sys.argv])
    transport = taskflow.connect()
    machine = taskflow.host(transport.size)
    graph = build("gpt-2", batch, preset="small", steps=steps, vocabulary=vocabulary, hidden=hidden, heads=8, layers=layers)
    strategy, mapper = taskflow.choose("data", graph, machine)
    run = taskflow.Executor(graph, strategy, taskflow.Adam(), transport=transport, machine=machine, mapper=mapper)
    feeds = random_feeds(graph)
    times: dict[bool, list[float]] = {True: [], False: []}
    work: dict[bool, list[float]] = {True: [], False: []}
    files: list[Written] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(transport.broadcast(folder)) / "run.safetensors"
        writer = CheckpointWriter(run, path, said=files.append)
        for _ in range(2):
            run.train(feeds)
        writer.save()  # the first one touches memory
        writer.wait()
        for block in range(2 * pairs):
            began, worked = perf_counter(), process_time()
            if saves := block % 4 in (0, 3):  # the order within a pair changes, so that a trend of the machine does not count
                writer.save()
                if together:
                    writer.wait()
            for _ in range(every):
                run.train(feeds)
            took = perf_counter() - began
            writer.wait()
            worked = sum(transport.gather(process_time() - worked) or ())
            times[saves].append(took)
            work[saves].append(worked)
        size = path.stat().st_size if transport.rank == 0 else 0
        writer.close()
    if transport.rank == 0:
        by_clock, by_work = ([100 * (x / y - 1) for x, y in zip(of[True], of[False])] for of in (times, work))
        more = [x - y for x, y in zip(work[True], work[False])]
        _show({
            "parameters": graph.parameter_count, "ranks": transport.size, "megabytes": round(size / 1e6, 1), "every": every,
            "pairs": pairs, "together": together, "step_ms": round(1e3 * median(times[False]) / every, 2),
            "step_work_ms": round(1e3 * median(work[False]) / every, 2), "delay_percent": round(median(by_clock), 2),
            "more_work_percent": round(median(by_work), 2), "more_work_ms": round(1e3 * median(more), 1),
            "held_ms": round(1e3 * median(one.held for one in files[1:]), 2),
            "written_ms": round(1e3 * median(one.seconds for one in files[1:]), 2),
        }, as_json)
    run.close()
    transport.close()


def _show(found: dict[str, float], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    step, work = f"{found['step_ms']:,.0f}", f"{found['step_work_ms']:,.0f}"
    rows = [
        ("weights", f"{found['parameters'] / 1e6:.1f} million"),
        ("checkpoint", f"{found['megabytes']:,.0f} MB"),
        ("a step", f"{step} ms by the clock, {work} ms of processor time on {found['ranks']} ranks"),
        (f"with a checkpoint every {found['every']} steps", f"{found['delay_percent']:+.1f} % by the clock"),
        ("", f"{found['more_work_percent']:+.1f} % of processor time ({found['more_work_ms']:,.0f} ms a checkpoint)"),
        ("training waits", f"{found['held_ms']:,.0f} ms a checkpoint"),
        ("its file is written in", f"{found['written_ms']:,.0f} ms"),
    ]
    click.echo(render(("", "medians"), rows, words=(0, 1)))


if __name__ == "__main__":
    main()
