"""The update rules: the two kernel sets against each other, and both against torch.optim over five steps."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from taskflow.kernels import NumpyKernels, native_built

SETS: list[Any] = [NumpyKernels()]
if native_built():
    from taskflow.kernels.native.kernels import NativeKernels

    SETS.append(NativeKernels())
each = pytest.mark.parametrize("kernels", SETS, ids=lambda kernels: kernels.name)
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
STEPS, SIZE = 5, 37

SGD = [
    {"lr": 0.1}, {"lr": 0.1, "weight_decay": 0.3}, {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.05, "momentum": 0.9, "dampening": 0.4, "weight_decay": 0.2},
    {"lr": 0.05, "momentum": 0.8, "nesterov": True},
    {"lr": 0.05, "momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
]
ADAM = [
    {"lr": 0.01, "weight_decay": decay, "betas": betas, "decoupled": decoupled}
    for decay, betas, decoupled in product((0.0, 0.2), ((0.9, 0.999), (0.5, 0.7)), (False, True))
]


def gradients(dtype: Any) -> list[Any]:
    rng = np.random.default_rng(3)
    return [rng.normal(size=SIZE).astype(dtype) for _ in range(STEPS)]


def start(dtype: Any) -> Any:
    return np.random.default_rng(4).normal(size=SIZE).astype(dtype)


def run_sgd(kernels: Any, dtype: Any, options: dict[str, Any], scale: float = 1.0) -> Any:
    w = start(dtype)
    velocity = np.full(SIZE, np.nan, dtype) if options.get("momentum") else None  # the first step must not read it
    for step, g in enumerate(gradients(dtype)):
        kernels.sgd(
            w, g, velocity, options["lr"], options.get("momentum", 0.0), options.get("dampening", 0.0),
            options.get("weight_decay", 0.0), options.get("nesterov", False), scale, step == 0,
        )
    return w


def run_adam(kernels: Any, dtype: Any, options: dict[str, Any], scale: float = 1.0) -> Any:
    w, m, v = start(dtype), np.zeros(SIZE, dtype), np.zeros(SIZE, dtype)
    for step, g in enumerate(gradients(dtype), 1):
        kernels.adam(
            w, g, m, v, options["lr"], *options["betas"], 1e-8, options["weight_decay"], options["decoupled"], scale,
            step,
        )
    return w


def run_torch(dtype: Any, rule: str, options: dict[str, Any], scale: float) -> Any:
    torch = pytest.importorskip("torch")
    w = torch.nn.Parameter(torch.from_numpy(start(dtype)))
    optimizer = getattr(torch.optim, rule)([w], **options)
    for g in gradients(dtype):
        w.grad = torch.from_numpy(g * dtype(scale))
        optimizer.step()
    return w.detach().numpy()


def close(one: Any, other: Any) -> None:
    np.testing.assert_allclose(one, other, rtol=0, atol=40 * np.finfo(one.dtype).eps)


@pytest.mark.torch
@each
@DTYPES
@pytest.mark.parametrize("options", SGD, ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_sgd_against_torch(kernels: Any, dtype: Any, options: dict[str, Any], scale: float) -> None:
    close(run_sgd(kernels, dtype, options, scale), run_torch(dtype, "SGD", options, scale))


@pytest.mark.torch
@each
@DTYPES
@pytest.mark.parametrize("options", ADAM, ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_adam_and_adamw_against_torch(kernels: Any, dtype: Any, options: dict[str, Any], scale: float) -> None:
    given = {name: value for name, value in options.items() if name != "decoupled"}
    rule = "AdamW" if options["decoupled"] else "Adam"
    close(run_adam(kernels, dtype, options, scale), run_torch(dtype, rule, given, scale))


@pytest.mark.skipif(not native_built(), reason="the compiled kernels are not built")
@DTYPES
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_sets_agree(dtype: Any, scale: float) -> None:
    for options in SGD:
        close(run_sgd(SETS[1], dtype, options, scale), run_sgd(SETS[0], dtype, options, scale))
    for options in ADAM:
        close(run_adam(SETS[1], dtype, options, scale), run_adam(SETS[0], dtype, options, scale))


@each
def test_empty_and_shaped_arrays(kernels: Any) -> None:
    empty = np.zeros(0)
    kernels.sgd(empty, empty, None, 0.1, 0, 0, 0, False, 1.0, True)
    kernels.adam(empty, empty, empty.copy(), empty.copy(), 0.1, 0.9, 0.99, 1e-8, 0, False, 1.0, 1)
    w = np.ones((3, 5))
    kernels.sgd(w, np.ones((3, 5)), None, 0.5, 0, 0, 0, False, 1.0, True)
    assert (w == 0.5).all()
