"""Exact search equals enumeration; placement stays in its space and finds the best placement of small networks."""

from __future__ import annotations

from itertools import product

import pytest
from fast_and_slow import fast_among
from modules import module_of
from search_toys import every, tiny

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.mapper import OpConfig, Strategy
from taskflow.models import build
from taskflow.optimizer.algorithms.exact import PARTIAL_PER_PROPOSAL, exact
from taskflow.optimizer.algorithms.local_search import polished
from taskflow.optimizer.algorithms.moves import SYNCS
from taskflow.optimizer.budget import Budget
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.result import Proof
from taskflow.optimizer.search import search
from taskflow.optimizer.space.decisions import Nearest, decisions
from taskflow.optimizer.space.followers import followed
from taskflow.optimizer.space.space import SearchSpace, SpaceOptions
from taskflow.optimizer.traffic.edges import Accesses

fixing_order = pytest.importorskip("taskflow.optimizer.bounds.partial_plan", reason="the compiled bound is not built").fixing_order


@pytest.mark.parametrize(("machine", "options"), fast_among(
    [(machine, SpaceOptions("powers", *how)) for machine in ("k80", "p100") for how in ((), ("arbitrary",))],
    [("k80", SpaceOptions("powers", "arbitrary")), ("p100", SpaceOptions("powers"))],
))
def test_exact_search_equals_enumeration(machine: str, options: SpaceOptions) -> None:
    graph, cluster = tiny(4, 8), taskflow.load_machine(machine, devices=2)
    evaluator = make_evaluator(graph, cluster, rule=None)
    best = min(evaluator.set(Strategy(2, configs)) for configs in every(graph, 2, options))
    found = search(graph, cluster, algorithm="exact", space=options, use=evaluator, budget="100000p", alone=True)
    assert found.optimal and found.stopped == "finished"
    assert found.seconds == best == found.lower_bound
    assert found.proof is not None and found.proof.complete
    assert found.proof.strategies == len(every(graph, 2, options))


@pytest.mark.parametrize("samples", [64, 4096])
def test_exact_search_proves_a_trained_network(samples: int) -> None:
    """Configurations and synchronisation against enumeration."""
    graph, cluster = OperatorGraph(name="one layer"), taskflow.load_machine("p100", devices=2)
    x, labels = taskflow.input(graph, (samples, 64), name="x"), taskflow.input(graph, (samples,), "int64", name="labels")
    graph.minimize(taskflow.cross_entropy(taskflow.linear(x, 128, name="fc"), labels, name="loss"))
    evaluator, options = make_evaluator(graph, cluster), SpaceOptions("powers", reduction=False)
    seconds = [evaluator.set(Strategy(2, configs, {"fc": way})) for configs in every(graph, 2, options) for way in SYNCS]
    # The last of all is an incumbent that leaves everything to the proof.
    alone = SearchOptions(Budget(proposals=50_000), space=options, starts=(Strategy(2, every(graph, 2, options)[-1]),))
    found = exact(evaluator, alone)
    assert found.optimal and found.proof is not None and found.proof.strategies == len(seconds)
    assert found.lower_bound == found.seconds <= min(seconds)
    assert found.proof.renumberings == 2 and found.proof.simulated < len(seconds) / 4
    assert evaluator.set(found.strategy) == found.seconds


def test_a_renumbered_plan_that_is_faster_is_found() -> None:
    """The loss goes to processor 0, so plans that differ in names only differ in time; all are simulated."""
    graph, cluster = tiny(3, 4), taskflow.load_machine("p100", devices=4)
    options, evaluator = SpaceOptions("powers"), make_evaluator(graph, cluster, rule=None)
    graph.losses.append(graph.nodes[-1].outputs[0])
    evaluator = make_evaluator(graph, cluster, rule=None)
    best = min(evaluator.set(Strategy(4, configs)) for configs in every(graph, 4, options))
    found = exact(evaluator, SearchOptions(Budget(proposals=100_000), space=options))
    assert found.optimal and found.seconds == best


