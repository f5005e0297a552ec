"""Validation of a language model with experts: as of any other, and by how evenly its experts are used."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow.runtime import Executor
from taskflow.training.data import LanguageModelBatches, Say, Validation
from taskflow.training.evaluation.expert_load import ExpertLoad, routings_of, tensors_of
from taskflow.training.evaluation.metrics import perplexity


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
