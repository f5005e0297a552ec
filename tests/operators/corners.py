"""Elementwise operators at their corners: zeros of both signs, bounds, infinities, NaN, the largest and smallest numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

import taskflow.operators as ops
from taskflow.floats import is_narrow
from taskflow.kernels import KernelSet
from taskflow.operators.elementary import Abs, Cos, Exp, Log, Power, Rsqrt, Sin, Sqrt
from taskflow.operators.erf import Erf
from taskflow.operators.hard import Clamp, Hardsigmoid, Hardswish, Hardtanh, LeakyReLU
from taskflow.operators.operator import REGISTRY, Call, Operator, Spec, StepState, Target, iteration_space
from taskflow.operators.silu import SiLU
from taskflow.operators.sixteen_bit import task_action
from taskflow.operators.smooth import ELU, Mish, Softplus
from taskflow.operators.step import FUNCTIONS, StepFunction
from taskflow.operators.unary import GELU, ReLU, Scale, Shift, Sigmoid, Tanh, Unary

INF, NAN = np.inf, np.nan
OPERATORS: dict[str, Operator] = {
    "relu": ReLU(), "tanh": Tanh(), "sigmoid": Sigmoid(), "gelu": GELU("none"), "gelu tanh": GELU("tanh"), "silu": SiLU(),
    "hardtanh": Hardtanh(-1.0, 1.0), "relu6": Hardtanh(0.0, 6.0), "hardsigmoid": Hardsigmoid(), "hardswish": Hardswish(),
    "clamp": Clamp(-1.0, 3.0, False), "clamp from 0": Clamp(0.0, None, False), "clamp to 3": Clamp(None, 3.0, False),
    "strict clamp": Clamp(-1.0, 3.0, True), "strict clamp from 0": Clamp(0.0, None, True),
    "strict clamp to 3": Clamp(None, 3.0, True),
    "leaky_relu": LeakyReLU(0.25), "leaky_relu of 0": LeakyReLU(0.0), "exp": Exp(), "log": Log(), "sqrt": Sqrt(),
    "rsqrt": Rsqrt(), "sin": Sin(), "cos": Cos(), "abs": Abs(), "scale": Scale(-2.0), "scale 0": Scale(0.0), "shift": Shift(1.5),
    **{f"step {function}": StepFunction(function) for function in FUNCTIONS},
    "elu": ELU(0.5), "softplus": Softplus(1.0, 20.0), "mish": Mish(), "erf": Erf(),
    **{f"pow {e:g}": Power(e) for e in (1.0, 2.0, 3.0, -1.0, -2.0, 0.5, -0.5, 1.5, 2.5, -1.5)},
}


def values(dtype: Any) -> np.ndarray:
    """Corners of all these operators, in a type."""
    limits = (1e-38, 1e-45, 3e38) if is_narrow(dtype) else tuple(map(float, (
        np.finfo(dtype).tiny, np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    )))
    most = (88.7, 103.9, 710.0, 1e4)  # where exp overflows, and falls to 0
    positive = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 6.0, 20.0, *most, *limits, INF)
    with np.errstate(over="ignore"):
        return np.array([*positive, *(-x for x in positive), NAN]).astype(dtype)


def run(operator: Operator, inputs: tuple[Any, ...], kernels: KernelSet) -> tuple[Any, tuple[Any, ...]]:
    """The value of an operator, and the gradients of its inputs where that of every element of the value is 1."""
    specs = tuple(Spec(x.shape, x.dtype) for x in inputs)
    space = iteration_space(operator, specs)
    outputs = tuple(np.full(s.shape, 7, s.dtype) for s in operator.output(specs))
    call = Call(
        "corner", specs, space, operator.reads(specs, space), operator.writes(specs, space), kernels, StepState(),
        inputs=tuple(x.copy() for x in inputs), outputs=outputs,
        saved=tuple(np.zeros(s.shape, s.dtype) for s in operator.saves(specs, space)),
    )
    found = tuple(np.full(x.shape, 7, x.dtype) for x in inputs)
    with np.errstate(all="ignore"):
        task_action(operator, call, backward=False)()
        call.grad_outputs = (np.ones_like(outputs[0]),)
        call.grad_inputs = tuple(Target(array, False) for array in found)
        task_action(operator, call, backward=True)()
    return outputs[0], found


def elementwise() -> set[str]:
    """The kinds of all operators that take one tensor, element by element."""
    assert ops.relu is not None  # registers all
    return {kind for kind, cls in REGISTRY.items() if issubclass(cls, Unary)}
