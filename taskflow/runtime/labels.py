"""Labels that count: how many labels of a batch are not ignored, counted before the step.

The mean of a loss over the labels that count divides by their number in the whole batch. Every rank is given the whole batch,
so each counts for itself: no piece of the loss waits for another, no message is sent, and neither cuts nor micro-batches change
the mean. The labels are read on the host, where they lie before the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskflow.graph import Node, OperatorGraph, integers_of_data
from taskflow.kernels import NumpyKernels
from taskflow.operators.loss import TARGET, LabelLoss
from taskflow.operators.operator import Call, StepState
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class _Counted:
    """A loss, the label that it leaves out, its labels, and the nodes that they are made of, in program order."""

    name: str
    ignored: int
    labels: Tensor
    made_of: tuple[Node, ...]


class LabelCounts:
    """Counts the labels of a graph's losses. Raises ValueError for a loss whose labels are not known before the step."""

    __slots__ = ("_losses",)

    def __init__(self, graph: OperatorGraph) -> None:
        found, known = list[_Counted](), integers_of_data(graph)
        for node in graph:
            loss = node.operator
            if not isinstance(loss, LabelLoss) or not loss.counts:
                continue
            labels = node.inputs[TARGET]
            if labels.node not in known:
                raise ValueError(
                    f"{node.name}: labels that are not {loss.ignored} are counted before each step, so they must be made of inputs "
                    f"of integers alone, but {labels.name} is not; give ignore_index=None if every label counts, or "
                    'reduction="sum" and divide by taskflow.per_label'
                )
            found.append(_Counted(node.name, loss.ignored, labels, _sources(graph, labels)))
        self._losses = tuple(found)

    def count(self, feeds: Mapping[str, Any]) -> dict[str, int]:
        """Return by loss the number of labels in a batch that count; without the losses whose labels it does not have. What is
        wrong with an input is said by the input."""
        values: dict[tuple[int, int], Array] = {}
        found: dict[str, int] = {}
        for loss in self._losses:
            if all(node.inputs or _fits(node, feeds) for node in loss.made_of):
                for node in loss.made_of:
                    _compute(node, feeds, values)
                labels = values[loss.labels.node, loss.labels.index]
                found[loss.name] = int(np.count_nonzero(labels != loss.ignored))
        return found


def _sources(graph: OperatorGraph, tensor: Tensor) -> tuple[Node, ...]:
    found, left = {tensor.node}, [tensor.node]
    while left:
        for source in graph.nodes[left.pop()].inputs:
            if source.node not in found:
                found.add(source.node)
                left.append(source.node)
    return tuple(graph.nodes[number] for number in sorted(found))


def _fits(node: Node, feeds: Mapping[str, Any]) -> bool:
    return tuple(getattr(feeds.get(node.name), "shape", ())) == node.outputs[0].shape


def _compute(node: Node, feeds: Mapping[str, Any], values: dict[tuple[int, int], Array]) -> None:
    """Put the values of a node's outputs into ``values``, where those of its inputs are."""
    if (node.number, 0) in values:
        return
    if not node.inputs:
        values[node.number, 0] = np.asarray(feeds[node.name][node.space.slices(node.space)])
        return
    reads, writes = node.reads(node.space), node.writes(node.space)
    inputs = tuple(
        np.ascontiguousarray(values[t.node, t.index][rect.slices(Rect.of(t.shape))]) for t, rect in zip(node.inputs, reads.inputs)
    )
    outputs = tuple(np.empty(t.shape, t.dtype) for t in node.outputs)
    saved = tuple(np.empty(spec.shape, spec.dtype) for spec in node.operator.saves(node.specs, node.space))
    node.operator.forward(Call(
        node.name, node.specs, node.space, reads, writes, NumpyKernels(), StepState(), inputs, outputs=outputs, saved=saved
    ))
    values.update({(node.number, i): array for i, array in enumerate(outputs)})
