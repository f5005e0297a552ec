"""work_bound: seconds that no plan takes less than, in any order of passes and on devices of unequal speed.

All processors together do every operator's arithmetic, touch every array that it touches, and update every weight, whatever the
cuts, the micro-batches, the stages, what is computed again and who keeps which shares. Micro-batches are cuts of samples;
recomputation and copies only add work. A host that starts kernels ahead shortens tasks, but not below what their device needs.

Of operator i, processor p does some fraction x of the arithmetic, which takes at least x times A(i, p) seconds, and some
fraction y of the traffic, which takes at least y times R(i, p). Fractions of all processors add up to 1 or more. Give processor
p a weight m(p), so that weights add up to 1. Then a step takes at least the sum over p of m(p) times the seconds for which p
is busy. That is at least the sum over i of the larger of min m(p) A(i, p) and min m(p) R(i, p). With equal weights, devices of
a slow kind count as fast ones; with weights in proportion to speed, they count as what they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from taskflow.operators.operator import Work
from taskflow.operators.tensor import Parameter
from taskflow.optimizer.bounds.updates import LeastUpdates
from taskflow.optimizer.bounds.work_and_path import lower_bound, representatives
from taskflow.optimizer.cost import Costs, Pieces
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.space import SpaceOptions, unequal
from taskflow.tasks.lower import gradient_flow

Part = tuple[tuple[float, float], ...]  # by class of processors: seconds of arithmetic, and of traffic


def work_bound(evaluator: Evaluator, over: Callable[[], bool] = lambda: False) -> float:
    """Return seconds that no plan takes less than. Work that has not been looked at when ``over`` returns true counts as none. 0 if
    the costs say nothing of operators as wholes."""
    if evaluator.costs.measures:
        return 0.0
    processors = representatives(evaluator)
    numbers = Counter(evaluator.costs.processor_class(p) for p in range(len(evaluator.machine.processors)))
    counts = [numbers[evaluator.costs.processor_class(p)] for p in processors]
    parts = _parts(evaluator, processors, over)
    if not parts:
        return 0.0
    whole = [sum(max(part[k]) * times for part, times in parts.items()) for k in range(len(processors))]
    speeds = [1 / seconds if seconds > 0 else 0.0 for seconds in whole]
    found = 0.0
    for weights in (speeds, [1.0] * len(processors)):
        total = sum(weight * count for weight, count in zip(weights, counts))
        if total > 0:
            found = max(found, sum(times * _least(part, [w / total for w in weights]) for part, times in parts.items()))
    return found


def _least(part: Part, weights: Sequence[float]) -> float:
    return max(min(w * seconds[i] for w, seconds in zip(weights, part)) for i in range(2))


def _parts(evaluator: Evaluator, processors: Sequence[int], over: Callable[[], bool]) -> Counter[Part]:
    """Return what has to be done in any plan, by what it takes, and how many times."""
    costs: Costs = evaluator.costs
    pieces = Pieces(evaluator.graph, costs, evaluator.rule is not None)
    found: Counter[Part] = Counter()
    for node in evaluator.graph:
        if over():
            return found
        if node.operator.kind == "state":
            continue
        for backward in (False, True) if node.number in pieces.active else (False,):
            for part in zip(*(costs.least_parts(node, backward, p) for p in processors)):
                found[part] += 1
    trained = gradient_flow(evaluator.graph)[2]
    layers = dict.fromkeys(p.layer for node in evaluator.graph if node.number in pieces.active for p in node.parameters)
    of: dict[str, list[Parameter]] = {}
    for parameter in evaluator.graph.parameters:
        of.setdefault(parameter.layer, []).append(parameter)
    padded = any(node.operator.work is Work.CONVOLUTION for node in evaluator.graph)
    alike: dict[object, Part] = {}
    updates = [LeastUpdates(evaluator, [p], trained) for p in processors]
    for layer in layers if evaluator.rule is not None else ():
        if over():
            return found
        key: object = tuple(sorted((p.spec.rect.volume, p.spec.dtype.str, p.name in trained) for p in of[layer]))
        if padded:  # of a window that sees nothing but padding, some weights are not used
            key = layer
        if key not in alike:
            alike[key] = tuple((0.0, least.of(layer)[0]) for least in updates)
        found[alike[key]] += 1
    return found


def unordered_bound(evaluator: Evaluator, options: SpaceOptions, over: Callable[[], bool], *, uneven: bool) -> float:
    """Return seconds that no strategy of a space takes less than, by both bounds where devices are unequal: only `work_bound`
    counts each as what it is. ``over`` says whether the time has ended; ``uneven``: whether pieces may be of uneven size."""
    found = lower_bound(evaluator, options, over, uneven=uneven)
    return max(found, work_bound(evaluator, over)) if unequal(evaluator.machine) else found
