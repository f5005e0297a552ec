"""Pieces of uneven size on devices of unequal speed: their sizes, their times, what searches find, and that they run."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from core_cases import Odd, shared
from fast_and_slow import fast_among
from random_networks import network
from unequal_machines import two_kinds

import taskflow
from taskflow.machine import Cluster, load_machine
from taskflow.mapper import DataParallel, OpConfig, Strategy, map_graph
from taskflow.models import build
from taskflow.optimizer import MemoryCheck, make_evaluator, search
from taskflow.optimizer.bounds import lower_bound
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.explain import uneven_pieces
from taskflow.optimizer.space import SearchSpace, SpaceOptions, Weigher, even, unequal, units_of, weighed, whole_shares
from taskflow.rules import SGD

BUDGET = "40p"


def alone(machine: Cluster, node: str, graph: str, batch: int) -> float:
    """Samples a second of the first device of a node by itself."""
    one, of = replace(machine, layout=((node, 1),), devices=1), build(graph, batch=batch, preset="small")
    return batch / make_evaluator(of, one).set(map_graph(DataParallel(), of, one))


# ---- sizes -----------------------------------------------------------------------------------------------------------
def test_whole_shares_add_up_and_are_nearest() -> None:
    random = Random(1)
    for _ in range(300):
        speeds = [random.choice((0.0, random.random(), 3.0)) for _ in range(random.randint(1, 9))] + [1.0]
        units = random.randint(len(speeds), 500)
        found = whole_shares(speeds, units)
        assert sum(found) == units
        assert all(abs(share - units * s / sum(speeds)) < 1 for share, s in zip(found, speeds))
    assert whole_shares((1, 1, 1), 4) == (2, 1, 1)
    with pytest.raises(ValueError, match="must not be negative, and one must be above 0"):
        whole_shares((0.0, 0.0), 4)


@pytest.mark.parametrize("seed", range(12))
def test_weighed_pieces_are_whole_and_none_is_empty(seed: int) -> None:
    graph, random = network(seed)[0], Random(seed)
    space = SearchSpace(graph, 4, SpaceOptions(placements="arbitrary"))
    for _ in range(10):
        shares = tuple(random.randint(0, 5) for _ in range(3)) + (1,)
        weigher = Weigher(graph, shares)
        for node in graph:
            config = space[node].draw(random)
            found = weigher.of(node.name, config)
            found.verify(node, 4)  # no piece is empty
            rects = found.partition(node).rects()
            assert sum(rect.volume for rect in rects) == node.space.volume
            assert set(found.processors) <= set(config.processors)
            assert weigher.of(node.name, found) == (found if found.weights else weighed(node, found, shares))
            cut = [i for i, degree in enumerate(config.degrees) if degree > 1]
            if len(cut) == 1 and found.weights and len(set(found.processors)) == len(found.processors):
                sizes = [rect.hi[cut[0]] - rect.lo[cut[0]] for rect in rects]
                assert all(
                    abs(size - node.dims[cut[0]].size * w / sum(found.weights[cut[0]])) <= 1
                    for size, w in zip(sizes, found.weights[cut[0]])
                )
                assert all(a <= b + 1 for (a, x), (b, y) in pairwise(zip(sizes, found.weights[cut[0]])) if x <= y)


def test_a_device_without_a_share_gets_no_pieces() -> None:
    graph = build("MLP", batch=12, preset="small")
    node = graph.node("fc1")
    assert weighed(node, OpConfig((4, 1, 1), (0, 1, 2, 3)), (6, 0, 3, 3)) == OpConfig(
        (3, 1, 1), (0, 2, 3), ((2.0, 1.0, 1.0), (), ())
    )
    assert weighed(node, OpConfig((4, 1, 1), (0, 1, 2, 3)), (5, 5, 5, 5)) == OpConfig((4, 1, 1), (0, 1, 2, 3))
    assert weighed(node, OpConfig((2, 2, 1), (0, 1, 2, 3)), (2, 4, 1, 1)).weights == ((3.0, 1.0), (3.0, 5.0), ())
    assert units_of(graph, 4) == 12


def test_even_is_the_way_back() -> None:
    graph, machine = build("LeNet", preset="small", devices=4), two_kinds()
    data = map_graph(DataParallel(), graph, machine)
    assert even(data) is data
    uneven = Weigher(graph, (3, 3, 1, 1)).strategy(data)
    assert uneven.configs != data.configs and even(uneven).configs == data.configs
    name = next(n for n, config in uneven.configs.items() if config.weights)
    assert Weigher(graph, (3, 3, 1, 1), frozenset([name])).strategy(data)[name] == data[name]


# ---- times -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", fast_among(range(30), range(12)))
def test_core_and_twin_agree_on_shares_and_shifts(seed: int) -> None:
    core = pytest.importorskip("taskflow.optimizer.evaluate.compiled", reason="the compiled core is not built")
    graph, _, rule, clip = network(seed)
    random, processors = Random(seed), Random(seed).randint(2, 6)
    machine = shared(processors)
    costs = Odd(3)
    twin, compiled = (
        PythonEvaluator(graph, machine, costs, rule, clip), core.CompiledEvaluator(graph, machine, costs, rule, clip),
    )
    space = SearchSpace(graph, processors, SpaceOptions(placements="arbitrary"))
    for _ in range(3):
        weigher = Weigher(graph, [random.randint(1, 6) for _ in range(processors)])
        strategy = weigher.strategy(Strategy(processors, space.random(random)))
        assert compiled.set(strategy) == twin.set(strategy)
        assert compiled.timeline() == twin.timeline()
        other = Weigher(graph, [random.randint(0, 6) + (p == 0) for p in range(processors)]).strategy(strategy)
        changes = {n: c for n, c in other.configs.items() if c != strategy[n]}
        assert compiled.propose(changes) == twin.propose(changes)
        compiled.accept()
        twin.accept()
        assert compiled.timeline() == twin.timeline()


@pytest.mark.parametrize("model", fast_among(["LeNet", "RNNLM", "Transformer"], ["LeNet", "RNNLM"]))
def test_the_bound_holds_for_pieces_of_any_size(model: str) -> None:
    machine, random = two_kinds(), Random(model)
    graph = build(model, preset="small", devices=4)
    judge, options = make_evaluator(graph, machine), SpaceOptions(placements="arbitrary")
    bound = lower_bound(judge, options, uneven=True)
    assert 0 < bound <= lower_bound(judge, options) * (1 + 1e-9)
    space = SearchSpace(graph, 4, options)
    for _ in range(40):
        shares = [random.choice((1, 2, 5, 30)) for _ in range(4)]
        assert judge.set(Weigher(graph, shares).strategy(Strategy(4, space.random(random)))) >= bound


# ---- searches --------------------------------------------------------------------------------------------------------
def test_uneven_pieces_reach_most_of_the_sum_of_speeds() -> None:
    """Even pieces wait for the slow devices: four pieces at a third of the speed are worth 4/3, all devices together 8/3."""
    machine = two_kinds(scale=1000.0)  # so that arithmetic takes the time
    graph = build("LeNet", batch=1024, preset="small")
    speeds = 2 * alone(machine, "quick", "LeNet", 512) + 2 * alone(machine, "slow", "LeNet", 512)
    found = search(graph, machine, budget=BUDGET)
    reached, flat = (1024 / seconds / speeds for seconds in (found.seconds, found.starts["data"]))
    assert flat < 0.6 and reached >= 0.9
    assert "data by speed" in found.starts and found.lower_bound <= found.seconds
    assert search(graph, machine, budget=BUDGET).strategy == found.strategy
    pieces = search(graph, machine, budget=BUDGET, space=SpaceOptions(uneven=False))
    assert even(pieces.strategy) is pieces.strategy and pieces.seconds > found.seconds


def test_alike_devices_have_even_pieces_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("k80", "p100", "a100", "h100"):
        assert not unequal(load_machine(name, 8))
    assert unequal(load_machine("a100-v100"))
    monkeypatch.setattr("taskflow.optimizer.algorithms.uneven.Weigher", None)  # nothing asks for one
    found = search(build("LeNet", preset="small", devices=4), load_machine("p100", 4), budget=BUDGET)
    assert even(found.strategy) is found.strategy and "data by speed" not in found.starts


def test_a_device_with_half_of_the_memory_gets_what_fits() -> None:
    """Devices of equal speed, one kind of which lacks memory for an equal share: it gets less, and the plan is not refused."""
    graph, rich = build("AlexNet", batch=256, preset="small"), two_kinds(compute=1.0)
    judge = make_evaluator(graph, rich)
    data = map_graph(DataParallel(), graph, rich)
    judge.set(data)
    need = max(MemoryCheck(judge).peaks(data)[0])
    poor = replace(rich, kinds=tuple(replace(k, memory_bytes=int(need * (0.7 if k.kind == "slow" else 1.4))) for k in rich.kinds))
    found = search(graph, poor, budget=BUDGET)
    judge = make_evaluator(graph, poor)
    judge.set(found.strategy)
    assert MemoryCheck(judge)(found.strategy) == "" and MemoryCheck(judge)(data) != ""
    start = found.starts["data by speed"]
    assert found.seconds <= start < 1.6 * found.starts["data"]


def test_a_device_behind_a_slow_link_may_get_nothing() -> None:
    """Where the slow node's link costs more than its devices are worth, the plan does without them."""
    graph = build("AlexNet", batch=64, preset="small")
    near, far = (search(graph, two_kinds(link=link), budget=BUDGET) for link in (1.0, 3000.0))
    used = [{p for config in found.strategy.configs.values() for p in config.processors} for found in (near, far)]
    assert near.seconds <= far.seconds < far.starts["data"] / 5
    assert not used[1] & {2, 3} or not used[1] & {0, 1}


