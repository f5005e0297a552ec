"""Corners: what verification runs a second time, so that functions meet the numbers at which their derivatives jump.

Random numbers never are exactly 0, 3 or 6, but padding, zero-initialised layers and activations before them are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from taskflow.models.pytorch.exported import ExportedModule
from taskflow.models.pytorch.trial import Trial, feeds_of

KINDS = {
    "abs", "clamp", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log", "max_pool2d", "pow", "relu", "rsqrt", "sqrt",
    "where",
}
"""Operators whose derivative jumps, or is infinite, somewhere."""
CHOOSING = {"top2_gating", "top_k", "top_k_routing"}
"""Operators that choose among equal numbers, in an order that PyTorch leaves open."""
AT_ZERO = {"abs", "leaky_relu", "log", "max_pool2d", "pow", "relu", "rsqrt", "sqrt"}
"""Those of which it jumps at 0 alone; of `max_pool2d`, which takes the first of the largest, where several are 0."""
BENDS = (0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 6.0, -6.0, 0.3)
"""Bounds that people use, and a number that keeps means away from them."""
MANY = 1100
"""So many numbers that hardly two sums of a few are equal."""
ZEROS = (0.0, -0.0, 0.0, 0.0)


def at_corners(module: nn.Module, trial: Trial) -> Iterator[tuple[Trial, list[Any]]]:
    """Yield what to run a module on for its corners; ``trial`` has a copy of it with random numbers. First inputs with zeros, then
    inputs without, then weights that the module itself has as zeros. Nothing for networks without corners. Where these are all at
    0, the other numbers are any: of a few, means are equal up to rounding, by which pooling would choose the largest."""
    kinds = {node.operator.kind for node in trial.followed.graph}
    compares = any(n.operator.kind == "compare" and n.specs[0].differentiable for n in trial.followed.graph)
    if not (kinds & KINDS or compares) or kinds & CHOOSING:
        return
    bends = compares or not kinds & KINDS <= AT_ZERO
    others = BENDS if bends else tuple(np.random.default_rng(1).standard_normal(MANY))
    zeros = ZEROS * (len(others) // len(BENDS))
    yield trial, feeds_of(trial, zeros + others)
    if bends:
        yield trial, feeds_of(trial, BENDS)
    if (zeroed := _with_its_zeros(module, trial.module)) is not None:
        yield replace(trial, module=zeroed), feeds_of(trial, zeros + others)


def _with_its_zeros(module: nn.Module, copied: nn.Module) -> nn.Module | None:
    """A copy of ``copied`` in which trained arrays are zeros that are so in the module; None if there are none. Not those of
    normalisation: without a bias it makes zeros that are rounded in another way in each implementation."""
    if isinstance(module, ExportedModule):
        return None
    result, found = copy.deepcopy(copied), False
    parameters = dict(result.named_parameters())
    for path, part in module.named_modules():
        if "norm" in type(part).__name__.lower():
            continue
        for name, parameter in part.named_parameters(path, recurse=False):
            if name in parameters and parameter.requires_grad and not parameter.is_meta and not bool(parameter.any()):
                found = True
                with torch.no_grad():
                    parameters[name].zero_()
    return result if found else None
