"""Routing to experts: GShard's algorithm 1 against a transcription of it, indices against the printed einsums, cuts,
dropless."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from language_model import random_strategy, undivided
from operator_bench import evaluate

import taskflow.operators as ops
from taskflow.graph import OperatorGraph
from taskflow.kernels import NumpyKernels, default_kernels
from taskflow.mapper import OpConfig, Strategy
from taskflow.operators.dropout import generator_key
from taskflow.operators.operator import Call, Init, Spec, StepState, Target
from taskflow.operators.tensor import Tensor
from taskflow.operators.top_k_routing import TopKRouting, capacity_of
from taskflow.regions import Rect
from taskflow.rules import SGD
from taskflow.runtime.executor import Executor
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.topic import Purpose

NAME = "gating"


def algorithm_1(gates: np.ndarray, capacity: int, numbers: np.ndarray, as_printed: bool) -> tuple[Any, ...]:
    """GShard's algorithm 1, line by line, for one group: gates (S, E) and the tokens' random numbers (S). Returns the combine
    weights (S, E), the places (S, E), -1 where there is none, the auxiliary loss, how many tokens found their first and their
    second choice full, and how many wanted each expert. Not ``as_printed``: line 24 only for tokens that are dispatched."""
    tokens, experts = gates.shape
    counts = [0] * experts
    means = [sum(gates[s, e] for s in range(tokens)) / tokens for e in range(experts)]
    weights, places, full = np.zeros((tokens, experts)), np.full((tokens, experts), -1), [0, 0]
    best, wanted = [], [0] * experts
    for s in range(tokens):
        e1, e2 = sorted(range(experts), key=lambda e: -gates[s, e])[:2]
        g1, g2 = gates[s, e1], gates[s, e2]
        best.append((g1, e1, g2, e2))
        wanted[e1] += 1
        c = counts[e1]
        if c < capacity:
            weights[s, e1], places[s, e1] = g1 / (g1 + g2), c
        else:
            full[0] += 1
        counts[e1] = c + 1
    loss = sum(counts[e] / tokens * means[e] for e in range(experts)) / experts
    for s in range(tokens):
        g1, e1, g2, e2 = best[s]
        g2 = g2 / (g1 + g2)
        c = counts[e2]
        wanted[e2] += bool(2 * g2 > numbers[s])
        if c < capacity and 2 * g2 > numbers[s]:
            weights[s, e2], places[s, e2] = g2, c
            counts[e2] = c + 1
        else:
            full[1] += bool(2 * g2 > numbers[s])
            counts[e2] = c + as_printed
    return weights, places, loss, full, wanted


def routed(operator: TopKRouting, scores: np.ndarray, state: StepState, piece: Rect | None = None) -> Call:
    """The task of a piece of scores (G, S, E), forward done."""
    specs = (Spec(scores.shape, scores.dtype),)
    piece = piece or Rect.of(scores.shape)
    writes = operator.writes(specs, piece)
    call = Call(
        NAME, specs, piece, operator.reads(specs, piece), writes, default_kernels(), state,
        inputs=(np.ascontiguousarray(scores[piece.slices(Rect.of(scores.shape))]),),
        outputs=tuple(np.zeros(rect.shape, spec.dtype) for rect, spec in zip(writes, operator.output(specs))),
        saved=tuple(np.zeros(spec.shape, spec.dtype) for spec in operator.saves(specs, piece)),
    )
    operator.forward(call)
    return call


def test_gating_is_algorithm_1_in_2000_groups() -> None:
    """In both conventions; they agree in some groups and not in others, so that a wrong choice would show."""
    groups = agree = 0
    random = Random(25)
    while groups < 2000:
        many, tokens, experts = random.randint(1, 40), random.randint(1, 24), random.randint(2, 8)
        capacity, seed, step = random.randint(1, 8), random.randrange(2**40), random.randrange(1000)
        scores = np.random.default_rng(groups).normal(size=(many, tokens, experts)) * random.choice((0.3, 1, 3))
        gates = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        state, numbers = StepState(seed=seed, step=step), np.empty((many, tokens))
        NumpyKernels().uniform(generator_key(state, NAME), step, numbers.shape, (0, 0), numbers)
        both = []
        for as_printed in (True, False):
            call = routed(TopKRouting(2, capacity, random=True, count_all=as_printed), scores, state)
            weights, slots, loss, load, overflow = call.outputs
            both.append(slots)
            for g in range(many):
                wanted, places, wanted_loss, full, load_wanted = algorithm_1(gates[g], capacity, numbers[g], as_printed)
                combine, found = np.zeros((tokens, experts)), np.full((tokens, experts), -1)
                for s in range(tokens):
                    for weight, slot in zip(weights[g, s], slots[g, s]):
                        if slot >= 0:
                            combine[s, slot // capacity], found[s, slot // capacity] = weight, slot % capacity
                np.testing.assert_array_equal(found, places)
                np.testing.assert_allclose(combine, wanted, rtol=1e-13)
                assert loss[g] == pytest.approx(wanted_loss, rel=1e-13)
                assert list(overflow[g]) == full and list(load[g]) == load_wanted
                assert sum(load_wanted) - sum(full) == (places >= 0).sum()
        agree += sum(np.array_equal(a, b) for a, b in zip(*both))
        groups += many
    assert 0.1 * groups < agree < 0.9 * groups


def test_the_auxiliary_losss_gradient_goes_through_the_mean_gates_alone() -> None:
    """With the counts as constants its gradient is that of a softmax's weighted mean."""
    scores = np.random.default_rng(1).normal(size=(3, 7, 4))
    operator = TopKRouting(2, 2, random=True)
    call = routed(operator, scores, StepState())
    call.grad_outputs = (None, None, np.array([1.0, 2.0, -1.0]), None, None)
    call.grad_inputs = (Target(np.empty_like(scores), False),)
    operator.backward(call)
    gates = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    counts = np.stack([np.bincount(gates[g].argmax(-1), minlength=4) for g in range(3)])
    slope = np.array([1.0, 2.0, -1.0])[:, None, None] * counts[:, None] / (4 * 7 * 7)
    expected = gates * (slope - (slope * gates).sum(-1, keepdims=True))
    np.testing.assert_allclose(call.grad_inputs[0].array, expected, rtol=1e-12, atol=1e-16)


