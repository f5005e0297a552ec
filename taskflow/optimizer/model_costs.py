"""ModelCosts: a `CostModel` in the form that evaluators ask (`Costs`)."""

from __future__ import annotations

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Cluster
from taskflow.optimizer.core_costs import Costs
from taskflow.optimizer.cost import CostModel
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks.backward import gradient_flow
from taskflow.tasks.task import Kind


class ModelCosts(Costs):
    """What ``model`` says about the tasks of a graph that is trained with ``rule``."""

    def __init__(self, model: CostModel, graph: OperatorGraph, machine: Cluster, rule: UpdateRule | None) -> None:
        self.model, self._machine, self._rule = model, machine, rule
        _, needs, _ = gradient_flow(graph)
        self._wanted = [tuple((t.node, t.index) in needs for t in node.inputs) for node in graph]
        kinds: dict[str, int] = {}
        self._classes = [kinds.setdefault(p.device.kind, p.number) for p in machine.processors]

    def piece(self, node: Node, piece: Rect, backward: bool, processor: int, flops: int, nbytes: int) -> float:
        wanted = None
        if backward:
            reads = node.reads(piece).inputs
            wanted = tuple(w and not rect.empty for w, rect in zip(self._wanted[node.number], reads))
        device = self._machine.processors[processor].device
        return self.model.compute_seconds(node.operator, node.specs, piece, backward, device=device, gradients=wanted)

    def other(self, kind: Kind, processor: int, flops: int, nbytes: int) -> float:
        device = self._machine.processors[processor].device
        rule = self._rule if kind is Kind.UPDATE else None
        return self.model.memory_seconds(kind, nbytes, flops, device=device, rule=rule)

    def copy(self, source: int, target: int, nbytes: int) -> float:
        return self.model.transfer_seconds(source, target, nbytes)

    def processor_class(self, processor: int) -> int:
        return self._classes[processor]

    def route_class(self, source: int, target: int) -> tuple[object, ...]:
        return tuple((k.latency_seconds, k.bytes_per_second) for k in self._machine.route(source, target))
