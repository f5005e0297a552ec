"""Single kernels of the GPU against numpy's: sizes whose sums go in parts, both types, extreme values, the same random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from host_device import HostDevice, compiles, host_kernels

from taskflow.kernels import KERNELS, NumpyKernels
from taskflow.kernels.gpu import kernels as kernels_module
from taskflow.kernels.gpu import rows as rows_module

NUMPY = NumpyKernels()
DTYPES = ("float32", "float64")
Arrays = dict[str, np.ndarray]


def both(kernels: Any, name: str, arrays: Arrays, *given: Any, **options: Any) -> tuple[Arrays, Arrays]:
    """Call a kernel of both sets on copies of ``arrays``; ``given`` and ``options`` name arrays by strings that begin with @."""
    results = []
    for of in (NUMPY, kernels):
        there = {}
        for key, value in arrays.items():
            there[key] = of.xp.empty(value.shape, value.dtype)
            of.device.upload(value, there[key])

        def resolve(value: Any, there: dict[str, Any] = there) -> Any:
            return there[value[1:]] if isinstance(value, str) and value.startswith("@") else value

        answer = getattr(of, name)(*map(resolve, given), **{key: resolve(value) for key, value in options.items()})
        found = {key: of.device.to_host(value) for key, value in there.items()}
        if answer is not None:
            found["answer"] = np.asarray(float(answer))
        results.append(found)
    return results[0], results[1]


def near(pair: tuple[Arrays, Arrays], scale: float = 1.0) -> None:
    for key, expected in pair[0].items():
        dtype = expected.dtype if expected.dtype.kind == "f" else np.float64
        eps = float(np.finfo(dtype).eps) if key != "answer" else 1e-7
        np.testing.assert_allclose(pair[1][key], expected, rtol=64 * eps, atol=64 * eps * scale, err_msg=key, equal_nan=True)


def draw(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(dtype)


def test_every_kernel_has_code_for_gpus_of_its_own() -> None:
    """But those whose definition does with the array module of the GPU, or with the set's own product."""
    kind = kernels_module.GPUKernels
    shared = {name for name in KERNELS if getattr(kind, name) is getattr(NumpyKernels, name)}
    scans = {"selective_scan", "selective_scan_backward", "linear_attention", "linear_attention_backward"}
    whole = {"copy", "add", "multiplier"} | scans
    assert shared == whole, "GPUKernels would run numpy's definition on arrays of the GPU"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 5, 3, 4)])
def test_selective_scans(dtype: str, shape: tuple[int, int, int, int], kernels: Any) -> None:
    n, t, d, s = shape
    sizes = {"x": (n, t, d), "dt": (n, t, d), "a": (d, s), "b": (n, t, s), "c": (n, t, s)}
    arrays = {name: draw(dtype, *size, seed=seed) for seed, (name, size) in enumerate(sizes.items())}
    arrays["dt"], arrays["a"], arrays["y"] = abs(arrays["dt"]), -abs(arrays["a"]), draw(dtype, n, t, d, seed=9)
    given = [f"@{name}" for name in sizes]
    near(both(kernels, "selective_scan", arrays, *given, "@y"), 8)
    gradients = {f"d{name}": np.full_like(arrays[name], 7) for name in sizes}
    near(both(kernels, "selective_scan_backward", arrays | gradients, *given, "@y", *(f"@{name}" for name in gradients)), 32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("corrects", [False, True])
def test_linear_attention(dtype: str, corrects: bool, kernels: Any) -> None:
    sizes = {"q": (2, 5, 2, 3), "k": (2, 5, 2, 3), "v": (2, 5, 3, 4), "g": (2, 5, 3), "beta": (2, 5, 3)}
    arrays = {name: draw(dtype, *size, seed=seed) for seed, (name, size) in enumerate(sizes.items())}
    arrays["g"], arrays["y"] = -abs(arrays["g"]), draw(dtype, 2, 5, 3, 4, seed=9)
    given = ["@q", "@k", "@v", "@g", "@beta" if corrects else None, 2, 1]
    near(both(kernels, "linear_attention", arrays, *given, "@y"), 32)
    gradients = {f"d{name}": np.full_like(arrays[name], 7) for name in sizes}
    into = [f"@{name}" if corrects or name != "dbeta" else None for name in gradients]
    near(both(kernels, "linear_attention_backward", arrays | gradients, *given, "@y", *into), 64)


# ---- sums in parts ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (64, 3), (1001, 7), (333, 130), (0, 4)])
def test_sums_over_rows(dtype: str, shape: tuple[int, int], kernels: Any) -> None:
    for add in (False, True):
        near(both(kernels, "sum_rows", {"x": draw(dtype, *shape), "out": draw(dtype, shape[1])}, "@x", "@out", add), shape[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 5, 40_000])
def test_sums_of_squares(dtype: str, size: int, kernels: Any) -> None:
    near(both(kernels, "sum_of_squares", {"x": draw(dtype, size)}, "@x"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 4, 5), (5, 2, 2100), (0, 3, 4)])
