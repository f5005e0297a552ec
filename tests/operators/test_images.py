"""What convolution, pooling and their relatives promise beyond the common properties: halos, groups, refusals."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from random import Random

import numpy as np
import pytest
from operator_bench import evaluate

import taskflow.operators as ops
from taskflow.graph import OperatorGraph
from taskflow.operators.conv_transpose2d import ConvTranspose2d
from taskflow.operators.cost_key import cost_key
from taskflow.operators.operator import Spec, iteration_space
from taskflow.operators.tensor import Tensor
from taskflow.operators.window import SlidingWindow
from taskflow.regions import Rect


def _images(shape: tuple[int, ...] = (2, 4, 8, 9)) -> tuple[OperatorGraph, Tensor]:
    graph = OperatorGraph("float64")
    return graph, ops.input(graph, shape, name="x")


def test_spatial_cuts_read_halos_clipped_at_the_border() -> None:
    graph, x = _images()
    node = graph.producer(ops.conv2d(x, 6, 3, padding=1))
    top = node.reads(Rect((0, 0, 0, 0, 0), (2, 6, 4, 9, 4)))
    assert top.inputs == (Rect((0, 0, 0, 0), (2, 4, 5, 9)),)
    bottom = node.reads(Rect((0, 0, 4, 0, 0), (2, 6, 8, 9, 4)))
    assert bottom.inputs == (Rect((0, 0, 3, 0), (2, 4, 8, 9)),)
    middle = node.reads(Rect((0, 2, 3, 4, 1), (1, 4, 5, 6, 3)))
    assert middle.inputs == (Rect((0, 1, 2, 3), (1, 3, 6, 7)),)
    # Of the contracted channels, the first piece alone reads the bias.
    assert middle.weights == (Rect((2, 1, 0, 0), (4, 3, 3, 3)), Rect((2,), (2,)))


def test_a_row_at_the_border_does_not_read_what_it_multiplies_with_padding() -> None:
    graph, x = _images()
    node = graph.producer(ops.conv2d(x, 6, 3, padding=1))
    row = node.reads(Rect((0, 0, 0, 0, 0), (2, 6, 1, 9, 4)))
    assert row.inputs[0] == Rect((0, 0, 0, 0), (2, 4, 2, 9))
    assert row.weights[0] == Rect((0, 0, 1, 0), (6, 4, 3, 3))


def test_channel_cuts_read_the_groups_that_they_touch() -> None:
    graph, x = _images()
    node = graph.producer(ops.conv2d(x, 8, 1, groups=4))
    assert [d.name for d in node.dims if d.divisible] == ["n", "k", "h", "w"]
    for channels, groups in (((0, 2), (0, 1)), ((1, 2), (0, 1)), ((1, 4), (0, 2)), ((3, 8), (1, 4))):
        read = node.reads(Rect((0, channels[0], 0, 0, 0), (2, channels[1], 8, 9, 1))).inputs[0]
        assert (read.lo[1], read.hi[1]) == groups


@pytest.mark.parametrize("window", [
    SlidingWindow(k, s, before, after, d)
    for k in (1, 2, 3, 5) for s in (1, 2, 3) for d in (1, 2, 3) for before, after in ((0, 0), (1, 2), (4, 0))
])
def test_windows_see_what_counting_says(window: SlidingWindow) -> None:
    for size in range(1, 9):
        outputs = window.outputs(size)
        for low in range(max(outputs, 0)):
            for high in range(low + 1, outputs + 1):
                met = [
                    (o * window.stride - window.before + j * window.dilation, j)
                    for o in range(low, high) for j in range(window.kernel)
                ]
                inside = [(at, j) for at, j in met if 0 <= at < size]
                seen = window.sees(size, low, high)
                assert seen.empty == (not inside)
                if inside:
                    assert (seen.low, seen.high) == (min(inside)[0], max(inside)[0] + 1)
                    used = [at for at, j in met if seen.first <= j < seen.last]
                    assert {seen.first, seen.last - 1} <= {j for _, j in inside}
                    assert seen.padding == (seen.low - min(used), max(used) + 1 - seen.high)


def test_pooling_passes_the_gradient_to_the_first_of_equals() -> None:
    graph, x = _images((1, 1, 2, 4))
    y = ops.max_pool2d(x, 2)
    image = np.array([[[[3.0, 3, 0, 0], [3, 1, 0, 0]]]])
    _, gradients = evaluate(graph, {"x": image}, {}, {y: np.array([[[[5.0, 7]]]])})
    np.testing.assert_array_equal(gradients["x"], [[[[5, 0, 7, 0], [0, 0, 0, 0]]]])


def test_not_a_number_is_not_pooled_away() -> None:
    graph, x = _images((1, 1, 3, 3))
    y = ops.max_pool2d(x, 2, 1, 1)
    image = np.zeros((1, 1, 3, 3))
    image[0, 0, 0, 0] = np.nan
    tensors, _ = evaluate(graph, {"x": image}, {}, {})
    # The four windows that hold the corner.
    np.testing.assert_array_equal(np.argwhere(np.isnan(tensors[y][0, 0])), [[0, 0], [0, 1], [1, 0], [1, 1]])


def test_builders_take_what_torch_takes() -> None:
    graph, x = _images()
    assert ops.conv2d(x, 6, (1, 7), padding=(0, 3)).shape == (2, 6, 8, 9)
    assert ops.conv2d(x, 6, 3, 2, ((0, 1), (2, 2)), dilation=(2, 1), bias=False).shape == (2, 6, 3, 6)
    assert ops.max_pool2d(x, 3, 2, 1).shape == ops.avg_pool2d(x, 3, 2, 1).shape == (2, 4, 4, 5)
    assert ops.max_pool2d(x, (2, 3)).shape == (2, 4, 4, 3)
    assert ops.max_pool2d(x, 3, 2, 1, (1, 2)).shape == (2, 4, 4, 4)
    assert ops.max_pool2d(x, 3, 2, ceil_mode=True).shape == ops.avg_pool2d(x, 3, 2, ceil_mode=True).shape == (2, 4, 4, 4)
    # A last window that would begin in the padding does not count.
    assert ops.max_pool2d(x, 1, 3, ceil_mode=True).shape == ops.max_pool2d(x, 1, 3).shape == (2, 4, 3, 3)
    assert ops.adaptive_avg_pool2d(x, (1, 3)).shape == (2, 4, 1, 3)
    assert ops.pad(x, (1, 2, 3, 0)).shape == (2, 4, 11, 12)
    assert ops.flatten(x, 1).shape == (2, 288)
    assert ops.flatten(x, 1, 2).shape == (2, 32, 9)
    assert ops.select(x, 1, -1).shape == (2, 8, 9)
    assert ops.narrow(x, -1, -3, 2).shape == (2, 4, 8, 2)
    assert ops.mean(x, (2, 3)).shape == (2, 4)
    assert ops.sum(x, 1, keepdim=True).shape == (2, 1, 8, 9)
    assert ops.sum(x).shape == ()
    assert [p.name for p in graph.parameters] == ["conv2d.weight", "conv2d.bias", "conv2d_1.weight"]


def test_what_does_not_fit_is_refused() -> None:
    _, x = _images()
    for build, message in (
        (lambda: ops.conv2d(x, 6, 9), r"kernel \(9, 9\) with dilation \(1, 1\) is larger than the input"),
        (lambda: ops.conv2d(x, 6, 3, groups=3), "groups=3 must divide the input's 4 and the output's 6"),
        (lambda: ops.conv2d(x, 6, 0), "kernel_size must be one or two integers of at least 1, got 0"),
        (lambda: ops.conv2d(x, 6, 3, padding=(1, 2, 3)), "padding must be an integer or one entry for each"),
        (lambda: ops.conv2d(x, 6, 3, padding=-1), "padding must be one or two integers of at least 0"),
        (lambda: ops.max_pool2d(x, 3, dilation=5), r"kernel \(3, 3\) is larger than the input"),
        (lambda: ops.softmax(x, 1, lengths=ops.narrow(x, 3, 0, 1)), r"lengths must be integers \(N,\)"),
        (lambda: ops.max_pool2d(x, 3, padding=2), "padding must be at most half of the kernel 3, got 2"),
        (lambda: ops.avg_pool2d(x, 10), r"kernel \(10, 10\) is larger than the input"),
        (lambda: ops.pad(x, (1, 2, 3)), "needs two widths for each of at most 4 dimensions"),
        (lambda: ops.pad(x, (1, -2)), "widths must be 0 or more"),
        (lambda: ops.flatten(x, 2, 1), "start_dim must not lie behind end_dim"),
        (lambda: ops.narrow(x, 1, 3, 2), r"start=3 and length=2 must lie in dim 1"),
        (lambda: ops.mean(x, (1, -3)), "different dims"),
        (lambda: ops.batch_norm(x, samples=3), "multiple of samples=3"),
        (lambda: ops.gelu(x, "sigmoid"), "approximate must be 'none' or 'tanh'"),
        (lambda: ops.softmax(x, 1, causal=True), "causal needs the last dim"),
        (lambda: ops.mse_loss(x, ops.flatten(x)), "one shape and type"),
        (lambda: ops.attention(ops.flatten(x, 2), x), r"needs \(N, T, features\) and \(N, S, features\)"),
        (lambda: ops.multi_head_attention(ops.flatten(x, 2), ops.flatten(x, 2), 5), "multiple of num_heads=5"),
    ):
        with pytest.raises(ValueError, match=message):
            build()


def test_transposed_convolutions_read_what_adds_to_them() -> None:
    """A kernel of 4 with stride 2 and padding 1: output 2 i - 1 + j for j in 0:4, so outputs 4:8 get something of inputs 1:5."""
    graph = OperatorGraph()
    x = ops.input(graph, (2, 6, 8, 3), name="x")
    y = ops.conv_transpose2d(x, 4, (4, 1), (2, 1), (1, 0))
    node = graph.producer(y)
    assert y.shape == (2, 4, 16, 3)
    reads = node.reads(Rect((0, 1, 4, 0, 0), (2, 3, 8, 3, 6)))
    assert reads.inputs == (Rect((0, 0, 1, 0), (2, 6, 5, 3)),)
    assert reads.weights == (Rect((0, 1, 0, 0), (6, 3, 4, 1)), Rect((1,), (3,)))
    one = node.reads(Rect((0, 0, 0, 0, 2), (2, 4, 1, 3, 4)))  # output 0 = 2 i - 1 + j: j is 1
    assert one.inputs == (Rect((0, 2, 0, 0), (2, 4, 1, 3)),)
    assert one.weights == (Rect((2, 0, 1, 0), (4, 4, 2, 1)), Rect((0,), (0,)))  # the first piece of the contraction adds the bias


def test_transposed_convolutions_that_do_not_fit_are_refused() -> None:
    graph = OperatorGraph()
    x = ops.input(graph, (2, 4, 8, 9), name="x")
    assert ops.conv_transpose2d(x, 6, 3, 2, 1, 1).shape == (2, 6, 16, 18)
    assert ops.conv_transpose2d(x, 6, (2, 3), 1, (0, 1), bias=False, dilation=(3, 2)).shape == (2, 6, 11, 11)
    assert [p.shape for p in graph.parameters] == [(4, 6, 3, 3), (6,), (4, 6, 2, 3)]
    grouped = graph.producer(ops.conv_transpose2d(x, 6, 3, groups=2))
    assert [dim.divisible for dim in grouped.dims] == [True, False, True, True, False]
    for build, message in (
        (lambda: ops.conv_transpose2d(x, 6, 3, 2, output_padding=2), "output_padding must be smaller than the stride"),
        (lambda: ops.conv_transpose2d(x, 6, 3, groups=3), "groups=3 must divide the input's 4 and the output's 6"),
        (lambda: ops.conv_transpose2d(x, 6, 1, padding=4), "leaves nothing of the output"),
        (lambda: ops.conv_transpose2d(x, 6, 0), "kernel_size must be one or two integers of at least 1, got 0"),
        (lambda: ops.conv_transpose2d(x, 6, 3, padding=-1), "padding must be one or two integers of at least 0"),
        (lambda: ops.conv_transpose2d(ops.flatten(x, 1), 6, 3), "must be a float tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            build()


def test_pieces_of_equal_shapes_cost_the_same_only_with_equal_flops() -> None:
    """A kernel of three over three inputs: outputs 0:3 take 1, 2 and 3 products, outputs 1:4 take 2, 3 and 2."""
    operator, x = ConvTranspose2d(1, (3, 1), (1, 1), (0, 0), (0, 0), (1, 1), 1, False), Spec((1, 1, 3, 1), np.dtype(np.float32))
    first, second, last = (Rect((0, 0, low, 0, 0), (1, 1, low + 3, 1, 1)) for low in range(3))
    assert operator.reads((x,), first) == operator.reads((x,), second) == operator.reads((x,), last)
    assert [operator.flops((x,), piece) for piece in (first, second, last)] == [12, 14, 12]
    keys = [cost_key(operator, (x,), piece, False) for piece in (first, second, last)]
    assert keys[0] == keys[2] != keys[1]


@pytest.mark.parametrize("seed", range(30))
def test_flops_of_transposed_convolutions_are_counted(seed: int) -> None:
    """Two for each element of the kernel that reaches an output of the piece from an input that there is."""
    random = Random(seed)
    operator, (x,) = (example := ConvTranspose2d.example(random)).operator, example.inputs
    lo, hi = zip(*(sorted(random.sample(range(dim.size + 1), 2)) for dim in operator.dims((x,))))
    met = [
        sum(
            (at := o + operator.padding[i] - j * operator.dilation[i]) % operator.stride[i] == 0
            and 0 <= at // operator.stride[i] < x.shape[2 + i]
            for o in range(lo[2 + i], hi[2 + i]) for j in range(operator.kernel[i])
        )
        for i in range(2)
    ]
    counted = 2 * (hi[0] - lo[0]) * (hi[1] - lo[1]) * (hi[4] - lo[4]) * met[0] * met[1]
    assert operator.flops((x,), Rect(lo, hi)) == counted
    unpadded = replace(operator, padding=(0, 0))
    whole = unpadded.flops((x,), iteration_space(unpadded, (x,)))
    # Each input goes with every element of its kernels.
    assert whole == 2 * prod(x.shape) * operator.out_channels // operator.groups * prod(operator.kernel)
