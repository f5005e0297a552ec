"""Evaluation: the mean loss and other metrics of a network over many batches, without training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any

import numpy as np

from taskflow.operators.tensor import Tensor
from taskflow.runtime import Executor, answers_of, outputs_of

Metric = Callable[[Mapping[str, Any], Mapping[str, Any]], float]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Means over the batches: the loss in the model's units, and each metric by its name. A loss that is a mean over labels is the
    mean over the labels that count of all batches."""

    loss: float
    batches: int
    metrics: dict[str, float] = field(default_factory=dict)


def evaluate(
    executor: Executor,
    batches: Iterable[Mapping[str, Any]],
    *,
    metrics: Mapping[str, Metric] | None = None,
    outputs: Sequence[Tensor | str] | None = None,
) -> Evaluation | None:
    """Return the mean loss and metrics over ``batches``, each a dict of arrays by input as `Executor.train` takes them, the
    same on every rank. Dropout is off and running statistics are used. Carried state starts anew.

    A metric gets the batch and the values of ``outputs`` by name (by default those of `Executor.predict`), and returns the
    batch's mean. The result is on the rank of processor 0; None elsewhere. Raises ValueError if there is no batch.
    """
    graph = executor.graph
    wanted: Sequence[Tensor] = ()
    if metrics:
        wanted = answers_of(graph) if outputs is None else outputs_of(graph, outputs)
    executor.reset_state("evaluate")
    losses: list[float] = []
    labels: list[int] = []
    measured: dict[str, list[float]] = {name: [] for name in metrics or {}}
    count = 0
    for count, batch in enumerate(batches, 1):  # noqa: B007 (used below)
        loss, values = executor.evaluate_with(batch, wanted)
        if loss is not None and values is not None:
            losses.append(loss)
            labels.append(_labels(executor))
            for name, metric in (metrics or {}).items():
                measured[name].append(float(metric(values, batch)))
    if not count:
        raise ValueError("evaluate: needs at least one batch, got none")
    if not losses:
        return None
    return Evaluation(_mean(losses, labels), count, {name: float(np.mean(each)) for name, each in measured.items()})


def _labels(executor: Executor) -> int:
    """The number of labels that count in the last batch, 1 if losses have different ones or count none."""
    counts = set((executor.state.labels or {}).values())
    return counts.pop() if len(counts) == 1 else 1


def _mean(losses: Sequence[float], labels: Sequence[int]) -> float:
    if len(set(labels)) == 1:
        return fsum(losses) / len(losses)
    return fsum(loss * count for loss, count in zip(losses, labels)) / sum(labels)
