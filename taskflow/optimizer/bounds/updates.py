"""Least time that updates of weights take, however a layer is divided."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import inf

from taskflow.operators.tensor import Parameter
from taskflow.optimizer.evaluate import Evaluator
from taskflow.tasks import Kind
from taskflow.tasks.lower import gradient_flow

STEP = 1.01  # between the sizes of updates that are looked at


class LeastUpdates:
    """Lower bounds of the updates of a graph's layers on some processors. A larger update does not take less time, so updates
    between two sizes take at least what the smaller one takes. What costs say of a size is asked for once, not for every layer.
    ``trained``: names of the parameters that are trained, if they are known."""

    def __init__(self, evaluator: Evaluator, processors: Sequence[int], trained: set[str] | None = None) -> None:
        graph = evaluator.graph
        names = gradient_flow(graph)[2] if trained is None else trained
        self._rule, self._costs, self._processors = evaluator.rule, evaluator.costs, processors
        self._layers: dict[str, list[Parameter]] = {}
        for parameter in graph.parameters:
            if parameter.name in names:
                self._layers.setdefault(parameter.layer, []).append(parameter)
        # All elements are updated whatever the cuts, but for those of parameters of which nothing is used (a convolution that sees
        # nothing but padding).
        self._used = {
            parameter.name for node in graph if node.parameters
            for parameter, rect in zip(node.parameters, node.reads(node.space).weights) if not rect.empty
        }
        self._sizes, self._rates = dict[int, list[int]](), dict[int, list[float]]()  # by bytes of an element

    def of(self, layer: str) -> tuple[float, float]:
        """Return lower bounds of the seconds of all updates of a layer together and of the shortest one, however the layer is
        divided; (0, 0) if it is not trained. Raises `NotMeasured` where costs are measured and have not been."""
        parameters = self._layers.get(layer, [])
        total = sum(p.spec.rect.volume for p in parameters if p.name in self._used)
        if self._rule is None or not total:
            return 0.0, 0.0
        item = min(p.spec.dtype.itemsize for p in parameters)
        return self._rate(item, total) * total, self._update(item, 1)

    def _rate(self, item: int, total: int) -> float:
        """The least seconds an element of updates of at most so many elements."""
        sizes, rates = self._sizes.setdefault(item, [1]), self._rates.setdefault(item, [])
        while sizes[-1] <= total:  # the last of these has no rate yet
            above = max(sizes[-1] + 1, int(sizes[-1] * STEP))
            rates.append(min(rates[-1] if rates else inf, self._update(item, sizes[-1]) / (above - 1)))
            sizes.append(above)
        return rates[bisect_right(sizes, total) - 1]

    def _update(self, item: int, volume: int) -> float:
        assert self._rule is not None
        flops, nbytes = self._rule.flops(volume), self._rule.nbytes(volume, item)
        return min(self._costs.other(Kind.UPDATE, p, flops, nbytes) for p in self._processors)
