"""A program that trains one network, written once: its options, its plan, its run and its report.

An example is a function that says what to train, under `example`:

    @example(PRESETS, data="FILE", data_help="Text file to train on.")
    @click.option("--level", default="word")              # options of its own
    def main(run: Run, level: str) -> Training: ...

It gets the options that all examples share (``--mapper``, ``--preset``, ``--data``, ``--steps``, ``--json``, ...), works
alone and under mpirun, and prints the losses of the run, which are the same under every mapper.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from taskflow.graph import OperatorGraph
from taskflow.kernels import KernelSet, kernels_on
from taskflow.machine import Machine, host
from taskflow.mapper import save
from taskflow.rules import UpdateRule
from taskflow.runtime.executor import Executor
from taskflow.runtime.launch import LaunchError, connect, launcher
from taskflow.runtime.transport import Transport
from taskflow.training.loop import Result, rows_read, train
from taskflow.training.plan import SEARCH_BUDGET, plan
from taskflow.training.schedules import Schedule
from taskflow.training.stream import Batches, Evaluation, LazyBatches, Say


@dataclass(frozen=True, slots=True)
class Preset:
    """Sizes and training settings. ``model``: the network's config, whose ``batch`` is of the whole machine, or of each
    processor if ``per_processor``."""

    model: Any
    rule: UpdateRule
    steps: int
    schedule: Schedule | None = None
    clip_norm: float | None = None
    per_processor: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """The options that all examples share, as given on the command line."""

    mapper: str
    search_budget: str
    preset: str
    processors: int | None
    data: tuple[str, ...]
    steps: int | None
    seed: int
    dtype: str
    watchdog: float | None
    save_strategy: str | None
    as_json: bool
    quiet: bool
    device: str


@dataclass(frozen=True, slots=True)
class Run:
    """What the function that says what to train is told. ``model`` is the preset's config, ``batch`` of the whole machine;
    ``ranks`` share this job's cores."""

    model: Any
    batch: int
    data: tuple[str, ...]
    seed: int
    dtype: str
    steps: int
    processors: int
    ranks: int
    say: Say


@dataclass(frozen=True, slots=True)
class Training:
    """What to train on what. ``unit``: what the items of ``batches`` are ("tokens", "images"); ``describe``: one line about
    the data. A report has the last measure of ``evaluation`` under its names with ``_valid``, and ``facts``."""

    graph: OperatorGraph
    batches: Batches
    unit: str
    describe: str
    evaluation: Evaluation | None = None
    measures: tuple[str, ...] = ()  # the names that a report has, None where nothing could be measured
    lazy: tuple[LazyBatches, ...] = ()  # all batches that are made for this rank alone: training's and validation's
    initial: Mapping[str, Any] = field(default_factory=dict)  # whole arrays that parameters start with in place of their own
    facts: Mapping[str, Any] = field(default_factory=dict)


Builder = Callable[..., Training]


def example(presets: Mapping[str, Preset], *, data: str, data_help: str) -> Callable[[Builder], click.Command]:
    """Make a command of a function that takes a `Run` (and options of its own) and returns a `Training`.

    ``data``: what ``--data`` names, for its help. The help's first paragraph is that of the function's module. What the
    function raises as ValueError, OSError or ImportError is what the user can mend: one line on stderr, exit code 2.
    """
    shared = [
        click.option("--mapper", default="data", show_default=True, metavar="NAME",
                     help="data, model, expert, search, round-robin, random, a strategy FILE.json, or package.module:Class."),
        click.option("--search-budget", default=SEARCH_BUDGET, show_default=True, metavar="TIME",
                     help="How long --mapper search may take: 5s, 2m, or 20000p for proposals."),
        click.option("--preset", type=click.Choice(list(presets)), default=next(iter(presets)), show_default=True),
        click.option("--processors", type=click.IntRange(1), help="Virtual processors (default: one a rank)."),
        click.option("--data", multiple=True, metavar=data, help=data_help),
        click.option("--steps", type=click.IntRange(1), help="Training steps (default: the preset's)."),
        click.option("--seed", type=click.IntRange(0), default=0, show_default=True),
        click.option("--dtype", type=click.Choice(["float32", "float64"]), default="float32", show_default=True),
        click.option("--watchdog", type=click.FloatRange(0), metavar="SECONDS", help="End the job if a rank waits longer."),
        click.option("--save-strategy", metavar="FILE", help="Write the strategy that is used."),
        click.option("--json", "as_json", is_flag=True, help="Last line of stdout: one JSON object with the results."),
        click.option("--quiet", is_flag=True, help="No progress display."),
        click.option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True,
                     help="Where to compute; gpu needs CuPy and a GPU for each rank, or one that they share."),
    ]  # fmt: skip
    names = [option.name for option in fields(Options)]

    def decorate(build: Builder) -> click.Command:
        @wraps(build)
        def command(**given: Any) -> None:
            options = Options(**{name: given.pop(name) for name in names})
            program = Path(inspect.getfile(build)).name
            status = run_example(program, presets[options.preset], options, lambda run: build(run, **given))
            if status:
                sys.exit(status)

        whole: Any = command
        for option in reversed(shared):
            whole = option(whole)
        about = (build.__globals__.get("__doc__") or "").split("\n\n")[0]
        epilog = "Swap --mapper and the losses stay the same: only the speed changes."
        return click.command(help=about, epilog=epilog)(whole)

    return decorate


