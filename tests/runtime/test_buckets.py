"""Gradients and new weights in buckets of layers: the numbers are those of one processor, whatever the buckets are."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from beside_one_processor import STEPS, compare, compare_network
from fast_and_slow import fast_among
from language_model import feeds as words
from language_model import model, random_strategy, undivided
from pipelines import GPT, random_buckets, random_pipeline, tokens
from pipelines import decoder as decoder_of

import taskflow
from taskflow.checkpoint import load_checkpoint, save_checkpoint
from taskflow.graph import OperatorGraph
from taskflow.mapper import Strategy, choose
from taskflow.models.gpt import gpt
from taskflow.rules import SGD, Adam, AdamW
from taskflow.runtime.executor import Executor
from taskflow.tasks.lower import lower


def plan(graph: OperatorGraph, random: Random, number: int) -> Strategy:
    """Every third without micro-batches."""
    processors = random.randint(2, 5)
    return random_buckets(graph, (random_pipeline if number % 3 else random_strategy)(graph, processors, random), random)


def decoder(seed: int, count: int) -> int:
    dtype, rule = ("float64", "float32")[seed % 2], (SGD(0.1, momentum=0.9), AdamW(0.003, eps=1e-3))[seed // 2 % 2]
    return compare(lambda: gpt(GPT, dtype), [tokens(s) for s in range(STEPS)], plan, f"buckets gpt {seed}", count, dtype, rule, 1.0)


def recurrent(count: int) -> int:
    return compare(model, [words(s) for s in range(STEPS)], plan, "buckets rnnlm", count, "float64", SGD(0.3, momentum=0.9), 1.0)


def any_network(seed: int, count: int) -> int:
    return compare_network(seed, plan, "buckets network", count)


def test_the_random_buckets_have_several_layers() -> None:
    graph = decoder_of()
    sizes = [
        len({cell.parameter for cell in bundle.cells})
        for number in range(6) for bundle in lower(graph, plan(graph, Random(3 * number), 3 * number), SGD(0.1)).bundles
    ]
    assert max(sizes) > 10 and sum(size > 2 for size in sizes) > 10


@pytest.mark.parametrize(("seed", "count"), [(2, 2), *(pytest.param(s, 12, marks=pytest.mark.slow) for s in range(4))])
def test_a_decoder_in_buckets(seed: int, count: int) -> None:
    assert decoder(seed, count) == count


def test_a_recurrent_network_in_buckets() -> None:
    assert recurrent(6) == 6


def test_random_networks_in_buckets() -> None:
    assert sum(any_network(seed, 2) for seed in range(300, 304)) >= 4


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(3))
def test_many_networks_in_buckets(seed: int) -> None:
    assert sum(any_network(308 + 100 * seed + i, 2) for i in range(30)) >= 30


@pytest.mark.parametrize(("first", "second"), fast_among(CHANGES := [
    ("d3 mb1 zero1 bucket=2K", "t2 d2 mb1 zero1"), ("d3 mb2 bucket=layer", "d2 zero1 bucket=700"),
    ("p2 d2 mb1 zero1", "d3 zero3 mb1"), ("d3 zero2 mb2", "p2 d2 mb1 bucket=1K overlap=none"),
], [CHANGES[0], CHANGES[3]]))
def test_a_checkpoint_goes_on_in_other_buckets(first: str, second: str, tmp_path: Path) -> None:
    def devices(plan: str) -> int:
        return int(np.prod([int(word[1:]) for word in plan.split() if word[0] in "tpd"]))

    graph, rule = decoder_of(), Adam(0.01)
    wanted = Executor(graph, undivided(graph), rule)
    losses = [wanted.train(tokens(step)) for step in range(6)]
    weights = wanted.weights()
    before = Executor(graph, choose(first, graph, taskflow.host(devices(first)))[0], rule)
    np.testing.assert_allclose([before.train(tokens(step)) for step in range(3)], losses[:3], rtol=1e-10)
    save_checkpoint(before, tmp_path / "half.safetensors")
    after = Executor(graph, choose(second, graph, taskflow.host(devices(second)))[0], rule)
    load_checkpoint(after, tmp_path / "half.safetensors")
    np.testing.assert_allclose([after.train(tokens(step)) for step in range(3, 6)], losses[3:], rtol=1e-10)
    found = after.weights()
    assert found is not None and weights is not None
    for name, value in weights.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-8, atol=1e-10, err_msg=name)
