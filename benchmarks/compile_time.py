"""How long it takes to compile a step on many virtual processors, and what replaying it adds to each task.

    python benchmarks/compile_time.py [--models NMT --models Inception-v3] [--devices 64] [--strategies data] [--json]

Compiling, at the paper's sizes: the graph, its lowering, the global order, the schedule with its memory plan (for one rank
that has all processors, and for rank 0 of as many ranks as processors), and the binding of every task to its arrays. Memory
is reserved and never touched, so that no more than the tables' own is used.

Replay, on a graph of the same structure and tiny sizes: the time of a whole step over its tasks, with kernels that do
nothing (what remains is the loop, the operators' Python and numpy's part of it), and with the real ones (an upper bound:
the kernels are in it). Seconds are of processor time.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable
from time import process_time
from typing import Any, TypeVar

import click
import numpy as np
from several import Several, one_of

from taskflow.kernels import KERNELS, KernelSet, default_kernels
from taskflow.machine import host
from taskflow.mapper import Strategy, choose
from taskflow.models import build
from taskflow.operators.operator import StepState
from taskflow.rules import SGD
from taskflow.runtime import paused_collector
from taskflow.runtime.program import PersistentBuffers, Placement, Program, RankSchedule, schedule
from taskflow.runtime.transport import LocalTransport
from taskflow.tasks import TaskGraph, roofline, simulate
from taskflow.tasks.lower import lower

REPLAYS = 7  # steps, of which the fastest counts
T = TypeVar("T")
# The same operators and cuts, so small that a task's time is what it costs to start it.
TINY: dict[str, dict[str, Any]] = {
    "NMT": {"vocabulary": 64, "hidden": 8}, "RNNLM": {"vocabulary": 64, "hidden": 8},
    "RNNTC": {"vocabulary": 64, "hidden": 8}, "Inception-v3": {"image": 75, "divide": 32, "classes": 64},
    "ResNet-101": {"image": 32, "width": 1, "classes": 64},
    "AlexNet": {"image": 63, "channels": (2, 2, 2, 2, 2), "pooled": 1, "hidden": 64, "classes": 64},
}


def timed(act: Callable[[], T]) -> tuple[float, T]:
    """Processor seconds of an act, with the garbage collector paused as the Executor does, and what it returned."""
    with paused_collector():
        start = process_time()
        result = act()
        return process_time() - start, result


def reserved(nbytes: int) -> np.ndarray[Any, Any]:
    """Address space that takes no memory until it is touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return np.frombuffer(mmap.mmap(-1, max(nbytes, 1), flags=flags), np.uint8)


def untouched(tasks: TaskGraph) -> PersistentBuffers:
    """The kept arrays of all processors, in address space only."""
    kept = PersistentBuffers()
    for buffer in tasks.buffers:
        if buffer.kept and buffer.base is None:
            kept.arrays[buffer.name] = reserved(buffer.nbytes)[: buffer.nbytes].view(buffer.dtype).reshape(buffer.shape)
    return kept


def nothing() -> KernelSet:
    """Kernels that do nothing."""
    methods = {name: lambda self, *args, **named: 0.0 for name in KERNELS}
    kind: type[KernelSet] = type("Nothing", (KernelSet,), methods)
    return kind()


def compile_row(model: str, devices: int, mapper: str) -> dict[str, Any]:
    """Seconds of every part of compiling the paper's step."""
    build_s, graph = timed(lambda: build(model, devices=devices))
    machine = host(devices)
    strategy = choose(mapper, graph, machine)[0]
    lower_s, tasks = timed(lambda: lower(graph, strategy, SGD(0.1)))
    order_s, timeline = timed(lambda: simulate(tasks, machine, roofline(machine)))
    schedule_s, plan = timed(lambda: schedule(tasks, timeline.order, Placement(devices, 1), 0))
    one_s, _ = timed(lambda: schedule(tasks, timeline.order, Placement(devices, devices), 0))
    kept, arena, state = untouched(tasks), reserved(plan.memory.nbytes), StepState()
    bind_s, _ = timed(lambda: program(tasks, plan, default_kernels(), state, kept, arena))
    return {
        "model": model, "devices": devices, "strategy": mapper, "tasks": len(tasks), "build_s": build_s,
        "lower_s": lower_s, "order_s": order_s, "schedule_s": schedule_s, "bind_s": bind_s,
        "compile_s": build_s + lower_s + order_s + schedule_s + bind_s, "schedule_of_one_rank_s": one_s,
        "arena_bytes": plan.memory.nbytes,
    }


def program(
    tasks: TaskGraph, plan: RankSchedule, kernels: KernelSet, state: StepState, kept: PersistentBuffers, arena: Any = None
) -> Program:
    """The step of one rank that has all processors."""
    return Program(tasks, plan, LocalTransport(), kernels, state, kept, arena=arena)


def replay_row(model: str, devices: int, mapper: str) -> dict[str, Any]:
    """Microseconds a task of replaying the same structure."""
    graph = build(model, batch=devices, **TINY[model])
    machine = host(devices)
    strategy: Strategy = choose(mapper, graph, machine)[0]
    tasks = lower(graph, strategy, SGD(0.1))
    order = simulate(tasks, machine, roofline(machine)).order
    plan = schedule(tasks, order, Placement(devices, 1), 0)
    row: dict[str, Any] = {"replay_tasks": len(tasks)}
    for label, kernels in (("replay_us", nothing()), ("replay_with_kernels_us", default_kernels())):
        feeds = {n.name: np.zeros(n.outputs[0].shape, n.outputs[0].dtype) for n in graph if n.operator.kind == "input"}
        bound = program(tasks, plan, kernels, StepState(feeds=feeds), PersistentBuffers())
        bound.storage.arena.fill(0)
        seconds = []
        for _ in range(REPLAYS):
            start = process_time()
            with np.errstate(all="ignore"):  # of numbers that mean nothing
                bound.run()
            seconds.append(process_time() - start)
        row[label] = min(seconds) / len(tasks) * 1e6
    return row


def describe(row: dict[str, Any]) -> str:
    """One line for a person."""
    parts = ", ".join(f"{part} {row[f'{part}_s']:.2f}" for part in ("build", "lower", "order", "schedule", "bind"))
    return (
        f"{row['model']}, {row['devices']} processors, {row['strategy']}: {row['tasks']} tasks compiled in "
        f"{row['compile_s']:.2f} s ({parts}; schedule of one rank of {row['devices']} {row['schedule_of_one_rank_s']:.2f}); "
        f"replay {row['replay_us']:.1f} us a task, {row['replay_with_kernels_us']:.1f} with tiny kernels "
        f"({row['replay_tasks']} tasks)"
    )


@click.command(cls=Several)
@click.option("--models", multiple=True, type=one_of(TINY), default=["NMT", "Inception-v3"], show_default=True)
@click.option("--devices", default=64, show_default=True, help="Virtual processors.")
@click.option("--strategies", multiple=True, default=["data", "expert"], show_default=True, help="Names of mappers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(models: tuple[str, ...], devices: int, strategies: tuple[str, ...], as_json: bool) -> None:
    """Print seconds of compiling and microseconds of replaying."""
    rows = []
    for model in models:
        for strategy in strategies:
            rows.append({**compile_row(model, devices, strategy), **replay_row(model, devices, strategy)})
            if not as_json:
                click.echo(describe(rows[-1]))
    if as_json:
        click.echo(json.dumps({"benchmark": "compile_time", "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
