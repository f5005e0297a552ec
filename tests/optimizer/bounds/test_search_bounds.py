"""The lower bound of whole spaces, also of those that are too large to look at every cut."""

from __future__ import annotations

from math import prod
from random import Random

import padded_kernels
import pytest
from fast_and_slow import fast_among

import taskflow
from taskflow.machine import host
from taskflow.mapper import OpConfig, Strategy
from taskflow.models import build
from taskflow.optimizer.algorithms.initial import known, random_start
from taskflow.optimizer.bounds import work_and_path as bounds
from taskflow.optimizer.bounds.updates import LeastUpdates
from taskflow.optimizer.bounds.work_and_path import least_of, lower_bound, representatives, rounded
from taskflow.optimizer.cost.pieces import Pieces, classes
from taskflow.optimizer.evaluate import evaluator as new_evaluator
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.space.space import OperatorSpace, SearchSpace, SpaceOptions
from taskflow.rules import SGD, Adam, UpdateRule


@pytest.mark.parametrize(("model", "machine"), [("LeNet", "k80"), ("RNNTC", "p100"), ("AlexNet", "p100"), ("MLP", "k80")])
def test_rounded_degrees_give_a_bound_too(model: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, cluster = build(model, preset="small"), taskflow.load_machine(machine, devices=4)
    evaluator, options, random = make_evaluator(graph, cluster), SpaceOptions(placements="arbitrary"), Random(model)
    each = lower_bound(evaluator, options)
    monkeypatch.setattr(bounds, "MOST_KINDS", 0)
    by_two = lower_bound(evaluator, options)
    monkeypatch.setattr(bounds, "LOOKS", 0)
    by_eight = lower_bound(evaluator, options)
    assert 0 < by_two <= each * (1 + 1e-9) and 0 < by_eight <= each * (1 + 1e-9)
    space = SearchSpace(graph, 4, options)
    for _ in range(40):
        assert evaluator.set(Strategy(4, space.random(random))) >= each
    for strategy in known(graph, cluster):
        assert evaluator.set(strategy) >= each


@pytest.mark.parametrize(("model", "bits"), fast_among(
    [(model, bits) for model in ("LeNet", "AlexNet", "NMT", "Transformer") for bits in (1, 2, 3)],
    [("LeNet", 3), ("AlexNet", 2), ("NMT", 1), ("NMT", 3), ("Transformer", 1)],
))
def test_no_cut_needs_less_than_the_rounded_ones(model: str, bits: int) -> None:
    """Of every operator by itself: total, shortest tasks, and what is read."""
    graph, cluster = build(model, preset="small"), taskflow.load_machine("p100", devices=6)
    evaluator = make_evaluator(graph, cluster)
    pieces, space, seen = Pieces(graph, evaluator.costs, True), SearchSpace(graph, 6), set()
    for node in graph:
        if (node.operator, node.specs) in seen:
            continue
        seen.add((node.operator, node.specs))
        tuples = space[node].tuples
        exact = least_of(pieces, node, tuples, [0])
        least = rounded(pieces, node, tuples, [0], bits)
        assert least.total <= exact.total * (1 + 1e-9), node.name
        assert least.forward <= exact.forward and least.backward <= exact.backward, node.name
        assert all(sure or not said for sure, said in zip(exact.always, least.always)), node.name


@pytest.mark.parametrize(("model", "machine"), [("NMT", "k80"), ("RNNLM", "p100")])
def test_a_large_space_has_a_bound(model: str, machine: str) -> None:
    count = {"k80": 64, "p100": 16}[machine]
    graph, cluster = build(model, devices=count), taskflow.load_machine(machine, devices=count)
    evaluator = make_evaluator(graph, cluster)
    bound = lower_bound(evaluator)
    for strategy in known(graph, cluster):
        assert bound <= evaluator.set(strategy)
    assert bound > 0.05 * evaluator.set(known(graph, cluster)[0])


def test_updates_of_any_division_take_at_least_as_long() -> None:
    graph, cluster = build("MLP", preset="small"), taskflow.load_machine("p100", devices=3)
    evaluator, random = make_evaluator(graph, cluster, rule=Adam()), Random(0)
    space, kinds = SearchSpace(graph, 3), representatives(evaluator)
    layers = dict.fromkeys(p.layer for p in graph.parameters)
    updates = LeastUpdates(evaluator, kinds)
    least = {layer: updates.of(layer) for layer in layers}
    for _ in range(30):
        tasks = evaluator.lowered(Strategy(3, space.random(random)))
        spent = dict.fromkeys(layers, 0.0)
        for task in tasks:
            if task.kind.value == "update":
                layer = next(name for name in layers if task.name.startswith((f"update {name}[", f"update {name}#")))
                spent[layer] += evaluator.costs.task(task)
                assert evaluator.costs.task(task) >= least[layer][1] > 0
        assert all(spent[layer] >= total > 0 for layer, (total, _) in least.items())


def test_layers_that_share_what_is_found_have_the_bounds_of_each_alone() -> None:
    """In whatever order they are asked for."""
    evaluator = make_evaluator(build("AlexNet", preset="small"), taskflow.load_machine("p100", devices=2), rule=Adam())
    layers = list(dict.fromkeys(p.layer for p in evaluator.graph.parameters))
    alone = {layer: LeastUpdates(evaluator, [0]).of(layer) for layer in layers}
    assert len(set(alone.values())) > 3
    for order in (layers, layers[::-1], Random(0).sample(layers, len(layers))):
        together = LeastUpdates(evaluator, [0])
        assert {layer: together.of(layer) for layer in order} == alone


def test_costs_of_whole_tasks_give_no_bound() -> None:
    assert lower_bound(new_evaluator(build("MLP", preset="small"), host(2), lambda task: 1e-6, None)) == 0.0


NETWORKS = ("Inception-v3", "ResNet-101", "AlexNet", "NMT", "Transformer", "RNNLM")
ON = [(machine, model) for machine in ("k80", "h100") for model in NETWORKS]


@pytest.mark.parametrize(("machine", "model"), fast_among(ON, [("k80", "ResNet-101"), ("k80", "AlexNet"), ("h100", "Transformer")]))
def test_no_cut_takes_less_than_the_costs_say_is_the_least(model: str, machine: str) -> None:
    graph, where = build(model, preset="small"), taskflow.load_machine(machine, 8)
    evaluator = make_evaluator(graph, where)
    pieces, random, stated = Pieces(graph, evaluator.costs, True), Random(3), 0
    for node in {(n.operator, n.specs): n for n in graph}.values():
        tuples = OperatorSpace(node.dims, 64).tuples
        active = node.number in pieces.active
        least = evaluator.costs.least(node, False, 0) + (evaluator.costs.least(node, True, 0) if active else 0.0)
        stated += least > 0
        cuts = [tuple(1 for _ in node.dims), tuples[-1], *(random.choice(tuples) for _ in range(12))]
        if node.operator.kind != "state":
            for degrees in cuts:
                total = sum(count * sum(pieces.seconds(node, piece, 0)) for piece, count in classes(node, degrees))
                assert least <= total * (1 + 1e-9), (node.name, degrees, least / total)
    assert stated > 3


@pytest.mark.parametrize("rule", [SGD(lr=0.1, momentum=0.9), Adam()])
def test_what_of_a_kernel_meets_only_padding_is_updated_too(rule: UpdateRule) -> None:
    """A 3 x 3 kernel over an image of one pixel: no task reads the eight outer elements, and every plan updates them."""
    graph, alone = taskflow.OperatorGraph(), taskflow.load_machine("k80", devices=1)
    x = taskflow.input(graph, (2, 256, 1, 1), name="x")
    y = taskflow.flatten(taskflow.conv2d(x, 256, 3, padding=1, name="conv"), 1)
    graph.minimize(taskflow.cross_entropy(y, taskflow.input(graph, (2,), "int64", name="label")))
    evaluator = make_evaluator(graph, alone, rule=rule)
    seconds = evaluator.set(known(graph, alone)[0])
    assert 0.5 * seconds < lower_bound(evaluator) <= seconds
    updates = [evaluator.costs.task(task) for task in evaluator.lowered() if task.kind.value == "update"]
    assert 0.9 * sum(updates) < LeastUpdates(evaluator, [0]).of("conv")[0] <= sum(updates)


@pytest.mark.parametrize("seed", range(3))
def test_no_plan_of_padded_kernels_is_below_the_bound(seed: int) -> None:
    graph, where, random = padded_kernels.network(), taskflow.load_machine("k80", devices=4), Random(seed)
    evaluator = make_evaluator(graph, where, rule=Adam())
    bound = lower_bound(evaluator)
    assert all(bound <= evaluator.set(random_start(graph, where, SearchSpace(graph, 4), random)) for _ in range(20))


def test_behind_a_layer_that_sees_only_padding_nothing_is_trained() -> None:
    graph, alone = taskflow.OperatorGraph(), taskflow.load_machine("k80", devices=1)
    x = taskflow.input(graph, (2, 4), name="x")
    before = taskflow.reshape(taskflow.linear(x, 64, name="before"), (2, 64, 1, 1))
    y = taskflow.conv2d(before, 2, 1, stride=4, padding=2, name="conv")  # windows at -2 and 2 of an image of one pixel
    graph.minimize(taskflow.cross_entropy(taskflow.flatten(y, 1), taskflow.input(graph, (2,), "int64", name="label")))
    evaluator = make_evaluator(graph, alone)
    seconds = evaluator.set(known(graph, alone)[0])
    assert lower_bound(evaluator) <= seconds


def enlarging() -> taskflow.OperatorGraph:
    """Transposed convolutions whose stride does not divide the kernel, so that every other output takes half of the arithmetic."""
    graph = taskflow.OperatorGraph()
    x = taskflow.input(graph, (2, 32, 6, 5), name="x")
    y = taskflow.conv_transpose2d(x, 48, 3, stride=2, padding=1, output_padding=1, name="first")
    y = taskflow.conv_transpose2d(y, 4, (5, 2), stride=(3, 2), padding=(2, 0), name="second")
    label = taskflow.input(graph, (2,), "int64", name="label")
    graph.minimize(taskflow.cross_entropy(taskflow.linear(taskflow.flatten(y, 1), 3, name="fc"), label, name="loss"))
    return graph


@pytest.mark.parametrize("machine", ["k80", "h100"])
def test_where_arithmetic_depends_on_the_place_every_piece_is_looked_at(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, where, random = enlarging(), taskflow.load_machine(machine, devices=8), Random(0)
    evaluator = make_evaluator(graph, where)
    bound = lower_bound(evaluator)
    monkeypatch.setattr(bounds, "MOST_KINDS", 0)
    assert 0 < lower_bound(evaluator) <= bound
    assert all(bound <= evaluator.set(random_start(graph, where, SearchSpace(graph, 8), random)) for _ in range(20))
    pieces, space, differ = Pieces(graph, evaluator.costs, True), SearchSpace(graph, 8), 0
    for name in ("first", "second"):
        node = graph.node(name)
        tuples = space[node].tuples
        for degrees in tuples:
            every = [pieces.seconds(node, piece, 0) for piece in OpConfig(degrees, (0,) * prod(degrees)).partition(node).rects()]
            least = least_of(pieces, node, [degrees], [0])
            assert least.total == pytest.approx(sum(map(sum, every)), rel=1e-9), (name, degrees)
            assert (least.forward, least.backward) == tuple(map(min, zip(*every))), (name, degrees)
            differ += len({round(a, 12) for a, _ in every}) > 1
    assert differ > 10
