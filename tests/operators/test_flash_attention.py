"""Fused attention: what a query sees, memory, dropout, cuts by keys, and the same numbers as the composed operators."""

from __future__ import annotations

import tracemalloc
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from language_model import random_strategy, undivided
from operator_bench import evaluate

import taskflow.operators as ops
from taskflow.graph import OperatorGraph
from taskflow.kernels import NumpyKernels, default_kernels
from taskflow.mapper import OpConfig, Strategy
from taskflow.operators.attention_scope import AttentionScope, blocks_of, heads_and_groups, tiles_of
from taskflow.operators.dropout import generator_key
from taskflow.operators.flash_attention import FlashAttention
from taskflow.operators.operator import Call, Spec, StepState, Target
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect
from taskflow.rules import SGD
from taskflow.runtime.executor import Executor
from taskflow.tasks.lower.lower import lower


def sees(scope: AttentionScope, query: int, key: int) -> bool:
    beside = query + scope.keys - scope.queries
    return not scope.causal or (key <= beside and (scope.window is None or key > beside - scope.window))


def spans(size: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(size) for b in range(a + 1, size + 1)]


@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (True, 1), (True, 2), (True, 4)])
def test_what_is_seen_is_what_counting_finds(causal: bool, window: int | None) -> None:
    for queries, keys in product((1, 3, 5), (1, 2, 5, 7)):
        scope = AttentionScope(queries, keys, causal, window)
        for rows, columns in product(spans(queries), spans(keys)):
            seen = [(t, s) for t in range(*rows) for s in range(*columns) if sees(scope, t, s)]
            assert scope.pairs(rows, columns) == len(seen), (scope, rows, columns)
            some_rows, some_columns = scope.within(rows, columns)
            if not seen:
                assert some_rows == some_columns == (0, 0)
                continue
            assert some_rows == (min(t for t, _ in seen), max(t for t, _ in seen) + 1), (scope, rows, columns)
            assert some_columns == (min(s for _, s in seen), max(s for _, s in seen) + 1), (scope, rows, columns)
            for row in range(*rows):
                assert scope.first_key(row, columns) == min((s for t, s in seen if t == row), default=None)


def test_heads_find_their_key_heads() -> None:
    for per_group in (1, 2, 3, 4):
        for first, last in spans(12):
            covered = []
            for heads, groups in heads_and_groups((first, last), per_group):
                here = range(first, last)[heads]
                per = len(here) // (groups.stop - groups.start)
                for number, head in enumerate(here):
                    assert first // per_group + groups.start + number // per == head // per_group
                covered += here
            assert covered == list(range(first, last))


def composed(q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout: float, name: str) -> Tensor:
    """The same of the operators that were there before: (N, L, H, D)."""
    q, k, v = (ops.transpose(x, 1, 2) for x in (q, k, v))
    scores = ops.scale(ops.matmul(q, k, transpose_other=True), q.shape[3] ** -0.5)
    weights = ops.softmax(scores, causal=causal)
    return ops.transpose(ops.matmul(ops.dropout(weights, dropout, name=name), v), 1, 2)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (4, 9)])
