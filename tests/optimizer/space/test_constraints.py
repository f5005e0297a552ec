"""Constraints: no search returns, or ever simulates, a plan that violates them, whatever they are."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fast_and_slow import fast_among
from hypothesis import given, settings
from hypothesis import strategies as st

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import MessageSync, OpConfig, Strategy, SyncAlgorithm, UpdatePlacement, choose
from taskflow.models import build
from taskflow.optimizer.algorithms.local_search import polished
from taskflow.optimizer.algorithms.moves import SYNCS
from taskflow.optimizer.bounds.work_and_path import lower_bound
from taskflow.optimizer.budget import Budget
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.evaluate.evaluator import NO_SYNCS, Evaluator
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.result import SearchResult
from taskflow.optimizer.search import search
from taskflow.optimizer.space.constraints import Constraints, repaired
from taskflow.optimizer.space.permitted import Permitted
from taskflow.optimizer.space.space import OperatorSpace, SearchSpace, SpaceOptions

SMALL_SPACE = SpaceOptions("powers", reduction=False, follow="passive")
GRAPHS = {name: build(name, preset="small") for name in ("mlp", "rnnlm", "alexnet")}


def small() -> OperatorGraph:
    """So small that exact search comes to its end."""
    graph = OperatorGraph(name="small")
    x = taskflow.input(graph, (4, 4), name="x")
    y = taskflow.linear(taskflow.relu(taskflow.linear(x, 4, name="fc1"), name="relu"), 4, name="fc2")
    graph.minimize(taskflow.cross_entropy(y, taskflow.input(graph, (4,), "int64", name="labels"), name="loss"))
    return graph


@st.composite
def rules(draw: Any, graph: OperatorGraph, processors: int) -> dict[str, Any]:
    """A table of rules that do not contradict each other: each operator has at most one, and one layer's weights may be pinned."""
    table: dict[str, Any] = {}
    nodes = draw(st.lists(st.sampled_from(graph.nodes), min_size=1, max_size=5, unique_by=lambda n: n.name))
    space = SearchSpace(graph, processors, SpaceOptions(placements="arbitrary"))
    for node in nodes:
        kind = draw(st.sampled_from(["pin", "limits"]))
        if kind == "pin":
            config = space[node].draw(Random(draw(st.integers(0, 10_000))))
            table[node.name] = {"pin": config.describe(node)}
            continue
        entry: dict[str, Any] = {}
        if draw(st.booleans()) and node.dims:
            entry["forbid"] = draw(st.lists(st.sampled_from([d.name for d in node.dims]), min_size=1, max_size=2, unique=True))
        if draw(st.booleans()):
            entry["devices"] = draw(st.lists(st.integers(0, processors - 1), min_size=1, unique=True))
        if draw(st.booleans()):
            entry["max_degree"] = draw(st.integers(1, processors))
        if draw(st.booleans()) or not entry:
            entry["max_pieces"] = draw(st.integers(1, processors))
        table[node.name] = entry
    if draw(st.booleans()):
        layer = draw(st.sampled_from(sorted({p.layer for p in graph.parameters})))
        table.setdefault(layer, {})["sync"] = str(draw(st.sampled_from(SYNCS)))
    return table


class Watched:
    """Every strategy that an evaluator is set to, and every proposal, respects the constraints."""

    def __init__(self, evaluator: Evaluator, constraints: Constraints) -> None:
        self.permitted = constraints.resolve(evaluator.graph, len(evaluator.machine.processors))
        self.syncs = constraints.syncs(evaluator.graph)
        self.seen = 0
        plain_set, plain_propose = evaluator.set, evaluator.propose

        def watch_set(strategy: Strategy) -> float:
            self.check(strategy.configs)
            assert all(strategy.sync(layer) == sync for layer, sync in self.syncs.items())
            return plain_set(strategy)

        def watch_propose(changes: Any, limit: float = inf, syncs: Any = NO_SYNCS, sums: Any = None) -> float:
            self.check(changes)
            assert all(syncs.get(layer, sync) == sync for layer, sync in self.syncs.items())
            return plain_propose(changes, limit, syncs, sums)

        evaluator.set, evaluator.propose = watch_set, watch_propose  # type: ignore[method-assign, assignment]

    def check(self, configs: Any) -> None:
        self.seen += 1
        for name, of in self.permitted.items():
            if name in configs:
                assert not of.violation(configs[name]), f"{name}: {of.violation(configs[name])}"