@pytest.mark.parametrize("algorithm", ["guided", "mcmc"])
def test_no_search_is_slower_than_data_parallelism_without_devices_behind_a_slow_link(algorithm: str) -> None:
    """With so little time that nothing but what people write is looked at, two cards behind a slow link cost a hundred times what
    they were worth."""
    graph, machine = build("AlexNet", batch=64, preset="small"), two_kinds(link=3000.0)
    found = search(graph, machine, budget="1p", algorithm=algorithm)
    assert found.seconds <= found.starts["data without far nodes"] < found.starts["data"] / 5
    assert {p for config in found.strategy.configs.values() for p in config.processors} == {0, 1}
    alone = search(graph, two_kinds(), budget="1p", algorithm=algorithm)
    assert "data without far nodes" not in alone.starts


def test_pins_and_asked_for_evenness_are_kept() -> None:
    machine = two_kinds()
    graph = build("LeNet", batch=256, preset="small")
    name = next(node.name for node in graph if node.parameters)
    pinned = search(graph, machine, budget=BUDGET, constraints={name: {"pin": "n/4 @ 0-3"}})
    assert pinned.strategy[name].weights == ()
    weights = search(graph, machine, budget=BUDGET, constraints={name: {"pin": "n/4:4:1:1 @ 0-3"}})
    assert weights.strategy[name].describe(graph.node(name)) == "n/4:4:1:1 @ 0-3"
    for space in (SpaceOptions(degrees="even"), SpaceOptions(placements="contiguous")):
        found = search(graph, machine, budget=BUDGET, space=space)
        assert even(found.strategy) is found.strategy


