"""The training loop of a language model: windows of text in, losses out, with validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan
from time import perf_counter

from taskflow.runtime.executor import Executor
from taskflow.training.batches import LanguageModelBatches
from taskflow.training.metrics import Throughput
from taskflow.training.progress import TrainingProgress
from taskflow.training.schedules import Schedule


@dataclass(slots=True)
class Result:
    """What a run measured. Losses (mean nats a token, before each update) are known on rank 0 only."""

    losses: list[float] = field(default_factory=list)
    valid_losses: list[float] = field(default_factory=list)
    tokens_per_second: float = nan
    seconds: float = 0.0


def train(
    executor: Executor,
    batches: LanguageModelBatches,
    steps: int,
    *,
    schedule: Schedule | None = None,
    valid: LanguageModelBatches | None = None,
    valid_windows: int = 20,
    quiet: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Train for ``steps`` windows, carrying the state from one to the next and starting it anew with each epoch.

    The graph must have inputs ``tokens`` and ``targets``. After each epoch and at the end, the loss over at most
    ``valid_windows`` windows of ``valid`` is measured. ``say`` gets one line for a person about each.
    """
    result, speed = Result(), Throughput(window=max(1, steps))
    began = perf_counter()
    with TrainingProgress(steps, quiet) as progress:
        for k in range(steps):
            window = batches.at(k)
            if window.reset and k > 0:
                _validate(executor, valid, valid_windows, result, say, f"after epoch {window.epoch}")
                executor.reset_state()
            start = perf_counter()
            lr = None if schedule is None else schedule.at(k, window.epoch)
            loss = executor.train({"tokens": window.inputs, "targets": window.targets}, lr=lr)
            seconds = perf_counter() - start
            if k > 0 or steps == 1:  # the first step also compiles and touches all memory
                speed.add(batches.tokens_per_step, seconds)
            if loss is not None:
                result.losses.append(loss)
                progress.step(loss, batches.tokens_per_step, seconds)
    result.seconds = perf_counter() - began
    result.tokens_per_second = speed.tokens_per_second
    _validate(executor, valid, valid_windows, result, say, "at the end")
    return result


def _validate(
    executor: Executor, valid: LanguageModelBatches | None, windows: int, result: Result,
    say: Callable[[str], None], when: str,
) -> None:
    if valid is None:
        return
    loss = evaluate(executor, valid, windows)
    if loss is not None:
        result.valid_losses.append(loss)
        say(f"validation loss {loss:.4f} {when}")


def evaluate(executor: Executor, batches: LanguageModelBatches, windows: int | None = None) -> float | None:
    """Mean cross-entropy in nats a token over the first windows (all if None) of ``batches``, state carried through them.

    Known on rank 0; None elsewhere.
    """
    executor.reset_state("evaluate")
    count = min(windows or batches.steps_per_epoch, batches.steps_per_epoch)
    losses = []
    for k in range(count):
        window = batches.at(k)
        losses.append(executor.evaluate({"tokens": window.inputs, "targets": window.targets}))
    known = [loss for loss in losses if loss is not None]
    return sum(known) / count if len(known) == count else None
