"""The networks, small, train on the GPU's kernels as on numpy's: the same losses under any strategy."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from fast_and_slow import fast_among
from language_model import random_strategy, undivided

from taskflow.checkpoint.checkpoint import gather_checkpoint
from taskflow.kernels import NumpyKernels
from taskflow.models import build
from taskflow.rules import SGD, Adam, AdamWInBfloat16, UpdateRule
from taskflow.runtime.executor import Executor
from taskflow.training.data.synthetic import random_feeds

SIX = ("AlexNet", "Inception-v3", "ResNet-101", "RNNTC", "RNNLM", "NMT")
STEPS = 2


def losses(name: str, kernels: Any, processors: int, rule: UpdateRule, steps: int = STEPS, **options: Any) -> np.ndarray:
    graph = build(name, preset="small", dtype="float64")
    strategy = undivided(graph) if processors == 1 else random_strategy(graph, processors, Random(processors))
    run = Executor(graph, strategy, rule, seed=3, kernels=kernels, **options)
    return np.array([run.train(random_feeds(graph, step)) for step in range(steps)])


@pytest.mark.parametrize("name", fast_among(SIX, ["AlexNet", "RNNLM", "NMT"]))
def test_networks_train_as_on_the_cpu(name: str, kernels: Any) -> None:
    rule = SGD(0.05, momentum=0.9)
    expected = losses(name, NumpyKernels(), 1, rule, clip_norm=1.0)
    assert len(set(expected)) == STEPS
    np.testing.assert_allclose(losses(name, kernels, 3, rule, clip_norm=1.0), expected, rtol=1e-8)


def test_adam_and_what_is_read_back(kernels: Any) -> None:
    runs = []
    for of in (NumpyKernels(), kernels):
        graph = build("RNNLM", preset="small", dtype="float64")
        run = Executor(graph, random_strategy(graph, 2, Random(1)), Adam(0.01), seed=3, kernels=of)
        trained = [run.train(random_feeds(graph, step)) for step in range(3)]
        weights = run.parameters()
        assert weights is not None
        run.set_parameters({name: value * 0.5 for name, value in weights.items()})
        runs.append((trained, run.evaluate(random_feeds(graph, 9)), weights))
    (trained, evaluated, weights), (trained_there, evaluated_there, weights_there) = runs
    np.testing.assert_allclose(trained_there, trained, rtol=1e-8)
    np.testing.assert_allclose(evaluated_there, evaluated, rtol=1e-8)
    for name, value in weights.items():
        np.testing.assert_allclose(weights_there[name], value, rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_moments_in_bfloat16_are_those_of_the_cpu(kernels: Any, dtype: str) -> None:
    trained = []
    for of in (NumpyKernels(), kernels):
        graph = build("GPT-2", preset="small", dtype=dtype)
        run = Executor(graph, undivided(graph), AdamWInBfloat16(0.01), seed=3, kernels=of)
        trained.append([run.train(random_feeds(graph, step)) for step in range(3)])
    np.testing.assert_allclose(trained[1], trained[0], rtol=1e-3 if dtype == "float32" else 2e-2)


def test_the_memory_of_a_checkpoint_is_used_again(kernels: Any, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    graph = build("RNNLM", preset="small", dtype="float64")
    run = Executor(graph, random_strategy(graph, 2, Random(1)), Adam(0.01), seed=3, kernels=kernels)
    run.train(random_feeds(graph, 0))
    first, _ = gather_checkpoint(run, tmp_path / "unused.safetensors")
    run.train(random_feeds(graph, 1))
    wanted, _ = gather_checkpoint(run, tmp_path / "unused.safetensors")
    found, _ = gather_checkpoint(run, tmp_path / "unused.safetensors", into=first)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, strict=True)
        assert np.shares_memory(found[name], first[name]), name


def test_a_rerun_is_bitwise_equal(kernels: Any) -> None:
    first, again = (losses("LeNet", kernels, 2, Adam(0.01)) for _ in range(2))
    assert first.tobytes() == again.tobytes()


def test_a_token_outside_of_the_table_is_an_error(kernels: Any) -> None:
    graph = build("RNNLM", preset="small", dtype="float64")
    run = Executor(graph, undivided(graph), SGD(0.1), seed=3, kernels=kernels)
    batch = random_feeds(graph, 0)
    next(iter(batch.values()))[0, 0] = 10**6
    with pytest.raises(ValueError, match="must be at least 0 and below"):
        run.train(batch)
