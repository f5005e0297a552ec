"""What of a kernel no task uses, since it meets nothing but padding, is held and decays like the rest, however the layer is cut;
what leads to no loss keeps its value."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import numpy as np
import pytest
from language_model import random_strategy, undivided
from padded_kernels import data, network

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.rules import SGD, Adam, AdamW, UpdateRule
from taskflow.runtime.executor import Executor

RULES = [SGD(0.1, weight_decay=0.1), SGD(0.1, momentum=0.9, weight_decay=0.1), Adam(0.01, weight_decay=0.1), AdamW(0.01)]


def trained(strategy_of: int | None, rule: UpdateRule, clip_norm: float | None = None, steps: int = 4) -> Executor:
    graph, random = network(), Random(strategy_of)
    strategy = undivided(graph) if strategy_of is None else random_strategy(graph, random.randint(2, 5), random)
    run = Executor(graph, strategy, rule, seed=4, clip_norm=clip_norm)
    for step in range(steps):
        run.train(data(step))
    return run


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("clip_norm", [None, 0.3])
def test_weights_do_not_depend_on_the_strategy(rule: UpdateRule, clip_norm: float | None) -> None:
    wanted = trained(None, rule, clip_norm).weights()
    for seed in range(8):
        found = trained(seed, rule, clip_norm).weights()
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=f"{name}, strategy {seed}")


def optimizer_of(torch: Any, rule: UpdateRule, weights: Iterable[Any]) -> Any:
    """PyTorch's own of the same rule."""
    options = {"lr": rule.lr, "weight_decay": rule.weight_decay} | (
        {"momentum": rule.momentum} if isinstance(rule, SGD) else {}
    )
    return getattr(torch.optim, type(rule).__name__)(weights, **options)


@pytest.mark.torch
@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("strategy", [None, 1, 2])
def test_they_decay_as_in_pytorch(rule: UpdateRule, strategy: int | None) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
    start = Executor(network(), undivided(network()), seed=4).weights()
    weights = {name: torch.tensor(value, requires_grad=True) for name, value in start.items()}
    step_of = optimizer_of(torch, rule, weights.values())
    F = torch.nn.functional
    for step in range(4):
        fed = {name: torch.from_numpy(value) for name, value in data(step).items()}
        a = F.conv2d(F.pad(fed["x"], (1, 1, 2, 2)), weights["a.weight"], weights["a.bias"], stride=3)
        b = F.conv2d(a, weights["b.weight"], weights["b.bias"], padding=(1, 2), groups=2)
        c = F.conv2d(F.pad(fed["x"], (1, 0)), weights["c.weight"], weights["c.bias"], stride=(1, 2))
        joined = torch.cat([b, c], 1).flatten(1)
        loss = F.cross_entropy(F.linear(joined, weights["fc.weight"], weights["fc.bias"]), fed["labels"])
        step_of.zero_grad()
        loss.backward()
        step_of.step()
    found = trained(strategy, rule).weights()
    for name, value in weights.items():
        if name == "c.weight":
            # Of which nothing is used: it has no gradient here, and keeps its value under every strategy. PyTorch's gradient is
            # all zeros rather than None, so there it decays (docs/decisions/07-parameters.md). It changes no output.
            np.testing.assert_array_equal(found[name], start[name])
            assert value.grad is not None and not value.grad.any()
            assert (np.abs(value.detach().numpy()) < np.abs(start[name])).all()
        else:
            np.testing.assert_allclose(found[name], value.detach().numpy(), rtol=1e-9, atol=1e-12, err_msg=name)


ROWS, WIDTH = 7, 4


def words(step: int) -> dict[str, np.ndarray]:
    """Of a table of seven rows only the first three are read."""
    rng = np.random.default_rng(step)
    return {"words": rng.integers(0, 3, (4, 2)), "labels": rng.integers(0, 3, 4)}


