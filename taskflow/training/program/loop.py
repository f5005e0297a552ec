"""The training loop: batches in, losses out, with validation. The same for every network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import nan
from time import perf_counter

from taskflow.graph import OperatorGraph
from taskflow.mapper import Strategy
from taskflow.runtime import Executor
from taskflow.tasks import Placement
from taskflow.training.data import Batches, Say, Validation, Watch
from taskflow.training.evaluation import Throughput
from taskflow.training.program.progress import LINES, TrainingProgress
from taskflow.training.schedules import Schedule
from taskflow.working import Working


@dataclass(slots=True)
class Result:
    """Measurements of a run. ``losses`` (the mean in nats, before each update), ``measures`` (the result of each validation)
    and ``watched`` (measurements of the steps up to ``step``) are known on rank 0 only. ``seconds``: training without the
    validation at the end."""

    losses: list[float] = field(default_factory=list)
    measures: list[dict[str, float]] = field(default_factory=list)
    watched: list[dict[str, float]] = field(default_factory=list)
    items_per_second: float = nan
    seconds: float = 0.0


def train(
    executor: Executor,
    batches: Batches,
    steps: int,
    *,
    schedule: Schedule | None = None,
    evaluation: Validation | None = None,
    unit: str = "tokens",
    quiet: bool = False,
    say: Say = lambda text: None,
    first: int = 0,
    epoch: int = 0,
    after_step: Callable[[int, int], None] | None = None,
    watch: Watch | None = None,
    every: int | None = None,
    log: Callable[[int, Mapping[str, float]], object] = lambda step, values: None,
) -> Result:
    """Train until ``steps`` batches are done, carrying state from one to the next and starting it anew where a batch says so.

    A resumed run begins with batch ``first``, after a batch of ``epoch``. ``after_step`` is called after each step with the
    number of steps done and the epoch; its time does not count as the step's.

    The graph's inputs must have the names of the batches' feeds. ``evaluation`` measures at the end, and after each epoch if
    its `each_epoch` says so. ``say`` gets one line for people about each, and every ``every`` steps (default: a twentieth of
    all) about what ``watch`` measured. ``log`` gets numbers of each step that is done, by name, on rank 0. ``unit``: of the
    batches' items. Every rank calls it.
    """
    result, speed = Result(), Throughput(window=max(1, steps - first))
    often = every or max(1, steps // LINES)
    began = perf_counter()
    with TrainingProgress(steps, quiet, every, unit=unit) as progress:
        progress.done = first
        for k in range(first, steps):
            start = perf_counter()
            batch = batches.at(k)
            if batch.epoch > epoch:
                epoch = batch.epoch
                if evaluation is not None and evaluation.each_epoch:
                    with progress.doing("validating"):
                        _measure(executor, evaluation, result, say, f"after epoch {epoch}", partial(log, k))
                    start = perf_counter()
            if batch.reset and k > 0:
                executor.reset_state()
            lr = None if schedule is None else schedule.at(k, batch.epoch)
            skipped = executor.state.skipped
            loss = executor.train(batch.feeds, lr=lr)
            seconds = perf_counter() - start
            if executor.state.skipped > skipped and executor.scaler is not None:
                say(f"step {k + 1}: gradients overflowed, weights stay; {executor.scaler}")
            if k > first or steps - first == 1:  # the first step also compiles and touches all memory
                speed.add(batches.items_per_step, seconds)
            if loss is not None:
                result.losses.append(loss)
                progress.step(loss, batches.items_per_step, seconds)
                log(k + 1, {"loss": loss, "step_seconds": seconds, f"{unit}_per_second": batches.items_per_step / seconds})
            if watch is not None:
                watch.add(executor)
                if (k + 1) % often == 0 or k + 1 == steps:
                    _watched(watch, result, say, k + 1, first)
            if after_step is not None:
                after_step(k + 1, epoch)
    result.seconds = perf_counter() - began
    result.items_per_second = speed.per_second
    if evaluation is not None:
        with Working("validating", quiet):
            _measure(executor, evaluation, result, say, "at the end", partial(log, steps))
    return result


def _watched(watch: Watch, result: Result, say: Say, step: int, first: int) -> None:
    found = watch.take()
    if found is not None:
        since = 1 + (int(result.watched[-1]["step"]) if result.watched else first)
        result.watched.append({"step": step, **found})
        say(f"{watch.name} in step{f's {since} to' * (since < step)} {step}: {watch.line(found)}")


def _measure(
    executor: Executor, evaluation: Validation, result: Result, say: Say, when: str, log: Callable[[Mapping[str, float]], object]
) -> None:
    found = evaluation.measure(executor, say)
    if found is not None:
        result.measures.append(found)
        log({f"validation_{name}": found[name] for name in evaluation.names})
        say(f"validation {', '.join(f'{name} {found[name]:.4g}' for name in evaluation.names)} {when}")


def rows_read(
    graph: OperatorGraph, strategy: Strategy, placement: Placement, rank: int
) -> Mapping[str, tuple[int, ...]]:
    """Return the rows (samples of the batch) of every input that the pieces on a rank read, by the input's name, in order."""
    result = {}
    for node in graph:
        if node.operator.kind != "input":
            continue
        rows: set[int] = set()
        for rect, processor in strategy[node.name].pieces(node):
            if placement.rank(processor) == rank:
                rows.update(range(rect.lo[0], rect.hi[0]))
        result[node.name] = tuple(sorted(rows))
    return result
