"""16-bit arrays on the GPU's kernels: conversions bit by bit, every operator and small networks as on the CPU in the same types."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from host_device import compiles, host_kernels
from language_model import undivided
from operator_bench import KINDS
from pipelines import decoder, fitting, tokens
from sixteen_bit_runs import Run, eps

from taskflow.floats import float_type, is_narrow
from taskflow.kernels import HOST, NumpyKernels
from taskflow.loss_scaling import LossScaling
from taskflow.operators.sixteen_bit import add_up
from taskflow.rules import SGD, AdamW, UpdateRule
from taskflow.runtime.executor import Executor
from taskflow.runtime.program import graph_capture as recording

pytest.importorskip("ml_dtypes")
TYPES = [float_type("bfloat16"), float_type("float16")]
NUMPY = NumpyKernels()


def there(kernels: Any, array: np.ndarray) -> Any:
    out = kernels.xp.empty(array.shape, array.dtype)
    kernels.device.upload(array, out)
    return out


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    """The same bits, but for which bits say that it is not a number."""
    nans = np.isnan(wanted.astype(np.float32))
    bits = np.uint32 if wanted.itemsize == 4 else np.uint16
    assert (np.isnan(found.astype(np.float32)) == nans).all()
    np.testing.assert_array_equal(found.view(bits)[~nans], wanted.view(bits)[~nans])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_16_bit_number_widens(dtype: Any, kernels: Any) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    same(kernels.device.to_host(kernels.device.widen(there(kernels, every))), every.astype(np.float32))
    grid = every[:1000].reshape(20, 50)
    total = np.full((20, 50), 3.0, np.float32)
    summed = there(kernels, total)
    kernels.device.widen(there(kernels, grid)[:, ::2], summed[:, 25:], accumulate=True)
    with np.errstate(invalid="ignore"):
        total[:, 25:] += grid[:, ::2]
    same(kernels.device.to_host(summed), total)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rounding_is_to_the_nearest_ties_to_even(dtype: Any, kernels: Any) -> None:
    """Every 16-bit number, half-way to the next one and just beside that; numbers of all sizes; what is too large."""
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        halfway = every + (np.roll(every, -1) - every) / 2
        beside = [np.nextafter(halfway, np.float32(end)) for end in (-np.inf, np.inf)]
        drawn = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
        special = np.array([65504, 65519.996, 65520, 65536, 1e38, np.inf, -np.inf, np.nan, -0.0, 2.0**-25, 2.0**-24], np.float32)
        x = np.concatenate([every, halfway, *beside, drawn, special]).astype(np.float32)
        wanted = x.astype(dtype)
    out = kernels.xp.empty(x.shape, dtype)
    kernels.device.round_into(there(kernels, x), out)
    same(kernels.device.to_host(out), wanted)
    grid = there(kernels, np.ones((4, 6), dtype))
    kernels.device.round_into(there(kernels, x[:12].reshape(4, 3)), grid[:, ::2])
    same(kernels.device.to_host(grid)[:, ::2].copy(), wanted[:12].reshape(4, 3))
    assert (kernels.device.to_host(grid)[:, 1::2] == 1).all()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sums_are_rounded_once(dtype: Any, kernels: Any) -> None:
    parts = [np.random.default_rng(seed).normal(size=(7, 9)).astype(dtype) for seed in range(4)]
    for fresh in (False, True):
        wanted, found = parts[0].copy(), there(kernels, parts[0])
        add_up(HOST, wanted, parts[1:], fresh)
        add_up(kernels.device, found, [there(kernels, part) for part in parts[1:]], fresh)
        same(kernels.device.to_host(found), wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_operators_give_what_the_cpu_gives(kind: str, dtype: Any, kernels: Any) -> None:
    """float32 sums may be added in another order, so a result may fall to the other side of a tie."""
    for seed in range(4):
        cpu, gpu = Run(kind, seed, dtype, dtype, NUMPY), Run(kind, seed, dtype, dtype, kernels)
        results = list(zip(cpu.forward(), gpu.forward()))
        if kind != "state" and any(s.differentiable for s in cpu.outputs):
            results += zip(cpu.backward(bool(seed % 2)), gpu.backward(bool(seed % 2)))
        for number, (wanted, found) in enumerate(results):
            assert found.dtype == wanted.dtype
            a, b = (x.astype(np.float64) if x.dtype != bool else x for x in (wanted, found))
            unit = eps(dtype) if is_narrow(wanted.dtype) else 2.0**-18
            most = max(1.0, float(np.abs(a[np.isfinite(a)]).max(initial=0.0)))
            np.testing.assert_allclose(b, a, rtol=unit, atol=2.0**-18 * most, err_msg=f"{kind} {seed}, result {number}")


# ---- training --------------------------------------------------------------------------------------------------------
UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


def trained(
    dtype: str, kernels: Any, processors: int, rule: UpdateRule, steps: int = 5, **options: Any
) -> tuple[Executor, list[float]]:
    graph = decoder(dtype)
    strategy = undivided(graph) if processors == 1 else fitting(graph, processors, Random(processors))
    run = Executor(graph, strategy, rule, seed=3, kernels=kernels, **options)
    losses = [run.train(tokens(step)) for step in range(steps)]
    losses.append(run.evaluate(tokens(9)))
    return run, [float(loss or 0.0) for loss in losses]


@pytest.mark.parametrize(("dtype", "processors"), [
    ("bfloat16", 1),  # float16 in the next test
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (("float16", 1), ("bfloat16", 3), ("float16", 3))),
])
def test_a_decoder_trains_as_on_the_cpu(dtype: str, processors: int, kernels: Any) -> None:
    options = {"loss_scaling": LossScaling(1024.0), "clip_norm": 1.0}
    _, wanted = trained(dtype, NUMPY, processors, AdamW(1e-3), **options)
    _, found = trained(dtype, kernels, processors, AdamW(1e-3), **options)
    assert len(set(wanted)) == len(wanted)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=8 * UNIT[dtype])


RULES = [
    pytest.param(AdamW(1e-3), id="adamw"),  # which counts updates
    pytest.param(SGD(0.05, momentum=0.9), id="sgd", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("rule", RULES)
def test_a_step_with_an_overflow_is_skipped_there_too(rule: UpdateRule, kernels: Any) -> None:
    """A scale of 2^24 overflows some times; weights stay until it does not, and the rule counts updates only."""
    scaling = LossScaling(2.0**24, interval=3)
    cpu, wanted = trained("float16", NUMPY, 1, rule, 12, loss_scaling=scaling)
    gpu, found = trained("float16", kernels, 1, rule, 12, loss_scaling=scaling)
    assert cpu.scaler is not None and gpu.scaler is not None
    assert 2 < cpu.state.skipped < 11
    assert (gpu.state.skipped, gpu.scaler) == (cpu.state.skipped, cpu.scaler)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=8 * UNIT["float16"])


@pytest.mark.skipif(not compiles(), reason="no C++20 compiler: the GPU's kernels cannot be run on the host")
@pytest.mark.parametrize(("dtype", "processors"), [
    ("float16", 1), pytest.param("bfloat16", 1, marks=pytest.mark.slow),
    *(pytest.param(dtype, 2, marks=pytest.mark.slow) for dtype in UNIT),
])
@pytest.mark.parametrize("rule", RULES)
def test_replayed_steps_give_the_same_bits(
    dtype: str, processors: int, rule: UpdateRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the loss scale falls and rises, and with skipped steps between others."""
    monkeypatch.setattr(recording, "LEAST", 2)
    options = {"loss_scaling": LossScaling(2.0**24, interval=2), "clip_norm": 1.0}
    plain, wanted = trained(dtype, host_kernels(), processors, rule, 12, **options)
    replayed, found = trained(dtype, host_kernels(records=True), processors, rule, 12, **options)
    made = replayed.program("train").recording
    assert made is not None and made.recorded > 0.9 * len(replayed.program("train").actions)
    assert found == wanted and replayed.state.skipped == plain.state.skipped
    assert (plain.state.skipped > 2) == (dtype == "float16")
    weights, expected = replayed.weights(), plain.weights()
    assert weights is not None and expected is not None
    assert all(weights[name].tobytes() == value.tobytes() for name, value in expected.items())


def test_not_a_number_without_a_scale_ends_the_run(kernels: Any) -> None:
    """Skipping is for a loss with a scale only."""
    graph = decoder("bfloat16")
    run = Executor(graph, undivided(graph), SGD(1e38), seed=3, kernels=kernels, clip_norm=1.0)
    with np.errstate(all="ignore"), pytest.raises(ArithmeticError, match="the loss became"):
        for step in range(6):
            run.train(tokens(step))
