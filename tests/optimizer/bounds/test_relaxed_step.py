"""The lower bound of partial plans: no completion is faster, whatever the graph, the machine, the costs and the order."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from itertools import product
from random import Random

import padded_kernels
import pytest
from core_cases import Odd, shared
from fast_and_slow import fast_among

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.mapper import MessageSync, OpConfig, Strategy, SyncAlgorithm, UpdatePlacement
from taskflow.mapper.strategy import SUMS
from taskflow.models import build
from taskflow.optimizer.algorithms.moves import SYNCS
from taskflow.optimizer.bounds import sync as relax_sync
from taskflow.optimizer.evaluate import evaluator as new_evaluator
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.evaluate.evaluator import Evaluator
from taskflow.optimizer.space.space import SearchSpace, SpaceOptions
from taskflow.optimizer.space.symmetry import Symmetry, renumbered, renumberings
from taskflow.rules import SGD, Adam
from taskflow.tasks.lower.gradient_flow import gradient_flow
from taskflow.tasks.task import Kind
from taskflow.tasks.topic import Purpose

relax = pytest.importorskip("taskflow.optimizer.bounds.partial_plan", reason="the compiled bound is not built")
ARBITRARY, STRUCTURED = SpaceOptions(placements="arbitrary"), SpaceOptions()
NO_LIMIT = float("inf")


def random_graph(random: Random) -> OperatorGraph:
    """A trained network of linear layers (some share their weights), sums, concatenations and activations."""
    graph = OperatorGraph(name="random")
    n = random.choice((4, 6))
    width = random.choice((4, 6))
    tensors = [taskflow.input(graph, (n, width), name="x"), taskflow.input(graph, (n, width), name="y")]
    parameters = None
    for i in range(random.randint(3, 8)):
        x = random.choice(tensors[-3:])
        kind = random.choice(("linear", "shared", "relu", "add", "concat"))
        if kind == "linear" or (kind == "shared" and parameters is None):
            t = taskflow.linear(x, width, name=f"fc{i}")
            parameters = parameters or graph.parameters_of(t)
        elif kind == "shared":
            t = taskflow.linear(x, width, name=f"again{i}", parameters=parameters)
        elif kind == "relu":
            t = taskflow.relu(x, name=f"relu{i}")
        elif kind == "add":
            t = taskflow.add(x, random.choice(tensors), name=f"add{i}")
        else:
            both = taskflow.concat([x, random.choice(tensors)], 1, name=f"concat{i}")
            t = taskflow.linear(both, width, name=f"after{i}")
        tensors.append(t)
    labels = taskflow.input(graph, (n,), "int64", name="labels")
    graph.minimize(taskflow.cross_entropy(taskflow.linear(tensors[-1], 3, name="last"), labels, name="loss"))
    return graph


def check(evaluator: Evaluator, options: SpaceOptions, random: Random, plans: int) -> float:
    """Bounds of partial plans, fixed in a random order, against the time of their completion. The largest share of a
    complete plan's time that its bound is."""
    graph, processors = evaluator.graph, len(evaluator.machine.processors)
    space = SearchSpace(graph, processors, options)
    choices = {node.name: list(dict.fromkeys(space[node].draw(random) for _ in range(6))) for node in graph}
    syncs, sums = random.sample(SYNCS, 2), random.choice(SUMS)
    relaxation = relax.Relaxation(evaluator, choices, syncs, sums=sums)
    root = relaxation.seconds(NO_LIMIT)[0]
    best = 0.0
    for _ in range(plans):
        picks = [random.randrange(len(configs)) for configs in relaxation.choices]
        configs = {node.name: of[i] for node, of, i in zip(relaxation.order, relaxation.choices, picks)}
        ways = {layer: random.choice(syncs) for layer in relaxation.layers}
        seconds = evaluator.set(Strategy(processors, configs, ways, sums=sums)) * (1 + 1e-9)
        order = list(range(len(picks)))
        if random.random() < 0.5:
            random.shuffle(order)
        bound = root
        assert bound <= seconds
        for op in order:
            relaxation.fix([op], [picks[op]])
            bound = relaxation.seconds(NO_LIMIT)[0]
            assert bound <= seconds, f"after {relaxation.order[op].name}"
        for number, layer in enumerate(relaxation.layers):
            relaxation.use(number, ways[layer], 0)
        exact = relaxation.seconds(NO_LIMIT)[0]
        assert bound * (1 - 1e-9) <= exact <= seconds
        best = max(best, exact / seconds)
        for number in range(len(relaxation.layers)):
            relaxation.unuse(number)
        for op in reversed(order):
            relaxation.free([op])
        assert relaxation.seconds(NO_LIMIT)[0] == pytest.approx(root, rel=1e-12)
    return best


