"""Training under real MPI ranks: the same numbers, bit for bit, as with virtual processors, and the bytes that were planned."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from language_model import CONFIG, ONE_STEP, feeds, model, random_strategy
from programs.start import rows
from starting import needs_mpi

from taskflow.rules import SGD
from taskflow.runtime.executor import Executor
from taskflow.tasks.task import Kind

pytestmark = [pytest.mark.mpi, needs_mpi]
STRATEGIES = 12


@pytest.mark.parametrize(("ranks", "one_copy", "count"), [
    (2, False, 2), (5, True, 4),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in product((2, 3, 5, 8, 16), (False, True), [STRATEGIES])),
])
def test_random_strategies_bit_for_bit(ranks, one_copy, count):
    found = rows(ranks, "train_everywhere.py", str(count), *["one-copy"] * one_copy, limit=200)
    assert len(found) == count
    for row in found:
        seed = row["seed"]
        config = (CONFIG, ONE_STEP)[seed % 2]
        graph = model(("float64", "float32")[seed // 2 % 2], config)
        strategy = random_strategy(graph, row["processors"], Random(seed))
        local = Executor(graph, strategy, SGD(0.5, momentum=0.9), seed=3, clip_norm=1.0)
        losses = [local.train(feeds(step, config)) for step in range(5)]
        parameters = sum(float(abs(v).sum()) for v in local.parameters().values())
        if any(task.kind is Kind.COLLECTIVE for task in local.program("train").graph):  # MPI adds in an order of its own
            close = 1e-12 if graph.dtype == "float64" else 1e-5
            losses, parameters = pytest.approx(losses, rel=close), pytest.approx(parameters, rel=close)
        assert row["losses"] == losses, row
        assert row["parameters"] == parameters
        assert row["sent"] == row["planned"]
        if one_copy:  # what lies in memory that both ends have is not sent
            assert row["sent"] < row["graph"] if row["lent"] else row["sent"] == row["graph"]
        else:
            assert row["sent"] == row["graph"] and not row["lent"]
        if row["processors"] == ranks:
            assert row["graph"] == 5 * local.program("train").graph.transfer_bytes
    assert not one_copy or sum(row["lent"] > 0 for row in found) >= STRATEGIES // 4
