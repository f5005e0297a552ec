"""Values and derivatives of elementwise operators at their corners, as a table: numpy's definition and the compiled kernels."""

from __future__ import annotations

from math import erf, exp
from typing import Any

import numpy as np
import pytest
from corners import INF, NAN, OPERATORS, elementwise, run

from taskflow.floats import float_type
from taskflow.kernels import KernelSet, NumpyKernels, default_kernels
from taskflow.operators.unary import Shift

KERNELS: dict[str, KernelSet] = {"numpy": NumpyKernels(), "native": default_kernels()}
X = [0.0, -0.0, INF, -INF, NAN]
THIRD, LOG2, ROOT = 1 / 3, float(np.log(2.0)), 2 / float(np.sqrt(np.pi))
TABLE: dict[str, tuple[list[float], list[float], list[float]]] = {  # x, value, derivative; those of PyTorch
    "relu": (X, [0.0, -0.0, INF, 0, NAN], [0, 0, 1, 0, 1]),
    "tanh": (X, [0.0, -0.0, 1, -1, NAN], [1, 1, 0, 0, NAN]),
    "sigmoid": (X, [0.5, 0.5, 1, 0, NAN], [0.25, 0.25, 0, 0, NAN]),
    "gelu": (X, [0, 0, INF, NAN, NAN], [0.5, 0.5, NAN, NAN, NAN]),
    "gelu tanh": (X, [0, 0, INF, NAN, NAN], [0.5, 0.5, NAN, NAN, NAN]),
    "silu": (X, [0, 0, INF, NAN, NAN], [0.5, 0.5, NAN, NAN, NAN]),
    "hardtanh": ([*X, 1, -1], [0.0, -0.0, 1, -1, NAN, 1, -1], [1, 1, 0, 0, 0, 0, 0]),
    "relu6": ([*X, 6, 3], [0.0, -0.0, 6, 0, NAN, 6, 3], [0, 0, 0, 0, 0, 0, 1]),
    "clamp": ([*X, -1, 3, -1.5, 3.5], [0.0, -0.0, 3, -1, NAN, -1, 3, -1, 3], [1, 1, 0, 0, 0, 1, 1, 0, 0]),
    "clamp from 0": (X, [0.0, -0.0, INF, 0, NAN], [1, 1, 1, 0, 0]),
    "clamp to 3": ([*X, 3], [0.0, -0.0, 3, -INF, NAN, 3], [1, 1, 0, 1, 0, 1]),
    "strict clamp": ([*X, -1, 3, -1.5, 3.5], [0.0, -0.0, 3, -1, NAN, -1, 3, -1, 3], [1, 1, 0, 0, 0, 0, 0, 0, 0]),
    "strict clamp from 0": (X, [0.0, -0.0, INF, 0, NAN], [0, 0, 1, 0, 0]),
    "strict clamp to 3": ([*X, 3], [0.0, -0.0, 3, -INF, NAN, 3], [1, 1, 0, 1, 0, 0]),
    "leaky_relu": ([*X, -4], [0.0, -0.0, INF, -INF, NAN, -1], [0.25, 0.25, 1, 0.25, 0.25, 0.25]),
    "leaky_relu of 0": (X, [0.0, -0.0, INF, NAN, NAN], [0, 0, 1, 0, 0]),
    "hardsigmoid": ([*X, 3, -3], [0.5, 0.5, 1, 0, NAN, 1, 0], [0.5 * THIRD, 0.5 * THIRD, 0, 0, 0, 0, 0]),
    "hardswish": ([*X, 3, -3], [0.0, -0.0, INF, NAN, NAN, 3, -0.0], [0.5, 0.5, 1, 0, NAN, 1, 0]),
    "exp": (X, [1, 1, INF, 0, NAN], [1, 1, INF, 0, NAN]),
    "log": ([*X, -1], [-INF, -INF, INF, NAN, NAN, NAN], [INF, -INF, 0, -0.0, NAN, -1]),
    "sqrt": ([*X, -1], [0.0, -0.0, INF, NAN, NAN, NAN], [INF, -INF, 0, NAN, NAN, NAN]),
    "rsqrt": ([*X, -1], [INF, -INF, 0, NAN, NAN, NAN], [-INF, INF, -0.0, NAN, NAN, NAN]),
    "sin": (X, [0.0, -0.0, NAN, NAN, NAN], [1, 1, NAN, NAN, NAN]),
    "cos": (X, [1, 1, NAN, NAN, NAN], [-0.0, 0.0, NAN, NAN, NAN]),
    "abs": (X, [0.0, 0.0, INF, INF, NAN], [0, 0, 1, -1, 0]),
    "scale": (X, [-0.0, 0.0, -INF, INF, NAN], [-2] * 5),
    "scale 0": (X, [0.0, -0.0, NAN, NAN, NAN], [0] * 5),
    "elu": (X, [0.0, -0.0, INF, -0.5, NAN], [0.5, 0.5, 1, 0, NAN]),
    "softplus": ([*X, 25], [LOG2, LOG2, INF, 0, NAN, 25], [0.5, 0.5, 1, 0, NAN, 1]),
    "mish": (X, [0.0, -0.0, INF, NAN, NAN], [0.6, 0.6, NAN, NAN, NAN]),
    "erf": ([*X, -1, 2], [0.0, -0.0, 1, -1, NAN, -erf(1), erf(2)], [ROOT, ROOT, 0, 0, NAN, ROOT * exp(-1), ROOT * exp(-4)]),
    "step round": ([*X, 0.5, 1.5, -0.2], [0.0, -0.0, INF, -INF, NAN, 0.0, 2, -0.0], [0] * 8),
    "step floor": ([*X, 0.5, -0.2], [0.0, -0.0, INF, -INF, NAN, 0.0, -1], [0] * 7),
    "step ceil": ([*X, 0.5, -0.2], [0.0, -0.0, INF, -INF, NAN, 1, -0.0], [0] * 7),
    "step trunc": ([*X, 1.5, -0.2], [0.0, -0.0, INF, -INF, NAN, 1, -0.0], [0] * 7),
    "step sign": (X, [0, 0, 1, -1, 0], [0] * 5),
    "shift": (X, [1.5, 1.5, INF, -INF, NAN], [1] * 5),
    "pow 1": (X, X, [1] * 5),
    "pow 2": (X, [0, 0, INF, INF, NAN], [0.0, -0.0, INF, -INF, NAN]),
    "pow 3": (X, [0.0, -0.0, INF, -INF, NAN], [0, 0, INF, INF, NAN]),
    "pow -1": (X, [INF, -INF, 0.0, -0.0, NAN], [-INF, -INF, -0.0, -0.0, NAN]),
    "pow -2": (X, [INF, INF, 0, 0, NAN], [-INF, INF, -0.0, 0.0, NAN]),
    "pow 0.5": ([*X, -1], [0.0, -0.0, INF, NAN, NAN, NAN], [INF, -INF, 0, NAN, NAN, NAN]),
    "pow -0.5": ([*X, -1], [INF, -INF, 0, NAN, NAN, NAN], [-INF, -INF, -0.0, -0.0, NAN, NAN]),
    "pow 1.5": ([*X, -1], [0, 0, INF, INF, NAN, NAN], [0.0, -0.0, INF, NAN, NAN, NAN]),
    "pow 2.5": ([*X, -1], [0, 0, INF, INF, NAN, NAN], [0, 0, INF, INF, NAN, NAN]),
    "pow -1.5": ([*X, -1], [INF, INF, 0, 0, NAN, NAN], [-INF, -INF, -0.0, -0.0, NAN, NAN]),
}
ANY_SIGN = {"gelu", "gelu tanh", "silu", "step sign"}  # of zeros