@pytest.mark.parametrize("algorithm", ["guided", "mcmc", "optcnn", "placement"])
@settings(max_examples=4, deadline=None, derandomize=True)
@given(data=st.data())
def test_no_search_goes_outside(algorithm: str, data: Any) -> None:
    name, devices = data.draw(st.sampled_from(sorted(GRAPHS))), data.draw(st.sampled_from([3, 4, 8]))
    graph, machine = GRAPHS[name], load_machine("k80", devices)
    table = data.draw(rules(graph, devices))
    constraints, evaluator = Constraints.parse(table), make_evaluator(graph, machine)
    watched = Watched(evaluator, constraints)
    seed = data.draw(st.integers(0, 99))
    placements = data.draw(st.sampled_from(["structured", "arbitrary"]))
    found = search(graph, machine, budget="150p", seed=seed, algorithm=algorithm, constraints=table, use=evaluator,
                   space=SpaceOptions(placements=placements))  # fmt: skip
    constraints.verify(found.strategy, graph)
    assert watched.seen >= 2 and found.seconds <= min(found.starts.values()) * (1 + 1e-12)
    assert 0 <= found.lower_bound <= found.seconds
    for node in graph:
        entry, config = table.get(node.name, {}), found.strategy[node.name]
        if "pin" in entry:
            assert config.describe(node) == entry["pin"]
        assert set(config.processors) <= set(entry.get("devices", range(devices)))
        assert max(config.degrees, default=1) <= entry.get("max_degree", devices)
        assert len(config.processors) <= entry.get("max_pieces", devices)
        for dim, degree in zip(node.dims, config.degrees):
            assert degree == 1 or dim.name not in entry.get("forbid", ())
    for layer in {p.layer for p in graph.parameters}:
        if "sync" in table.get(layer, {}):
            assert str(found.strategy.sync(layer)) == table[layer]["sync"]


def test_several_workers_stay_inside_too() -> None:
    table = {"fc1": {"pin": "c/2 @ 2-3"}, "*": {"devices": [1, 2, 3]}}
    graph, machine = GRAPHS["mlp"], load_machine("k80", 4)
    found = search(graph, machine, budget="0.5s", workers=2, constraints=table)
    Constraints.parse(table).verify(found.strategy, graph)


@cache
def unpinned() -> SearchResult:
    """The optimum where nothing pins a synchronisation, which all that follow are compared with."""
    constraints = {"fc2": {"max_pieces": 2}}
    return search(small(), load_machine("k80", 2), budget="400s", algorithm="exact", constraints=constraints, space=SMALL_SPACE)


@pytest.mark.parametrize("pinned", fast_among(["tree/every", "ring/owner", "owner/spread/3"], ["owner/spread/3"]))
def test_exact_search_takes_a_pinned_synchronisation_for_the_only_one(pinned: str) -> None:
    """Also one that searches do not try by themselves; the proof then is of plans that have it."""
    graph, machine, options = small(), load_machine("k80", 2), SMALL_SPACE
    table = {"fc1": {"sync": pinned}, "fc2": {"max_pieces": 2, "sync": "owner/owner"}}
    found = search(graph, machine, budget="400s", algorithm="exact", constraints=table, space=options)
    free = unpinned()
    assert found.optimal and free.optimal and str(found.strategy.sync("fc1")) == pinned
    assert found.strategy.sync("fc2") == MessageSync(SyncAlgorithm.OWNER, UpdatePlacement.OWNER)
    assert found.proof is not None and free.proof is not None and found.proof.strategies < free.proof.strategies
    evaluator, random = make_evaluator(graph, machine), Random(0)
    space = SearchSpace(graph, 2, replace(options, constraints=Constraints.parse(table)))
    syncs = Constraints.parse(table).syncs(graph)
    for _ in range(300):
        assert evaluator.set(Strategy(2, space.random(random), syncs)) >= found.seconds * (1 - 1e-9)


