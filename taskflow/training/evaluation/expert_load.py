"""Load of experts: how evenly a network's experts are used, counted over batches, in training and in validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskflow.graph import Node, OperatorGraph
from taskflow.operators.tensor import Tensor
from taskflow.operators.top_k_routing import TopKRouting
from taskflow.runtime import Executor
from taskflow.training.data import Watch


@dataclass(slots=True)
class ExpertLoad:
    """Load over some batches, before experts are full: what they take is at most their capacity, and would not show how uneven
    the choices are. ``wanted``: for each layer of experts, the number of words that wanted each expert, (E). ``full``: the number
    of choices whose expert was full. ``words``: the number of words that each layer routed."""

    routings: tuple[Node, ...]
    wanted: list[NDArray[np.int64]] = field(init=False)
    full: int = 0
    words: int = 0

    def __post_init__(self) -> None:
        self.wanted = [np.zeros(load_of(node).shape[1], np.int64) for node in self.routings]

    def add(self, values: Mapping[str, Any]) -> None:
        """Add one batch: the values of `tensors_of` by name."""
        for total, node in zip(self.wanted, self.routings):
            total += values[load_of(node).name].sum(axis=0)
            self.full += int(values[overflow_of(node).name].sum())
        groups, words, _ = self.routings[0].specs[0].shape
        self.words += groups * words

    @property
    def overflow(self) -> float:
        """Share of choices whose expert was full."""
        return self.full / max(1, sum(int(total.sum()) for total in self.wanted))

    @property
    def busiest(self) -> float:
        """Words that wanted the busiest expert of all layers, relative to an even share."""
        return max(float(total.max() / max(1, total.mean())) for total in self.wanted)

    @property
    def busiest_share(self) -> float:
        """Share of a layer's words that wanted its busiest expert, in the layer where it is largest."""
        return max(int(total.max()) for total in self.wanted) / max(1, self.words)

    @property
    def even_share(self) -> float:
        """Value of `busiest_share` if all experts were wanted evenly, and all choices were tried."""
        chosen = (node.operator for node in self.routings)
        return max(r.k / len(total) for r, total in zip(chosen, self.wanted) if isinstance(r, TopKRouting))


class ExpertWatch(Watch):
    """Load of a network's experts in training."""

    __slots__ = ("_load", "_routings")

    def __init__(self, graph: OperatorGraph) -> None:
        self._routings = routings_of(graph)
        self._load = ExpertLoad(self._routings)

    @property
    def name(self) -> str:
        return "experts"

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tensors_of(self._routings)

    def add(self, executor: Executor) -> None:
        values = {tensor.name: executor.fetched(tensor) for tensor in self.tensors}
        if all(value is not None for value in values.values()):  # on the rank of processor 0
            self._load.add(values)

    def take(self) -> dict[str, float] | None:
        load, self._load = self._load, ExpertLoad(self._routings)
        if not load.words:
            return None
        return {"busiest_share": load.busiest_share, "even_share": load.even_share, "overflow": load.overflow}

    def line(self, found: Mapping[str, float]) -> str:
        share, even, overflow = (100 * found[name] for name in ("busiest_share", "even_share", "overflow"))
        return f"{share:.1f} % of the words want the busiest (even: {even:.1f} %), {overflow:.1f} % of choices find theirs full"


def routings_of(graph: OperatorGraph) -> tuple[Node, ...]:
    """Return the routing of every layer of experts. Raises ValueError if there is none."""
    found = tuple(node for node in graph if isinstance(node.operator, TopKRouting))
    if not found:
        raise ValueError(f"ExpertEvaluation: {graph.name} routes nothing; use LanguageModelEvaluation")
    return found


def load_of(routing: Node) -> Tensor:
    """Return (G, E): the number of each group's words that want each expert, whether or not it has a place for them."""
    return routing.outputs[3]


def overflow_of(routing: Node) -> Tensor:
    """Return (G, k): the number of each group's choices whose expert was full."""
    return routing.outputs[4]


def tensors_of(routings: tuple[Node, ...]) -> tuple[Tensor, ...]:
    """Return the tensors whose values `ExpertLoad.add` needs."""
    return tuple(tensor for node in routings for tensor in (load_of(node), overflow_of(node)))
