"""What single operators promise beyond the common properties: feeds, masks, data errors, builders."""

from __future__ import annotations

from itertools import pairwise
from zlib import crc32

import numpy as np
import pytest
from operator_bench import NAME, backward, draw, evaluate, forward

import taskflow.operators as ops
from taskflow.export.cuts import WHOLE, added_once, weight_lies
from taskflow.graph import Node, OperatorGraph
from taskflow.kernels import NumpyKernels
from taskflow.kernels.definitions.random import words_at
from taskflow.operators.dropout import Dropout
from taskflow.operators.input import Input
from taskflow.operators.linear import Linear
from taskflow.operators.operator import Call, Reads, Spec, StepState
from taskflow.regions import Rect

FLOAT = np.dtype(np.float64)


def _mask(name: str = "drop", seed: int = 1, step: int = 0, dtype: type = np.float64) -> np.ndarray:
    """Which elements of (40, 50) a dropout of probability 0.3 keeps."""
    spec, rect = Spec((40, 50), np.dtype(dtype)), Rect.of((40, 50))
    x, y, kept = np.ones(spec.shape, dtype), np.empty(spec.shape, dtype), np.empty(spec.shape, bool)
    state = StepState(seed=seed, step=step)
    call = Call(name, (spec,), rect, Reads((rect,)), (rect,), NumpyKernels(), state, (x,), (), (y,), (kept,))
    Dropout(0.3).forward(call)
    np.testing.assert_array_equal(y, np.where(kept, dtype(1) * dtype(1 / 0.7), dtype(0)))
    return kept


def test_dropout_mask_depends_on_name_seed_and_step_alone() -> None:
    first = _mask()
    assert np.array_equal(first, _mask())
    for other in (_mask(name="drop_1"), _mask(seed=2), _mask(seed=1 + 2**32), _mask(step=1)):
        # Independent masks agree in 0.7^2 + 0.3^2 = 0.58 of the places, with a standard deviation of 0.011.
        assert abs(np.mean(first == other) - 0.58) < 0.045
    assert np.mean(first != _mask(dtype=np.float32)) < 0.001
    assert abs(first.mean() - 0.7) < 0.04  # four standard deviations
    # Python's own hash of a string is another one in every process; this mask must not be.
    words = words_at((1, crc32(b"drop")), 0, np.arange(2000, dtype=np.uint64))
    np.testing.assert_array_equal(first.reshape(-1), words >= 0.3 * 2**32)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, r"bench: each step needs float64\[2, 3\] by this name, got none"),
        ({"other": np.zeros((2, 3))}, r"got \['other'\]"),
        ({NAME: np.zeros((3, 2))}, r"each step needs float64\[2, 3\], got float64\[3, 2\]"),
        ({NAME: np.zeros((2, 3), np.float32)}, r"got float32\[2, 3\]; convert"),
    ],
)
def test_wrong_feeds(feeds: dict[str, np.ndarray], message: str) -> None:
    case = draw("input", 0)
    case.operator = Input((2, 3), FLOAT)
    case.state.feeds = feeds
    with pytest.raises(ValueError, match=message):
        forward(case)


@pytest.mark.parametrize("wrong", [-1, 10**6])
@pytest.mark.parametrize(("kind", "which", "message"), [
    ("embedding", 0, "indices must be at least 0 and below"),
    ("cross_entropy", 1, "targets must be at least 0 and below"),
    ("class_blocks", 1, "targets must be at least 0 and below"),
])
def test_data_out_of_range_is_refused(kind: str, which: int, message: str, wrong: int) -> None:
    case = draw(kind, 3)
    case.inputs[which].flat[-1] = wrong
    with pytest.raises(ValueError, match=f"{NAME}: {message}"):
        forward(case)


def test_ignored_targets_give_no_loss_and_no_gradient() -> None:
    graph = OperatorGraph("float64")
    x, t = ops.input(graph, (3, 4), name="x"), ops.input(graph, (3,), "int64", name="t")
    total, mean = ops.cross_entropy(x, t, reduction="sum"), ops.cross_entropy(x, t)
    logits = np.random.default_rng(0).normal(size=(3, 4))
    tensors, gradients = evaluate(graph, {"x": logits, "t": np.array([1, -100, 2])}, {}, {total: np.array(1.0)})
    log = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert tensors[total] == pytest.approx(-log[0, 1] - log[2, 2], rel=1e-14)
    assert tensors[mean] == pytest.approx(tensors[total] / 2, rel=1e-14)  # two count
    assert (gradients["x"][1] == 0).all() and (gradients["x"][[0, 2]] != 0).all()


