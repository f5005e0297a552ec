"""How a language model with experts is validated: as any other, and by how evenly its experts are used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taskflow.graph import OperatorGraph
from taskflow.operators.tensor import Tensor
from taskflow.operators.top_k_routing import TopKRouting
from taskflow.runtime import Executor
from taskflow.training.data import LanguageModelBatches, Say, Validation
from taskflow.training.evaluation.metrics import perplexity


@dataclass(frozen=True, slots=True)
class ExpertEvaluation(Validation):
    """Over the first ``windows`` of ``batches``, after each epoch: ``loss`` in nats a token, without the auxiliary
    losses, and ``perplexity``; ``overflow``, the share of choices whose expert was full; ``busiest``, how many times an
    even share the busiest expert of all layers took."""

    batches: LanguageModelBatches
    windows: int = 20

    @property
    def names(self) -> tuple[str, ...]:
        return ("loss", "perplexity", "overflow", "busiest")

    @property
    def each_epoch(self) -> bool:
        return True

    def measure(self, executor: Executor, say: Say) -> dict[str, float] | None:
        graph = executor.graph
        routings = _routings(graph)
        wanted = [graph.losses[0], *(tensor for pair in routings for tensor in pair)]
        executor.reset_state("evaluate")
        losses, full, asked, loads = [], 0, 0, [np.zeros(load.shape[1], np.int64) for load, _ in routings]
        for k in range(min(self.windows, self.batches.steps_per_epoch)):
            _, values = executor.evaluate_with(self.batches.at(k).feeds, wanted)
            if values is None:
                continue
            losses.append(float(values[wanted[0].name]))
            for total, (load, overflow) in zip(loads, routings):
                total += values[load.name].sum(axis=0)
                full += int(values[overflow.name].sum())
                asked += int(values[load.name].sum() + values[overflow.name].sum())
        if not losses:
            return None
        loss, busiest = sum(losses) / len(losses), max(float(total.max() / max(1, total.mean())) for total in loads)
        return {"loss": loss, "perplexity": perplexity(loss), "overflow": full / max(1, asked), "busiest": busiest}


def _routings(graph: OperatorGraph) -> list[tuple[Tensor, Tensor]]:
    """The load and the overflow of every layer of experts. ValueError if there is none."""
    found = [(node.outputs[3], node.outputs[4]) for node in graph if isinstance(node.operator, TopKRouting)]
    if not found:
        raise ValueError(f"ExpertEvaluation: {graph.name} routes nothing; use LanguageModelEvaluation")
    return found
