"""Batch normalisation as a whole against PyTorch: outputs, gradients, running statistics, evaluation, any split."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from language_model import random_strategy, undivided
from operator_bench import evaluate

import taskflow.operators as ops
from taskflow.graph import OperatorGraph
from taskflow.rules import SGD
from taskflow.runtime.executor import Executor

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
torch.set_num_threads(1)  # small arrays; more threads only get in the way of one another


@pytest.mark.parametrize("shape", [(6, 3), (4, 5, 7), (4, 3, 5, 2)])
@pytest.mark.parametrize("groups", [1, 2])
def test_training_equals_torch(shape: tuple[int, ...], groups: int) -> None:
    graph = OperatorGraph("float64")
    y = ops.batch_norm(ops.input(graph, shape, name="x"), eps=1e-3, samples=shape[0] // groups, name="bn")
    numbers = np.random.default_rng(0)
    values = {"bn.weight": numbers.normal(size=shape[1]), "bn.bias": numbers.normal(size=shape[1])}
    feeds, seed = {"x": numbers.normal(size=shape) + 3}, numbers.normal(size=shape)
    tensors, gradients = evaluate(graph, feeds, values, {y: seed})
    x, weight, bias = (torch.tensor(a, requires_grad=True) for a in (feeds["x"], *values.values()))
    parts = [torch.nn.functional.batch_norm(part, None, None, weight, bias, True, eps=1e-3) for part in x.chunk(groups)]
    result = torch.cat(parts)
    result.backward(torch.tensor(seed))
    np.testing.assert_allclose(tensors[y], result.detach().numpy(), rtol=1e-10, atol=1e-10)
    for name, tensor in (("x", x), ("bn.weight", weight), ("bn.bias", bias)):
        np.testing.assert_allclose(gradients[name], tensor.grad.numpy(), rtol=1e-9, atol=1e-9)


def _network(dtype: str) -> OperatorGraph:
    graph = OperatorGraph(dtype)
    x, labels = ops.input(graph, (6, 2, 4, 3), name="x"), ops.input(graph, (6,), "int64", name="labels")
    y = ops.conv2d(x, 5, 3, padding=1, name="conv")
    y = ops.relu(ops.batch_norm(y, name="bn"))
    graph.minimize(ops.cross_entropy(ops.linear(ops.flatten(y, 1), 4, name="fc"), labels))
    return graph


class _Torch(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.fc = torch.nn.Conv2d(2, 5, 3, padding=1), torch.nn.BatchNorm2d(5), torch.nn.Linear(60, 4)

    def forward(self, x):
        return self.fc(torch.relu(self.bn(self.conv(x))).flatten(1))


@pytest.mark.parametrize("seed", range(8))
def test_training_and_evaluation_under_any_strategy_equal_torch(seed: int) -> None:
    graph = _network("float64")
    strategy = random_strategy(graph, 4, Random(seed)) if seed else undivided(graph)
    run = Executor(graph, strategy, SGD(0.1, momentum=0.9), seed=seed)
    net = _Torch().double()
    net.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in run.parameters().items()}, strict=False)
    update = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    numbers = np.random.default_rng(seed)
    for step in range(6):
        feeds = {"x": numbers.normal(size=(6, 2, 4, 3)) + 5, "labels": numbers.integers(0, 4, 6)}
        images, labels = map(torch.from_numpy, feeds.values())
        if step % 3 == 2:  # evaluation between training steps sees the running statistics and moves nothing
            net.eval()
            assert run.evaluate(feeds) == pytest.approx(
                torch.nn.functional.cross_entropy(net(images), labels).item(), rel=1e-10
            )
            continue
        net.train()
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        update.zero_grad()
        loss.backward()
        update.step()
        assert run.train(feeds) == pytest.approx(loss.item(), rel=1e-10)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_one_layer_of_two_batches_follows_both(seed: int, affine: bool) -> None:
    """As of a network that is called twice in a step: running statistics of the first batch, then of the second."""
    graph, numbers = OperatorGraph("float64"), np.random.default_rng(seed)
    x, z = (ops.input(graph, (6, 3, 4), name=name) for name in "xz")
    first = ops.batch_norm(x, momentum=0.3, affine=affine, name="bn")
    kept = graph.producer(first).inputs[2:]
    again = ops.batch_norm(
        z, momentum=0.3, affine=affine, statistics=(kept[0], kept[1]), name="bn", parameters=graph.parameters_of(first) or None
    )
    graph.minimize(ops.mse_loss(ops.linear(ops.mul(first, again), 2, name="fc"), ops.input(graph, (6, 3, 2), name="targets")))
    run = Executor(graph, random_strategy(graph, 3, Random(seed)) if seed else undivided(graph), SGD(0.1), seed=seed)
    net = torch.nn.Module()
    net.bn, net.fc = torch.nn.BatchNorm1d(3, momentum=0.3, affine=affine), torch.nn.Linear(4, 2)
    net.double().load_state_dict({k: torch.from_numpy(v.copy()) for k, v in run.parameters().items()}, strict=False)
    update = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        feeds = {name: numbers.normal(size=(6, 3, 2 if name == "targets" else 4)) + 2 for name in ("x", "z", "targets")}
        given = {name: torch.from_numpy(value) for name, value in feeds.items()}
        net.train(step != 2)
        loss = torch.nn.functional.mse_loss(net.fc(net.bn(given["x"]) * net.bn(given["z"])), given["targets"])
        if step == 2:
            assert run.evaluate(feeds) == pytest.approx(loss.item(), rel=1e-10)
            continue
        update.zero_grad()
        loss.backward()
        update.step()
        assert run.train(feeds) == pytest.approx(loss.item(), rel=1e-10)


def test_running_statistics_belong_to_the_network() -> None:
    """Starting the state of training anew leaves them, and evaluation does not move them."""
    graph = _network("float64")
    run = Executor(graph, undivided(graph), SGD(0.0))
    numbers = np.random.default_rng(0)
    feeds = {"x": numbers.normal(size=(6, 2, 4, 3)) + 5, "labels": numbers.integers(0, 4, 6)}
    fresh = run.evaluate(feeds)
    run.train(feeds)
    once = run.evaluate(feeds)
    assert once != pytest.approx(fresh, rel=1e-6)
    for mode in ("train", "evaluate"):
        run.reset_state(mode)
    assert run.evaluate(feeds) == once


def test_float32_statistics_do_not_cancel() -> None:
    """Values far from zero, in single precision, from the first step on (when the running mean is still 0)."""
    graph = OperatorGraph("float32")
    y = ops.batch_norm(ops.input(graph, (64, 1, 8), name="x"), name="bn")
    x = (np.random.default_rng(0).normal(size=(64, 1, 8)) + 1000).astype(np.float32)
    ones, zeros = np.ones(1, np.float32), np.zeros(1, np.float32)
    tensors, _ = evaluate(graph, {"x": x}, {"bn.weight": ones, "bn.bias": zeros}, {})
    exact = x.astype(np.float64)
    np.testing.assert_allclose(tensors[y], (exact - exact.mean()) / np.sqrt(exact.var() + 1e-5), atol=2e-4)
