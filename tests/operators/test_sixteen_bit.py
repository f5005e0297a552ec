"""Every operator on 16-bit arrays: what float32 gives for the same numbers, rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from operator_bench import KINDS
from sixteen_bit_runs import SINGLE, Run, eps

from taskflow.floats import float_type, is_narrow
from taskflow.kernels import HOST, default_kernels
from taskflow.operators.operator import Call, Spec, StepState, Target
from taskflow.operators.sixteen_bit import add_up, task_action

pytest.importorskip("ml_dtypes")
TYPES = [float_type("bfloat16"), float_type("float16")]
SEEDS = range(6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_an_operator_rounds_what_float32_gives(kind: str, dtype: np.dtype[Any]) -> None:
    for seed in SEEDS:
        narrow, wide = (Run(kind, seed, dtype, t, default_kernels()) for t in (dtype, SINGLE))
        for found, exact in zip(narrow.forward(), wide.forward()):
            np.testing.assert_array_equal(found, exact.astype(found.dtype), err_msg=f"{kind} {seed}")
        if kind == "state" or not any(s.differentiable for s in narrow.outputs):
            continue
        accumulate = seed % 2 == 1
        # What backward reads again is 16-bit, where it is no statistic: one more rounding of each number that it multiplies.
        saved = any(is_narrow(a.dtype) for a in (*narrow.call.saved, *narrow.call.outputs))
        for found, exact in zip(narrow.backward(accumulate), wide.backward(accumulate)):
            if not saved:
                np.testing.assert_array_equal(found, exact.astype(found.dtype), err_msg=f"{kind} {seed}")
            most = float(np.abs(exact).max(initial=1.0))
            np.testing.assert_allclose(
                found.astype(np.float32), exact, rtol=4 * eps(dtype), atol=4 * eps(dtype) * most, err_msg=f"{kind} {seed}"
            )


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gradients_of_weights_are_in_float32(dtype: np.dtype[Any]) -> None:
    for seed in range(4):
        run = Run("linear", seed, dtype, dtype, default_kernels())
        _, weight, *_ = run.backward(False)
        assert weight.dtype == np.float32
    assert (weight != weight.astype(dtype)).any(), "they hold what 16 bits do not"


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_sum_of_many_is_rounded_once(dtype: np.dtype[Any]) -> None:
    one, small = np.ones(1, dtype), np.full(1, eps(dtype) / 4, dtype)
    total = one.copy()
    add_up(HOST, total, [small] * 8)
    assert float(total[0]) == 1 + 2 * eps(dtype)
    for _ in range(8):
        one += small
    assert float(one[0]) == 1.0, "one by one they are lost"


def test_two_gradients_of_one_tensor_are_one_array() -> None:
    """The first replaces it, the second adds."""
    dtype = TYPES[0]
    run = Run("add", 0, dtype, dtype, default_kernels())
    run.specs = (Spec((2, 3), dtype),) * 2
    x, g = np.ones((2, 3), dtype), np.full((2, 3), 1.5, dtype)
    space = run.operator.output(run.specs)[0].rect
    both = np.zeros((2, 3), dtype)
    call = Call(
        "bench", run.specs, space, run.operator.reads(run.specs, space), run.operator.writes(run.specs, space), default_kernels(),
        StepState(), (x, x), (), (np.zeros((2, 3), dtype),), (), (g,), (Target(both, False), Target(both, True)),
    )
    task_action(run.operator, call, True)()
    np.testing.assert_array_equal(both, np.full((2, 3), 3.0, dtype))