def run_example(program: str, preset: Preset, options: Options, build: Callable[[Run], Training]) -> int:
    """Connect, plan, train, report. Returns the exit status: 2 for what the user can mend, after one line on stderr that
    begins with ``program``. Every rank runs it."""
    try:
        transport = connect(watchdog_seconds=options.watchdog)
    except (LaunchError, ValueError) as error:
        if (started := launcher()) is None or started.rank == 0:
            click.echo(f"{program}: {error}", err=True)
        return 2
    first = transport.rank == 0

    def say(text: str) -> None:
        if first and not options.quiet:
            click.echo(text, err=True)

    machine = host(options.processors or transport.size, options.device)
    with ExitStack() as background:
        try:
            kernels = kernels_on(options.device)
            training = build(_run(preset, options, machine, transport, say))
            for batches in training.lazy:
                background.callback(batches.close)
            executor = _executor(training, preset, options, machine, transport, say, kernels)
        except (ValueError, OSError, ImportError) as error:  # what the user can mend: no traceback, said once
            if first:
                click.echo(f"{program}: {error}", err=True)
            transport.close()
            return 2
        result = train(
            executor, training.batches, options.steps or preset.steps, schedule=preset.schedule,
            evaluation=training.evaluation, unit=training.unit, quiet=options.quiet or not first, say=say,
        )
        _report(executor, training, options, result, say)
        executor.close()
    transport.close()
    return 0


def _run(preset: Preset, options: Options, machine: Machine, transport: Transport, say: Say) -> Run:
    """What the example's function is told."""
    count = len(machine.processors)
    batch = preset.model.batch * (count if preset.per_processor else 1)
    return Run(
        preset.model, batch, options.data, options.seed, options.dtype, options.steps or preset.steps, count,
        transport.size, say,
    )  # fmt: skip


def _executor(
    training: Training, preset: Preset, options: Options, machine: Machine, transport: Transport, say: Say, kernels: KernelSet
) -> Executor:
    """Plan, and compile. Raises ValueError, OSError or ImportError for what the user can mend."""
    graph = training.graph
    strategy, chooser = plan(
        options.mapper, graph, machine, transport, rule=preset.rule, clip_norm=preset.clip_norm, seed=options.seed,
        budget=options.search_budget, say=say,
    )
    if (file := options.save_strategy) is not None:
        on_first_rank(transport, lambda: save(strategy, graph, machine.name, file))
    executor = Executor(
        graph, strategy, preset.rule, transport=transport, machine=machine, seed=options.seed,
        clip_norm=preset.clip_norm, mapper=chooser, kernels=kernels,
    )
    executor.set_parameters(training.initial)
    rows = rows_read(graph, strategy, executor.placement, transport.rank)
    for batches in training.lazy:
        batches.restrict(rows)
    say(
        f"{graph}\n{training.describe}\n{transport.size} ranks, {len(machine.processors)} processors, "
        f"mapper {options.mapper}: {executor.describe()}"
    )
    return executor


def _report(executor: Executor, training: Training, options: Options, result: Result, say: Say) -> None:
    """One line for a person, and with --json one for programs, on rank 0."""
    moved = executor.moved_bytes_per_step()
    if executor.transport.rank != 0:
        return
    measured = result.measures[-1] if result.measures else {}
    report = {
        "ranks": executor.transport.size,
        "processors": executor.strategy.processors,
        "mapper": options.mapper,
        "kernels": executor.kernels.name,
        "steps": len(result.losses),
        "loss_first": result.losses[0],
        "loss_last": result.losses[-1],
        **{f"{name}_valid": measured.get(name) for name in training.measures},
        f"{training.unit}_per_second": result.items_per_second,
        "bytes_moved_per_step": moved,
        "seconds": result.seconds,
        "seed": options.seed,
        "losses": result.losses,
        **training.facts,
    }
    say(
        f"loss {result.losses[0]:.3f} -> {result.losses[-1]:.3f} in {len(result.losses)} steps, "
        f"{result.items_per_second:,.0f} {training.unit}/s, {moved / 1e6:.1f} MB moved a step"
    )
    if options.as_json:
        click.echo(json.dumps(report))


def on_first_rank(transport: Transport, act: Callable[[], object]) -> None:
    """Do it on rank 0 only; if it fails, every rank raises the error."""
    failed: OSError | None = None
    if transport.rank == 0:
        try:
            act()
        except OSError as error:
            failed = error
    if (failed := transport.broadcast(failed)) is not None:
        raise failed
