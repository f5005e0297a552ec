"""Numbers do not depend on the strategy: random networks of all operators under random strategies, against one processor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import pytest
from fast_and_slow import fast_among
from language_model import random_strategy, undivided
from random_networks import IMAGES, SEQUENCES, network

from taskflow.mapper import Strategy
from taskflow.runtime.executor import Executor, LossError

STEPS, STRATEGIES = 3, 3
MOST_LOSS = 1e6  # beyond, rounding grows as fast as the loss
SEEDS = 5  # networks of one test


def trained(seed: int, strategy: Strategy) -> tuple[list[Any], Any, Mapping[str, Any]]:
    """The losses of a few steps, the loss in evaluation afterwards, and the weights."""
    graph, feeds, rule, clip_norm = network(seed)
    run = Executor(graph, strategy, rule, seed=3, clip_norm=clip_norm)
    losses = [run.train(feeds) for _ in range(STEPS)]
    return losses, run.evaluate(feeds), run.weights()


def compare(seed: int) -> bool:
    """False, and nothing was compared, if training diverges on one processor."""
    graph = network(seed)[0]
    try:
        losses, loss, weights = trained(seed, undivided(graph))
    except LossError:
        return False
    if max(map(abs, [*losses, loss])) > MOST_LOSS:
        return False
    for number in range(STRATEGIES):
        random = Random(f"{seed} {number}")
        which = f"network {seed}, strategy {number}"
        found, found_loss, found_weights = trained(seed, random_strategy(graph, random.randint(2, 6), random))
        np.testing.assert_allclose([*found, found_loss], [*losses, loss], rtol=1e-8, atol=1e-10, err_msg=which)
        assert found_weights.keys() == weights.keys()
        for name, value in weights.items():
            np.testing.assert_allclose(found_weights[name], value, rtol=1e-6, atol=1e-9, err_msg=f"{which}: {name}")
    return True


def compare_all(seeds: range) -> None:
    assert sum(compare(seed) for seed in seeds) >= 0.8 * len(seeds)


@pytest.mark.parametrize("first", fast_among(range(0, 60, SEEDS), range(0, 20, SEEDS)))
def test_numbers_do_not_depend_on_the_strategy(first: int) -> None:
    compare_all(range(first, first + SEEDS))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(1000, 3000, 20 * SEEDS))
def test_of_many_networks(first: int) -> None:
    compare_all(range(first, first + 20 * SEEDS))


def test_every_operator_is_in_some_network() -> None:
    kinds = Counter(node.operator.kind for seed in range(60) for node in network(seed)[0])
    assert {*IMAGES, *SEQUENCES} - {"select"} <= kinds.keys(), sorted({*IMAGES, *SEQUENCES} - kinds.keys())
