"""The cross-entropy in blocks of classes is the cross-entropy: against PyTorch, against the one in one piece, and under any cut."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from operator_bench import evaluate

import taskflow.operators as ops
from taskflow.graph import OperatorGraph
from taskflow.kernels import KernelSet, NumpyKernels, default_kernels
from taskflow.machine import host
from taskflow.mapper import OpConfig, RandomMapper, Strategy, map_graph
from taskflow.models.vocabulary import BLOCKS, blocks_of
from taskflow.operators.tensor import Tensor
from taskflow.rules import SGD
from taskflow.runtime.executor import Executor
from taskflow.runtime.transport.local import LocalTransport
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.task import Kind

Array = np.ndarray[Any, Any]
TOLERANCE = {"float64": 1e-8, "float32": 1e-3}


def loss_of(
    shape: tuple[int, ...], classes: int, dtype: str, blocks: int | None, feeds: dict[str, Array], **options: Any
) -> tuple[float, Array]:
    """The loss of scores "x" and targets "t", and the gradient of the scores."""
    graph = OperatorGraph(dtype)
    x, target = ops.input(graph, (*shape, classes), name="x"), ops.input(graph, shape, "int64", name="t")
    loss = ops.cross_entropy(x, target, blocks=blocks, **options)
    assert loss.shape == () and loss.dtype == np.dtype(dtype)
    tensors, gradients = evaluate(graph, feeds, {}, {loss: np.ones((), dtype)})
    return float(tensors[loss]), gradients["x"]


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("blocks", [1, 2, 3, 7, 16, 17])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("smoothing", "ignored"), [(0.0, -100), (0.1, -100), (0.0, 5), (1.0, 5)])
def test_equals_torch(blocks: int, reduction: str, smoothing: float, ignored: int, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    numbers = np.random.default_rng(blocks)
    shape, classes = (3, 17), 17
    feeds = {"x": (numbers.normal(size=(*shape, classes)) * 5).astype(dtype), "t": np.tile(np.arange(classes), (3, 1))}
    feeds["t"][1, ::3] = ignored
    options = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": ignored}
    loss, gradient = loss_of(shape, classes, dtype, blocks, feeds, **options)
    x = torch.tensor(feeds["x"], requires_grad=True)
    expected = torch.nn.functional.cross_entropy(
        x.movedim(-1, 1), torch.tensor(feeds["t"]), reduction=reduction, label_smoothing=smoothing, ignore_index=ignored
    )
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=TOLERANCE[dtype])
    np.testing.assert_allclose(gradient, x.grad.numpy(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 1e-3)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("blocks", [1, 3, 8])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_extreme_scores_are_as_exact_as_in_one_piece(blocks: int, smoothing: float, dtype: str) -> None:
    """In float32 two scores of 10,000 differ by a thousandth at least; the loss must still be exact where they are equal.
    What a block says of itself is rounded in double precision: relative to the scores, not to the loss."""
    within = max(4 * float(np.finfo(dtype).eps), 4e4 * float(np.finfo("float64").eps))
    classes = 8
    scores = np.full((6, classes), -1e4)
    scores[0, :] = 1e4  # all equal: log 8
    scores[1, 2] = 1e4  # the right one
    scores[2, [2, 7]] = 1e4  # the right one and one of another block: log 2
    scores[3, 5] = 1e4  # a wrong one
    scores[4, :] = -1e4
    scores[5, :] = np.linspace(-1e4, 1e4, classes)
    feeds = {"x": scores.astype(dtype), "t": np.full(6, 2)}
    for kind in ("sum", "mean"):
        one, first = loss_of((6,), classes, dtype, None, feeds, reduction=kind, label_smoothing=smoothing)
        other, second = loss_of((6,), classes, dtype, blocks, feeds, reduction=kind, label_smoothing=smoothing)
        assert np.isfinite(other) and other == pytest.approx(one, rel=within)
        np.testing.assert_allclose(second, first, rtol=0, atol=within)
    exact = {"x": scores[:3].astype(dtype), "t": np.full(3, 2)}
    if not smoothing:
        loss, _ = loss_of((3,), classes, dtype, blocks, exact, reduction="sum")
        assert loss == pytest.approx(np.log(8) + np.log(2), rel=within)


@pytest.mark.parametrize("kernels", [NumpyKernels(), default_kernels()], ids=lambda kernels: kernels.name)
def test_a_block_without_a_chance_takes_no_part(kernels: KernelSet) -> None:
    """Scores of minus infinity (words that are masked out) may fill a block; the loss is that of the other classes."""
    scores = np.array([[1.0, 2.0, -np.inf, -np.inf, 3.0, 0.5]])
    pairs, p = np.empty((1, 6)), np.empty((1, 6))
    kernels.class_blocks(scores, np.array([4]), -100, (6, 3, 0), p, pairs)
    assert pairs[0, 2] == -np.inf and not p[0, 2:4].any() and p[0, :2].sum() == pytest.approx(1)
    shares = np.empty((1, 3))
    loss = kernels.cross_entropy_of_blocks(pairs, np.array([4]), -100, shares)
    seen = scores[0, [0, 1, 4, 5]]
    assert loss == pytest.approx(np.log(np.exp(seen).sum()) - 3.0)
    assert shares[0, 1] == 0 and shares.sum() == pytest.approx(1)


@pytest.mark.parametrize(("dtype", "digits"), [("float64", 1e-11), ("float32", 2e-5)])
def test_numbers_do_not_depend_on_the_cut(dtype: str, digits: float) -> None:
    """Blocks that divide unevenly, cuts that do not match the layer's before, more blocks than pieces."""
    numbers, samples, steps, classes = np.random.default_rng(0), 4, 3, 23
    batch = {
        "x": numbers.normal(size=(samples, steps, 5)).astype(dtype), "t": numbers.integers(0, classes, (samples, steps)),
    }
    batch["t"][1, 1] = -100

    def losses(blocks: int | None, strategy: Strategy | None) -> list[float]:
        graph = _classifier(dtype, samples, steps, classes, blocks)
        machine = host(6)
        chosen = strategy or map_graph(RandomMapper(blocks or 0), graph, machine)
        run = Executor(graph, chosen, SGD(lr=0.5, momentum=0.9), transport=LocalTransport(), machine=machine)
        return [run.train(batch) or 0.0 for _ in range(4)]

    expected = losses(None, None)
    assert expected[3] < expected[0]
    for blocks in (1, 2, 5, 23):
        for seed in range(6):
            graph = _classifier(dtype, samples, steps, classes, blocks)
            random = Random(f"{blocks} {seed}")
            strategy = map_graph(RandomMapper(seed), graph, host(6))
            if seed % 2:  # the layer and its loss cut by classes, each in its own way
                configs = dict(strategy.configs)
                for name, most in (("scores", 6), ("loss.blocks", min(6, blocks))):
                    degree = random.randint(1, most)
                    cut = tuple(degree if dim.name == "c" else 1 for dim in graph.node(name).dims)
                    configs[name] = OpConfig(cut, tuple(random.sample(range(6), degree)))
                strategy = Strategy(6, configs, strategy.syncs, "by classes")
            np.testing.assert_allclose(losses(blocks, strategy), expected, rtol=digits, err_msg=f"{blocks} {strategy}")


