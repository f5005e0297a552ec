"""Teams, layers and loads: what the default search's moves of whole layers are made of."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper import Strategy, SyncAlgorithm
from taskflow.mapper.strategy import SUMS
from taskflow.models import build
from taskflow.optimizer.algorithms.initial import known, random_start, with_syncs
from taskflow.optimizer.algorithms.layer_annealing import SIMPLE, LayerAnnealing, hybrids
from taskflow.optimizer.budget import Budget, BudgetPart
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.evaluate.usage import where_time_goes
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.session import SearchSession
from taskflow.optimizer.space.device_groups import levels, on_team, shapes, teams
from taskflow.optimizer.space.layers import Layer, Spreads, layers
from taskflow.optimizer.space.space import SearchSpace
from taskflow.optimizer.traffic.loads import Loads
from taskflow.partition import Grid


def test_levels_are_switches_nodes_and_all() -> None:
    k80 = levels(taskflow.load_machine("k80", 8))
    assert k80[0] == tuple((p,) for p in range(8))
    assert k80[1:] == (((0, 1), (2, 3), (4, 5), (6, 7)), ((0, 1, 2, 3), (4, 5, 6, 7)), (tuple(range(8)),))
    assert levels(taskflow.load_machine("p100", 6))[1:] == (((0, 1, 2, 3), (4, 5)), ((0, 1, 2, 3, 4, 5),))
    assert levels(host(3)) == (((0,), (1,), (2,)), ((0, 1, 2),))


@pytest.mark.parametrize("devices", [1, 2, 3, 6, 8, 12, 64])
def test_teams_are_processors_once_each(devices: int) -> None:
    found = teams(taskflow.load_machine("k80", devices))
    assert len(set(found)) == len(found)
    for team in found:
        assert team and len(set(team)) == len(team) and all(0 <= p < devices for p in team)
    assert tuple(range(devices)) in found
    if devices == 12:  # one processor of each node; one board of each; dealt around the nodes
        assert {(0, 4, 8), (2, 3, 6, 7, 10, 11), (2, 6, 10, 3, 7, 11)} <= set(found)
    assert on_team((2, 2), (7, 5, 3, 1)).processors == (7, 5, 3, 1)
    assert on_team((2, 2), (7, 5, 3, 1), 1).processors == (7, 3, 5, 1)


@pytest.mark.parametrize("model", ["NMT", "ResNet-101", "LeNet", "Transformer", "MLP", "Inception-v3"])
def test_every_operator_belongs_to_one_layer(model: str) -> None:
    graph = build(model, preset="small")
    found = layers(graph)
    names = [n.name for layer in found for n in (*layer.leaders, *(f[0] for f in layer.followers))]
    assert sorted(names) == sorted(node.name for node in graph)
    assert len(found) < len(graph.nodes) / 2
    random, space = Random(0), SearchSpace(graph, 6)
    for _ in range(20):
        layer = found[random.randrange(len(found))]
        for name, config in layer.spread(space[layer.leaders[0]].draw(random)).items():
            config.verify(graph.node(name), 6)


def test_followers_are_cut_where_their_tensor_is() -> None:
    graph = OperatorGraph(name="image")
    x = taskflow.input(graph, (8, 3, 16, 16), name="x")
    y = taskflow.max_pool2d(taskflow.relu(taskflow.conv2d(x, 4, 3, padding=1, name="conv"), name="relu"), 2, name="pool")
    taskflow.linear(taskflow.flatten(y, 1, name="flat"), 10, name="dense")
    conv, dense = layers(graph)
    assert [f[0].name for f in conv.followers if f[0].name != "x"] == ["relu", "pool", "flat"]
    degrees = (2, 1, 2, 1, 1)  # samples and rows; the last is summed over
    spread = conv.spread(on_team(degrees, (3, 2, 1, 0)))
    assert spread["relu"].degrees == spread["pool"].degrees == (2, 1, 2, 1)
    assert spread["relu"].processors == spread["pool"].processors == (3, 2, 1, 0)
    assert spread["x"].degrees[0] == 2 and set(spread["x"].processors) == {0, 1, 2, 3}
    # Cut by channels: who only has samples to cut still uses all processors, each for a part of what lies near it.
    assert dense.leaders[0].name == "dense" and not dense.followers
    wide = conv.spread(on_team((2, 2, 1, 1, 1), (0, 1, 2, 3)))
    assert wide["relu"].degrees == (2, 2, 1, 1) and set(wide["flat"].processors) == {0, 1, 2, 3}


@pytest.mark.parametrize("sums", SUMS)
def test_loads_of_partial_values(sums: SyncAlgorithm) -> None:
    """A network with batch normalisations, cut by samples: from every device to all others there are no messages."""
    graph, machine = build("ResNet-101", devices=8), taskflow.load_machine("k80", 8)
    evaluator = make_evaluator(graph, machine)
    strategy = replace(known(graph, machine)[0], sums=sums)
    evaluator.set(strategy)
    most, loads = max(where_time_goes(evaluator).link_seconds.values()), Loads(evaluator, sums=sums).of(strategy.configs)
    # Of a ring's rounds only the first one's latency counts, so a little less.
    assert 0.85 * most <= loads[8:].max() <= most


@pytest.mark.parametrize(("model", "devices"), [("NMT", 8), ("AlexNet", 12)])
def test_loads_are_what_the_evaluator_says(model: str, devices: int) -> None:
    graph, machine = build(model, devices=devices), taskflow.load_machine("k80", devices)
    evaluator = make_evaluator(graph, machine)
    measured, space = Loads(evaluator), SearchSpace(graph, devices)
    for strategy in known(graph, machine):
        seconds = evaluator.set(strategy)
        usage, loads = where_time_goes(evaluator), measured.of(strategy.configs)
        # Sums and updates are left out, so a little less.
        assert 0.85 * max(usage.processor_seconds) <= loads[:devices].max() <= max(usage.processor_seconds) <= seconds
        most = max(usage.link_seconds.values(), default=0.0)
        assert 0.9 * most <= loads[devices:].max() <= 1.01 * most
    random = Random(1)
    here, there = (random_start(graph, machine, space, random) for _ in range(2))
    changes = {node.name: there[node.name] for node in list(graph)[3:9]}
    after = measured.after(measured.of(here.configs), here.configs, changes)
    assert after == pytest.approx(measured.of({**here.configs, **changes}), abs=1e-12)


@pytest.mark.parametrize("sums", SUMS)
def test_what_alike_layers_share_is_what_each_has(sums: SyncAlgorithm) -> None:
    """Loads that have answered before say bit for bit what ones made anew say, and what is spread for one layer suits another."""
    graph, machine = build("GPT-2", devices=8, preset="small", layers=3), taskflow.load_machine("k80", 8)
    evaluator, space = make_evaluator(graph, machine), SearchSpace(graph, 8)
    evaluator.set(known(graph, machine)[0])
    shared, spreads, random, parts = Loads(evaluator, sums=sums), Spreads(), Random(5), layers(graph)
    configs = dict(random_start(graph, machine, space, random).configs)
    for _ in range(12):
        cut = {layer: space[layer.leaders[0]].draw(random) for layer in parts}
        some = parts[random.randrange(len(parts)) :: 3]
        for layer in some:
            changes = spreads(layer, cut[layer])
            assert list(changes.items()) == list(layer.spread(cut[layer]).items())
            before = shared.of(configs)
            assert np.array_equal(before, Loads(evaluator, sums=sums).of(configs))
            after = shared.after(before, configs, changes)
            assert np.array_equal(after, Loads(evaluator, sums=sums).after(before, configs, changes))
            configs |= changes


def test_layers_that_repeat_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hybrids of a network with three times as many equal blocks cut and follow no more operators."""
    cuts: list[int] = []
    rects, spread = Grid.rects, Layer.spread
    monkeypatch.setattr(Grid, "rects", lambda self: cuts.append(1) or rects(self))
    monkeypatch.setattr(Layer, "spread", lambda self, config: cuts.append(1) or spread(self, config))
    counts = []
    for blocks in (3, 9):
        graph, machine = build("GPT-2", devices=8, preset="small", layers=blocks), taskflow.load_machine("k80", 8)
        evaluator = make_evaluator(graph, machine)
        evaluator.set(known(graph, machine)[0])
        loads, space, parts = Loads(evaluator), SearchSpace(graph, 8), layers(graph)
        cuts.clear()
        assert list(hybrids(graph, machine, space, parts, loads, lambda: False))
        counts.append(len(cuts))
    assert 0 < counts[1] <= 1.3 * counts[0]