def test_synchronisation_is_matched_by_layer_or_operator() -> None:
    graph = GRAPHS["rnnlm"]
    shared = next(node for node in graph if node.parameters and node.parameters[0].layer != node.name)
    layer = shared.parameters[0].layer
    assert Constraints.parse({shared.name: {"sync": "tree/owner"}}).syncs(graph) == {
        layer: MessageSync(SyncAlgorithm.TREE, UpdatePlacement.OWNER)
    }
    assert set(Constraints.parse({"*": {"sync": "ring/spread/4"}}).syncs(graph)) == {p.layer for p in graph.parameters}
    assert not Constraints.parse({layer: {"sync": "tree/owner"}}).resolve(graph, 4)  # nothing is said of operators
    assert str(Constraints.parse({"a": {"sync": "ring/spread/4", "max_pieces": 2}}).rules[0]) == (
        "a: pieces<=2, weights by ring/spread/4"
    )
    plan = choose("data", graph, load_machine("k80", 4))[0]
    repaired_plan = Constraints.parse({layer: {"sync": "tree/owner"}}).repair(plan, graph)
    assert repaired_plan.name == "data (repaired)" and repaired_plan.configs == plan.configs
    with pytest.raises(ValueError, match=r"weights of .* must be synchronised as pinned, tree/owner"):
        Constraints.parse({layer: {"sync": "tree/owner"}}).verify(plan, graph)


@settings(max_examples=2, deadline=None, derandomize=True)
@given(data=st.data())
def test_exact_search_finds_the_best_that_is_permitted(data: Any) -> None:
    graph, machine = small(), load_machine("k80", 2)
    table = data.draw(rules(graph, 2))
    options = SpaceOptions("powers", reduction=False, follow="passive")
    evaluator = make_evaluator(graph, machine)
    Watched(evaluator, Constraints.parse(table))
    found = search(graph, machine, algorithm="exact", budget="60000p", constraints=table, space=options, use=evaluator)
    free = search(graph, machine, algorithm="exact", budget="60000p", space=options)
    assert found.optimal and free.optimal and found.proof is not None and free.proof is not None
    Constraints.parse(table).verify(found.strategy, graph)
    # Nothing that is permitted and in the space is faster than the plan, and what is proved without constraints bounds it.
    inside = make_evaluator(graph, machine)
    space = SearchSpace(graph, 2, SpaceOptions("powers", reduction=False, constraints=Constraints.parse(table)))
    random = Random(1)
    if "pin" not in str(table):  # a pinned cut may be one that the smaller space does not have
        assert found.seconds >= free.seconds * (1 - 1e-9)
    for _ in range(150):
        configs = {n: (c if n in ("fc1", "fc2", "relu") else found.strategy[n]) for n, c in space.random(random).items()}
        assert inside.set(Strategy(2, configs, found.strategy.syncs)) >= found.seconds * (1 - 1e-9)


def test_polish_and_the_lower_bound_stay_inside() -> None:
    graph, machine = GRAPHS["mlp"], load_machine("k80", 4)
    table = {"fc1": {"pin": "c/2 @ 2-3"}, "fc2": {"devices": [1, 3]}, "relu*": {"forbid": ["n"]}}
    constraints = Constraints.parse(table)
    evaluator = make_evaluator(graph, machine)
    found = search(graph, machine, budget="100p", constraints=table, use=evaluator)
    options = SearchOptions(Budget(proposals=5000), space=SpaceOptions(constraints=constraints))
    constraints.verify(polished(evaluator, found, options).strategy, graph)
    # Of equal operators, one of them pinned, each counts with its own cuts: the bound must not take one for the other.
    bound, free = lower_bound(evaluator, options.space), lower_bound(evaluator, SpaceOptions())
    space, random = SearchSpace(graph, 4, options.space), Random(0)
    plans = [evaluator.set(Strategy(4, space.random(random))) for _ in range(100)]
    assert free <= bound * (1 + 1e-12) and bound <= min(plans) * (1 + 1e-9)


