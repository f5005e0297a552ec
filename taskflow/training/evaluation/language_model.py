"""Validation of a language model: the mean loss over windows of text, and its perplexity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from taskflow.runtime import Executor
from taskflow.training.data import LanguageModelBatches, Say, Validation
from taskflow.training.evaluation.expert_load import ExpertLoad, routings_of, tensors_of
from taskflow.training.evaluation.metrics import perplexity


@dataclass(frozen=True, slots=True)
class LanguageModelEvaluation(Validation):
    """Validation after each epoch: ``loss`` in nats a token and ``perplexity`` over the first ``windows`` of ``batches``."""

    NAMES: ClassVar[tuple[str, ...]] = ("loss", "perplexity")

    batches: LanguageModelBatches
    windows: int = 20

    @property
    def names(self) -> tuple[str, ...]:
        return self.NAMES

    @property
    def each_epoch(self) -> bool:
        return True

    def measure(self, executor: Executor, say: Say) -> dict[str, float] | None:
        loss = evaluate(executor, self.batches, self.windows)
        return None if loss is None else {"loss": loss, "perplexity": perplexity(loss)}


def evaluate(executor: Executor, batches: LanguageModelBatches, windows: int | None = None) -> float | None:
    """Return the mean cross-entropy in nats a token over the first windows (all if None) of ``batches``, with state carried
    through them.

    Known on rank 0; None elsewhere.
    """
    executor.reset_state("evaluate")
    count = min(windows or batches.steps_per_epoch, batches.steps_per_epoch)
    losses = [executor.evaluate(batches.at(k).feeds) for k in range(count)]
    known = [loss for loss in losses if loss is not None]
    return sum(known) / count if len(known) == count else None


@dataclass(frozen=True, slots=True)
class ExpertEvaluation(Validation):
    """Validation over the first ``windows`` of ``batches``, after each epoch. ``loss``: nats a token, without the auxiliary
    losses; ``perplexity`` follows from it. ``overflow``: the share of choices whose expert was full. ``busiest``: words
    that want the busiest expert of all layers, full or not, relative to an even share."""

    batches: LanguageModelBatches
    windows: int = 20

    @property
    def names(self) -> tuple[str, ...]:
        return ("loss", "perplexity", "overflow", "busiest")

    @property
    def each_epoch(self) -> bool:
        return True

    def measure(self, executor: Executor, say: Say) -> dict[str, float] | None:
        loss, routings = executor.graph.losses[0], routings_of(executor.graph)
        executor.reset_state("evaluate")
        losses, load = [], ExpertLoad(routings)
        for k in range(min(self.windows, self.batches.steps_per_epoch)):
            _, values = executor.evaluate_with(self.batches.at(k).feeds, (loss, *tensors_of(routings)))
            if values is not None:
                losses.append(float(values[loss.name]))
                load.add(values)
        if not losses:
            return None
        mean = sum(losses) / len(losses)
        return {"loss": mean, "perplexity": perplexity(mean), "overflow": load.overflow, "busiest": load.busiest}
