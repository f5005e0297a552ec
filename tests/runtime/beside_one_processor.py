"""Trains networks under random plans and on one processor, and compares losses and weights, for the tests of plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
from language_model import undivided
from random_networks import network

from taskflow.graph import OperatorGraph
from taskflow.mapper import Strategy
from taskflow.rules import UpdateRule
from taskflow.runtime.executor import Executor, LossError

STEPS = 3
Plan = Callable[[OperatorGraph, Random, int], Strategy]
"""Makes a random strategy of a graph, by a generator and the plan's number. It may not fit the graph; a ValueError says that there
is none."""
Result = tuple[list[Any], dict[str, Any]]
"""Losses, and weights by name."""


def trained(
    graph: OperatorGraph, strategy: Strategy, batches: list[dict[str, Any]], rule: UpdateRule, clip_norm: float | None
) -> Result:
    """Losses of some steps, with evaluation in between and afterwards; weights."""
    run = Executor(graph, strategy, rule, seed=3, clip_norm=clip_norm)
    losses = []
    for batch in batches:
        losses += [run.train(batch), run.evaluate(batch)]
    weights = run.weights()
    assert weights is not None
    return losses, weights


def same(found: Result, wanted: Result, which: str, dtype: str) -> None:
    """Compare to rounding: sums have another order under another plan, and three steps of training carry that on."""
    rtol, atol = (1e-10, 1e-12) if dtype == "float64" else (1e-4, 1e-5)
    np.testing.assert_allclose(found[0], wanted[0], rtol=rtol, atol=atol, err_msg=which)
    assert found[1].keys() == wanted[1].keys()
    for name, value in wanted[1].items():
        np.testing.assert_allclose(found[1][name], value, rtol=100 * rtol, atol=100 * atol, err_msg=f"{which}: {name}")


def plans(graph: OperatorGraph, plan: Plan, seed: object, count: int) -> Iterator[tuple[int, Strategy]]:
    """The first ``count`` of the random plans that fit the graph, and their numbers."""
    found = 0
    for number in range(20 * count):
        try:
            strategy = plan(graph, Random(f"{seed} {number}"), number)
            strategy.verify(graph)
        except ValueError:
            continue
        yield number, strategy
        found += 1
        if found == count:
            return


def compare(
    graph_of: Callable[[], OperatorGraph], batches: list[dict[str, Any]], plan: Plan, seed: object, count: int, dtype: str,
    rule: UpdateRule, clip: float | None,
) -> int:
    """How many random plans were compared with one processor."""
    wanted = trained(graph_of(), undivided(graph_of()), batches, rule, clip)
    if max(map(abs, wanted[0])) > 1e6:  # training diverges: rounding grows as fast
        return 0
    compared = 0
    for number, strategy in plans(graph_of(), plan, seed, count):
        same(trained(graph_of(), strategy, batches, rule, clip), wanted, f"{seed}, plan {number}: {strategy!r}", dtype)
        compared += 1
    return compared


def compare_network(seed: int, plan: Plan, name: str, count: int) -> int:
    """`compare` for the random network of that seed; none where its training ends with an error."""
    _, batch, rule, clip = network(seed)
    try:
        return compare(lambda: network(seed)[0], [batch] * STEPS, plan, f"{name} {seed}", count, "float64", rule, clip)
    except LossError:
        return 0
