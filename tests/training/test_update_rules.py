"""Update rules against PyTorch, against each other on any cut, and what they refuse."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import taskflow
from taskflow.kernels import NumpyKernels
from taskflow.machine import host
from taskflow.mapper import HybridParallel, map_graph
from taskflow.models import build
from taskflow.rules import AdamWInBfloat16
from taskflow.training import SGD, Adam, AdamW, UpdateRule
from taskflow.training.data.synthetic import random_feeds

RULES = {
    "plain": SGD(0.1),
    "default": SGD(),
    "decay": SGD(0.1, weight_decay=0.05),
    "momentum": SGD(0.1, momentum=0.9),
    "dampening": SGD(0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "nesterov": SGD(0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": Adam(),
    "adam decay": Adam(0.01, (0.8, 0.95), 1e-6, 0.1),
    "adamw": AdamW(),
    "adamw decay": AdamW(0.01, (0.8, 0.95), 1e-6, 0.1),
}


def run(rule: UpdateRule, w: np.ndarray, gradients: np.ndarray, rates: np.ndarray, scale: float) -> np.ndarray:
    """Apply one update for each gradient; returns the weights, the argument stays."""
    w = w.copy()
    buffers = tuple(np.zeros_like(w) for _ in range(rule.buffers))
    for step, (g, lr) in enumerate(zip(gradients, rates), 1):
        before = g.copy()
        rule.update(NumpyKernels(), w, g, buffers, lr=float(lr), step=step, scale=scale)
        assert np.array_equal(g, before), "update must leave the gradient alone"
    return w


@pytest.mark.torch
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_like_torch(name: str, scale: float) -> None:
    torch = pytest.importorskip("torch")
    rule = RULES[name]
    random = np.random.default_rng(1)
    w, gradients = random.normal(size=37), random.normal(size=(6, 37))
    rates = rule.lr * np.array([1, 1, 0.5, 2, 0.1, 1])
    parameter = torch.nn.Parameter(torch.tensor(w))
    # The rule's fields are torch's arguments, in torch's order and with torch's names.
    arguments = {field.name: getattr(rule, field.name) for field in fields(rule)}
    optimizer = getattr(torch.optim, type(rule).__name__)([parameter], *arguments.values())
    assert {key: optimizer.defaults[key] for key in arguments} == arguments
    for g, lr in zip(gradients, rates):
        optimizer.param_groups[0]["lr"] = float(lr)
        parameter.grad = torch.tensor(g * scale)
        optimizer.step()
    expected = parameter.detach().numpy()
    np.testing.assert_allclose(run(rule, w, gradients, rates, scale), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.torch
@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_defaults_are_those_of_torch(kind: type[UpdateRule]) -> None:
    torch = pytest.importorskip("torch")
    rule = kind()
    defaults = getattr(torch.optim, kind.__name__)([torch.nn.Parameter(torch.zeros(1))]).defaults
    for field in fields(rule):
        assert getattr(rule, field.name) == defaults[field.name], field.name


@pytest.mark.parametrize("kind, arguments", [
    (SGD, {"lr": -1}), (SGD, {"momentum": -0.1}), (SGD, {"weight_decay": -1}), (SGD, {"nesterov": True}),
    (SGD, {"momentum": 0.9, "dampening": 0.1, "nesterov": True}),
    (Adam, {"lr": -1}), (Adam, {"betas": (1.0, 0.9)}), (Adam, {"betas": (0.9, -0.1)}), (Adam, {"eps": -1e-8}),
    (Adam, {"weight_decay": -1}), (AdamW, {"betas": (0.9, 1.0)}), (AdamW, {"lr": float("nan")}),
])  # fmt: skip
def test_refuses_what_torch_refuses(kind: type[UpdateRule], arguments: dict) -> None:
    with pytest.raises(ValueError, match=kind.__name__):
        kind(**arguments)
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError):
        getattr(torch.optim, kind.__name__)([torch.nn.Parameter(torch.zeros(1))], **arguments)


@given(st.sampled_from(sorted(RULES)), st.integers(1, 20), st.integers(0, 20), st.sampled_from(["f4", "f8"]))
@settings(max_examples=60, deadline=None)
def test_any_cut_gives_the_same_bits(name: str, size: int, cut: int, dtype: str) -> None:
    rule, cut = RULES[name], min(cut, size)
    random = np.random.default_rng(size)
    w, gradients = random.normal(size=size).astype(dtype), random.normal(size=(3, size)).astype(dtype)
    rates = np.full(3, rule.lr)
    whole = run(rule, w, gradients, rates, 0.5)
    pieces = [run(rule, w[part], gradients[:, part], rates, 0.5) for part in (slice(0, cut), slice(cut, size))]
    assert whole.dtype == np.dtype(dtype)
    assert np.array_equal(whole, np.concatenate(pieces))


@pytest.mark.parametrize("rule, buffers", [(SGD(0.1), 0), (SGD(0.1, 0.9), 1), (Adam(), 2), (AdamW(), 2)])
def test_buffers_and_cost(rule: UpdateRule, buffers: int) -> None:
    assert rule.buffers == buffers
    # weight in and out, gradient in, each buffer in and out
    assert rule.nbytes(1000, 4) == 4000 * (3 + 2 * buffers)
    assert rule.flops(2000) == 2 * rule.flops(1000) > 0


def test_flops_grow_with_the_work() -> None:
    counts = [rule.flops(1) for rule in (SGD(0.1), SGD(0.1, 0.9), SGD(0.1, 0.9, 0, 0.1), SGD(0.1, 0.9, 0, 0.1, True))]
    assert counts == sorted(set(counts))
    assert counts[0] == 3  # g * scale, * lr, subtracted


def test_update_checks_its_arguments() -> None:
    w = np.zeros(3)
    with pytest.raises(ValueError, match="needs 2 buffers, got 0"):
        Adam().update(NumpyKernels(), w, w, (), lr=0.1, step=1, scale=1.0)
    with pytest.raises(ValueError, match="steps count from 1, got 0"):
        SGD().update(NumpyKernels(), w, w, (), lr=0.1, step=0, scale=1.0)


def test_rules_are_values() -> None:
    assert SGD(0.1, 0.9) == SGD(0.1, momentum=0.9)
    assert len({Adam(), Adam(), AdamW()}) == 2
    with pytest.raises(AttributeError):
        SGD(0.1).lr = 0.2  # type: ignore[misc]


def test_moments_in_bfloat16_are_those_of_adamw_rounded_after_each_step() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rule, random = AdamWInBfloat16(lr=0.01), np.random.default_rng(2)
    w, gradients = random.normal(size=37).astype("f4"), random.normal(size=(5, 37)).astype("f4")
    kept = tuple(np.zeros(37, rule.state_type(w.dtype)) for _ in range(2))
    assert {b.dtype for b in kept} == {np.dtype(ml_dtypes.bfloat16)} and rule.state_bytes(4) == rule.state_bytes(2) == 4
    assert rule.state_type(np.dtype("f8")) == np.dtype("f8") and rule.state_bytes(8) == 16
    found, wanted, moments = w.copy(), w.copy(), [b.astype("f4") for b in kept]
    for step, g in enumerate(gradients, 1):
        rule.update(NumpyKernels(), found, g, kept, lr=rule.lr, step=step, scale=1.0)
        AdamW(betas=rule.betas).update(NumpyKernels(), wanted, g, tuple(moments), lr=rule.lr, step=step, scale=1.0)
        moments = [m.astype(ml_dtypes.bfloat16).astype("f4") for m in moments]
    assert np.array_equal(found, wanted) and all(np.array_equal(a, b) for a, b in zip(kept, moments))


def test_second_moments_in_bfloat16_become_smaller_without_gradients() -> None:
    pytest.importorskip("ml_dtypes")
    rule, w = AdamWInBfloat16(betas=(0.9, 0.99)), np.zeros(256, "f4")
    v = np.linspace(1, 2, 256).astype(rule.state_type(w.dtype))  # every number of 8 bits between two powers of 2
    before = v.copy()
    rule.update(NumpyKernels(), w, w.copy(), (np.zeros_like(v), v), lr=0.0, step=1, scale=1.0)
    assert (v < before).all()
    with pytest.raises(ValueError, match=r"AdamWInBfloat16: beta2 must be at most 0.99, .* got 0.999"):
        AdamWInBfloat16(betas=(0.9, 0.999))


@pytest.mark.parametrize("plan", ["d2 zero1", "d2 zero2"])
def test_moments_in_bfloat16_train_in_shares(plan: str) -> None:
    pytest.importorskip("ml_dtypes")
    losses = []
    for devices, text in ((1, "d1"), (2, plan)):
        graph = build("gpt-2", preset="small", batch=4)
        strategy, machine = map_graph(HybridParallel(text), graph, host(devices)), host(devices)
        run = taskflow.Executor(graph, strategy, AdamWInBfloat16(lr=1e-3), machine=machine)
        losses.append([float(run.train(random_feeds(graph, step))) for step in range(4)])
        run.close()
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)  # moments are rounded to 8 bits, of sums in another order