def test_annealing_of_layers_improves_and_keeps_layers_together() -> None:
    graph, machine = build("NMT", devices=8, layers=1, steps=20), taskflow.load_machine("k80", 8)
    evaluator = make_evaluator(graph, machine)
    run = SearchSession("tied", evaluator, SearchOptions(Budget(proposals=150)))
    start = run.set(known(graph, machine)[0])
    tied = LayerAnnealing(run, SearchSpace(graph, 8), layers(graph), shapes(machine), Random(0))
    tied.anneal(BudgetPart(run, 1.0), 0.05)
    assert run.best is not None and run.best_seconds < 0.97 * start
    assert evaluator.set(run.best) == run.best_seconds
    for layer in tied.layers:
        assert len({run.best[node.name] for node in layer.leaders}) == 1


def test_hybrids_cut_the_heavy_layer_where_that_helps() -> None:
    """NMT on two nodes or more: the softmax layer goes to groups of processors on different nodes, which share its weights."""
    graph, machine = build("NMT", devices=16), taskflow.load_machine("k80", 16)
    evaluator, space = make_evaluator(graph, machine), SearchSpace(graph, 16)
    data = evaluator.set(known(graph, machine)[0])
    found = layers(graph)
    plans = list(hybrids(graph, machine, space, found, Loads(evaluator), lambda: False))
    assert len(plans) >= 2 and len({plan["encoder.lstm0"].processors for plan in plans}) == len(plans)
    for plan in plans:
        plan.verify(graph)
        assert all(plan[node.name] == plan["softmax"] for node in graph if node.name.startswith("softmax."))
    best = min(plans, key=evaluator.set)
    assert evaluator.set(best) < 0.8 * data
    classes = [dim.name for dim in graph.node("softmax").dims].index("c")
    parts = best["softmax"].degrees[classes]
    assert parts > 1
    assert best["loss.blocks"].degrees[-1] == parts and best["loss.blocks"].processors == best["softmax"].processors
    # Without time there is no plan; with time for little, data parallelism on another order of the processors.
    assert not list(hybrids(graph, machine, space, found, Loads(evaluator), lambda: True))
    asked: list[int] = []
    (little,) = hybrids(graph, machine, space, found, Loads(evaluator), lambda: bool(asked) or bool(asked.append(0)))
    assert little["softmax"].degrees[0] == 16 and sorted(little["softmax"].processors) == list(range(16))