@pytest.mark.parametrize("seed", range(60))
def test_no_completion_of_a_random_graph_is_faster(seed: int) -> None:
    random = Random(seed)
    processors = random.randint(1, 4)
    rule = random.choice((SGD(0.1, momentum=0.9), SGD(0.1), Adam(), None))
    clip = random.choice((None, 1.0))
    if seed % 2:
        evaluator = new_evaluator(random_graph(random), shared(processors), Odd(2), rule, clip)
    else:
        machine = taskflow.load_machine(random.choice(("k80", "p100")), devices=processors)
        evaluator = make_evaluator(random_graph(random), machine, rule=rule, clip_norm=clip)
    check(evaluator, random.choice((STRUCTURED, ARBITRARY)), random, 6)


@pytest.mark.parametrize("seed", range(4))
def test_what_of_a_kernel_no_task_uses_is_in_the_bound(seed: int) -> None:
    random = Random(seed)
    check(new_evaluator(padded_kernels.network(), shared(3), Odd(2), random.choice((SGD(0.1), Adam())), None), ARBITRARY, random, 4)


@pytest.mark.parametrize("seed", fast_among(range(46), (*range(12), 40, 41)))
def test_a_layers_synchronisation_is_what_is_lowered(seed: int) -> None:
    """Task by task, on random processors: what is sent, added and updated, where, and what it costs."""
    random, processors = Random(seed), 4
    graph = random_graph(random) if seed < 40 else padded_kernels.network()
    evaluator = new_evaluator(graph, shared(processors), Odd(2), random.choice((SGD(0.1, momentum=0.9), Adam())), None)
    assert evaluator.rule is not None
    space, (active, _, trained) = SearchSpace(evaluator.graph, processors, ARBITRARY), gradient_flow(evaluator.graph)
    for way in SYNCS:
        configs = {node.name: space[node].draw(random) for node in evaluator.graph}
        plan = Strategy(processors, configs, {p.layer: way for p in evaluator.graph.parameters})
        lowered = evaluator.lowered(plan)
        layers = dict.fromkeys(p.layer for p in evaluator.graph.parameters)
        for number, layer in enumerate(layers):
            users = [(n, configs[n.name]) for n in evaluator.graph if any(p.layer == layer for p in n.parameters)]
            if any(node.number not in active for node, _ in users):
                continue  # some holders make no gradient; the bound says nothing of such a layer
            bundles = relax_sync.bundles_of(evaluator.graph, users, trained)
            rows = relax_sync.layer_sync(relax_sync.Prices(evaluator.costs), evaluator.rule, way, bundles, number)
            kinds = (Kind.COPY, Kind.SUM, Kind.UPDATE, Kind.COLLECTIVE)
            wanted = Counter(
                (-1 if task.kind.travels else task.processor, evaluator.costs.task(task))
                for task in lowered.tasks if task.topic.name == layer and task.kind in kinds
                and task.topic.purpose in (Purpose.WEIGHT_GRADIENTS, Purpose.NEW_WEIGHTS, Purpose.UPDATE)
            )
            assert Counter((processor, seconds) for processor, seconds, _, _ in rows) == wanted


def test_an_unknown_way_to_synchronise_is_refused() -> None:
    """Not taken for another one, which would make a proof wrong in silence."""

    class Other(Enum):
        PIGEON = "pigeon"

    evaluator = make_evaluator(build("MLP", preset="small"), taskflow.load_machine("p100", devices=2))
    prices, held = relax_sync.Prices(evaluator.costs), relax_sync.HeldBundle(8, 4, True, {0: ((0, 0),), 1: ((0, 1),)})
    assert evaluator.rule is not None
    for way in (MessageSync(Other.PIGEON, UpdatePlacement.SHARDED), MessageSync(SyncAlgorithm.RING, Other.PIGEON)):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"does not know .* Other\.PIGEON"):
            relax_sync.layer_sync(prices, evaluator.rule, way, [held], 0)


@pytest.mark.parametrize("model", ["LeNet", "RNNLM-2", "MLP", "AlexNet", "RNNTC"])
def test_no_completion_of_a_network_is_faster(model: str) -> None:
    random = Random(model)
    for machine, devices, options in (("p100", 4, STRUCTURED), ("k80", 4, ARBITRARY), ("p100", 8, STRUCTURED)):
        evaluator = make_evaluator(build(model, preset="small"), taskflow.load_machine(machine, devices=devices))
        check(evaluator, options, random, 3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 2500))
def test_no_completion_of_many_random_graphs_is_faster(seed: int) -> None:
    test_no_completion_of_a_random_graph_is_faster(seed)


