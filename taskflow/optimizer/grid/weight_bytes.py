"""WeightBytes: what is held and sent of each weight, counted in this one place for prices, memory and bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taskflow.floats import sum_bytes
from taskflow.mapper import HybridPlan
from taskflow.optimizer.cost import gradient_width
from taskflow.optimizer.grid.node_table import Array
from taskflow.optimizer.grid.tables import GraphTables
from taskflow.rules import UpdateRule


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes of the part that one device has of each parameter of each node, before devices share it by ZeRO. ``weights``;
    ``gradients``: as they are summed; ``sent``: of these in messages; ``state``: the update rule's, with weights in the type of
    the sums where that is wider; ``touched``: what an update reads and writes. All but ``weights`` are 0 where a parameter is
    frozen. ``number``: tables whose parameters have the same bytes, on as many devices, have the same one."""

    weights: Array
    gradients: Array
    sent: Array
    state: Array
    touched: Array
    number: int


class WeightBytesOf:
    """These for the plans of a graph, cached."""

    def __init__(self, tables: GraphTables, rule: UpdateRule | None) -> None:
        self.tables = tables
        parameters = [parameter for node in tables.graph for parameter in node.parameters]
        sizes = [parameter.spec.dtype.itemsize for parameter in parameters]
        self.trained = np.array([parameter.trained for parameter in parameters], bool)
        kept = [(rule.state_bytes(size), rule.nbytes(1, size)) if rule else (0, 0) for size in sizes]
        self._state, self._touched = np.array(kept, np.int64).reshape(-1, 2).T * self.trained
        self._summed = np.array([sum_bytes(size) for size in sizes], np.int64) * self.trained
        self._sent = np.minimum(self._summed, gradient_width(tables.graph, tables.device) or self._summed)
        self._known: dict[object, WeightBytes] = {}
        self._numbers: dict[tuple[bytes, ...], int] = {}

    def __call__(self, plan: HybridPlan) -> WeightBytes:
        """Return the bytes under a plan. Raises ValueError if the network cannot be cut so."""
        key = plan.passes_alike
        if key not in self._known:
            table = self.tables.of(plan)
            elements, weights = table.weight_elements, table.weight_bytes
            summed = elements * self._summed
            state = elements * (self._state + np.where(summed > weights, self._summed, 0))
            arrays = weights, summed, elements * self._sent, state, elements * self._touched
            read = tuple(one.tobytes() for one in (elements, *arrays, table.weight_holders))
            self._known[key] = WeightBytes(*arrays, self._numbers.setdefault(read, len(self._numbers)))
        return self._known[key]

    def narrower(self) -> float:
        """Return by how much less memory sums of gradients take in the program that drives the device."""
        program = self.tables.device.program
        if program is None or not program.gradient_bytes:
            return 1.0
        return program.gradient_bytes / float(self._summed.max(initial=1))