def test_channels(dtype: str, shape: tuple[int, int, int], kernels: Any) -> None:
    channels, size = shape[1], shape[0] * shape[2]
    arrays = {"x": draw(dtype, *shape), "dy": draw(dtype, *shape, seed=1)}
    sums = {**arrays, "out": np.zeros((2, channels))}
    near(both(kernels, "channel_moments", sums, "@x", "@out"), size * 1e5 if dtype == "float32" else size)
    near(both(kernels, "channel_products", sums, "@x", "@dy", "@out"), size * 1e5 if dtype == "float32" else size)
    near(both(kernels, "channel_sums", {**arrays, "out": draw(dtype, channels)}, "@x", "@out", True), size)
    affine = {**arrays, "scale": draw(dtype, channels, seed=2), "offset": draw(dtype, channels, seed=3)}
    near(both(kernels, "channel_affine", affine, "@x", "@scale", "@offset", "@dy", True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("groups", "channels"), [(1, 1), (1, 300), (3, 5)])
def test_numbers_of_channels(dtype: str, groups: int, channels: int, kernels: Any) -> None:
    count = 7
    x = draw("float64", count, groups, channels) + 3
    moments = np.stack([x.sum(axis=0), (x * x).sum(axis=0)], axis=1)
    moments[0, :, 0] = 2.5 * count, 6.25 * count  # does not vary
    weight, bias, mean = (draw(dtype, channels, seed=i) for i in range(3))
    arrays = {
        "moments": moments, "sums": moments[0].copy(), "products": draw("float64", 2, channels, seed=4), "weight": weight,
        "bias": bias, "mean": mean, "variance": mean**2, "new_mean": mean * 0, "new_variance": mean * 0,
    }
    scales = {**arrays, "out": np.zeros((2, channels), dtype)}
    near(both(kernels, "channel_scales", scales, "@sums", count, 1e-5, "@weight", "@bias", "@out"), 10)
    changes = {**arrays, "out": np.zeros((5, channels))}
    near(both(kernels, "channel_changes", changes, "@sums", count, 1e-5, "@weight", "@products", "@out"), 1e4)
    moved = ("@mean", "@variance", "@new_mean", "@new_variance")
    near(both(kernels, "channel_running", arrays, "@moments", count, 0.1, count / (count - 1), *moved), 10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 3), (200, 9), (5, 301)])
def test_layer_norm(dtype: str, shape: tuple[int, int], kernels: Any) -> None:
    rows, columns = shape
    arrays = {"x": draw(dtype, *shape), "w": draw(dtype, columns), "b": draw(dtype, columns, seed=1)}
    forward = both(
        kernels, "layer_norm", {**arrays, "out": draw(dtype, *shape), "s": draw(dtype, rows, 2)}, "@x", "@w", "@b", 0.1, "@out",
        "@s",
    )
    near(forward)
    arrays |= {"s": forward[0]["s"], "dy": draw(dtype, *shape, seed=2), "out": draw(dtype, *shape), "sums": draw(dtype, 2, columns)}
    near(both(kernels, "layer_norm_backward", arrays, "@x", "@w", "@s", "@dy", "@out", "@sums", True), rows)