def test_it_gives_what_the_composed_operators_give(queries: int, keys: int, causal: bool, dropout: float) -> None:
    """With the same name dropout's numbers are the same: those of an element's place among (N, H, Lq, Lk)."""
    numbers, results = np.random.default_rng(0), []
    shapes = {"q": (3, queries, 4, 5), "k": (3, keys, 4, 5), "v": (3, keys, 4, 6)}
    feeds = {name: numbers.normal(size=shape) for name, shape in shapes.items()}
    seed = numbers.normal(size=(3, queries, 4, 6))
    for fused in (True, False):
        graph = OperatorGraph("float64")
        q, k, v = (ops.input(graph, shape, name=name) for name, shape in shapes.items())
        if fused:
            y = ops.flash_attention(q, k, v, causal=causal, dropout=dropout, name="attention")
        else:
            y = composed(q, k, v, causal, dropout, "attention")
        tensors, gradients = evaluate(graph, feeds, {}, {y: seed})
        results.append([tensors[y], *(gradients[name] for name in shapes)])
    for fused_one, composed_one in zip(*results):
        np.testing.assert_allclose(fused_one, composed_one, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("window", [None, 3])
def test_blocks_of_keys_give_the_same(window: int | None, lengths: bool) -> None:
    numbers = np.random.default_rng(1)
    for queries, keys, blocks in ((6, 6, 3), (6, 9, 4), (8, 5, 2), (5, 7, 7), (4, 4, 1)):
        shapes, results = {"q": (3, queries, 4, 5), "k": (3, keys, 2, 5), "v": (3, keys, 2, 3)}, []
        feeds: dict[str, Any] = {name: numbers.normal(size=shape) for name, shape in shapes.items()}
        feeds["lengths"], seed = np.array([keys, 0, keys // 2]), numbers.normal(size=(3, queries, 4, 3))
        for key_blocks in (None, blocks):
            graph = OperatorGraph("float64")
            q, k, v = (ops.input(graph, shape, name=name) for name, shape in shapes.items())
            ends = ops.input(graph, (3,), "int64", name="lengths")
            y = ops.flash_attention(
                q, k, v, causal=True, window=window, lengths=ends if lengths else None, key_blocks=key_blocks, name="a"
            )
            tensors, gradients = evaluate(graph, feeds, {}, {y: seed})
            results.append([tensors[y], *(gradients[name] for name in shapes)])
        for whole, merged in zip(*results):
            np.testing.assert_allclose(merged, whole, rtol=1e-11, atol=1e-13)
        first_row_alone = max(0, queries - keys)
        assert not results[1][0][:, :first_row_alone].any()  # these stand before the first key
        assert not lengths or not results[1][0][1].any()  # this sample has no keys


def task(operator: FlashAttention, arrays: list[np.ndarray], state: StepState, piece: Rect | None = None) -> Call:
    """The call of one piece over float32 or float64 arrays, forward done."""
    specs = tuple(Spec(a.shape, a.dtype) for a in arrays)
    piece = piece or Rect.of(specs[0].shape[:3])
    reads, writes = operator.reads(specs, piece), operator.writes(specs, piece)
    call = Call(
        "attention", specs, piece, reads, writes, default_kernels(), state,
        inputs=tuple(np.ascontiguousarray(a[r.slices(Rect.of(a.shape))]) for a, r in zip(arrays, reads.inputs)),
        outputs=tuple(np.full(w.shape, np.nan, specs[0].dtype) for w in writes),
        saved=tuple(np.full(s.shape, np.nan, s.dtype) for s in operator.saves(specs, piece)),
    )
    operator.forward(call)
    return call


def test_memory_is_linear_in_the_sequence() -> None:
    """A matrix of 4,096 x 4,096 scores alone would have 67 MB; what is allocated on the way stays below a tenth of
    that."""
    length = 4096
    arrays = [np.random.default_rng(i).normal(size=(1, length, 1, 8)).astype(np.float32) for i in range(3)]
    operator = FlashAttention(8**-0.5, causal=True)
    specs = [Spec(a.shape, a.dtype) for a in arrays]
    piece = Rect.of(specs[0].shape[:3])
    assert sum(s.nbytes for s in operator.saves(specs, piece)) == 4 * length
    tracemalloc.start()
    call = task(operator, arrays, StepState())
    call.grad_outputs = (np.ones_like(call.outputs[0]),)
    call.grad_inputs = tuple(Target(np.empty_like(a), False) for a in arrays)
    operator.backward(call)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6.7e6, peak


def test_large_scores_do_not_overflow() -> None:
    numbers = np.random.default_rng(3)
    arrays = [numbers.normal(size=(1, 300, 2, 4)).astype(np.float32) * size for size in (100, 100, 1)]
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = task(FlashAttention(1.0), arrays, StepState()).outputs[0]
    q, k, v = (a.astype(np.float64).transpose(0, 2, 1, 3) for a in arrays)
    scores = q @ k.swapaxes(-1, -2)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    expected = (weights / weights.sum(axis=-1, keepdims=True)) @ v
    # A score of 1e5 in single precision is off by up to 0.01, and so is the weight's logarithm.
    np.testing.assert_allclose(found.transpose(0, 2, 1, 3), expected, atol=0.05)


def test_dropout_depends_on_the_place_alone() -> None:
    """Dropped weights of the pieces are those of the whole: values that are ones show their sums, which are not 1."""
    numbers, state = np.random.default_rng(4), StepState(seed=7, step=3)
    arrays = [numbers.normal(size=(2, 10, 3, 4)), numbers.normal(size=(2, 10, 3, 4)), np.ones((2, 10, 3, 1))]
    operator = FlashAttention(0.5, dropout=0.5, tile=3)
    whole = task(operator, arrays, state).outputs[0]
    assert np.abs(whole - 1).max() > 0.2 and abs(whole.mean() - 1) < 0.2
    for piece in (Rect((1, 4, 1), (2, 9, 3)), Rect((0, 0, 2), (2, 1, 3))):
        part = task(operator, arrays, state, piece)
        np.testing.assert_allclose(part.outputs[0], whole[part.writes[0].slices(Rect.of(whole.shape))], rtol=1e-12)
    uniform = np.empty((2, 3, 10, 10))
    NumpyKernels().uniform(generator_key(state, "attention"), 3, uniform.shape, (0,) * 4, uniform)
    scores = np.einsum("nthd,nshd->nhts", arrays[0], arrays[1]) * 0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(whole[..., 0], (weights * (uniform >= 0.5) * 2).sum(-1).transpose(0, 2, 1), rtol=1e-12)
    assert not np.allclose(whole, task(operator, arrays, StepState(seed=7, step=4)).outputs[0])


def network(key_blocks: int | None = None, dropout: float = 0.0, window: int | None = None) -> OperatorGraph:
    """Words, one layer of attention with shared key heads, and a loss."""
    graph = OperatorGraph("float64", "attention")
    x = ops.input(graph, (4, 12, 8), name="x")
    wanted = ops.input(graph, (4, 12, 12), name="wanted")
    q = ops.rotary(ops.reshape(ops.linear(x, 12, name="q"), (4, 12, 6, 2)), name="rq")
    k = ops.rotary(ops.reshape(ops.linear(x, 4, name="k"), (4, 12, 2, 2)), name="rk")
    v = ops.reshape(ops.linear(x, 4, name="v"), (4, 12, 2, 2))
    y = ops.flash_attention(q, k, v, causal=True, window=window, dropout=dropout, key_blocks=key_blocks, name="attention")
    y = ops.rms_norm(ops.linear(ops.reshape(y, (4, 12, 12)), 12, name="o"), name="norm")
    graph.minimize(ops.mse_loss(y, wanted, name="loss"))
    return graph


def losses(graph: OperatorGraph, strategy: Strategy) -> list[float | None]:
    numbers, run = np.random.default_rng(0), Executor(graph, strategy, SGD(0.1), seed=2)
    feeds = {"x": numbers.normal(size=(4, 12, 8)), "wanted": numbers.normal(size=(4, 12, 12))}
    return [run.train(feeds) for _ in range(3)]


@pytest.mark.parametrize(("key_blocks", "dropout", "window"), [(None, 0.0, None), (4, 0.0, None), (4, 0.3, 5), (None, 0.3, 3)])
def test_losses_are_the_same_under_any_strategy(key_blocks: int | None, dropout: float, window: int | None) -> None:
    graph = network(key_blocks, dropout, window)
    whole = losses(graph, undivided(graph))
    assert whole[2] < whole[0]
    for seed in range(12):
        found = losses(graph, random_strategy(graph, 2 + seed % 5, Random(seed)))
        np.testing.assert_allclose(found, whole, rtol=1e-11)
    if key_blocks:
        np.testing.assert_allclose(whole, losses(network(None, dropout, window), undivided(network())), rtol=1e-11)


def test_ring_attention_is_a_cut() -> None:
    """Queries in four pieces on four processors, each with all its blocks of keys: of the keys each fetches what it
    sees and has not, and what is behind the last query neither is fetched nor costs anything."""
    graph = network(key_blocks=4)
    strategy = Strategy(4, {
        node.name: OpConfig((1, 4, *[1] * (len(node.dims) - 2)), (0, 1, 2, 3)) if len(node.dims) > 1 else OpConfig((1,), (0,))
        for node in graph
    } | {"attention": OpConfig((1, 4, 1, 4), tuple(row for row in range(4) for _ in range(4)))})
    node = graph.node("attention")
    fetched = 0
    for row, block in product(range(4), range(4)):
        piece = Rect((0, 3 * row, 0, block), (4, 3 * row + 3, 6, block + 1))
        keys = node.reads(piece).inputs[1]
        flops = node.operator.flops(node.specs, piece)
        assert keys.empty == (block > row) and (flops == 0) == keys.empty
        fetched += (block != row) * keys.volume
    copies = [t for t in lower(graph, strategy, SGD(0.1)) if t.kind.travels and t.topic.name == "rk"]
    bytes_of_keys = sum(t.nbytes for t in copies)
    assert bytes_of_keys == 2 * 8 * fetched  # forward, and the gradients back
    np.testing.assert_allclose(losses(graph, strategy), losses(graph, undivided(graph)), rtol=1e-11)


def test_blocks_and_tiles_cover() -> None:
    for size, count in product(range(1, 12), range(1, 6)):
        if count <= size:
            parts = blocks_of(size, count)
            assert [i for a, b in parts for i in range(a, b)] == list(range(size)) and all(b > a for a, b in parts)
        assert [i for a, b in tiles_of((2, 2 + size), count) for i in range(a, b)] == list(range(2, 2 + size))


@pytest.mark.parametrize(("change", "message"), [
    ({"window": 3}, "a window must be at least 1 and needs causal, got 3"),
    ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
    ({"key_blocks": 9}, "each block needs a key, got 9 blocks of 5 keys"),
])
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    graph = OperatorGraph()
    q, k = ops.input(graph, (2, 4, 4, 3), name="q"), ops.input(graph, (2, 5, 2, 3), name="k")
    with pytest.raises(ValueError, match=message):
        ops.flash_attention(q, k, k, **change)
    with pytest.raises(ValueError, match="heads must be a multiple of the key heads, got 4 and 3"):
        other = ops.input(graph, (2, 5, 3, 3), name="other")
        ops.flash_attention(q, other, other)


def test_lengths_beyond_the_keys_are_refused() -> None:
    graph = OperatorGraph("float64")
    x, lengths = ops.input(graph, (2, 3, 1, 2), name="x"), ops.input(graph, (2,), "int64", name="lengths")
    ops.flash_attention(x, x, x, lengths=lengths, name="attention")
    with pytest.raises(ValueError, match="attention: lengths must be from 0 to 3, got 4"):
        evaluate(graph, {"x": np.zeros((2, 3, 1, 2)), "lengths": np.array([1, 4])}, {}, {})