def test_random_numbers_are_those_of_the_tokens_places() -> None:
    scores = np.random.default_rng(2).normal(size=(8, 6, 4)) * 0.2
    operator, state = TopKRouting(2, 6, random=True), StepState(seed=3, step=5)
    whole = routed(operator, scores, state)
    for first, last in ((0, 1), (3, 8), (7, 8)):
        part = routed(operator, scores, state, Rect((first, 0, 0), (last, 6, 4)))
        for mine, all_of_it in zip(part.outputs, whole.outputs):
            np.testing.assert_array_equal(mine, all_of_it[first:last])
    assert not np.array_equal(whole.outputs[1], routed(operator, scores, StepState(seed=3, step=6)).outputs[1])
    evaluated = routed(operator, scores, StepState(seed=3, step=5, training=False))
    assert (evaluated.outputs[1] >= 0).sum() > (whole.outputs[1] >= 0).sum()
    assert (evaluated.outputs[1][..., 1] >= 0).sum() + evaluated.outputs[4][:, 1].sum() == 48  # every second choice is tried


def test_tokens_within_a_group_cannot_be_cut() -> None:
    graph = OperatorGraph()
    ops.top2_gating(ops.input(graph, (2, 6, 4), name="scores"), 4, name="gating")
    node = graph.node("gating")
    assert [(dim.name, dim.divisible) for dim in node.dims] == [("n", True), ("a1", False), ("e", False)]


def test_capacity_is_lingvos() -> None:
    assert [capacity_of(*given) for given in ((64, 4, 2.0), (64, 16, 1.0), (1024, 2048, 2.0), (100, 8, 1.0))] == [32, 4, 4, 12]


