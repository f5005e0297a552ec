"""Job: prepares a training run (options, data, plan, checkpoint, trace), and runs it up to its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, fields, replace
from math import isfinite, nan
from typing import Any

import click

from taskflow.checkpoint import load_checkpoint, on_first_rank
from taskflow.kernels import KernelSet, kernels_on
from taskflow.loss_scaling import LossScaling
from taskflow.machine import Cluster, host, load_machine
from taskflow.mapper import save
from taskflow.optimizer.cost import ANALYTIC, CostModel, choose_costs
from taskflow.optimizer.cost.measured import NotMeasured, before_measuring, nothing_new
from taskflow.option_types import check_processors
from taskflow.runtime import Executor
from taskflow.runtime.profiler import TraceError, Tracer
from taskflow.runtime.transport import Transport
from taskflow.tasks import Cost, TaskGraph
from taskflow.training.data import Batches, Say, digest_of
from taskflow.training.program.definition import Preset, RunConfig, Training
from taskflow.training.program.loop import Result, rows_read, train
from taskflow.training.program.options import Options, steps_to_trace
from taskflow.training.program.plan import PATIENCE_SECONDS, plan
from taskflow.training.program.rank_agreement import on_all_ranks, same_everywhere, same_options
from taskflow.training.program.resume import CheckpointError, Position, Saver, can_be_written, check_resume, read_resume
from taskflow.working import Working
from taskflow.writing import json_text, one_line

OF_A_RANK = ("data", "quiet", "as_json", "debug")  # options that ranks need not share; what data they read is compared


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """Run that is ready to begin. ``start``: the position in the data. ``predicted``: the costs that predict its trace, on rank
    0."""

    training: Training
    executor: Executor
    machine: Cluster
    start: Position
    steps: int
    tracer: Tracer | None = None
    predicted: TraceCosts | None = None
    log: RunLog | None = None


def prepare(
    preset: Preset, options: Options, build: Callable[[RunConfig], Training], transport: Transport, background: ExitStack, say: Say
) -> TrainingJob:
    """Read data, choose the plan, and compile. Raises ValueError, OSError or ImportError on every rank for what the user can
    correct."""
    own = {one.name.replace("_", "-"): getattr(options, one.name) for one in fields(options) if one.name not in OF_A_RANK}
    same_options(transport, {f"--{name}": value for name, value in own.items()} | {"network": preset.model})
    count, steps = check_processors(options.processors, transport.size), options.steps or preset.steps
    kernels = on_all_ranks(transport, lambda: kernels_on(options.device))
    machine = on_all_ranks(
        transport, lambda: host(count, options.device) if options.machine is None else load_machine(options.machine, count)
    )
    saved = read_resume(transport, options, steps, say)
    can_be_written(transport, options)
    seed = saved.about.seed if saved is not None else options.seed or 0
    batch = preset.model.batch * (count if preset.per_processor else 1)
    if saved is not None and preset.per_processor:  # it goes on with the batch that it had, on however many processors
        batch = saved.position.batch
    run = RunConfig(preset.model, batch, options.data, seed, options.dtype, steps, count, transport.size, say)
    quiet = options.quiet or transport.rank > 0
    with Working("reading the data and building the network", quiet):
        training = on_all_ranks(transport, lambda: build(run))
        for batches in training.lazy:
            background.callback(batches.close)
        same_everywhere(transport, lambda: _digest(training), "training data")
    needed = options.checkpoint is not None or saved is not None
    start = Position(0, 0, batch, training.batches.digest if needed else "")
    if saved is not None:
        check_resume(saved, training.graph.name, str(training.graph.dtype), start.digest)
        start = replace(start, steps=saved.position.steps, epoch=saved.position.epoch)
    traced = steps_to_trace(options, start.steps, steps)
    log = _log(options, transport, training, background)
    planning = {"search": f"searching for a plan ({options.search_budget})", "best": f"trying plans ({options.search_budget})"}
    with Working(planning.get(options.mapper, "compiling the step"), quiet):
        executor = _executor(training, preset, options, machine, transport, seed, say, kernels)
    if saved is not None:
        load_checkpoint(executor, saved.path)
        say(f"resumed from {saved.path} after step {start.steps}")
    if options.trace is None or traced is None:
        return TrainingJob(training, executor, machine, start, steps, log=log)
    with Working("looking up what the step's tasks take", quiet):
        costs = trace_costs(options.costs, executor, machine)
    about = {"seed": seed, "mapper": options.mapper, "preset": options.preset, "dtype": options.dtype}
    about |= costs.about if costs is not None else {}
    tracer = executor.trace(options.trace, traced, cost=costs.model.seconds if costs is not None else None, about=about)
    return TrainingJob(training, executor, machine, start, steps, tracer, costs, log)


def _log(options: Options, transport: Transport, training: Training, background: ExitStack) -> RunLog | None:
    """Open the log on rank 0, until ``background`` ends."""
    if (text := options.log) is None:
        return None
    about = {"network": training.graph.name, "mapper": options.mapper, "preset": options.preset, "dtype": options.dtype}
    log: RunLog | None = on_first_rank(transport, lambda: open_log(text, about), send=lambda log: None)
    if log is not None:
        background.callback(log.close)
    return log


def finish(program: str, preset: Preset, options: Options, job: TrainingJob, say: Say) -> int:
    """Train and report. Returns the exit status, 1 if the results could not be written."""
    training, executor = job.training, job.executor
    saver = None if options.checkpoint is None else Saver(executor, options, job.start, job.steps, say)
    try:
        result = train(
            executor, training.batches, job.steps, schedule=preset.schedule, evaluation=training.evaluation, unit=training.unit,
            quiet=options.quiet or executor.transport.rank > 0, say=say, first=job.start.steps, epoch=job.start.epoch,
            after_step=saver, watch=training.watch, every=options.every,
            **({} if job.log is None else {"log": job.log.add}),
        )
        if job.tracer is not None:
            job.tracer.close()
            where = "open it in ui.perfetto.dev or chrome://tracing"
            say(f"trace of {len(job.tracer.steps)} steps: {options.trace} ({where}), {job.predicted}")
    except (CheckpointError, TraceError) as error:
        if executor.transport.rank == 0:
            click.echo(f"{program}: {one_line(error)}", err=True)
        executor.close()
        return 1
    _report(executor, training, options, job, result)
    executor.close()
    return 0


def _digest(training: Training) -> str:
    """Digest of all data that a run reads, including validation's."""
    validation = getattr(training.evaluation, "batches", None)
    return digest_of(training.batches.digest, validation.digest if isinstance(validation, Batches) else "")


