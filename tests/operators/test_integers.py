"""Arithmetic of integers: positions that are counted from tokens are exact, whole and in pieces, also in a network of 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskflow as tf
from taskflow import operators as ops
from taskflow.graph import OperatorGraph

STEPS = 400  # more than bfloat16 counts exactly


def counting(dtype: str) -> tuple[OperatorGraph, Any]:
    """A network that embeds the number of tokens up to each one that are not 1, and 2 more, where they are not 1."""
    graph = OperatorGraph(dtype, "counting")
    tokens = ops.input(graph, (4, STEPS), "int64", name="tokens")
    real = ops.to_integer(ops.compare(tokens, "ne", 1, name="real"), name="integers")
    counted = ops.mul(ops.cumsum(real, 1, name="counted"), real, name="alone")
    places = ops.sub(ops.add(counted, ops.constant(graph, np.array([3]), name="three"), name="added"),
                     ops.constant(graph, np.ones((1, STEPS), np.int64), name="ones"), name="places")
    words = ops.embedding(places, STEPS + 3, 2, name="table")
    graph.minimize(ops.mean(ops.cast(words, "float32", name="wide"), name="loss"))
    return graph, places


@pytest.mark.parametrize("plan, dtype", [("d1", "float32"), ("d2 mb1", "float32"), ("d2", "bfloat16")])
def test_positions_are_counted_exactly(plan: str, dtype: str) -> None:
    graph, places = counting(dtype)
    tokens = np.random.default_rng(0).integers(0, 3, (4, STEPS))
    run = tf.Executor(graph, tf.choose(plan, graph, tf.host(int(plan[1])))[0], tf.SGD(lr=100.0))
    before = {name: np.array(value) for name, value in (run.weights() or {}).items()}
    found = (run.evaluate_with({"tokens": tokens}, [places])[1] or {})["places"]
    real = tokens != 1
    wanted = np.cumsum(real, axis=1) * real + 2
    np.testing.assert_array_equal(found, wanted)
    run.train({"tokens": tokens})
    moved = np.asarray((run.weights() or {})["table.weight"], np.float64) - before["table.weight"].astype(np.float64)
    used = np.isin(np.arange(STEPS + 3), wanted)
    assert (moved[used] != 0).any() and not moved[~used].any(), "gradients reach the rows that were counted, and no others"


def test_integers_and_floats_are_not_mixed() -> None:
    graph = OperatorGraph()
    tokens, x = ops.input(graph, (4, 5), "int64", name="tokens"), ops.input(graph, (4, 5), name="x")
    with pytest.raises(ValueError, match="floats or integers of one type"):
        ops.add(tokens, x)
    with pytest.raises(ValueError, match="takes floats"):
        ops.to_integer(tokens)
    assert str(ops.to_float(tokens, "float64").dtype) == "float64"
