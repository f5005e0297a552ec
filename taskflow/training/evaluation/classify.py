"""Validation of a classifier: the mean loss, and how often the right class is the first or among the first five."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow.graph import OperatorGraph
from taskflow.operators.tensor import Tensor
from taskflow.runtime import Executor
from taskflow.training.data import Batches, Say, Validation
from taskflow.training.evaluation.metrics import hits

MEASURES = ("loss", "top1", "top5")


@dataclass(frozen=True, slots=True)
class ClassifierEvaluation(Validation):
    """Validation at the end of a run: ``loss`` in nats, and ``top1`` and ``top5`` as shares of 1, over the first ``limit``
    batches (None: all).

    ``scores`` (N, classes): what the loss compares with the labels. Rows whose label is negative do not count. With five
    classes or fewer there is no ``top5``.
    """

    batches: Batches
    scores: Tensor
    limit: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return MEASURES if self.scores.shape[-1] > 5 else MEASURES[:2]

    @property
    def each_epoch(self) -> bool:
        return False

    def measure(self, executor: Executor, say: Say) -> dict[str, float] | None:
        executor.reset_state("evaluate")
        total, first, five, count = 0.0, 0, 0, 0
        for k in range(min(self.limit or len(self.batches), len(self.batches))):
            feeds = self.batches.at(k).feeds
            loss, values = executor.evaluate_with(feeds, (self.scores,))
            if loss is None or values is None:
                continue
            scores, labels = values[self.scores.name], feeds["labels"]
            here = int((labels >= 0).sum())
            total += loss * here
            first += hits(scores, labels, 1)
            five += hits(scores, labels, 5)
            count += here
        if not count:
            return None
        return dict(zip(self.names, (total / count, first / count, five / count)))


def scores_of(graph: OperatorGraph) -> Tensor:
    """Return the scores (N, classes) that a classifier's loss compares with the labels: the first input of ``loss``."""
    return graph.node("loss").inputs[0]