# ---- softmax and losses ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_of_extreme_rows(dtype: str, kernels: Any) -> None:
    x = draw(dtype, 6, 300) * 100
    x[1, :] = -np.inf
    x[1, 7] = 0
    x[2, 5] = np.inf
    x[3, 5] = np.nan
    with np.errstate(invalid="ignore"):
        near(both(kernels, "softmax", {"x": x, "out": np.zeros_like(x)}, "@x", "@out"))
    ends = np.array([0, 300, 1, 5, 299, 17])
    x[2:4] = 1
    near(both(kernels, "softmax", {"x": x, "out": np.ones((6, 310), dtype), "ends": ends}, "@x", "@out", "@ends"))
    pair = {"y": draw(dtype, 4, 70), "dy": draw(dtype, 4, 70, seed=1), "out": draw(dtype, 4, 70, seed=2)}
    near(both(kernels, "softmax_backward", pair, "@y", "@dy", "@out", True), 70)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["int64", "int32"])
def test_cross_entropy(dtype: str, smoothing: float, kind: str, kernels: Any) -> None:
    x, target = draw(dtype, 50, 33) * 20, np.random.default_rng(0).integers(0, 33, 50).astype(kind)
    target[::7] = -100
    arrays = {"x": x, "t": target, "p": np.zeros_like(x)}
    forward = both(kernels, "cross_entropy", arrays, "@x", "@t", -100, "@p", smoothing=smoothing)
    near(forward)
    backward = {"p": forward[0]["p"], "t": target, "out": draw(dtype, 50, 33)}
    near(both(kernels, "cross_entropy_backward", backward, "@p", "@t", -100, 0.3, "@out", True, smoothing=smoothing))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["int64", "int32"])
@pytest.mark.parametrize(("split", "here"), [((33, 4, 0), 4), ((33, 4, 1), 2), ((1000, 3, 2), 1), ((33, 33, 5), 20)])
def test_class_blocks(split: tuple[int, int, int], here: int, kind: str, smoothing: float, dtype: str, kernels: Any) -> None:
    classes, blocks, first = split
    columns = (first + here) * classes // blocks - first * classes // blocks
    x, target = draw(dtype, 30, columns) * 20, np.random.default_rng(0).integers(0, classes, 30).astype(kind)
    target[::7] = -100
    x[1, :] = -np.inf  # nothing has a chance
    x[2, :5] = 1e4
    arrays = {"x": x, "t": target, "p": np.ones_like(x), "out": np.ones((30, 2 * here))}
    target[1] = first * classes // blocks + columns if first + here < blocks else -100  # its score would be infinite, too
    with np.errstate(invalid="ignore"):
        forward = both(kernels, "class_blocks", arrays, "@x", "@t", -100, split, "@p", "@out", smoothing=smoothing)
    eps = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(forward[1].pop("out"), forward[0].pop("out"), rtol=64 * eps, atol=1e-12)
    near(forward)
    given = {"p": forward[0]["p"], "t": target, "dy": draw("float64", 30, 2 * here), "out": draw(dtype, 30, columns)}
    for add in (False, True):
        options = {"accumulate": add, "smoothing": smoothing}
        near(both(kernels, "class_blocks_backward", given, "@p", "@t", -100, split, "@dy", "@out", **options))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("blocks", [1, 5, 64, 300])