def test_equal_operators_with_different_constraints_have_a_valid_bound() -> None:
    graph = OperatorGraph(name="twins")
    x = taskflow.input(graph, (64, 512), name="x")
    for i in range(3):
        x = taskflow.linear(x, 512, name=f"fc{i}")
    machine = load_machine("p100", 4)
    evaluator = make_evaluator(graph, machine, rule=None)
    options = SpaceOptions(constraints=Constraints.parse({"fc0": {"pin": "whole @ 0"}}))
    plan = {node.name: OpConfig((4, *(1,) * (len(node.dims) - 1)), (0, 1, 2, 3)) for node in graph}
    plan["fc0"] = OpConfig((1,) * len(graph.node("fc0").dims), (0,))
    assert lower_bound(evaluator, options) <= evaluator.set(Strategy(4, plan)) * (1 + 1e-9)


# ---- spaces ----------------------------------------------------------------------------------------------------------
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_space_holds_what_is_permitted_and_nothing_else(data: Any) -> None:
    graph = GRAPHS["mlp"]
    table = data.draw(rules(graph, 4))
    placements = data.draw(st.sampled_from(["structured", "arbitrary"]))
    free = SearchSpace(graph, 4, SpaceOptions("powers", placements))
    space = SearchSpace(graph, 4, SpaceOptions("powers", placements, constraints=Constraints.parse(table)))
    random = Random(0)
    for node in graph:
        of, own = space.permitted.get(node.name), space[node]
        if of is None:
            assert own.size == free[node].size
            continue
        listed = list(own)
        assert len(listed) == own.size and all(not of.violation(c) and own.contains(c) for c in listed)
        for config in listed[:20]:
            config.verify(node, 4)
        assert all(not of.violation(c) for c in own.candidates())
        for _ in range(20):
            assert own.draw(random) in listed
        if placements == "arbitrary" and of.pin is None:  # then it is exactly the permitted part
            assert set(listed) == {c for c in free[node] if not of.violation(c) and len(c.processors) <= own.most}
        other = free[node].draw(random)
        assert own.contains(other) == (other in set(listed))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_mending_gives_what_is_permitted_and_changes_nothing_else(data: Any) -> None:
    graph = GRAPHS["alexnet"]
    node = data.draw(st.sampled_from(graph.nodes))
    of = next(iter(Constraints.parse(data.draw(rules(graph, 8))).resolve(graph, 8).items()))
    node, permitted = graph.node(of[0]), of[1]
    config = OperatorSpace(node.dims, 8, SpaceOptions(placements="arbitrary")).draw(Random(data.draw(st.integers(0, 999))))
    better = permitted.repair(config)
    better.verify(node, 8)
    assert not permitted.violation(better)
    if not permitted.violation(config):
        assert better == config
    assert permitted.repair(better) == better
    configs = {node.name: config, "other": config}
    assert repaired({node.name: permitted}, configs)["other"] is config
    if not permitted.violation(config):
        assert repaired({node.name: permitted}, configs) is configs


def test_mending_keeps_pieces_where_they_were() -> None:
    permitted = Permitted(("n", "c"), (2, 8), (0, 1, 2, 3))
    config = OpConfig((4, 2), (0, 1, 2, 3, 4, 5, 6, 7))
    assert permitted.repair(config) == OpConfig((2, 2), (0, 1, 2, 3))
    assert Permitted(("n", "c"), (8, 8), (), 3).repair(config).degrees in ((1, 2), (3, 1), (1, 1))
    assert Permitted(("n", "c"), (8, 8), (6, 7)).repair(config).processors == (6, 7, 6, 7, 6, 7, 6, 7)


def test_starting_plans_are_mended_and_named_so() -> None:
    graph, machine = GRAPHS["mlp"], load_machine("k80", 4)
    mine = Strategy(4, choose("random", graph, machine, seed=1)[0].configs, {}, "mine")
    found = search(graph, machine, budget="50p", starts=[mine], constraints={"fc1": {"pin": "whole @ 3"}})
    assert set(found.starts) == {"data (repaired)", "expert (repaired)", "model (repaired)", "mine (repaired)"}
    assert found.strategy["fc1"] == OpConfig((1, 1, 1)[: len(graph.node("fc1").dims)], (3,))
    free = search(graph, machine, budget="50p", constraints={"fc1": {"max_pieces": 4}})
    assert set(free.starts) == {"data", "expert", "model"}


