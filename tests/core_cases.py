"""Machines with shared links, costs that are no formula of rates, and random moves, for the tests of the core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Device, Ends, Link, Processor
from taskflow.mapper import Strategy
from taskflow.optimizer.cost.task_costs import Costs
from taskflow.regions import Rect
from taskflow.tasks.task import Kind, Runs

COPIES: tuple[Ends, ...] = (True, "receiver", "sender", False)


@dataclass(frozen=True, slots=True)
class Shared:
    """Unequal processors, two a node: one bus a node, over which both of them, one or none copy themselves, and a network
    card in each direction."""

    processors: tuple[Processor, ...]
    name: str = "shared"

    def route(self, source: int, target: int) -> tuple[Link, ...]:
        a, b = source // 2, target // 2
        if source == target:
            return ()
        if a == b:
            return (Link(100 * a, f"bus {a}", 7e9, 3e-6, COPIES[a % len(COPIES)]),)
        return (
            Link(100 * a, f"bus {a}", 7e9, 3e-6),
            Link(100 * a + 1, f"out of {a}", 1e9 + a * 1e8, 20e-6),
            Link(100 * b + 2, f"into {b}", 1e9, 10e-6),
        )


def shared(processors: int) -> Shared:
    kinds = ((30e9, 5e-6), (11e9, 1e-6), (30e9, 5e-6))
    devices = [Device(f"kind {k}", 4 << 30, (("float32", rate),), 8e9, launch) for k, (rate, launch) in enumerate(kinds)]
    return Shared(tuple(Processor(i, devices[i % 3], i // 2) for i in range(processors)))


class Odd(Costs):
    """Costs that depend on everything they may depend on."""

    def __init__(self, classes: int) -> None:
        self._classes = classes

    def piece(self, node: Node, piece: Rect, backward: bool, processor: int, flops: int, nbytes: int) -> float:
        kind = sum(map(ord, node.operator.kind)) % 7
        fixed = 1e-6 * (1 + kind + 3 * backward + self.processor_class(processor))
        return fixed + nbytes * 1e-10 + sum(piece.shape) * 1e-8

    by_runs = True

    def other(self, kind: Kind, processor: int, flops: int, nbytes: int, runs: int = 1) -> float:
        return 1e-8 * runs + 1e-7 * len(kind.value) + flops * 1e-9 + nbytes * 3e-10 + 1e-7 * self.processor_class(processor)

    def copy(self, source: int, target: int, nbytes: int, runs: Runs = (1, 1)) -> float:
        return runs[0] * 1e-8 + runs[1] * 3e-8 + 1e-6 + 1e-7 * ((source + target) % 3) + nbytes * 2e-10

    def collective(self, group: Sequence[int], nbytes: int, flops: int, halves: int = 2) -> float:
        return 1e-6 * halves + 1e-7 * (sum(group) % 5) + nbytes * 1e-10 + flops * 1e-10

    def processor_class(self, processor: int) -> int:
        return processor % self._classes

    def route_class(self, source: int, target: int) -> tuple[object, ...]:
        return ((source + target) % 3,)


def random_changes(graph: OperatorGraph, other: Strategy, random: Random) -> dict[str, object]:
    """The configurations of one to three random operators of another strategy."""
    names = random.sample([node.name for node in graph], random.choice((1, 1, 1, 2, 3)))
    return {name: other[name] for name in names}
