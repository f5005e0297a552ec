"""All ways of dividing a step together: tensors, contexts, stages, replicas, shares of the state, recomputation, 16 bits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from fast_and_slow import fast_among

from taskflow import Adam, Executor
from taskflow.machine import host
from taskflow.mapper import HybridParallel, map_graph
from taskflow.models.gpt import GPTConfig, gpt
from taskflow.models.llama import LlamaConfig, llama

MODELS: dict[str, tuple[Any, Any]] = {
    "gpt": (gpt, replace(GPTConfig.small(), batch=8, layers=4)),
    "llama": (llama, replace(LlamaConfig.small(), batch=8, layers=4)),
}
PLANS = (
    ("t2 d2 mb2 zero3", 4), ("t2 p2 d2 mb1 zero2 recompute=full", 8), ("d4 fsdp mb1", 4), ("t2 d2 zero1 mb2", 4),
    ("p2 d2 hsdp2 mb2 schedule=zb-h1", 4), ("c2 t2 d1 mb4 zero3", 4),
    ("p2 d2 mb1 schedule=zbv", 4), ("t2 p2 d1 mb2 schedule=zbv zero1 recompute=full", 4),
)


def losses(name: str, dtype: str, plan: str, devices: int) -> list[float]:
    make, config = MODELS[name]
    graph, machine, random = make(config, dtype), host(devices), np.random.default_rng(0)
    run = Executor(graph, map_graph(HybridParallel(plan), graph, machine), Adam(1e-3), seed=3, clip_norm=1.0)
    shape = config.batch, config.steps
    return [run.train({n: random.integers(0, config.vocabulary, shape) for n in ("tokens", "targets")}) for _ in range(3)]


@cache
def alone(name: str, dtype: str) -> list[float]:
    return losses(name, dtype, "t1", 1)


@pytest.mark.parametrize(("name", "plan", "devices"), fast_among(
    [(name, *plan) for name in MODELS for plan in PLANS],
    [*(("gpt", *PLANS[i]) for i in (0, 2, 4, 6, 7)), *(("llama", *PLANS[i]) for i in (1, 5))],
))
def test_losses_are_those_of_one_processor(name: str, plan: str, devices: int) -> None:
    np.testing.assert_allclose(losses(name, "float64", plan, devices), alone(name, "float64"), rtol=1e-10)


@pytest.mark.parametrize(("plan", "devices"), fast_among(PLANS, [PLANS[i] for i in (1, 4, 5)]))
def test_losses_in_bfloat16_are_those_of_one_processor_but_for_rounding(plan: str, devices: int) -> None:
    """bfloat16 has 8 bits: partial sums are rounded to 2**-9 before they are added."""
    pytest.importorskip("ml_dtypes")
    np.testing.assert_allclose(losses("llama", "bfloat16", plan, devices), alone("llama", "bfloat16"), rtol=2.0**-9)