# ---- mistakes --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"conv*": {"forbid": ["c"]}}, "no operator of MLP matches 'conv*'; there are "),
        ({"fc*": {"forbid": ["z"]}}, "'fc*': no operator that matches has a dimension 'z'; they have n, "),
        ({"fc1": {"max_degree": {"z": 2}}}, "has a dimension 'z'"),
        ({"fc1": {"pin": "n/2 @ 0-1"}, "fc*": {"forbid": ["n"]}}, "to 'n/2 @ 0-1', but n must not be cut (fc*: n not cut)"),
        ({"fc1": {"pin": "n/2 @ 0-1", "max_pieces": 1}}, "but may have at most 1 pieces, not 2"),
        ({"fc1": {"pin": "n/2 @ 0-1"}, "fc*": {"pin": "whole @ 0"}}, "fc1 is pinned twice: fc1: pinned to n/2 @ 0-1; fc*"),
        ({"fc1": {"devices": [0, 1]}, "fc*": {"devices": [2]}}, "contradicts another rule: no device is left for fc1"),
        ({"fc1": {"devices": [9]}}, "processor 9 does not exist; there are 0 to 3"),
        ({"fc1": {"devices": []}}, "fc1.devices: must be a text that is not empty or a list that is not empty, got []"),
        ({"fc1": {"pin": "n/2 @ 0-7"}}, "constraints: 'fc1': operator fc1: 2 pieces need as many processors, got 8"),
        ({"fc1": {"pin": "half"}}, "'half' in 'half' is not a cut"),
        ({"fc1": {"pinned": "whole"}}, "fc1: unknown key 'pinned'; did you mean 'pin'?"),
        ({"fc1": {}}, "fc1: must have some of 'pin', 'forbid', 'devices', 'max_degree', 'max_pieces', 'sync'"),
        ({"fc1": {"sync": "ring"}}, "such as ring/every or owner/spread/8"),
        ({"fc1": {"sync": "ring/nowhere"}}, "one of every, owner, spread; got 'ring/nowhere'"),
        ({"fc1": {"sync": 3}}, "fc1.sync: must be a text that is not empty, got 3"),
        ({"relu*": {"sync": "ring/every"}}, "no layer of MLP that has weights matches 'relu*'; there are fc1, "),
        ({"fc1": {"sync": "ring/every"}, "fc*": {"sync": "tree/every"}}, "weights of fc1 are pinned twice: fc1: weights by"),
        ({"fc1": {"max_degree": 0}}, "fc1.max_degree: must be an integer from 1 to 2**62 or an object {...}, got 0"),
        ({"fc1": {"max_pieces": "two"}}, "fc1.max_pieces: must be an integer from 1 to 2**62, got 'two'"),
        ({"fc1": {"devices": [True]}}, "fc1.devices[0]: must be an integer from 0 to 2**62, got true"),
        (["fc1"], "constraints: must be an object {...}, got ['fc1']"),
    ],
)
def test_mistakes_are_named(table: Any, message: str) -> None:
    with pytest.raises(ValueError, match="constraints") as error:
        search(GRAPHS["mlp"], load_machine("k80", 4), budget="10p", constraints=Constraints.parse(table))
    assert message in str(error.value)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "constraints.json"
    file.write_text(json.dumps({"fc*": {"devices": "1-2", "max_degree": {"n": 2}}, "fc1": {"forbid": "n"}}))
    constraints = Constraints.of(str(file))
    assert [str(rule) for rule in constraints.rules] == ["fc*: n<=2, on 1-2", "fc1: n not cut"]
    found = search(GRAPHS["mlp"], load_machine("k80", 4), budget="40p", constraints=file)
    assert set(found.strategy["fc1"].processors) <= {1, 2}
    file.write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        Constraints.load(file)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        Constraints.load(tmp_path / "none.json")
