"""One side of benchmarks/training.py: a network in a process of its own, which takes a training step when told to.

    python training_worker.py SIDE MODEL BATCH PRESET THREADS [MAPPER]
    python training_worker.py plan MODEL BATCH PRESET THREADS MAPPER FILE

SIDE: taskflow (under mpirun: a processor a rank, under MAPPER's strategy), taskflow-threads (the same in one process), eager,
channels_last or compile. The second form chooses a strategy as `taskflow train` does, writes it, prints what it found and
ends: so what searching and trying need is no part of the memory that is measured.

Each line on standard input is a number of steps to take; the answer is a line of JSON: seconds of each step
by the clock and of this process on its cores, and the peak memory since the network was begun (what ranks share, weights
or the code of libraries, counts once). The first line that is
printed says that the network is ready, and which kernels compute it. An empty line ends it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

import taskflow
from taskflow.models import build, find
from taskflow.training.data import random_feeds
from taskflow.training.program import plan

Step = Callable[[], Any]
RATE = 0.01


def resident_bytes(which: str) -> int:
    """VmRSS or VmHWM (the peak) of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(which):
            return int(line.split()[1]) << 10
    raise OSError(f"/proc/self/status has no {which}")


def forget_peak() -> None:
    """Let VmHWM start again from here."""
    Path("/proc/self/clear_refs").write_text("5")


# ---- sides -----------------------------------------------------------------------------------------------------------


def ours(graph: Any, batch: dict[str, np.ndarray], transport: Any, mapper: str) -> tuple[Step, str, int]:
    """A step of taskflow, how it is done, and how many bytes of its memory are also another rank's, which counts them."""
    strategy, _ = taskflow.choose(mapper, graph, taskflow.host(transport.size))
    run = taskflow.Executor(graph, strategy, taskflow.SGD(RATE), transport=transport)
    ranks = f"{transport.size} ranks, " if transport.size > 1 else ""
    how = f"{ranks}{run.kernels.name} kernels, {getattr(run.kernels, 'threads', 1)} threads"
    return lambda: run.train(batch), how, getattr(run.kept, "lent_nbytes", 0)


def find_plan(graph: Any, transport: Any, mapper: str, file: str) -> None:
    """Choose a strategy, and write it."""
    said: list[str] = []
    machine = taskflow.host(transport.size)
    strategy, _ = plan(mapper, graph, machine, transport, rule=taskflow.SGD(RATE), say=said.append)
    if transport.rank == 0:
        taskflow.save_strategy(strategy, graph, machine.name, file)
        print(json.dumps({"ready": said[-1].splitlines()[-1] if said else mapper}), flush=True)
    transport.close()


def theirs(side: str, name: str, config: Any, batch: dict[str, np.ndarray], threads: int) -> tuple[Step, str]:
    """A step of PyTorch."""
    import torch
    import torch_networks

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    net = torch_networks.NETWORKS[name](config)
    given = {key: torch.from_numpy(value) for key, value in batch.items()}
    if side == "channels_last":
        net = net.to(memory_format=torch.channels_last)
        given = {
            key: value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value
            for key, value in given.items()
        }
    run = torch.compile(net) if side == "compile" else net
    rule = torch.optim.SGD(net.parameters(), lr=RATE)

    def step() -> float:
        loss = run(**given)
        rule.zero_grad()
        loss.backward()
        rule.step()
        return float(loss)

    return step, f"torch {torch.__version__}, {threads} threads"


def main(
    side: str, name: str, batch_size: int, preset: str, threads: int, mapper: str = "data", file: str | None = None
) -> None:
    """Build the network, take two steps to warm up, then do as told."""
    of_ours = side in ("plan", "taskflow", "taskflow-threads")
    if not of_ours:
        import torch  # so that what it needs by itself does not count as the network's memory

        torch.set_num_threads(threads)
    transport = taskflow.connect() if of_ours else None
    known, model = find(name)
    graph = build(known, batch_size, preset=preset)
    if file is not None:
        find_plan(graph, transport, mapper, file)
        return
    batch = random_feeds(graph)
    began, began_files = resident_bytes("VmRSS"), resident_bytes("RssFile")
    counted_elsewhere = 0
    if transport is not None:
        step, how, counted_elsewhere = ours(graph, batch, transport, mapper)
    else:
        from dataclasses import replace

        step, how = theirs(side, known, replace(getattr(model, preset), batch=batch_size), batch, threads)
    first = transport is None or transport.rank == 0
    for _ in range(2):
        step()
    forget_peak()
    if first:
        print(json.dumps({"ready": how}), flush=True)
    while True:
        line = sys.stdin.readline().strip() if first else ""
        count = int((line if transport is None else transport.broadcast(line)) or 0)
        if not count:
            break
        seconds, cpu_seconds = [], []
        for _ in range(count):
            start, busy = perf_counter(), process_time()
            step()
            seconds.append(perf_counter() - start)
            cpu_seconds.append(process_time() - busy)
        peak = resident_bytes("VmHWM") - began - counted_elsewhere
        if not first:  # the code of libraries, too, is in memory once
            peak -= resident_bytes("RssFile") - began_files
        peaks = [peak] if transport is None else transport.gather(peak)
        if first:
            print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": sum(peaks)}), flush=True)


if __name__ == "__main__":
    side, name, batch_size, preset, threads, *more = sys.argv[1:]
    os.environ.pop("OPENBLAS_CORETYPE", None)
    main(side, name, int(batch_size), preset, int(threads), *more)