def test_tolerance_leaves_out_what_is_hardly_faster() -> None:
    graph, cluster = build("LeNet", preset="small"), taskflow.load_machine("p100", devices=2)
    evaluator, budget = make_evaluator(graph, cluster), Budget(proposals=20_000)
    found = exact(evaluator, SearchOptions(budget, space=SpaceOptions("powers"), tolerance=0.2))
    assert found.stopped == "finished" and not found.optimal and found.proof is not None and found.proof.complete
    assert found.gap == pytest.approx(0.2)


@pytest.mark.parametrize("follow", ["passive", "weightless"])
def test_followers_do_not_choose(follow: str) -> None:
    graph, cluster = build("RNNLM-2", preset="small"), taskflow.load_machine("p100", devices=2)
    evaluator, options = make_evaluator(graph, cluster), SpaceOptions("powers", reduction=False, follow=follow)
    space = SearchSpace(graph, 2, options)
    found = decisions(graph, space, fixing_order(evaluator), follow)
    chooses = {decision.nodes[0].name for decision in found}
    weights = {node.name for node in graph if node.parameters}
    passive = {"tokens", "targets", "lstm.h0", "lstm.c1", "targets.split", "mean", "mean.1"}
    assert weights <= chooses and not passive & chooses
    assert (chooses == weights) == (follow == "weightless") and {"loss", "loss.1"} <= chooses | passive | (
        {"loss", "loss.1"} if follow == "weightless" else set()
    )
    assert sorted(node.number for decision in found for node in decision.nodes) == list(range(len(graph)))
    for decision in found:
        assert [configs[0] for configs in decision.choices] == list(space[decision.nodes[0]])
        for node, configs in zip(decision.nodes, zip(*decision.choices)):
            assert all(space[node].contains(config) for config in configs)


def test_a_follower_is_where_its_leader_is() -> None:
    graph = tiny(2, 8)
    space = SearchSpace(graph, 4)
    nearest = Nearest(graph.node("x"), list(space["x"]), graph.node("relu0"), Accesses(graph))
    assert all(nearest(config) == config for config in space["relu0"])


@pytest.mark.parametrize("model", ["AlexNet", "GPT-2", "Inception-v3"])
@pytest.mark.parametrize("follow", ["passive", "elementwise", "weightless"])
def test_everybody_is_decided_about_once(model: str, follow: str) -> None:
    """Also where operators would follow each other in a circle: a view its reader, and that what it reads."""
    graph = build(model, preset="small")
    found = decisions(graph, SearchSpace(graph, 2, SpaceOptions("powers", "contiguous", follow=follow)), list(graph), follow)
    assert sorted(node.number for decision in found for node in decision.nodes) == list(range(len(graph)))
    towards = followed(graph, follow)
    assert {decision.nodes[0].number for decision in found} == set(range(len(graph))) - set(towards)
    for decision in found:
        members = {node.number for node in decision.nodes}
        assert all(towards[node.number] in members for node in decision.nodes[1:])


def test_a_short_budget_is_no_proof_and_a_large_space_is_refused() -> None:
    graph, cluster = build("MLP", preset="small"), taskflow.load_machine("k80", devices=4)
    found = search(graph, cluster, algorithm="exact", budget="100p")
    assert not found.optimal and found.stopped == "budget" and found.proposals <= 100
    assert 0 < found.lower_bound < found.seconds and found.proof is not None and not found.proof.complete
    with pytest.raises(ValueError, match="configurations, at most"):
        search(graph, cluster, algorithm="exact", space=SpaceOptions("any", "arbitrary", most_pieces=16), budget="100p")


