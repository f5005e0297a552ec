"""A search is never worse than what people would write, nor than the grid or another algorithm with the same budget: what `taskflow
compare` shows. For networks, machines, frameworks, options and constraints that are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, inf
from random import Random
from typing import Any

import pytest
from fast_and_slow import fast_among

from taskflow.export import nearest_within
from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, load_machine
from taskflow.mapper import Strategy, choose
from taskflow.models import build
from taskflow.optimizer import (
    MemoryCheck,
    NothingFits,
    has_usual_plans,
    make_evaluator,
    refusal,
    search,
    target_named,
    usual_plans,
)
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.grid import Allowed, best_of_grid, held_bytes, make_grid, no_grid
from taskflow.optimizer.space import Constraints, SpaceOptions
from taskflow.optimizer.target import PlanTarget
from taskflow.rules import Adam

RULE = Adam()
NETWORKS: dict[str, dict[str, Any]] = {
    "dense": {"name": "llama", "layers": 4, "steps": 32, "hidden": 64, "inner": 160, "vocabulary": 512},
    "heads": {"name": "gpt-2", "layers": 4, "hidden": 16, "heads": 8, "steps": 8, "vocabulary": 64},
    "long": {"name": "llama", "layers": 3, "steps": 1024, "hidden": 64, "inner": 160, "vocabulary": 512},
    "experts": {"name": "mixtral", "layers": 2, "steps": 32, "places": 1.0},
    "images": {"name": "alexnet"},
}
SPACES: dict[str, dict[str, Any]] = {
    "any": {}, "powers": {"degrees": "powers"}, "even": {"degrees": "even", "uneven": False}, "whole sums": {"reduction": False},
    "in a row": {"placements": "contiguous"},
}
MOST = 30  # proposals


@dataclass(frozen=True, slots=True)
class Drawn:
    """A problem. ``memory``: of a device, in parts of what weights and state need, or infinite."""

    network: str
    devices: int
    batch: int
    memory: float
    target: str
    space: str
    pinned: bool

    def graph(self) -> OperatorGraph:
        sizes = dict(NETWORKS[self.network])
        return build(sizes.pop("name"), self.batch, preset="small", **sizes)

    def machine(self, graph: OperatorGraph) -> Cluster:
        made = load_machine("h100", self.devices)
        if self.memory == inf:
            return made
        nbytes = int(self.memory * held_bytes(graph, RULE))
        return replace(made, kinds=tuple(replace(kind, memory_bytes=nbytes) for kind in made.kinds))

    def constraints(self, graph: OperatorGraph) -> Constraints:
        if not self.pinned:
            return Constraints()
        node = next(node for node in graph if node.parameters)
        return Constraints.parse({node.name: {"pin": f"n/{self.devices} @ 0-{self.devices - 1}"}})


def draw(seed: int) -> Drawn:
    random = Random(f"never worse {seed}")
    network, devices = random.choice(list(NETWORKS)), random.choice((4, 8, 16))
    target = "" if network == "images" else random.choice(("", "", "megatron", "torchtitan"))
    memory = random.choice((inf, 3.0, 1.5, 0.6)) if network != "images" else inf
    space = random.choice(("any", "any", *SPACES))
    return Drawn(network, devices, devices * random.choice((1, 2, 4)), memory, target, space, random.random() < 0.2)


def rows(
    graph: OperatorGraph, evaluator: Evaluator, target: PlanTarget | None, space: SpaceOptions, check: MemoryCheck
) -> Iterator[tuple[str, Strategy]]:
    """The rows of a comparison: plans of rules, plans that people use, the grid, and what other algorithms find."""
    machine, constraints = evaluator.machine, space.constraints
    for name in ("data", "model", "expert") if space == SpaceOptions(constraints=constraints) else ("data",):
        plan = choose(name, graph, machine)[0]
        try:
            kept = constraints.repair(plan, graph) if target is None else nearest_within(graph, plan, target.name, constraints)
        except ValueError:
            continue
        yield name, kept
    if space == SpaceOptions() and has_usual_plans(graph, machine, RULE):
        yield from ((of.name, of.strategy) for of in usual_plans(graph, machine, check, RULE) if of.strategy is not None)
    if no_grid(graph, machine, RULE):
        return
    allowed = Allowed(graph, machine, space, target)
    levels = target.all_of_a_layer if target else "full"
    grid = make_grid(graph, machine, RULE, None if allowed.free else allowed.may_have, levels)
    best = best_of_grid(evaluator, refusal(check, target), most=ceil(MOST / 10), grid=grid, make=allowed.strategy)
    if best.strategy is not None:
        yield f"grid: {best.best}", best.strategy


def whole_search_is_not_worse(drawn: Drawn) -> None:
    graph = drawn.graph()
    target = target_named(drawn.target, graph) if drawn.target else None
    machine = drawn.machine(graph)
    machine = machine if target is None else target.driven(machine)
    space = SpaceOptions(**SPACES[drawn.space], constraints=drawn.constraints(graph))
    options: dict[str, Any] = {"rule": RULE, "budget": f"{MOST}p", "space": space, "target": target}
    try:
        found = search(graph, machine, **options)
    except NothingFits as error:
        found, why = None, str(error)
    evaluator = make_evaluator(graph, machine, rule=RULE)
    check = MemoryCheck(evaluator)
    refuses = refusal(check, target)
    if found is not None:
        assert evaluator.set(found.strategy) == found.seconds and not refuses(found.strategy)
        space.constraints.verify(found.strategy, graph)
    for name, strategy in rows(graph, evaluator, target, space, check):
        seconds = evaluator.set(strategy)
        if refuses(strategy):
            continue
        assert found is not None, f"{name} ({strategy.name}) fits, and the search said: {why}"
        assert found.seconds <= seconds * (1 + 1e-12), f"{name} ({strategy.name}) is faster than {found.strategy.name}"


@pytest.mark.parametrize("seed", fast_among(range(28), (0, 1, 3, 5, 7, 8)))
def test_a_search_is_not_worse_than_the_rows_of_a_comparison(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Small networks are searched as large ones are."""
    monkeypatch.setattr("taskflow.optimizer.grid.plans.MEMORY_SHARE", 0.0)
    whole_search_is_not_worse(draw(seed))