def _executor(
    training: Training, preset: Preset, options: Options, machine: Cluster, transport: Transport, seed: int, say: Say,
    kernels: KernelSet,
) -> Executor:
    """Plan, and compile. Raises ValueError, OSError or ImportError for what the user can correct."""
    graph = training.graph
    strategy, chooser = plan(
        options.mapper, graph, machine, transport, rule=preset.rule, clip_norm=preset.clip_norm, seed=seed,
        budget=options.search_budget, say=say, kernels=kernels, costs=options.costs,
        or_search=options.elastic is not None and transport.size < options.elastic.most,
    )
    if (file := options.save_strategy) is not None:
        on_first_rank(transport, lambda: save(strategy, graph, machine.name, file))
    executor = Executor(
        graph, strategy, preset.rule, transport=transport, machine=machine, seed=seed,
        clip_norm=preset.clip_norm, mapper=chooser, kernels=kernels, fetch=() if training.watch is None else training.watch.tensors,
        loss_scaling=LossScaling() if options.loss_scale is None else LossScaling.fixed(options.loss_scale),
    )
    executor.set_parameters(training.initial)
    rows = rows_read(graph, strategy, executor.placement, transport.rank)
    for batches in training.lazy:
        batches.restrict(rows)
    say(
        f"{graph}\n{training.describe}\n{_many(transport.size, 'rank')}, {_many(len(machine.processors), 'processor')}, "
        f"mapper {options.mapper}: {executor.describe()}"
    )
    return executor


def _many(count: int, called: str) -> str:
    return f"{count} {called}{'s' * (count != 1)}"


def _scaling(executor: Executor) -> str:
    """Note on a loss with a scale."""
    if executor.scaler is None:
        return ""
    return f", loss scale {executor.scaler.scale:g}, {_many(executor.state.skipped, 'step')} skipped"


def _known(value: float | None) -> float | None:
    """JSON has no NaN and no Infinity, which a run that diverges gives: null says them."""
    return value if value is not None and isfinite(value) else None