def test_evaluation_turns_dropout_off() -> None:
    case = draw("dropout", 1, data=1)
    call = forward(case)
    np.testing.assert_array_equal(call.outputs[0], case.inputs[0])
    np.testing.assert_array_equal(backward(case, call)[0], case.grads[0])


@pytest.mark.parametrize("cuts", [(0, 12), (0, 3, 6, 9, 12), (0, 1, 5, 12)])
def test_pieces_of_a_contraction_share_the_bias(cuts: tuple[int, ...]) -> None:
    """Each adds it to its share of the channels of a block, and exports take it for what is added once."""
    node = Node(0, "linear", linear := Linear(8), (), (), (), specs := (Spec((2, 12), FLOAT),), linear.dims(specs))
    shares = [node.reads(Rect((0, 4, low), (2, 8, high))).weights[1] for low, high in pairwise(cuts)]
    assert (shares[0].lo, shares[-1].hi) == ((4,), (8,))
    assert all(a.hi == b.lo for a, b in pairwise(shares))
    if len(cuts) == 5:
        assert [share.volume for share in shares] == [1, 1, 1, 1]
    assert added_once(node, 2, 1) and not added_once(node, 2, 0) and not added_once(node, 1, 1)
    assert weight_lies(node, 2, 1) == WHOLE and weight_lies(node, 2, 0).axis == 1 and weight_lies(node, 1, 1).axis == 0


def test_reshape_cuts_only_where_both_sides_are_boxes() -> None:
    graph = OperatorGraph()
    x = ops.input(graph, (6, 4, 5), name="x")
    node = graph.producer(ops.reshape(x, (3, 8, 5)))
    assert [(d.name, d.size) for d in node.dims] == [("n", 3), ("a1", 5)]
    piece = Rect((1, 0), (2, 5))
    assert node.reads(piece).inputs == (Rect((2, 0, 0), (4, 4, 5)),)
    assert node.writes(piece) == (Rect((1, 0, 0), (2, 8, 5)),)
    assert ops.reshape(x, (-1, 5)).shape == (24, 5)
    with pytest.raises(ValueError, match="no size for -1"):
        ops.reshape(x, (-1, 7))
    with pytest.raises(ValueError, match="must have 120 elements"):
        ops.reshape(x, (5, 5))


def test_split_takes_a_size_or_sections() -> None:
    graph = OperatorGraph()
    x = ops.input(graph, (2, 7), name="x")
    assert [t.shape for t in ops.split(x, 3, 1)] == [(2, 3), (2, 3), (2, 1)]
    assert [t.shape for t in ops.split(x, [5, 2], -1)] == [(2, 5), (2, 2)]
    with pytest.raises(ValueError, match=r"sections must add up to 7, dim 1"):
        ops.split(x, [5, 3], 1)
    with pytest.raises(ValueError, match="dim must be between -2 and 1"):
        ops.split(x, 1, 2)


def test_wrong_attributes_are_refused() -> None:
    graph = OperatorGraph()
    x = ops.input(graph, (2, 7), name="x")
    for build, message in (
        (lambda: ops.dropout(x, 1.0), "p must be at least 0 and below 1, got 1.0"),
        (lambda: ops.cross_entropy(x, x), r"got float32\[2, 7\] and float32\[2, 7\]"),
        (lambda: ops.input(graph, (), name="e"), "at least the sample dimension"),
        (lambda: ops.state(graph, (2, 0), name="s"), r"shape\[1\] must be a positive integer, got 0"),
        (lambda: ops.concat([]), "at least 1 tensor"),
        (lambda: ops.softmax(x, 5), "dim must be between -2 and 1 for 2 dimensions, got 5"),
        (lambda: ops.embedding(x, 5, 2), "input must be an integer tensor"),
        (lambda: ops.add(x, ops.input(graph, (2, 6), name="y")), "sizes must be equal or 1"),
    ):
        with pytest.raises(ValueError, match=message):
            build()


def test_embedding_takes_the_float_type_of_its_graph() -> None:
    graph = OperatorGraph("float64")
    words = ops.input(graph, (2, 7), "int32", name="x")
    first = ops.embedding(words, 11, 3, name="words")
    again = ops.embedding(words, 11, 3, parameters=graph.parameters_of(first))
    assert first.spec == again.spec == Spec((2, 7, 3), FLOAT)
    assert [p.name for p in graph.parameters] == ["words.weight"]