def _classifier(dtype: str, samples: int, steps: int, classes: int, blocks: int | None) -> OperatorGraph:
    graph = OperatorGraph(dtype)
    x, target = ops.input(graph, (samples, steps, 5), name="x"), ops.input(graph, (samples, steps), "int64", name="t")
    scores: Tensor = ops.linear(x, classes, name="scores")
    graph.minimize(ops.cross_entropy(scores, target, label_smoothing=0.1, blocks=blocks, name="loss"))
    return graph


def test_a_layer_cut_by_classes_keeps_its_scores() -> None:
    """A softmax layer and its loss cut alike move a pair of each block, not the scores."""
    samples, steps, classes, blocks = 8, 4, 1000, 16
    moved = {}
    for count in (None, blocks):
        graph = _classifier("float32", samples, steps, classes, count)
        configs = {node.name: OpConfig((1,) * len(node.dims), (0,)) for node in graph}
        for name in ("scores", "loss.blocks"):
            if name in {node.name for node in graph}:
                cut = tuple(4 if dim.name == "c" else 1 for dim in graph.node(name).dims)
                configs[name] = OpConfig(cut, (0, 1, 2, 3))
        step = lower(graph, Strategy(4, configs, {}, "by classes"), SGD(lr=0.1))
        moved[count] = sum(task.nbytes for task in step.tasks if task.kind is Kind.COPY)
    rows = samples * steps
    scores, pairs = rows * classes * 4 * 3 // 4, rows * blocks * 16 * 3 // 4
    others = moved[blocks] - 2 * pairs  # inputs, targets and their gradients' way
    assert moved[None] >= 2 * scores and others < 0.05 * moved[None]


@pytest.mark.parametrize(("blocks", "message"), [(0, "blocks must be a positive integer"), (8, "each block needs a class")])
def test_blocks_that_do_not_fit_are_refused(blocks: int, message: str) -> None:
    graph = OperatorGraph()
    x, target = ops.input(graph, (2, 7), name="x"), ops.input(graph, (2,), "int64", name="t")
    with pytest.raises(ValueError, match=f"class_blocks: .*{message}"):
        ops.cross_entropy(x, target, blocks=blocks)


@pytest.mark.parametrize(("vocabulary", "blocks"), [(1, 1), (3, 1), (4, 1), (13, 3), (19, 4), (256, 64), (32_000, BLOCKS)])
def test_blocks_of_a_vocabulary(vocabulary: int, blocks: int) -> None:
    assert blocks_of(vocabulary) == blocks
