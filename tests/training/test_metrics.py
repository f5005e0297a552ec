"""Perplexity and throughput."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskflow.training import Throughput, perplexity
from taskflow.training.evaluation.metrics import hits


@given(st.integers(2, 10**6))
def test_perplexity_of_a_uniform_guess_is_the_vocabulary(size: int) -> None:
    assert perplexity(math.log(size)) == pytest.approx(size)


def test_perplexity_at_the_edges() -> None:
    assert perplexity(0.0) == 1.0
    assert perplexity(1e4) == math.inf
    assert perplexity(math.inf) == math.inf
    assert math.isnan(perplexity(math.nan))


def test_median_hides_one_slow_step() -> None:
    meter = Throughput()
    for seconds in (0.1, 0.1, 50.0, 0.1):
        meter.add(100, seconds)
    assert meter.per_second == pytest.approx(1000)
    assert meter.seconds_per_step == pytest.approx(0.1)


def test_only_recent_steps_count() -> None:
    meter = Throughput(window=3)
    for seconds in (9, 9, 9, 9, 2, 2, 2):
        meter.add(8, seconds)
    assert meter.per_second == 4


def test_empty_and_unmeasurable_steps() -> None:
    meter = Throughput()
    assert math.isnan(meter.per_second) and math.isnan(meter.seconds_per_step)
    meter.add(100, 0.0)
    assert math.isnan(meter.per_second)


@pytest.mark.parametrize("tokens, seconds", [(-1, 1.0), (1, -1.0), (1, math.nan)])
def test_refuses_impossible_steps(tokens: int, seconds: float) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        Throughput().add(tokens, seconds)


@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 10**6))
def test_hits_against_sorting(k: int, classes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(0, 4, (9, classes)).astype("float32")  # with equal scores
    labels = random.integers(0, classes, 9)
    labels[random.random(9) < 0.2] = -100
    first = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    assert hits(scores, labels, k) == sum(label in row for row, label in zip(first, labels))


def test_scores_that_are_no_numbers_are_not_right() -> None:
    assert hits(np.full((3, 4), math.nan), np.zeros(3, int), 5) == 0