def layer(graph: OperatorGraph, x: Tensor, einsums: bool, dropless: bool = False, capacity: int = 4) -> tuple[Tensor, Tensor]:
    """A layer of four experts over x (G, S, M) by indices, by the printed einsums or without a capacity, and its
    loss."""
    experts, inner = 4, 5
    scores = ops.linear(x, experts, False, name="wg")
    if dropless:
        weights, chosen, loss, *_ = ops.top_k_routing(scores, 2, name="gating")
        h = ops.relu(ops.routed_linear(x, chosen, experts, inner, name="wi"))
        return ops.einsum("gskm,gsk->gsm", ops.routed_linear(h, chosen, experts, x.shape[2], name="wo"), weights), loss
    weights, slots, loss, *_ = ops.top2_gating(scores, capacity, name="gating")
    if not einsums:
        h = ops.relu(ops.expert_linear(ops.dispatch(x, slots, experts, capacity, name="dispatch"), inner, name="wi"), name="act")
        return ops.combine(ops.expert_linear(h, x.shape[2], name="wo"), weights, slots, name="combine"), loss
    combine, mask = ops.combine_weights(weights, slots, experts, capacity)
    sent = ops.einsum("GSEC,GSM->EGCM", mask, x)
    wi, wo = (
        ops.expand_weight(graph, shape, shape, init=Init("normal", 0.3), name=name)
        for shape, name in (((4, x.shape[2], 5), "wi"), ((4, 5, x.shape[2]), "wo"))
    )
    h = ops.relu(ops.einsum("EGCM,EMH->EGCH", sent, wi))
    return ops.einsum("GSEC,GECM->GSM", combine, ops.einsum("EGCH,EHM->GECM", h, wo)), loss


@pytest.mark.parametrize("capacity", [1, 2, 7])
def test_indices_give_what_the_printed_einsums_give(capacity: int) -> None:
    numbers, results = np.random.default_rng(4), []
    x = numbers.normal(size=(5, 7, 6))
    seed, aux = numbers.normal(size=(5, 7, 6)), numbers.normal(size=5)
    wi, wo, wg = numbers.normal(size=(4, 6, 5)), numbers.normal(size=(4, 5, 6)), numbers.normal(size=(4, 6))
    for einsums in (True, False):
        graph = OperatorGraph("float64")
        y, loss = layer(graph, ops.input(graph, x.shape, name="x"), einsums, capacity=capacity)
        names = ("wi", "wo") if einsums else ("wi.weight", "wo.weight")
        turned = [wi, wo] if einsums else [wi.swapaxes(1, 2), wo.swapaxes(1, 2)]
        parameters = {"wg.weight": wg, **dict(zip(names, turned))}
        tensors, gradients = evaluate(graph, {"x": x}, parameters, {y: seed, loss: aux})
        found = [gradients[name] if einsums else gradients[name].swapaxes(1, 2) for name in names]
        results.append([tensors[y], tensors[loss], gradients["x"], gradients["wg.weight"], *found])
    for printed, indexed in zip(*results):
        np.testing.assert_allclose(indexed, printed, rtol=1e-11, atol=1e-13)
    assert capacity > 1 or not results[0][0].any(axis=-1).all(), "no token overflowed at both experts"


def network(einsums: bool = False, dropless: bool = False) -> OperatorGraph:
    """A layer of experts past which its input goes, and both losses."""
    graph = OperatorGraph("float64", "experts")
    x = ops.input(graph, (8, 6, 5), name="x")
    wanted = ops.input(graph, (8, 6, 6), name="wanted")
    x = ops.linear(x, 6, name="first")
    y, loss = layer(graph, x, einsums, dropless)
    graph.minimize(ops.mse_loss(ops.add(x, y, name="add"), wanted, name="loss"), ops.scale(ops.mean(loss), 0.5, name="aux"))
    return graph


def losses(graph: OperatorGraph, strategy: Strategy) -> list[float | None]:
    numbers, run = np.random.default_rng(0), Executor(graph, strategy, SGD(0.2), seed=2)
    feeds = {"x": numbers.normal(size=(8, 6, 5)), "wanted": numbers.normal(size=(8, 6, 6))}
    return [run.train(feeds) for _ in range(3)]


@pytest.mark.parametrize("kind", ["indices", "einsums", "dropless"])
def test_losses_are_the_same_under_any_strategy(kind: str) -> None:
    graph = network(kind == "einsums", kind == "dropless")
    whole = losses(graph, undivided(graph))
    assert whole[2] < whole[0]
    for seed in range(16):
        found = losses(graph, random_strategy(graph, 2 + seed % 5, Random(seed)))
        np.testing.assert_allclose(found, whole, rtol=1e-10)


