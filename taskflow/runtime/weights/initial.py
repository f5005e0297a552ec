"""Initial weights: each rank fills the cells that it holds, with numbers that depend only on the position in the parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

import numpy as np

from taskflow.floats import is_narrow
from taskflow.kernels import KernelSet
from taskflow.operators.tensor import Parameter
from taskflow.regions import Rect
from taskflow.runtime.weights.array_layout import HeldElements, elements_of
from taskflow.tasks import Bundle


def initialise(
    flat: Any, bundle: Bundle, span: Rect, parameters: Mapping[str, Parameter], kernels: KernelSet, seed: int
) -> None:
    """Fill the elements ``span`` of a bundle's flat weights as the parameters' `Init` says."""
    for parameter, rect, offset in elements_of(bundle, span):
        fill(flat[offset : offset + rect.volume].reshape(rect.shape), parameters[parameter], rect, kernels, seed)


def fill_part(out: Any, parameter: Parameter, held: HeldElements, kernels: KernelSet, seed: int) -> None:
    """Fill a one-dimensional array with the initial values of the part of a parameter that it holds, for any type of array."""
    whole = kernels.xp.empty(held.rect.shape, out.dtype)
    fill(whole, parameter, held.rect, kernels, seed)
    out[...] = whole.reshape(-1)[held.first : held.last]


def fill(out: Any, parameter: Parameter, rect: Rect, kernels: KernelSet, seed: int) -> None:
    """Fill the array of one Rect of a parameter with its initial values; 16-bit arrays get the float32 values, rounded."""
    if is_narrow(out.dtype):
        exact = kernels.xp.empty(out.shape, np.float32)
        fill(exact, parameter, rect, kernels, seed)
        kernels.device.round_into(exact, out)
        return
    init = parameter.init
    key = (seed & 0xFFFFFFFF, crc32(parameter.name.encode()))
    if init.kind == "uniform":
        kernels.uniform(key, 0, parameter.shape, rect.lo, out)
        out *= out.dtype.type(2 * init.scale)
        out -= out.dtype.type(init.scale)
    elif init.kind == "normal":
        kernels.normal(key, 0, parameter.shape, rect.lo, out)
        out *= out.dtype.type(init.scale)
    elif init.kind == "constant":
        out.fill(init.scale)
    else:
        raise ValueError(f"{parameter.name}: unknown start {init.kind!r}; use uniform, normal or constant")
