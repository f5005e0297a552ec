"""Difference: what makes one plan faster than another, found by applying the second to the first one layer at a time."""

from __future__ import annotations

from dataclasses import dataclass

from taskflow.graph import OperatorGraph
from taskflow.mapper import OpConfig, Strategy, Sync, SyncAlgorithm
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.space import layers

SUMS = "partial values"  # what stands in a layer's place where all operators' partial values are summed otherwise


@dataclass(frozen=True, slots=True)
class LayerChange:
    """Difference of two plans in one layer. ``operators``: name -> (first plan's configuration, second plan's). ``syncs``: the
    same for the layer's weights. ``sums``: how partial values are summed, which concerns all operators and comes last.
    ``before`` and ``after``: the step's seconds with the second plan's layers up to this one, without it and with it. So
    effects add up, and depend on the order."""

    layer: str
    operators: dict[str, tuple[OpConfig, OpConfig]]
    syncs: dict[str, tuple[Sync, Sync]]
    before: float
    after: float
    sums: tuple[SyncAlgorithm, SyncAlgorithm] | None = None

    @property
    def effect(self) -> float:
        """Seconds by which the step becomes longer."""
        return self.after - self.before


def difference(evaluator: Evaluator, first: Strategy, second: Strategy) -> tuple[LayerChange, ...]:
    """Return the changes from the first plan to the second, layer by layer in program order. Afterwards the evaluator is at
    ``second``. Raises ValueError if the plans differ in the order of passes, in what they recompute, or in how tensors are
    resharded, since these concern more than a single layer."""
    if _beside_layers(first) != _beside_layers(second):
        raise ValueError(
            f"difference: {first!r} and {second!r} differ in the order of passes or in what is recomputed, or in how tensors are "
            "cut anew (exchange), which cannot be applied one layer at a time; simulate each instead"
        )
    evaluator.set(first)
    found = []
    for name, operators, weights in grouped(evaluator.graph):
        configs = {op: (first[op], second[op]) for op in operators if first[op] != second[op]}
        syncs = {w: (first.sync(w), second.sync(w)) for w in weights if first.sync(w) != second.sync(w)}
        if not configs and not syncs:
            continue
        before = evaluator.seconds
        evaluator.propose({op: b for op, (_, b) in configs.items()}, syncs={w: b for w, (_, b) in syncs.items()})
        evaluator.accept()
        found.append(LayerChange(name, configs, syncs, before, evaluator.seconds))
    if first.sums is not second.sums:
        before, tasks = evaluator.seconds, evaluator.tasks
        evaluator.propose({}, sums=second.sums)
        evaluator.accept()
        if (before, tasks) != (evaluator.seconds, evaluator.tasks):  # else there is nothing that either way would sum
            found.append(LayerChange(SUMS, {}, {}, before, evaluator.seconds, (first.sums, second.sums)))
    return tuple(found)


def _beside_layers(strategy: Strategy) -> tuple[object, ...]:
    return strategy.pipeline, strategy.again, strategy.exchange


def grouped(graph: OperatorGraph) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Return (layer, its operators, the names of its weights): operators that share weights, with those around them that have
    few or none. Every operator, and every operator's weights, are in exactly one."""
    found, seen = [], set[str]()
    for layer in layers(graph):
        nodes = sorted((*layer.leaders, *(n for n, _, _ in layer.followers)), key=lambda node: node.number)
        weights = tuple(w for w in dict.fromkeys(p.layer for node in nodes for p in node.parameters) if w not in seen)
        seen.update(weights)
        found.append((layer.leaders[0].name, tuple(node.name for node in nodes), weights))
    return found