def test_expert_parallelism_is_a_cut_and_the_resplit_is_copies() -> None:
    """Groups over four processors, experts over the same four: three quarters of the dispatched tokens travel, twice
    forward and twice back, and the gate's weights alone are on all."""
    graph, each = network(), (0, 1, 2, 3)
    configs = {}
    for node in graph:
        names = [dim.name for dim in node.dims]
        cut = "e" if node.name in ("wi", "wo") else "e/4" if node.name == "act" else "n"
        at = 1 if cut == "e/4" else names.index(cut) if cut in names else None
        degrees = tuple(4 if i == at else 1 for i in range(len(names)))
        configs[node.name] = OpConfig(degrees, (0,) if at is None else each)
    strategy = Strategy(4, configs)
    tasks = [t for t in lower(graph, strategy, SGD(0.2)) if t.kind.travels]
    for name, width in (("dispatch", 6), ("wo", 6)):
        nbytes = 8 * 8 * 4 * 4 * width  # (G, E, C, M)
        sent = sum(t.nbytes for t in tasks if t.topic.name == name and t.topic.purpose is Purpose.OUTPUT)
        back = sum(t.nbytes for t in tasks if t.topic.name == name and t.topic.purpose is Purpose.GRADIENT)
        assert sent == back == nbytes * 3 // 4, name
        assert sum(t.topic.name == name and t.topic.purpose is Purpose.OUTPUT for t in tasks) == 12  # each to each other
    assert not [t for t in tasks if t.topic.name in ("act", "wi", "gating", "combine")]
    np.testing.assert_allclose(losses(graph, strategy), losses(graph, undivided(graph)), rtol=1e-11)


def test_without_a_capacity_all_tokens_are_served() -> None:
    """As with places enough for all: the same weights and experts, nothing overflows."""
    scores = np.random.default_rng(5).normal(size=(4, 9, 5))
    free, wide = (routed(TopKRouting(2, capacity), scores, StepState()).outputs for capacity in (None, 9))
    np.testing.assert_array_equal(free[1], wide[1] // 9)
    for number in (0, 2, 3, 4):
        np.testing.assert_array_equal(free[number], wide[number])
    assert not free[4].any() and (free[3].sum(-1) == 18).all()
    np.testing.assert_allclose(free[0].sum(-1), 1, rtol=1e-12)


def test_a_tokens_experts_are_in_the_groups_whose_best_gates_have_the_largest_sum() -> None:
    """As Megatron-LM's `group_limited_topk`; the best expert of all is left if its group is not chosen."""
    scores = np.log(np.array([[[0.30, 0.01, 0.20, 0.19, 0.16, 0.02, 0.07, 0.05]]]))
    best_pair = routed(TopKRouting(2, None, expert_groups=4), scores, StepState())
    assert best_pair.outputs[1].tolist() == [[[2, 3]]]  # 0.39, where expert 0 and the one beside it have 0.31
    both = routed(TopKRouting(2, None, expert_groups=4, chosen_groups=2), scores, StepState())
    assert both.outputs[1].tolist() == [[[0, 2]]]  # one from each of the groups with the best gates
    three = routed(TopKRouting(4, None, expert_groups=4, chosen_groups=2), scores, StepState())
    assert three.outputs[1].tolist() == [[[0, 2, 3, 1]]]
    assert routed(TopKRouting(4, None), scores, StepState()).outputs[1].tolist() == [[[0, 2, 3, 4]]]


def test_routed_flops_add_up_and_are_those_of_an_even_load() -> None:
    graph = OperatorGraph()
    x, chosen = ops.input(graph, (3, 10, 2, 5), name="x"), ops.input(graph, (3, 10, 2), "int64", name="chosen")
    ops.routed_linear(x, chosen, 4, 7, name="wi")
    node = graph.node("wi")
    flops = [node.operator.flops(node.specs, Rect((0, 0, 0, 0, e, 0), (3, 10, 2, 7, e + 1, 5))) for e in range(4)]
    assert sum(flops) == 2 * 60 * 35 and max(flops) - min(flops) == 2 * 3 * 2 * 35


@pytest.mark.parametrize(("k", "options", "message"), [
    (5, {}, "needs balance <= k <= experts, got balance=5, k=5 and 4 experts"),
    (1, {"capacity": 0}, "capacity must be a positive integer, got 0"),
    (2, {"expert_groups": 3}, "equal groups, .* expert_groups=3, k=2 and 4 experts"),
    (3, {"expert_groups": 2}, "k experts in those chosen, got chosen_groups=1, expert_groups=2, k=3"),
    (1, {"expert_groups": 2, "chosen_groups": 3}, "chosen_groups <= expert_groups"),
])
def test_what_does_not_fit_is_refused(k: int, options: dict[str, Any], message: str) -> None:
    graph = OperatorGraph()
    with pytest.raises(ValueError, match=message):
        ops.top_k_routing(ops.input(graph, (2, 6, 4), name="scores"), k, **options)
