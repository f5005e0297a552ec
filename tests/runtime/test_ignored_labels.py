"""The mean of a loss is over the labels of the whole batch that are not ignored, under every cut, micro-batch and rank count."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from beside_one_processor import Result, plans, same, trained
from fast_and_slow import fast_among
from ignored_labels import batch, ignored, network, plan, rank_case
from language_model import undivided
from programs.start import rows
from starting import needs_mpi

import taskflow as tf
from taskflow.graph import OperatorGraph
from taskflow.mapper import HybridParallel, OpConfig, Pipeline, Strategy, in_micro_batches, map_graph
from taskflow.rules import SGD
from taskflow.runtime.executor import Executor
from taskflow.runtime.labels import LabelCounts
from taskflow.training.evaluation import evaluate

STEPS, PLANS, TOGETHER = 3, 6, 8


def batches(seed: int) -> list[dict[str, Any]]:
    return [batch(network(seed), seed, step) for step in range(STEPS)]


def by_torch(seed: int, weights: dict[str, Any]) -> Result:
    """What PyTorch makes of the same weights and batches; its mean over no labels is nan, so it takes no such step."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
    functional, graph = torch.nn.functional, network(seed)
    w = {name: torch.tensor(value, requires_grad=True) for name, value in weights.items()}
    loss = graph.node("loss")
    smoothing = graph.node("loss.blocks" if "loss.blocks" in {n.name for n in graph} else "loss").operator.label_smoothing
    factor = graph.node("half").operator.factor if graph.losses[0].name == "half" else 1.0
    losses = []

    def value(feeds: dict[str, Any]) -> Any:
        x = functional.embedding(torch.tensor(feeds["tokens"]), w["table.weight"])
        x = x + torch.relu(functional.linear(x, w["layer.weight"], w["layer.bias"]))
        scores, labels = functional.linear(x, w["scores.weight"], w["scores.bias"]), torch.tensor(feeds["labels"]).long()
        if loss.inputs[1].shape != labels.shape and loss.inputs[1].ndim == 2:
            scores, labels = scores[:, :-1], labels[:, 1:]
        if bool((labels == ignored(seed)).all()):
            return None
        return factor * functional.cross_entropy(
            scores.flatten(0, 1), labels.flatten(), ignore_index=ignored(seed), label_smoothing=smoothing
        )

    for feeds in batches(seed):
        found = value(feeds)
        if found is not None:
            found.backward()
            with torch.no_grad():
                for parameter in w.values():
                    parameter -= 0.3 * parameter.grad
                    parameter.grad = None
        after = value(feeds)
        losses += [0.0 if one is None else one.item() for one in (found, after)]
    return losses, {name: value.detach().numpy() for name, value in w.items()}


def check(seed: int, count: int, torch: bool) -> None:
    feeds, rule = batches(seed), SGD(0.3)
    wanted = trained(network(seed), undivided(network(seed)), feeds, rule, None)
    if torch:
        weights = Executor(network(seed), undivided(network(seed)), SGD(0.3), seed=3).weights()
        assert weights is not None
        same(wanted, by_torch(seed, weights), f"network {seed} and PyTorch", "float64")
    compared = 0
    for number, strategy in plans(network(seed), plan, f"labels {seed}", count):
        same(trained(network(seed), strategy, feeds, rule, None), wanted, f"{seed}, plan {number}: {strategy!r}", "float64")
        compared += 1
    assert compared == count


@pytest.mark.parametrize("first", fast_among(range(0, 160, TOGETHER), range(0, 16, TOGETHER)))
def test_loss_and_gradients_are_those_of_one_device(first: int) -> None:
    for seed in range(first, first + TOGETHER):
        check(seed, PLANS, torch=False)


@pytest.mark.torch
def test_loss_and_gradients_are_those_of_pytorch() -> None:
    for seed in range(40):
        check(seed, 0, torch=True)


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize("ranks", fast_among([2, 3, 4], [3]))
def test_ranks_take_the_mean_of_the_whole_batch(ranks: int) -> None:
    cases = range(8)
    found = rows(ranks, "train_labels.py", *map(str, cases), limit=400)
    assert [row["case"] for row in found] == list(cases)
    for row in found:
        seed = row["case"]
        graph, _ = rank_case(seed, ranks)
        run = Executor(graph, undivided(graph), SGD(0.3), seed=3)
        losses = [run.train(feeds) for feeds in batches(seed)]
        weights = run.weights()
        assert weights is not None
        np.testing.assert_allclose(row["losses"], losses, rtol=1e-10, atol=1e-12)
        assert row["parameters"] == pytest.approx(sum(float(abs(v).sum()) for v in weights.values()), rel=1e-10)


def test_micro_batches_with_few_labels_do_not_weigh_more() -> None:
    """Three micro-batches with 3, 0 and 1 labels. The mean of their means, as a loop of PyTorch's takes, is another number."""
    graph = OperatorGraph("float64", "labels")
    x, labels = tf.input(graph, (6, 4), name="x"), tf.input(graph, (6,), "int64", name="labels")
    graph.minimize(tf.cross_entropy(tf.linear(x, 3, name="scores"), labels, name="loss"))
    configs = {n.name: in_micro_batches(n, OpConfig((1,) * len(n.dims), (0,)), 3) for n in graph}
    run = Executor(graph, Strategy(1, configs, pipeline=Pipeline(3, {})), SGD(0.5))
    whole = Executor(graph, undivided(graph), SGD(0.5))
    feeds = {"x": np.random.default_rng(0).normal(size=(6, 4)), "labels": np.array([2, 0, -100, -100, 1, 1])}
    feeds["labels"][4] = -100
    scores = whole.predict({"x": feeds["x"]})
    losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(6), np.maximum(feeds["labels"], 0)]  # type: ignore[index]
    mean = losses[feeds["labels"] >= 0].mean()
    assert run.train(feeds) == pytest.approx(mean, rel=1e-12) and whole.train(feeds) == pytest.approx(mean, rel=1e-12)
    assert (losses[:2].mean() + losses[5]) / 2 != pytest.approx(mean, rel=1e-3)
    for name, value in run.weights().items():  # type: ignore[union-attr]
        np.testing.assert_allclose(value, whole.weights()[name], rtol=1e-12, err_msg=name)  # type: ignore[index]


