"""Alternatives: how long a step would take if one operator had another configuration, and what would take longer.

The candidates: neighbouring degrees, fewer and more devices, data parallel, whole on one device, other places for the same cut,
the neighbours' cuts, and an even sample of the operator's space. Each is simulated with everything else unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, prod

from taskflow.graph import Node
from taskflow.mapper import OpConfig, Strategy, copy_on_each, cut_only, in_micro_batches
from taskflow.operators.operator import Soap
from taskflow.optimizer.algorithms import OperatorGroups
from taskflow.optimizer.budget import BudgetExhausted, Deadline
from taskflow.optimizer.evaluate import Evaluator, TooManyTasksError, shown_step
from taskflow.optimizer.explain.explain import shares, step_labels
from taskflow.optimizer.explain.labels import TaskPurpose
from taskflow.optimizer.space import SearchSpace, SpaceOptions, place

SAMPLE = 200  # configurations of the operator's space beside the ones with a reason
EXPLAINED = 20_000  # tasks of a step: beyond it only FEW alternatives are lowered to say what grows
FEW = 3  # alternatives of such a step
ALIKE = 2  # alternatives of the same degrees that are shown
ALWAYS = ("data parallel", "on every device", "whole on one device")  # shown even if they are slow


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another configuration of an operator. ``reason``: why it is a candidate. ``seconds``: of the step with it. ``grows``: the
    differences of the critical path's seconds from the plan's, by purpose, which add up to the difference of the steps (None:
    not computed)."""

    config: OpConfig
    reason: str
    seconds: float
    grows: Mapping[TaskPurpose, float] | None = None

    def worst(self) -> str:
        """Purpose whose seconds grow most, in a word or two; empty if none grows or it is not known."""
        if not self.grows:
            return ""
        work = max(self.grows, key=lambda w: self.grows[w] if self.grows else -inf)
        return work.value if self.grows[work] > 0 else ""


def alternatives(
    evaluator: Evaluator, operator: str, *, options: SpaceOptions | None = None, most: int = 10, seconds: float = inf,
    say: Callable[[str], object] = lambda text: None,
) -> tuple[Alternative, ...]:
    """Return the best ``most`` other configurations of an operator that ``options.constraints`` permit, fastest first. The rest
    of the evaluator's current strategy stays unchanged. Data parallel and whole on one device come after them, if they are
    permitted and not among them. Those that are not simulated after so many ``seconds`` are left out, and those of so many pieces
    that nobody can.

    Afterwards the evaluator is at its first strategy again. Raises KeyError if there is no such operator.
    """
    strategy, node = evaluator.strategy, evaluator.graph.node(operator)
    deadline = Deadline(seconds)
    now = _shares(evaluator)
    tried: dict[OpConfig, tuple[str, float]] = {}
    space = SearchSpace(evaluator.graph, len(evaluator.machine.processors), options)
    of = space.permitted.get(operator)
    for reason, candidate in _candidates(evaluator, node, space):
        if deadline.expired:
            break
        config = _in_order(evaluator, node, candidate)
        if config is not None and config not in tried and config != strategy[operator] and not (of and of.violation(config)):
            say(f"{operator}: alternative {len(tried) + 1}")
            try:
                with evaluator.interruptible(deadline.check):
                    tried[config] = (reason, evaluator.propose({operator: config}))
            except TooManyTasksError:
                continue
            except BudgetExhausted:
                break
    ranked = sorted(tried, key=lambda config: tried[config][1])
    shown: list[OpConfig] = []
    for config in ranked:  # a cut that can lie in many places must not fill the list
        same = sum(c.degrees == config.degrees for c in shown)
        if (len(shown) < most and same < ALIKE) or tried[config][0] in ALWAYS:
            shown.append(config)
    explained = len(shown) if evaluator.tasks <= EXPLAINED else FEW
    found = []
    for i, config in enumerate(shown):
        say(f"{operator}: what grows in alternative {i + 1} of {len(shown)}")
        grows = _difference(evaluator, strategy, operator, config, now) if i < explained and not deadline.expired else None
        found.append(Alternative(config, *tried[config], grows))
    evaluator.set(strategy)
    return tuple(found)


def _in_order(evaluator: Evaluator, node: Node, config: OpConfig) -> OpConfig | None:
    """A configuration as the current strategy's pipeline takes it: cut into micro-batches. None if it does not fit its order."""
    pipeline = evaluator.strategy.pipeline
    if pipeline is None:
        return config
    try:
        if pipeline.micro_batch(node, config, 0) is None:
            config = in_micro_batches(node, config, pipeline.parts)
        evaluator.changed({node.name: config}, {}).verify(evaluator.graph)
    except ValueError:
        return None
    return config


def _shares(evaluator: Evaluator) -> dict[TaskPurpose, float]:
    step = shown_step(evaluator)
    return shares(step.path(), step_labels(step))


def _difference(
    evaluator: Evaluator, strategy: Strategy, operator: str, config: OpConfig, now: Mapping[TaskPurpose, float]
) -> dict[TaskPurpose, float]:
    evaluator.set(replace(strategy, configs={**strategy.configs, operator: config}))
    return {work: seconds - now[work] for work, seconds in _shares(evaluator).items()}


def _candidates(evaluator: Evaluator, node: Node, space: SearchSpace) -> Iterator[tuple[str, OpConfig]]:
    """Reasons and configurations; those with the better reasons first."""
    n, config, own = space.processors, evaluator.strategy[node.name], space[node]
    first = config.processors[0]
    if node.of_weights:
        yield "on every device", copy_on_each(node, n)
    else:
        yield "data parallel", place(cut_only(node, Soap.SAMPLE, n), n)
    yield "whole on one device", place((1,) * len(node.dims), n, first)
    groups = OperatorGroups(evaluator.graph)
    for other in groups.neighbours.get(node.name, ()):  # what is made of weights alone has none
        spread = groups.spread(other, evaluator.strategy[other], (node.name,))
        yield f"as {other}", spread[node.name]
    pieces = prod(config.degrees)
    for degrees in own.tuples:
        differ = [(d.name, k) for d, k, was in zip(node.dims, degrees, config.degrees) if k != was]
        if len(differ) == 1:
            reason = f"{differ[0][0]} into {differ[0][1]}"
        elif prod(degrees) == pieces and len(differ) == 2:
            reason = "another cut, as many devices"
        else:
            continue
        for stride in {1, own.strides(prod(degrees))[-1]}:
            yield reason, place(degrees, n, first, stride)
    for shift in range(1, min(n, 64)):
        yield "other devices", replace(config, processors=tuple((p + shift) % n for p in config.processors), weights=())
    everything = own.candidates(aligned=True)
    for other_config in everything[:: max(1, len(everything) // SAMPLE)]:
        count = len(set(other_config.processors)) - len(set(config.processors))
        yield "fewer devices" if count < 0 else "more devices" if count > 0 else "another cut, as many devices", other_config