def test_cross_entropy_of_blocks(blocks: int, dtype: str, kernels: Any) -> None:
    y, target = draw(dtype, 20, 2 * blocks) * 10, np.random.default_rng(0).integers(0, 4, 20)
    arrays = {"y": y, "t": target, "shares": np.ones((20, blocks), dtype)}
    forward = both(kernels, "cross_entropy_of_blocks", arrays, "@y", "@t", 3, "@shares")
    near(forward)
    given = {"s": forward[0]["shares"], "t": target, "out": draw(dtype, 20, 2 * blocks)}
    for add in (False, True):
        near(both(kernels, "cross_entropy_of_blocks_backward", given, "@s", "@t", 3, 0.3, "@out", add))


def test_a_wrong_target_is_no_number(kernels: Any) -> None:
    x, target = kernels.xp.zeros((2, 3), np.float32), kernels.xp.full(2, 3, np.int64)
    assert np.isnan(float(kernels.cross_entropy(x, target, -100, x)))
    pairs = kernels.xp.zeros((2, 4), np.float64)
    kernels.class_blocks(x, target, -100, (3, 2, 0), x, pairs)
    assert np.isnan(kernels.device.to_host(pairs)[:, 1]).all()


# ---- random numbers --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "lo", "box"), [
    ((40,), (3,), (30,)), ((7, 9, 5), (2, 0, 1), (4, 9, 3)), ((1 << 20, 1 << 20), ((1 << 20) - 3, 5), (3, 50)), ((), (), ()),
])
def test_random_numbers_are_the_cpus(dtype: str, shape: Any, lo: Any, box: Any, kernels: Any) -> None:
    key, stream = (0xFFFFFFFF, 12345), 0xFFFFFFFE
    expected, actual = both(kernels, "uniform", {"out": np.zeros(box, dtype)}, key, stream, shape, lo, "@out")
    assert np.array_equal(expected["out"], actual["out"])
    near(both(kernels, "normal", {"out": np.zeros(box, dtype)}, key, stream, shape, lo, "@out"))
    arrays = {"x": draw(dtype, *box), "out": np.zeros(box, dtype), "mask": np.zeros(box, bool)}
    expected, actual = both(kernels, "dropout", arrays, key, stream, shape, lo, 0.3, "@x", "@out", "@mask")
    assert all(np.array_equal(expected[name], actual[name]) for name in arrays)