@pytest.mark.parametrize("text", ["d2", "p2 mb1", "t2"])
def test_a_batch_without_a_label_has_no_loss_and_changes_nothing(text: str) -> None:
    graph = network(0)
    run = Executor(graph, map_graph(HybridParallel(text), graph, tf.host(2)), SGD(0.5))
    before, feeds = run.weights(), batch(graph, 0, 0)
    feeds["labels"][...] = ignored(0)
    assert run.train(feeds) == 0 and run.evaluate(feeds) == 0
    for name, value in run.weights().items():  # type: ignore[union-attr]
        assert (value == before[name]).all(), name  # type: ignore[index]


def test_evaluation_is_a_mean_over_the_labels_of_all_batches() -> None:
    graph = OperatorGraph("float64", "labels")
    x, labels = tf.input(graph, (4, 3), name="x"), tf.input(graph, (4,), "int64", name="labels")
    graph.minimize(tf.cross_entropy(tf.linear(x, 3, name="scores"), labels, name="loss"))
    run, numbers = Executor(graph, undivided(graph)), np.random.default_rng(1)
    every = [0, 1, 2, 2], [1, -100, -100, -100], [-100] * 4
    some = [{"x": numbers.normal(size=(4, 3)), "labels": np.array(row)} for row in every]
    losses = [run.evaluate(feeds) for feeds in some]
    found = evaluate(run, some)
    assert found is not None and found.loss == pytest.approx((4 * losses[0] + losses[1]) / 5, rel=1e-12)  # type: ignore[operator]
    equal = evaluate(run, some[:1] * 2)
    assert equal is not None and equal.loss == losses[0]


def test_labels_made_by_the_network_are_refused_but_without_ignored_ones() -> None:
    def graph(ignore_index: int | None, reduction: str = "mean") -> OperatorGraph:
        made = OperatorGraph("float64", "own labels")
        scores = tf.linear(tf.input(made, (4, 3), name="x"), 5, name="scores")
        best = tf.reshape(tf.top_k(scores, 1)[1], (4,))
        made.minimize(tf.cross_entropy(scores, best, ignore_index=ignore_index, reduction=reduction, name="loss"))
        return made

    with pytest.raises(ValueError, match=r"loss: labels that are not -100 are counted before each step.*give ignore_index=None"):
        Executor(graph(-100), undivided(graph(-100)), SGD(0.1))
    feeds = {"x": np.random.default_rng(0).normal(size=(4, 3))}
    mean, total = (Executor(graph(*how), undivided(graph(*how)), SGD(0.1)) for how in ((None,), (-100, "sum")))
    assert mean.train(feeds) == pytest.approx(total.train(feeds) / 4, rel=1e-12)  # type: ignore[operator]


def test_without_ignored_labels_the_default_is_no_class() -> None:
    graph = OperatorGraph("float64", "labels")
    x, labels = tf.input(graph, (2, 3), name="x"), tf.input(graph, (2,), "int64", name="labels")
    graph.minimize(tf.cross_entropy(x, labels, ignore_index=None, name="loss"))
    run = Executor(graph, undivided(graph))
    for wrong in (-100, -1, 3):
        with pytest.raises(ValueError, match=rf"targets must be at least 0 and below 3, got {wrong}"):
            run.evaluate({"x": np.zeros((2, 3)), "labels": np.array([0, wrong])})


def test_labels_are_counted_once_where_several_losses_read_them() -> None:
    graph = OperatorGraph("float64", "labels")
    x, labels = tf.input(graph, (4, 3), name="x"), tf.input(graph, (4, 2), "int64", name="labels")
    first, second = (tf.select(labels, 1, k) for k in range(2))
    for name, one, ignore in (("a", first, 0), ("b", second, 1), ("c", first, None)):
        graph.minimize(tf.cross_entropy(x, one, ignore_index=ignore, name=name))
    counts = LabelCounts(graph)
    assert counts.count({"labels": np.array([[0, 1], [1, 1], [2, 2], [0, 1]])}) == {"a": 2, "b": 1}
    assert counts.count({"labels": np.zeros((3, 2), int)}) == {} and counts.count({}) == {}


def test_random_batches_have_every_share_of_labels() -> None:
    found = {seed: [(feeds["labels"] != ignored(seed)).mean() for feeds in batches(seed)] for seed in range(40)}
    shares = np.array([share for each in found.values() for share in each])
    assert (shares == 0).any() and (shares == 1).any() and ((shares > 0) & (shares < 0.5)).any()
    assert {ignored(seed) for seed in range(40)} == {-100, 0, 4}
    strategies = [plan(network(s), Random(s), n) for s in range(6) for n in range(3)]
    assert any(s.pipeline is not None and s.pipeline.micro_batches > 1 for s in strategies)