def _report(executor: Executor, training: Training, options: Options, job: TrainingJob, result: Result) -> None:
    """One line for a person, and with --json one for programs, on rank 0."""
    moved = executor.moved_bytes_per_step()
    if executor.transport.rank != 0:
        return
    measured = result.measures[-1] if result.measures else {}
    first, last = (result.losses[0], result.losses[-1]) if result.losses else (nan, nan)  # none if all steps were done
    report = {
        "ranks": executor.transport.size,
        "processors": executor.strategy.processors,
        "mapper": options.mapper,
        "strategy": executor.strategy.name,
        "kernels": executor.kernels.name,
        "dtype": str(executor.graph.dtype),
        "steps": len(result.losses),
        "skipped_steps": executor.state.skipped,
        "loss_scale": None if executor.scaler is None else executor.scaler.scale,
        "loss_first": _known(first),
        "loss_last": _known(last),
        **{f"{name}_valid": _known(measured.get(name)) for name in training.measures},
        f"{training.unit}_per_second": _known(result.items_per_second),
        "bytes_moved_per_step": moved,
        "seconds": result.seconds,
        "seed": executor.state.seed,
        "resumed_at_step": job.start.steps,
        "checkpoint": options.checkpoint,
        "trace": options.trace,
        "losses": [_known(loss) for loss in result.losses],
        **({} if training.watch is None else {training.watch.name: result.watched}),
        **training.facts,
    }
    if not (options.quiet and options.as_json):  # with --quiet alone, this is the result
        click.echo(
            f"all {job.steps} steps were done" if not result.losses else
            f"loss {first:.3f} -> {last:.3f} in {len(result.losses)} steps, "
            f"{result.items_per_second:,.0f} {training.unit}/s, {moved / 1e6:.1f} MB moved a step{_scaling(executor)}", err=True
        )
    if options.as_json:
        click.echo(json_text(report))


KINDS = ("tensorboard", "wandb")


@dataclass(frozen=True, slots=True)
class RunLog:
    """An open log. ``add(step, values)``: numbers of a step, counted from 1, by name. ``close``: when the run has ended."""

    add: Callable[[int, Mapping[str, float]], object]
    close: Callable[[], object]


def open_log(text: str, about: Mapping[str, object]) -> RunLog:
    """Open ``tensorboard:FOLDER`` or ``wandb:PROJECT``. ``about``: what the run is of, as W&B shows it. Raises ValueError for any
    other text, and ImportError that says what to install."""
    kind, _, where = text.partition(":")
    if kind not in KINDS or not where:
        raise ValueError(f"--log {text}: write tensorboard:FOLDER or wandb:PROJECT")
    return _tensorboard(where) if kind == "tensorboard" else _wandb(where, about)


def _tensorboard(folder: str) -> RunLog:
    try:
        from tensorboard.summary import Writer
    except ImportError as error:
        raise ImportError("--log tensorboard: needs tensorboard: pip install 'soap-taskflow[log]'") from error
    writer = Writer(folder)

    def add(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return RunLog(add, writer.close)


def _wandb(project: str, about: Mapping[str, object]) -> RunLog:
    try:
        import wandb
    except ImportError as error:
        raise ImportError("--log wandb: needs wandb: pip install 'soap-taskflow[wandb]'") from error
    run = wandb.init(project=project, config=dict(about))
    return RunLog(lambda step, values: run.log(dict(values), step=step), run.finish)


@dataclass(frozen=True, slots=True)
class TraceCosts:
    """Costs for a trace. ``model`` predicts. It has the costs that were ``asked`` for, unless these are unknown for ``unknown``
    of ``tasks`` tasks."""

    asked: str
    model: CostModel
    tasks: int
    unknown: int = 0

    @property
    def about(self) -> dict[str, Any]:
        """Return what the trace says about its costs."""
        found: dict[str, Any] = {"costs": self.model.name}
        return found | ({"costs_asked_for": self.asked, "tasks_not_measured": self.unknown} if self.unknown else {})

    def __str__(self) -> str:
        why = f": of {self.unknown} of its {self.tasks} tasks no {self.asked} costs are kept (--mapper search makes them)"
        return f"predicted with {self.model.name} costs" + (why if self.unknown else "")


def trace_costs(name: str, executor: Executor, machine: Cluster) -> TraceCosts | None:
    """Return the costs that predict the executor's training steps, on rank 0 (None elsewhere). Measured costs are those on
    disk: nothing is measured during training. If they lack one task, analytic costs predict all of them, since the two are
    never mixed. Every rank calls it. Raises what `choose_costs` raises, on every rank."""

    def choose() -> TraceCosts:
        tasks, rule, ranks = executor.program("train").graph, executor.rule, executor.transport.size
        model = choose_costs(name, executor.graph, machine, rule, ranks=ranks, kernels=executor.kernels)
        if unknown := _unknown(tasks, model.seconds):
            return TraceCosts(name, choose_costs(ANALYTIC, executor.graph, machine, rule), len(tasks), unknown)
        return TraceCosts(name, model, len(tasks))

    with executor.transport.patient(PATIENCE_SECONDS) if name != ANALYTIC else nullcontext():
        found: TraceCosts | None = on_first_rank(executor.transport, choose, lambda _: None)
    return found


def _unknown(tasks: TaskGraph, cost: Cost) -> int:
    """Number of tasks whose cost would have to be measured."""
    unknown = 0
    with before_measuring(nothing_new):
        for task in tasks:
            try:
                cost(task)
            except NotMeasured:
                unknown += 1
    return unknown