def half_used() -> OperatorGraph:
    """``table`` and ``fc`` lead to the loss, as does ``both``, which an operator that does not lead there uses too; ``aside`` and
    ``head``, on the way to nowhere, do not."""
    graph = OperatorGraph("float64")
    given = taskflow.input(graph, (4, 2), "int64", name="words")
    labels = taskflow.input(graph, (4,), "int64", name="labels")
    read = taskflow.flatten(taskflow.embedding(given, ROWS, WIDTH, name="table"), 1)
    both = taskflow.linear(read, 5, name="both")
    aside = taskflow.flatten(taskflow.embedding(given, ROWS, WIDTH, name="aside"), 1)
    taskflow.linear(taskflow.linear(aside, 5, name="again", parameters=graph.parameters_of(both)), 3, name="head")
    graph.minimize(taskflow.cross_entropy(taskflow.linear(both, 3, name="fc"), labels, name="loss"))
    return graph


@pytest.mark.torch
@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("clip_norm", [None, 0.3])
def test_what_leads_to_no_loss_is_skipped_as_in_pytorch(rule: UpdateRule, clip_norm: float | None) -> None:
    """There its gradient is None: no decay. Rows of a table that are not read have gradients of zero, and decay."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
    F = torch.nn.functional
    graph = half_used()
    start = Executor(graph, undivided(graph), seed=4).weights()
    weights = {name: torch.tensor(value, requires_grad=True) for name, value in start.items()}
    step_of = optimizer_of(torch, rule, weights.values())
    for step in range(4):
        fed = {name: torch.from_numpy(value) for name, value in words(step).items()}
        both = F.linear(F.embedding(fed["words"], weights["table.weight"]).flatten(1), weights["both.weight"], weights["both.bias"])
        aside = F.embedding(fed["words"], weights["aside.weight"]).flatten(1)
        F.linear(F.linear(aside, weights["both.weight"], weights["both.bias"]), weights["head.weight"], weights["head.bias"])
        loss = F.cross_entropy(F.linear(both, weights["fc.weight"], weights["fc.bias"]), fed["labels"])
        step_of.zero_grad()
        loss.backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(weights.values(), clip_norm)
        step_of.step()
    skipped = {name for name, value in weights.items() if value.grad is None}
    assert skipped == {"aside.weight", "head.weight", "head.bias"}
    unread = weights["table.weight"]
    assert not unread.grad[3:].any() and (unread[3:].abs() < torch.from_numpy(np.abs(start["table.weight"][3:]))).all()
    for seed in (None, *range(6)):
        graph, random = half_used(), Random(seed)
        strategy = undivided(graph) if seed is None else random_strategy(graph, random.randint(2, 5), random)
        run = Executor(graph, strategy, rule, seed=4, clip_norm=clip_norm)
        for step in range(4):
            run.train(words(step))
        for name, value in run.weights().items():
            if name in skipped:
                np.testing.assert_array_equal(value, start[name], err_msg=name)
            wanted = weights[name].detach().numpy()
            np.testing.assert_allclose(value, wanted, rtol=1e-9, atol=1e-12, err_msg=f"{name}, strategy {seed}")


@pytest.mark.parametrize("seed", range(6))
def test_another_executor_shares_them(seed: int) -> None:
    run = trained(seed, RULES[1])
    random, other = Random(seed), network(batch=2)
    user = Executor(other, random_strategy(other, random.randint(1, 5), random), weights=run)
    for _ in range(2):
        wanted = run.weights()
        for name, value in user.weights().items():
            np.testing.assert_array_equal(value, wanted[name], err_msg=name)
        run.train(data(9))
    fed = data(10)
    np.testing.assert_allclose(user.predict({"x": fed["x"]}), run.predict({"x": fed["x"]}), rtol=1e-9)


def test_a_checkpoint_has_their_momentum() -> None:
    """So that training goes on as it would have, under another strategy too."""
    rule, wanted = RULES[1], trained(None, RULES[1], steps=6).weights()
    first = trained(1, rule)
    graph = network()
    second = Executor(graph, random_strategy(graph, 4, Random(7)), rule, seed=0)
    second.set_parameters(first.weights())
    kept = dict(first.gather(first.training_state().values()))
    for name, holding in second.training_state().items():
        second.put(holding, kept[name])
    second.state.step = first.state.step
    for step in (4, 5):
        second.train(data(step))
    for name, value in second.weights().items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-9, atol=1e-12, err_msg=name)