@pytest.mark.parametrize("rule", [SGD(0.1, momentum=0.9), None])
def test_all_completions_of_all_partial_plans(rule: SGD | None) -> None:
    graph = OperatorGraph(name="one layer")
    x, labels = taskflow.input(graph, (64, 64), name="x"), taskflow.input(graph, (64,), "int64", name="labels")
    graph.minimize(taskflow.cross_entropy(taskflow.linear(x, 128, name="fc"), labels, name="loss"))
    evaluator = make_evaluator(graph, taskflow.load_machine("p100", devices=2), rule=rule)
    space = SearchSpace(graph, 2, SpaceOptions("powers", reduction=False))
    relaxation = relax.Relaxation(evaluator, {node.name: list(space[node]) for node in graph}, SYNCS)
    ways = SYNCS if rule else (MessageSync(),)
    seconds = {}
    for picks in product(*(range(len(configs)) for configs in relaxation.choices)):
        configs = {node.name: of[i] for node, of, i in zip(relaxation.order, relaxation.choices, picks)}
        seconds[picks] = min(evaluator.set(Strategy(2, configs, {"fc": way})) for way in ways)
    for depth in range(len(relaxation.order) + 1):
        least: dict[tuple[int, ...], float] = {}
        for picks, value in seconds.items():
            least[picks[:depth]] = min(value, least.get(picks[:depth], value))
        for picks, value in least.items():
            relaxation.fix(range(depth), picks)
            assert 0 < relaxation.seconds(NO_LIMIT)[0] <= value * (1 + 1e-9)
            relaxation.free(range(depth))


@pytest.mark.parametrize(("model", "share"), [("LeNet", 0.99), ("AlexNet", 0.95), ("RNNLM-2", 0.95)])
def test_a_found_plans_bound_is_close(model: str, share: float) -> None:
    graph, cluster = build(model, devices=4), taskflow.load_machine("p100", devices=4)
    evaluator = make_evaluator(graph, cluster)
    ways = {"*": {"sync": "owner/spread"}}  # a strategy's default, which bound and plan are asked with
    found = taskflow.search(graph, cluster, use=evaluator, budget="1500p", memory=False, constraints=ways)
    configs = found.strategy.configs
    relaxation = relax.Relaxation(evaluator, {name: [config] for name, config in configs.items()})
    everything = range(len(relaxation.order))
    relaxation.fix(everything, [0] * len(everything))
    bound = relaxation.seconds(NO_LIMIT)[0]
    assert evaluator.set(Strategy(4, configs)) == found.seconds
    assert share * found.seconds < bound <= found.seconds * (1 + 1e-9)  # sums in another order


def test_a_bound_over_renumberings_holds_for_each() -> None:
    graph, cluster = build("LeNet", preset="small"), taskflow.load_machine("p100", devices=4)
    evaluator, random = make_evaluator(graph, cluster), Random(0)
    group = renumberings(evaluator.costs, 4)
    assert len(group) == 24
    space = SearchSpace(graph, 4, ARBITRARY)
    for _ in range(6):
        configs = {node.name: space[node].draw(random) for node in graph}
        relaxation = relax.Relaxation(evaluator, {name: [config] for name, config in configs.items()}, SYNCS[:2], group)
        everything = range(len(relaxation.order))
        relaxation.fix(everything, [0] * len(everything))
        bound = relaxation.seconds(NO_LIMIT)[0]
        for number, image in enumerate(group):
            plan = {name: renumbered(config, image) for name, config in configs.items()}
            for way in SYNCS[:2]:
                seconds = evaluator.set(Strategy(4, plan, dict.fromkeys(relaxation.layers, way)))
                for layer in range(len(relaxation.layers)):
                    relaxation.use(layer, way, number)
                assert bound * (1 - 1e-9) <= relaxation.seconds(NO_LIMIT)[0] <= seconds * (1 + 1e-9)


@pytest.mark.parametrize(("machine", "devices", "count"), [("p100", 4, 24), ("k80", 4, 8), ("p100", 8, 2 * 24**2), ("k80", 2, 2)])
def test_renumberings_are_the_machines_symmetries(machine: str, devices: int, count: int) -> None:
    cluster = taskflow.load_machine(machine, devices=devices)
    evaluator = make_evaluator(build("MLP", preset="small"), cluster)
    group = renumberings(evaluator.costs, devices)
    assert len(set(group)) == len(group) == count and group[0] == tuple(range(devices))
    for image in group[:: max(1, count // 30)]:
        assert any(all(other[image[p]] == p for p in range(devices)) for other in group)


def test_unequal_processors_are_not_renumbered() -> None:
    assert renumberings(Odd(2), 2) == [(0, 1)]


def test_representatives_cover_all_choices() -> None:
    costs = make_evaluator(build("MLP", preset="small"), taskflow.load_machine("p100", devices=3)).costs
    choices = [[(OpConfig((2,), (p, q)),) for p in range(3) for q in range(3)]] * 2
    symmetry = Symmetry(costs, 3, choices)
    everyone = list(range(len(symmetry.group)))
    seen = set()
    for first in symmetry.representatives(0, everyone):
        for second in symmetry.representatives(1, symmetry.stabilizer(0, first, everyone)):
            seen.update((image[0][first], image[1][second]) for image in symmetry.image)
    assert len(symmetry.representatives(0, everyone)) == 2
    assert seen == {(i, j) for i in range(9) for j in range(9)}