def test_partial_plans_need_budget_too() -> None:
    """A proof that needs no simulation at all, but hundreds of bounds."""
    graph, cluster = build("LeNet", devices=4), taskflow.load_machine("p100", devices=4)
    evaluator, space = make_evaluator(graph, cluster), SpaceOptions("powers", reduction=False)
    good = search(graph, cluster, use=evaluator, budget="6000p", memory=False, space=space).strategy

    def prove(budget: Budget) -> tuple[str, Proof]:
        found = exact(evaluator, SearchOptions(budget, space=space, rivals=(good,), tolerance=0.015))
        assert found.proof is not None and found.proof.simulated == 0
        return found.stopped, found.proof

    stopped, proof = prove(Budget(seconds=100))
    needs = proof.partial_plans
    assert stopped == "finished" and needs > 100
    stopped, proof = prove(Budget(proposals=needs / 2 / PARTIAL_PER_PROPOSAL))
    assert stopped == "budget" and proof.partial_plans < needs
    stopped, proof = prove(Budget(seconds=1e-6))
    assert stopped == "budget" and proof.partial_plans < needs


def test_an_interrupted_proof_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, cluster = build("MLP", preset="small"), taskflow.load_machine("p100", devices=2)
    evaluator, calls = make_evaluator(graph, cluster), []
    options = SearchOptions(Budget(proposals=20_000), space=SpaceOptions("powers"))
    whole = exact(evaluator, options)

    def interrupt(self: object, partial: int) -> None:
        calls.append(partial)
        if len(calls) == 10:
            raise KeyboardInterrupt

    monkeypatch.setattr(module_of(exact)._Branch, "_count", interrupt)
    found = exact(evaluator, options)
    assert found.stopped == "interrupted" and not found.optimal
    assert 0 < found.lower_bound <= whole.seconds


def test_placement_finds_the_best_placement() -> None:
    graph, cluster = build("MLP", preset="small"), taskflow.load_machine("p100", devices=2)
    evaluator = make_evaluator(graph, cluster)
    names = [node.name for node in graph]
    best = min(
        evaluator.set(Strategy(2, {n: OpConfig((1,) * len(graph.node(n).dims), (p,)) for n, p in zip(names, chosen)}))
        for chosen in product(range(2), repeat=len(names))
    )
    found = search(graph, cluster, algorithm="placement", use=evaluator, budget="4000p", alone=True)
    assert all(len(c.processors) == 1 for c in found.strategy.configs.values())
    assert found.seconds <= best and found.strategy.name in ("placement", "model", "one processor")
    beaten = search(graph, cluster, algorithm="placement", use=evaluator, budget="4000p")
    assert beaten.seconds <= min(beaten.starts.values())


@pytest.mark.slow
def test_lenet_on_four_devices_is_proved() -> None:
    """3.6e25 strategies, each with 9**5 ways to synchronise its layers (the paper's search took 0.8 h for about 1e11)."""
    graph, cluster = build("LeNet", devices=4), taskflow.load_machine("p100", devices=4)
    options = SpaceOptions("powers", reduction=False)
    found = search(graph, cluster, algorithm="exact", space=options, budget=Budget(2000, 100_000), memory=False)
    assert found.optimal and found.proof is not None and found.proof.strategies > 1e30
    assert found.lower_bound == found.seconds < 0.96 * min(found.starts.values())


def test_polish_ends_where_no_change_of_one_operator_helps() -> None:
    graph, cluster = build("MLP", preset="small"), taskflow.load_machine("p100", devices=4)
    evaluator, options = make_evaluator(graph, cluster), SearchOptions(Budget(proposals=100_000))
    worst = search(graph, cluster, use=evaluator, budget="5p", memory=False, algorithm="mcmc")
    found = polished(evaluator, worst, options)
    assert found.local and found.stopped == "finished" and found.seconds < worst.seconds
    assert found.starts == worst.starts and found.proposals > worst.proposals
    evaluator.set(found.strategy)
    space = SearchSpace(graph, 4)
    assert all(evaluator.propose({node.name: config}) >= found.seconds for node in graph for config in space[node])
    short = polished(evaluator, worst, SearchOptions(Budget(proposals=3)))
    assert not short.local and short.stopped == "budget" and short.seconds <= worst.seconds
