"""Every elementwise operator, and pooling's ties, against PyTorch at a table of corner values, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from corners import INF, NAN, OPERATORS, run, values
from test_corners import KERNELS

from taskflow.floats import float_type
from taskflow.operators.binary import Add, Mul, Sub
from taskflow.operators.max_pool2d import MaxPool2d
from taskflow.operators.mse_loss import MSELoss
from taskflow.operators.softmax import Softmax
from taskflow.operators.step import FUNCTIONS
from taskflow.operators.swiglu import SwiGLU

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
F = torch.nn.functional
from taskflow.models.pytorch.arithmetic import clamp_stops_at_bounds  # noqa: E402

pytestmark = pytest.mark.torch
TORCH: dict[str, Any] = {
    "relu": F.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "hardtanh": F.hardtanh, "relu6": F.relu6,
    "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish,
    **{f"{prefix}clamp{of}": lambda x, bounds=bounds: torch.clamp(x, **bounds) for prefix in ("", "strict ") for of, bounds in (
        ("", {"min": -1.0, "max": 3.0}), (" from 0", {"min": 0.0}), (" to 3", {"max": 3.0}),
    )},
    "leaky_relu": lambda x: F.leaky_relu(x, 0.25), "leaky_relu of 0": lambda x: F.leaky_relu(x, 0.0), "exp": torch.exp,
    "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sin": torch.sin, "cos": torch.cos, "abs": torch.abs,
    "scale": lambda x: -2.0 * x, "scale 0": lambda x: 0.0 * x, "shift": lambda x: x + 1.5,
    **{f"step {function}": getattr(torch, function) for function in FUNCTIONS},
    "elu": lambda x: F.elu(x, 0.5), "softplus": F.softplus, "mish": F.mish, "erf": torch.erf,
    **{f"pow {e:g}": lambda x, e=e: torch.pow(x, e) for e in (1.0, 2.0, 3.0, -1.0, -2.0, 0.5, -0.5, 1.5, 2.5, -1.5)},
}
TWO: dict[str, tuple[Any, Any]] = {
    "add": (Add(), torch.add), "sub": (Sub(), torch.sub), "mul": (Mul(), torch.mul),
    "swiglu": (SwiGLU(), lambda a, b: F.silu(a) * b), "mse_loss": (MSELoss(), F.mse_loss),
}
# PyTorch's own error is allowed: it divides by 6 after the product, which overflows, and has 1 / 6 in single precision.
OVERFLOWS = {"hardswish", "gelu tanh"}
BEYOND = {"gelu"}  # PyTorch's vectors (AVX2 and AVX-512) give inf for the largest number, and NaN for inf
RELATIVE = {"float64": 1e-13, "float32": 2e-6, "bfloat16": 1e-2}
SINGLE = {"hardsigmoid": 1e-7}
# torch.clamp's derivative at its bounds is 1 before PyTorch 2.14 and 0 since: the operator that this PyTorch does not have
OTHER_CLAMP = {f"{'' if clamp_stops_at_bounds() else 'strict '}clamp{of}" for of in ("", " from 0", " to 3")}
OPEN_OF_NAN = {"hardtanh", "relu6", "hardswish", "elu"}  # PyTorch's vectors give another derivative than its rest of a loop


def by_torch(function: Any, inputs: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    tensors = [torch.tensor(np.asarray(x, np.float64 if x.dtype == np.float64 else np.float32)) for x in inputs]
    if inputs[0].dtype not in (np.float64, np.float32):
        tensors = [t.bfloat16() for t in tensors]
    for tensor in tensors:
        tensor.requires_grad_()
    value = function(*tensors)
    value.backward(torch.ones_like(value))
    return value.detach().double().numpy(), [t.grad.double().numpy() for t in tensors]


def same(found: Any, wanted: Any, rtol: float, least: float, which: str, inputs: tuple[Any, ...]) -> None:
    found = np.asarray(found, np.float64)
    with np.errstate(invalid="ignore"):
        right = (found == wanted) | (np.isnan(found) & np.isnan(wanted)) | (
            np.isfinite(found) & np.isfinite(wanted) & (np.abs(found - wanted) <= rtol * np.abs(wanted) + least)
        )
    wrong = [f"at {[x.flat[i] for x in inputs]} {found.flat[i]}, PyTorch {wanted.flat[i]}" for i in np.flatnonzero(~right)]
    assert not wrong, f"{which}: {'; '.join(wrong)}"


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in OTHER_CLAMP])
def test_of_one_tensor(name: str, kernels: str, dtype: str) -> None:
    x = values(float_type(dtype))
    if name in OVERFLOWS:
        x = x[~(np.abs(np.asarray(x, np.float64)) > 1e30) | np.isinf(np.asarray(x, np.float64))]
    if name in BEYOND:
        x = x[~(np.abs(np.asarray(x, np.float64)) > 1e30)]
    value, (gradient,) = run(OPERATORS[name], (x,), KERNELS[kernels])
    wanted, (slope,) = by_torch(TORCH[name], (x,))
    rtol = max(RELATIVE[dtype], SINGLE.get(name, 0.0))
    least = {"float64": 1e-15, "float32": 1e-6, "bfloat16": 1e-2}[dtype]  # what tanh and exp leave of a difference to 0 or 1
    same(value, wanted, rtol, least, name, (x,))
    known = ~np.isnan(np.asarray(x, np.float64)) | (name not in OPEN_OF_NAN)
    same(gradient[known], slope[known], rtol, least, f"derivative of {name}", (x[known],))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", TWO)
def test_of_two_tensors(name: str, kernels: str, dtype: str) -> None:
    some = np.array([0.0, -0.0, 1.0, -1.0, 2.5, 20.0, -20.0, INF, -INF, NAN], dtype)
    operator, function = TWO[name]
    pairs = np.meshgrid(some, some)
    cases = [tuple(p.ravel() for p in pairs)] if name != "mse_loss" else [
        (a.reshape(1), b.reshape(1)) for a, b in zip(*(p.ravel() for p in pairs))
    ]
    for inputs in cases:
        value, gradients = run(operator, inputs, KERNELS[kernels])
        wanted, slopes = by_torch(function, inputs)
        same(value, wanted, RELATIVE[dtype], 1e-30, name, inputs)
        for gradient, slope in zip(gradients, slopes):
            same(gradient, slope, RELATIVE[dtype], 1e-30, f"derivative of {name}", inputs)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("padding", [0, 1])
def test_pooling_takes_the_first_of_equal_numbers(padding: int, dtype: str, kernels: str) -> None:
    numbers = np.random.default_rng(0)
    for some in ((0.0, 1.0), (-0.0, 0.0), (-INF, -INF), (-INF, 1.0), (NAN, 1.0, 2.0), (INF, INF, 0.0)):
        if padding and -INF in some:
            continue  # the first of a window may lie in the padding: no gradient; in PyTorch the first inside has it
        x = numbers.choice(some, (2, 3, 6, 6)).astype(dtype)
        operator = MaxPool2d((3, 3), (2, 2), (padding, padding), (1, 1), False)
        value, (gradient,) = run(operator, (x,), KERNELS[kernels])
        wanted, (slope,) = by_torch(lambda t: F.max_pool2d(t, 3, 2, padding), (x,))
        same(value, wanted, 0.0, 0.0, f"pooling of {some}", (wanted,))
        if not np.isnan(x).any():  # which of several NaN has the gradient is open
            same(gradient, slope, 0.0, 0.0, f"derivative of pooling of {some}", (x,))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax_of_rows_with_infinities(dtype: str, kernels: str) -> None:
    rows = [[0.0, -INF, 1.0], [-INF, -INF, -INF], [INF, 0.0, 1.0], [NAN, 0.0, 1.0], [1e30, -1e30, 0.0], [0.0, -0.0, 0.0]]
    for row in rows:
        x = np.array([row], dtype)
        value, (gradient,) = run(Softmax(1), (x,), KERNELS[kernels])
        wanted, (slope,) = by_torch(lambda t: torch.softmax(t, 1), (x,))
        same(value, wanted, RELATIVE[dtype], 1e-30, f"softmax of {row}", (x,))
        same(gradient, slope, RELATIVE[dtype], 1e-6, f"derivative of softmax of {row}", (x,))