def test_dealt_layers_keep_their_cuts() -> None:
    graph, machine = build("NMT", devices=8, layers=1, steps=20), taskflow.load_machine("k80", 8)
    run = SearchSession("tied", make_evaluator(graph, machine), SearchOptions(Budget(proposals=10)))
    run.set(known(graph, machine)[0])
    tied, before = LayerAnnealing(run, SearchSpace(graph, 8), layers(graph), shapes(machine), Random(0)), run.strategy
    some = [tied._dealt(tied.layers[0], tied.layers) for _ in range(20)]
    assert any(changes[name].processors != before[name].processors for changes in some for name in changes)
    for changes in some:
        placed = {config.processors for name, config in changes.items() if len(config.processors) == 8}
        assert len(placed) == 1
        for layer in tied.layers:
            for node in layer.leaders:
                assert changes[node.name].degrees == before[node.name].degrees


def test_simple_cuts_are_drawn_more_often() -> None:
    """Each of a layer's cuts is drawn, but mostly those of two dimensions at most, none of them contracted."""
    graph, machine = build("AlexNet", devices=8), taskflow.load_machine("p100", 8)
    run = SearchSession("tied", make_evaluator(graph, machine), SearchOptions(Budget(proposals=10)))
    space, found = SearchSpace(graph, 8), layers(graph)
    run.set(known(graph, machine)[0])
    tied, conv = LayerAnnealing(run, space, found, shapes(machine), Random(0)), found[1]
    cuts = space[conv.leaders[0]].cuts(8, nearest=True)
    simple = set(space[conv.leaders[0]].cuts(8, dimensions=2, contracted=False))
    drawn = Counter(tied._drawn(conv, cuts) for _ in range(40 * len(cuts)))
    assert 0 < len(simple) < len(cuts) / 2 and set(drawn) == set(cuts)
    # All once, and the simple ones SIMPLE times as often besides.
    expected = (SIMPLE + len(simple) / len(cuts)) / (SIMPLE + 1)
    assert sum(drawn[cut] for cut in simple) / drawn.total() == pytest.approx(expected, abs=0.04)


def test_synchronisation_by_default_is_the_mappers() -> None:
    graph, machine = build("RNNLM", preset="small"), taskflow.load_machine("k80", 4)
    data = known(graph, machine)[0]
    assert with_syncs(Strategy(4, data.configs, {}, "data"), graph, machine) == data
