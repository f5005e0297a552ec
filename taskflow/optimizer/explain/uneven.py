"""uneven_pieces: how much pieces, stages and shares of uneven size gain on devices of unequal speed, compared with even ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Any

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig, Strategy, block_numbers, sample_dim, stages_of
from taskflow.optimizer.evaluate import Evaluator, where_time_goes
from taskflow.optimizer.space import Weigher, even, shares_by_speed, unequal, units_of, whole_shares
from taskflow.partition import even_cuts
from taskflow.regions import Rect
from taskflow.wording import milliseconds

ROUNDS = 3  # in which speeds are worked out again at the new sizes


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Devices of one kind: their number, and the fraction of the step's arithmetic that all of them do, 0 to 1. ``has``: of a plan
    with an order its layers and its samples of a micro-batch; empty: the same as the others, or pieces of many sizes."""

    kind: str
    devices: int
    share: float
    has: str = ""

    def __str__(self) -> str:
        return f"{self.devices} x {self.kind} {self.share:.0%}" + (f" ({self.has})" if self.has else "")


@dataclass(frozen=True, slots=True)
class UnevenGain:
    """Seconds of a step with the plan's cuts in uneven pieces and in even ones. ``now``: whether the plan has uneven pieces; if
    not, ``uneven_seconds`` are with pieces in proportion to the devices' speeds. ``kinds``: the work of each kind of device
    with uneven pieces. ``ordered``: whether the plan has an order, and so stages and shares of samples. ``even_seconds`` is
    then not a number if they were not worked out, and the plan's own if nothing in it is uneven."""

    now: bool
    uneven_seconds: float
    even_seconds: float
    kinds: tuple[DeviceKind, ...]
    ordered: bool = False

    @property
    def gain(self) -> float:
        """Factor by which even pieces take longer."""
        return self.even_seconds / self.uneven_seconds if self.uneven_seconds > 0 else 1.0

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON value, with units in the keys."""
        known = self.even_seconds == self.even_seconds
        return {
            "now": self.now, "uneven_iteration_seconds": self.uneven_seconds,
            "even_iteration_seconds": self.even_seconds if known else None, "gain": self.gain if known else None,
            "kinds": [
                {"kind": k.kind, "devices": k.devices, "share_of_arithmetic": k.share, "has": k.has} for k in self.kinds
            ],
        }

    def __str__(self) -> str:
        does = ", ".join(map(str, self.kinds))
        uneven, flat = (f"{milliseconds(seconds)} ms" for seconds in (self.uneven_seconds, self.even_seconds))
        if self.ordered:
            text = f"Unequal devices: {does} of the arithmetic"
            if not self.now:
                return f"{text}; stages and shares of samples are even."
            if self.even_seconds != self.even_seconds:
                return f"{text}; taskflow explain says what even stages and shares would take."
            return f"{text}; with even stages and shares of samples a step takes {flat}, {self.gain:.2f} times as long."
        if self.now:
            return (
                f"Uneven pieces ({does} of the arithmetic): with the same cuts in even pieces a step takes {flat}, "
                f"{self.gain:.2f} times as long."
            )
        return (
            f"Even pieces on devices of unequal speed: with pieces in proportion to it ({does} of the arithmetic) a step takes "
            f"{uneven}, " + (f"{self.gain:.2f} times as fast." if self.gain > 1 else "no less.")
        )


def uneven_pieces(evaluator: Evaluator, long: bool = True) -> UnevenGain | None:
    """Return the gain of uneven pieces for the evaluator's current strategy, at which the evaluator is again afterwards. None if
    all devices are alike, and if no cut can be made uneven. ``long``: evaluate plans with an order with even stages and
    shares, too, which may take as long as the plan itself took."""
    strategy, seconds = evaluator.strategy, evaluator.seconds
    if not unequal(evaluator.machine):
        return None
    try:
        if strategy.ordered:
            return _ordered(evaluator, strategy, seconds, long)
        flat = even(strategy)
        if flat is not strategy:
            return UnevenGain(True, seconds, evaluator.set(flat), _kinds(evaluator, strategy))
        weighed, least = _weighed(evaluator, strategy)
        return None if weighed is strategy else UnevenGain(False, least, seconds, _kinds(evaluator, weighed))
    finally:
        if evaluator.strategy is not strategy:
            evaluator.set(strategy)


def _weighed(evaluator: Evaluator, strategy: Strategy) -> tuple[Strategy, float]:
    """The strategy with pieces by speed, and its seconds; the given one if no piece changes."""
    machine, graph = evaluator.machine, evaluator.graph
    units = units_of(graph, len(machine.processors))
    shares = whole_shares([1.0] * len(machine.processors), units)
    best, least = strategy, inf
    for _ in range(ROUNDS):
        shares = shares_by_speed(machine, where_time_goes(evaluator, path=False).processor_seconds, shares)
        plan = Weigher(graph, shares).strategy(strategy)
        if plan.configs == strategy.configs or (taken := evaluator.set(plan)) >= least:
            break
        best, least = plan, taken
    return best, least


def _kinds(evaluator: Evaluator, strategy: Strategy) -> tuple[DeviceKind, ...]:
    done = [0.0] * len(evaluator.machine.processors)
    for node in evaluator.graph:
        for rect, processor in _first_pieces(strategy, node):
            done[processor] += node.operator.flops(node.specs, rect)
    members: dict[str, list[int]] = {}
    for one in evaluator.machine.processors:
        members.setdefault(one.kind, []).append(one.number)
    total = sum(done) or 1.0
    has = _has(evaluator.graph, strategy, members) if strategy.ordered else {}
    return tuple(
        DeviceKind(kind, len(of), sum(done[p] for p in of) / total, has.get(kind, "")) for kind, of in members.items()
    )


def _first_pieces(strategy: Strategy, node: Node) -> Iterator[tuple[Rect, int]]:
    """The pieces of the first micro-batch, which all others equal, or all pieces."""
    config, pipeline = strategy[node.name], strategy.pipeline
    for number, (rect, processor) in enumerate(config.pieces(node)):
        if pipeline is None or pipeline.micro_batches == 1 or pipeline.micro_batch(node, config, number) in (0, None):
            yield rect, processor


# ---- plans with an order ---------------------------------------------------------------------------------------------
def _ordered(evaluator: Evaluator, strategy: Strategy, seconds: float, long: bool) -> UnevenGain:
    kinds, graph = _kinds(evaluator, strategy), evaluator.graph
    flat = even_order(strategy, graph)
    if flat is None or flat.configs == strategy.configs:
        return UnevenGain(False, seconds, seconds, kinds, True)
    try:
        flat.verify(graph)
        return UnevenGain(True, seconds, evaluator.seconds_of(flat) if long else float("nan"), kinds, True)
    except ValueError:  # micro-batches that cannot be dealt evenly
        return UnevenGain(True, seconds, float("nan"), kinds, True)


def _has(graph: OperatorGraph, strategy: Strategy, members: Mapping[str, list[int]]) -> dict[str, str]:
    """By kind, what it has and others do not: layers, and samples of a micro-batch."""
    numbers = block_numbers(graph)
    kind = {p: name for name, of in members.items() for p in of}
    layers: dict[str, set[int]] = {name: set() for name in members}
    samples: dict[str, set[int]] = {name: set() for name in members}
    for node in graph:
        config, dim = strategy[node.name], sample_dim(node)
        for p in set(config.processors) if node.inputs else ():
            layers[kind[p]].add(numbers.get(node.name, 0))
        if node is graph.nodes[0] and dim is not None:
            for rect, p in _first_pieces(strategy, node):
                samples[kind[p]].add(rect.hi[dim] - rect.lo[dim])
    whole = len(set(numbers.values()))
    found = {}
    for name in members:
        words = []
        if not layers[name]:
            words.append("idle")
        elif whole and any(len(of) not in (0, whole) for of in layers.values()):
            words.append(f"{len(layers[name])} of {whole} layers")
        if len({size for of in samples.values() for size in of}) > 1 and samples[name]:
            low, high = min(samples[name]), max(samples[name])
            words.append(f"{low if low == high else f'{low} to {high}'} samples of a micro-batch a replica")
        found[name] = ", ".join(words)
    return found


def even_order(strategy: Strategy, graph: OperatorGraph) -> Strategy | None:
    """Return a pipelined or sharded plan with layers distributed evenly over its stages, on the same devices, and equal shares of
    samples. None if that is not possible."""
    pipeline = strategy.pipeline
    configs = {}
    for node in graph:
        if (config := _even_shares(node, strategy)) is None:
            return None
        configs[node.name] = config
    if pipeline is None or pipeline.count == 1 or not block_numbers(graph):
        return replace(strategy, configs=configs, plan=None)
    stages = stages_of(graph, pipeline.count)
    like: dict[tuple[object, ...], tuple[int, ...]] = {}
    for node in graph:
        config = configs[node.name]
        like.setdefault((pipeline.rank(node.name), config.degrees, config.copies), config.processors)
    for node in graph:
        rank = pipeline.schedule.rank(stages[node.name], pipeline.ranks)
        if rank != pipeline.rank(node.name):
            config = configs[node.name]
            processors = like.get((rank, config.degrees, config.copies))
            if processors is None:
                return None
            configs[node.name] = replace(config, processors=processors)
    return replace(strategy, configs=configs, pipeline=replace(pipeline, stages=stages), plan=None)


def _even_shares(node: Node, strategy: Strategy) -> OpConfig | None:
    """One operator's configuration with equal shares of each micro-batch; None if there are too few samples."""
    config, dim = strategy[node.name], sample_dim(node)
    if not config.weights or dim is None or not config.weights[dim]:
        return config
    count = strategy.pipeline.micro_batches if strategy.pipeline is not None else 1
    size, degree = node.dims[dim].size, config.degrees[dim]
    others = tuple(() if i == dim else of for i, of in enumerate(config.weights))
    if degree % count or size < degree:
        return None
    if size % degree == 0:
        return replace(config, weights=others if any(others) else ())
    sizes = [
        b - a for low, high in pairwise(even_cuts(size, count)) for a, b in pairwise(even_cuts(high - low, degree // count))
    ]
    return replace(config, weights=tuple(tuple(map(float, sizes)) if i == dim else of for i, of in enumerate(others)))