# ---- the others ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("compared", [1 << 13, 0])
def test_embedding_gradients_add_rows_in_order(
    dtype: str, compared: int, kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "COMPARED_ROWS", compared)
    index = np.random.default_rng(0).integers(-2, 12, 300)
    arrays = {"i": index, "dy": draw(dtype, 300, 5), "out": draw(dtype, 6, 5)}
    expected, actual = both(kernels, "embedding_backward", arrays, "@i", 3, "@dy", "@out", True)
    assert np.array_equal(expected["out"], actual["out"])  # not only near: the same order
    rows = {"t": draw(dtype, 6, 5), "i": index, "out": np.zeros((300, 5), dtype)}
    near(both(kernels, "embedding", rows, "@t", "@i", 3, "@out"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", ["uint8", "uint16", "uint32"])
def test_max_pooling_with_nan_and_infinity(dtype: str, index: str, kernels: Any) -> None:
    x = draw(dtype, 2, 3, 9, 8)
    x[0, 0, 2, 2], x[0, 1, 4], x[1, 2, :4] = np.nan, -np.inf, 1.0
    sliding = ((3, 2), (2, 2), ((1, 1), (0, 1)))
    arrays = {"x": x, "out": np.zeros((2, 3, 5, 4), dtype), "i": np.zeros((2, 3, 5, 4), index)}
    forward = both(kernels, "max_pool2d", arrays, "@x", *sliding, "@out", "@i")
    assert np.array_equal(forward[0]["i"], forward[1]["i"])
    near(forward)
    backward = {"dy": draw(dtype, 2, 3, 5, 4), "i": forward[0]["i"], "out": draw(dtype, 2, 3, 9, 8)}
    near(both(kernels, "max_pool2d_backward", backward, "@dy", "@i", *sliding, "@out", True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_update_rules(dtype: str, kernels: Any) -> None:
    arrays = {name: draw(dtype, 500, seed=i) for i, name in enumerate("wgmv")} | {"scale": np.array(0.25)}
    arrays["v"] = np.abs(arrays["v"])
    for decoupled in (False, True):
        near(both(kernels, "adam", arrays, "@w", "@g", "@m", "@v", 0.01, 0.9, 0.99, 1e-8, 0.1, decoupled, 0.25, 3))
    for velocity, nesterov, first in ((None, False, False), ("@v", True, False), ("@v", False, True)):
        near(both(kernels, "sgd", arrays, "@w", "@g", velocity, 0.1, 0.9, 0.1, 0.01, nesterov, 0.25, first))
    by_number = both(kernels, "sgd", arrays, "@w", "@g", None, 0.1, 0.0, 0.0, 0.0, False, 0.25, False)[1]["w"]
    there = {name: kernels.xp.empty(value.shape, value.dtype) for name, value in arrays.items()}
    for name, value in arrays.items():
        kernels.device.upload(value, there[name])
    kernels.sgd(there["w"], there["g"], None, 0.1, 0.0, 0.0, 0.0, False, there["scale"], False)
    assert np.array_equal(kernels.device.to_host(there["w"]), by_number)


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_at_their_ends(dtype: str, kernels: Any) -> None:
    x = np.concatenate([draw(dtype, 50) * 5, np.array([0, -0.0, 1e30, -1e30, np.inf, -np.inf, np.nan], dtype)])
    for function in ("relu", "sigmoid", "tanh"):
        near(both(kernels, "activate", {"x": x, "out": np.zeros_like(x)}, function, "@x", "@out"))
    for approximate in (False, True):
        arrays = {"x": x[:50], "dy": draw(dtype, 50, seed=1), "out": draw(dtype, 50, seed=2)}
        near(both(kernels, "gelu", arrays, "@x", approximate, "@out"))
        near(both(kernels, "gelu_backward", arrays, "@x", approximate, "@dy", "@out", True))
    with pytest.raises(ValueError, match="must be relu, sigmoid or tanh, got 'sin'"):
        kernels.activate("sin", kernels.xp.zeros(3, dtype), kernels.xp.zeros(3, dtype))


@pytest.mark.skipif(not compiles(), reason="no C++20 compiler: the GPU's kernels cannot be run on the host")
def test_large_products_in_bf16_round_their_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_module, "NARROW_EDGE", 8)
    monkeypatch.setattr(HostDevice, "precision", "bf16")
    kernels = host_kernels()
    cases = (
        ("large, as they lie", (9, 8), (8, 10), False, False), ("large, turned", (9, 8), (8, 10), True, True),
        ("a stack", (2, 9, 8), (2, 8, 10), True, False),
    )
    for about, left, right, turn, again in cases:
        a, b = draw("float32", *left), draw("float32", *right, seed=1)
        there = []
        for x, turned in ((a, turn), (b, again)):
            kept = kernels.xp.empty((*x.shape[:-2], *x.shape[:-3:-1]) if turned else x.shape, np.float32)
            kernels.device.upload(np.ascontiguousarray(x.swapaxes(-1, -2)) if turned else x, kept)
            there.append(kept.swapaxes(-1, -2) if turned else kept)
        out = kernels.xp.ones((*left[:-1], right[-1]), np.float32)
        kernels.device.launches.clear()
        kernels.matmul(*there, out=out, accumulate=True)
        assert kernels.device.launches == {"round_to_16"}, about
        found, exact = kernels.device.to_host(out), a @ b + 1
        assert 1e-5 < np.abs(found - exact).max() < 0.1, about
        small = kernels.xp.empty((7, 10), np.float32)
        kernels.matmul(there[0][..., :7, :].reshape(-1, 8)[:7], there[1].reshape(-1, 8, 10)[0], out=small)
        np.testing.assert_allclose(kernels.device.to_host(small), a.reshape(-1, 9, 8)[0, :7] @ b.reshape(-1, 8, 10)[0], rtol=1e-4)