def equal(found: Any, wanted: Any, dtype: str, sign: bool, which: str) -> None:
    found = np.asarray(found, np.float64)
    np.testing.assert_allclose(found, wanted, rtol={"float64": 1e-14, "float32": 1e-6}.get(dtype, 1e-2), atol=0, err_msg=which)
    zeros = (np.asarray(wanted) == 0) & sign
    assert (np.signbit(found) == np.signbit(wanted))[zeros].all(), f"{which}: signs of zeros: {found}, not {wanted}"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("kernels", KERNELS)
def test_values_and_derivatives_are_those_of_the_table(kernels: str, dtype: str) -> None:
    for name, (x, value, slope) in TABLE.items():
        found, (gradient,) = run(OPERATORS[name], (np.array(x).astype(float_type(dtype)),), KERNELS[kernels])
        equal(found, value, dtype, name not in ANY_SIGN, f"{name} of {x}")
        equal(gradient, slope, dtype, False, f"derivative of {name} at {x}")


def test_the_table_has_every_elementwise_operator() -> None:
    assert set(TABLE) == set(OPERATORS)
    left_out = elementwise() - {operator.kind for operator in OPERATORS.values()}
    # Those are random, or no function of an element.
    others = {"cumsum", "logcumsumexp", "detach", "dropout", "full_like", "stochastic_depth", "positional_encoding"}
    assert left_out <= others, left_out


def test_the_comparison_sees_a_corner() -> None:
    with pytest.raises(AssertionError):
        equal(np.array([1.0]), [0.25], "float64", False, "slope")
    with pytest.raises(AssertionError):
        equal(np.array([0.0]), [-0.0], "float64", True, "zero")
    assert run(Shift(1.0), (np.zeros(1),), KERNELS["numpy"])[0] == 1
