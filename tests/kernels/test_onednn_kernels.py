"""oneDNN's kernels against numpy's: convolutions of every kind in every direction, matrix products in every layout."""

from __future__ import annotations

from functools import partial
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from fast_and_slow import fast_among

from taskflow.kernels import NumpyKernels, onednn_missing

pytestmark = pytest.mark.skipif(onednn_missing() is not None, reason=str(onednn_missing()))
NUMPY = NumpyKernels()
EPS = float(np.finfo(np.float32).eps)


@pytest.fixture(scope="module", params=[1, 2], ids=["1-thread", "2-threads"])
def onednn(request: Any) -> Any:
    from taskflow.kernels.onednn.kernels import OneDNNKernels

    return OneDNNKernels(threads=request.param)


def numbers(rng: np.random.Generator, *shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


# ---- convolution -----------------------------------------------------------------------------------------------------

Case = tuple[tuple[int, ...], tuple[int, ...], tuple[int, int], Any, tuple[int, int], int]


def random_case(random: Random) -> Case:
    """x, weight, stride, padding, dilation, groups; padding may differ on the two sides, and be as wide as the kernel."""
    groups = random.choice((1, 1, 1, 2, 3))
    channels, outputs = groups * random.choice((1, 3, 8, 17, 20)), groups * random.choice((1, 2, 16, 19))
    kernel, stride, dilation = ((random.randint(1, 4), random.randint(1, 3)) for _ in range(3))
    windows = (random.randint(1, 9), random.randint(1, 9))
    padding, sizes = [], []
    for k, s, d, outs in zip(kernel, stride, dilation, windows):
        whole = (outs - 1) * s + (k - 1) * d + 1
        before = random.randint(0, min(3, whole - 1))
        after = random.randint(0, min(3, whole - 1 - before))
        padding.append((before, after))
        sizes.append(whole - before - after)
    x = (random.randint(1, 3), channels, *sizes)
    return x, (outputs, channels // groups, *kernel), stride, tuple(padding), dilation, groups


NETWORKS: list[Case] = [  # kinds of layers of AlexNet, ResNet-101 and Inception-v3, fewer and smaller
    ((2, 3, 63, 63), (16, 3, 11, 11), (4, 4), ((2, 2), (2, 2)), (1, 1), 1),
    ((2, 3, 32, 32), (16, 3, 7, 7), (2, 2), ((3, 2), (3, 2)), (1, 1), 1),
    ((2, 32, 24, 24), (48, 32, 1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    ((2, 48, 7, 7), (32, 48, 1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    ((2, 32, 13, 13), (48, 32, 1, 1), (2, 2), ((0, 0), (0, 0)), (1, 1), 1),
    ((2, 32, 14, 14), (32, 32, 3, 3), (2, 2), ((1, 0), (1, 0)), (1, 1), 1),
    ((2, 48, 12, 12), (32, 48, 1, 7), (1, 1), ((0, 0), (3, 3)), (1, 1), 1),
]


def check_all_directions(onednn: Any, case: Case, seed: int) -> None:
    x_shape, weight_shape, stride, padding, dilation, groups = case
    rng = np.random.default_rng(seed)
    x, weight, bias = numbers(rng, *x_shape), numbers(rng, *weight_shape), numbers(rng, weight_shape[0])
    sizes = [
        (size + sum(p) - d * (k - 1) - 1) // s + 1
        for size, p, d, k, s in zip(x_shape[2:], padding, dilation, weight_shape[2:], stride)
    ]
    dy = numbers(rng, x_shape[0], weight_shape[0], *sizes)
    slide = (stride, padding, dilation, groups)

    def compare(run: Any, out: Any, terms: int) -> None:
        one, other = out.copy(), out.copy()
        run(NUMPY, one)
        run(onednn, other)
        scale = max(1.0, float(np.abs(one).max()))
        np.testing.assert_allclose(other, one, rtol=0, atol=4 * EPS * scale * terms**0.5)

    for given in (None, bias):
        compare(partial(lambda s, out, given: s.conv2d(x, weight, given, *slide, out=out), given=given),
                np.full_like(dy, np.nan), weight[0].size)
    compare(lambda s, out: s.conv2d_backward_data(dy, weight, *slide, out=out), np.full_like(x, np.nan),
            weight.size // weight_shape[1])
    compare(lambda s, out: s.conv2d_backward_data(dy, weight, *slide, out=out, accumulate=True), numbers(rng, *x.shape),
            weight.size // weight_shape[1])
    compare(lambda s, out: s.conv2d_backward_weight(x, dy, *slide, out=out), np.full_like(weight, np.nan),
            dy.size // dy.shape[1])
    compare(lambda s, out: s.conv2d_backward_weight(x, dy, *slide, out=out, accumulate=True), numbers(rng, *weight.shape),
            dy.size // dy.shape[1])


@pytest.mark.parametrize("case", NETWORKS, ids=str)
def test_layers_of_the_networks(onednn: Any, case: Case) -> None:
    check_all_directions(onednn, case, 1)


@pytest.mark.parametrize("seed", range(60))
def test_random_convolutions(onednn: Any, seed: int) -> None:
    check_all_directions(onednn, random_case(Random(seed)), seed)


def test_large_kernels_never_fall_back_to_a_reference_implementation(onednn: Any) -> None:
    """Neither oneDNN's slow reference code nor numpy's serves a layer of the networks."""
    for case in NETWORKS:
        check_all_directions(onednn, case, 2)
    wanted = {case[:2] for case in NETWORKS}
    chains = [made for key, made in onednn._made.items() if len(key) == 10 and key[1:3] in wanted]
    assert len(chains) >= 3 * len(NETWORKS)
    assert all(chain is not None and "ref" not in chain.info for chain in chains)


def test_double_precision_goes_another_way(onednn: Any) -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(2, 3, 8, 8)), rng.normal(size=(4, 3, 3, 3))
    slide = ((1, 1), ((1, 1), (1, 1)), (1, 1), 1)
    one, other = np.empty((2, 4, 8, 8)), np.empty((2, 4, 8, 8))
    NUMPY.conv2d(x, weight, None, *slide, out=one)
    onednn.conv2d(x, weight, None, *slide, out=other)
    np.testing.assert_allclose(other, one, rtol=1e-12, atol=1e-12)


# ---- matrix products -------------------------------------------------------------------------------------------------


def matrix(rng: np.random.Generator, rows: int, columns: int, layout: str) -> Any:
    if layout == "transposed":
        return numbers(rng, columns, rows).T
    if layout == "strided":
        return numbers(rng, rows, columns + 3)[:, 1 : columns + 1]
    if layout == "loose":
        return numbers(rng, 2 * rows, 2 * columns)[::2, ::2]
    return numbers(rng, rows, columns)


SIZES = [(0, 3, 2), (1, 1, 1), (8, 300, 200), (16, 512, 300), (17, 300, 201), (64, 200, 333), (300, 1, 2000)]


@pytest.mark.parametrize(("size", "accumulate"), fast_among(
    list(product(SIZES, [False, True])),
    [*product(SIZES[:3], [False, True]), (SIZES[3], True), (SIZES[4], False), (SIZES[6], True)],
))
def test_products_in_every_layout(onednn: Any, size: tuple[int, int, int], accumulate: bool) -> None:
    rng, (m, k, n) = np.random.default_rng(sum(size)), size
    for la, lb, lo in product(("plain", "transposed", "strided", "loose"), repeat=3):
        if lo == "transposed":
            continue
        a, b, out = matrix(rng, m, k, la), matrix(rng, k, n, lb), matrix(rng, m, n, lo)
        want = a.astype(np.float64) @ b + (out if accumulate else 0)
        if not accumulate:
            out[...] = np.nan
        onednn.matmul(a, b, out, accumulate)
        np.testing.assert_allclose(out, want, rtol=0, atol=8 * EPS * (k + 4))


def test_shapes_that_do_not_fit_are_refused(onednn: Any) -> None:
    with pytest.raises(ValueError):
        onednn.matmul(np.zeros((200, 300), np.float32), np.zeros((301, 500), np.float32), np.zeros((200, 500), np.float32))


def test_a_multiplier_lays_out_in_the_room_that_it_is_given(onednn: Any) -> None:
    rng = np.random.default_rng(5)
    rows, inner, columns = 32, 512, 512
    weight = numbers(rng, columns, inner)
    a, b = numbers(rng, rows, inner), weight.T
    wanted = numbers(rng, rows, columns)
    room, small = np.full(weight.nbytes, 255, np.uint8), np.full(weight.nbytes - 64, 255, np.uint8)
    outs = []
    for given in (None, room, small):
        out = wanted.copy()
        onednn.multiplier(b, rows, 5, ("stamp", id(given)), given)(a, out)
        outs.append(out)
    assert (outs[0] == outs[1]).all() and (outs[0] == outs[2]).all()
    assert np.sort(room.view(np.float32)).tolist() == np.sort(weight, axis=None).tolist()  # the same numbers, laid out
    assert (small == 255).all()  # too small, so left alone
    room[:] = 0
    out = wanted.copy()
    onednn.multiplier(b, rows, 5, ("stamp", id(room)), room)(a, out)
    assert (out == wanted).all()  # with an equal stamp nothing is laid out again
    onednn.multiplier(b, rows, 5, ("another",), room)(a, out)
    assert (out == outs[0]).all()


@pytest.mark.parametrize("transposed", [False, True])
def test_a_multiplier_follows_its_stamp(onednn: Any, transposed: bool) -> None:
    rng = np.random.default_rng(0)
    rows, inner, columns = 32, 400, 500
    stored = numbers(rng, columns, inner) if transposed else numbers(rng, inner, columns)
    b = stored.T if transposed else stored
    a, before = numbers(rng, rows, inner), numbers(rng, rows, columns)

    def right(stamp: object) -> None:
        out = before.copy()
        onednn.multiplier(b, rows, 5, stamp)(a, out)
        np.testing.assert_allclose(out, a.astype(np.float64) @ b + before, rtol=0, atol=8 * EPS * inner)

    for stamp in (None, (1, 1), (1, 1), (1, 2), None):
        right(stamp)
        if stamp != (1, 1):
            stored *= -1.5  # changes, so the next stamp is another one
    with pytest.raises(ValueError):
        onednn.multiplier(b, rows, 5)(numbers(rng, rows, inner + 1), before.copy())


def test_a_rerun_gives_the_same_bits_and_so_do_other_threads_for_small_kernels() -> None:
    from taskflow.kernels.onednn.kernels import OneDNNKernels

    rng = np.random.default_rng(0)
    x, dy = numbers(rng, 4, 32, 24, 24), numbers(rng, 4, 48, 24, 24)
    a, b = numbers(rng, 64, 128), numbers(rng, 128, 64)
    for big, threads in ((True, (2, 2)), (False, (1, 2))):
        results = []
        for count in threads:
            kernels = OneDNNKernels(count)
            weight, out = np.empty((48, 32, 3, 3), np.float32), np.empty((64, 64), np.float32)
            images = (x, dy) if big else (x[:1, :4, :9, :9].copy(), dy[:1, :6, :9, :9].copy())
            into = weight if big else weight[:6, :4].copy()
            kernels.conv2d_backward_weight(*images, (1, 1), ((1, 1), (1, 1)), (1, 1), 1, out=into)
            kernels.matmul(a, b, out)
            results.append((into.tobytes(), out.tobytes()))
        assert results[0] == results[1]


# ---- in training -----------------------------------------------------------------------------------------------------


def test_training_follows_numpy_through_updates_evaluation_and_new_parameters() -> None:
    """Wide enough that recurrent weights are packed: what was packed must never outlive the weights."""
    from language_model import feeds, undivided

    from taskflow.kernels.onednn.kernels import OneDNNKernels
    from taskflow.models.rnnlm import RNNLMConfig, rnnlm
    from taskflow.rules import SGD
    from taskflow.runtime.executor import Executor

    config = RNNLMConfig(batch=32, steps=4, vocabulary=11, hidden=192, layers=2, steps_per_operator=2)
    found = []
    for kernels in (NUMPY, OneDNNKernels(1)):
        graph = rnnlm(config, "float32")
        run = Executor(graph, undivided(graph), SGD(2.0), seed=3, kernels=kernels)
        assert run.describe().endswith(f"{kernels.name} kernels")
        losses = [run.train(feeds(step, config)) for step in range(3)]
        losses.append(run.evaluate(feeds(3, config)))
        run.set_parameters({name: value * 1.5 for name, value in run.parameters().items()})
        losses += [run.evaluate(feeds(3, config)), run.train(feeds(4, config))]
        found.append(losses)
    assert kernels._packed, "the test must reach the packed weights"
    assert len(set(found[0])) == len(found[0])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
