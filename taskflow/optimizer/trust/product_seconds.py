"""product_seconds: what a step's products alone take at the rate of the devices' data sheet, which no measured step is below."""

from __future__ import annotations

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import Strategy
from taskflow.operators.operator import computes_in
from taskflow.optimizer.cost import product_flops
from taskflow.tasks.lower import gradient_flow, runs_again


def product_seconds(graph: OperatorGraph, strategy: Strategy, machine: Machine) -> float:
    """Return the seconds of all products of a training step, forward, backward and computed again, shared evenly among the devices
    that a strategy uses, each as fast as the fastest of them at its peak."""
    active, needs, _ = gradient_flow(graph)
    again = runs_again(graph, active, strategy.again)
    places = {id(config.processors): config.processors for config in strategy.configs.values()}  # layers are alike
    used = set().union(*places.values())
    devices = list({p.device.kind: p.device for p in machine.processors if p.number in used}.values())
    known: dict[object, tuple[float, float]] = {}
    total = 0.0
    for node in graph:
        wanted = tuple((tensor.node, tensor.index) in needs for tensor in node.inputs)
        key = node.operator, node.specs, wanted
        if key not in known:
            rate = max(device.product_rate(computes_in(node.operator, node.specs)) for device in devices)
            ahead, back = (product_flops(node.operator, node.specs, node.space, way, wanted) / rate for way in (False, True))
            known[key] = ahead, back
        ahead, back = known[key]
        total += ahead * (1 + again[node.number]) + back * (node.number in active)
    return total / len(used)