def test_what_even_pieces_cost_is_said() -> None:
    machine, graph = two_kinds(scale=1000.0), build("LeNet", batch=256, preset="small")
    judge = make_evaluator(graph, machine)
    data = map_graph(DataParallel(), graph, machine)
    seconds = judge.set(data)
    found = uneven_pieces(judge)
    assert found is not None and not found.now and found.even_seconds == seconds and found.gain > 1.5
    assert [k.devices for k in found.kinds] == [2, 2] and found.kinds[0].share > 0.6
    assert "times as fast" in str(found) and judge.seconds == seconds
    weighed_data = Weigher(graph, (3, 3, 1, 1)).strategy(data)
    uneven_seconds = judge.set(weighed_data)
    found = uneven_pieces(judge)
    assert found is not None and found.now and (found.even_seconds, found.uneven_seconds) == (seconds, uneven_seconds)
    assert "times as long" in str(found) and judge.at(weighed_data)
    alike = make_evaluator(graph, load_machine("p100", 4))
    alike.set(map_graph(DataParallel(), graph, alike.machine))
    assert uneven_pieces(alike) is None


# ---- running ---------------------------------------------------------------------------------------------------------
def test_a_found_uneven_plan_trains_with_the_same_losses() -> None:
    graph = build("MLP", batch=48, preset="small")
    found = search(graph, two_kinds(compute=4.0), budget=BUDGET, space=SpaceOptions(degrees="powers"))
    data = Weigher(graph, (19, 18, 6, 5)).strategy(map_graph(DataParallel(), graph, two_kinds()))
    whole = {node.name: OpConfig((1,) * len(node.dims), (0,)) for node in graph}
    numbers = np.random.default_rng(0)
    feeds = {}
    for node in graph:
        if node.operator.kind == "input":
            spec = node.outputs[0].spec
            feeds[node.name] = (
                numbers.integers(0, 3, spec.shape) if "int" in str(spec.dtype) else numbers.standard_normal(spec.shape)
            ).astype(spec.dtype)
    plans = (Strategy(1, whole, {}), data, found.strategy)
    assert any(config.weights for config in data.configs.values())
    losses = []
    for plan in plans:
        run = taskflow.Executor(graph, plan, SGD(lr=0.1), machine=taskflow.host(plan.processors), seed=3)
        losses.append([float(run.train(feeds)) for _ in range(4)])
    assert losses[0][-1] < losses[0][0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-5)
