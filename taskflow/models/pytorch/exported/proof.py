"""Verification that an exported program's calls return the same as the ATen operators that they stand for, on the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from taskflow.models.pytorch.exported.aten import CHECKS
from taskflow.models.pytorch.exported.layers import base_of
from taskflow.models.pytorch.exported.module import ExportedModule
from taskflow.models.pytorch.exported.program import ProgramCall
from taskflow.models.pytorch.steps import leaves, mapped

CLOSE = {torch.float64: 1e-10, torch.float32: 1e-4}  # of the largest number; of other types by their spacing


class _Differs(Exception):
    """Raised for a call that returns something else than the program's operator."""


def difference_to_program(module: ExportedModule, feeds: Sequence[Any]) -> str | None:
    """Return the first call of a module whose result differs from the program's operator, in training or in evaluation; None if
    all agree. ``feeds``: arguments with data. The module is a copy, since its buffers may change."""
    before = module.training, module.compare_
    module.compare_ = _compared
    try:
        for mode in (True, False):
            module.train(mode)
            given = [f.detach().clone().requires_grad_(f.is_floating_point()) if isinstance(f, torch.Tensor) else f for f in feeds]
            with torch.enable_grad():
                module.run_(*(f * 1 if isinstance(f, torch.Tensor) and f.requires_grad else f for f in given))
    except _Differs as differs:
        return str(differs)
    finally:
        module.train(before[0])
        module.compare_ = before[1]
    return None


def _compared(call: ProgramCall, args: Any, kwargs: Any, make: Callable[[], Any]) -> Any:
    if not base_of(call.target) or base_of(call.target) in CHECKS:  # of numbers; of types, which a copy in double has not
        return make()
    copies = mapped(_copied, (args, kwargs))
    torch.manual_seed(0)
    theirs = call.target(*copies[0], **copies[1])
    torch.manual_seed(0)
    ours = make()
    both = [list(leaves(value)) for value in (ours, theirs)]
    for a, b in zip(*both):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and (why := _difference(a, b)):
            raise _Differs(f"{call.described()} is not the function of torch that it is taken for: {why}")
    return ours


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _difference(a: torch.Tensor, b: torch.Tensor) -> str:
    if a.shape != b.shape or a.dtype is not b.dtype:
        return f"{a.dtype} {list(a.shape)} instead of {b.dtype} {list(b.shape)}"
    if a.requires_grad != b.requires_grad:
        return f"gradients {'flow' if a.requires_grad else 'do not flow'}"
    if not a.is_floating_point():
        return "" if torch.equal(a, b) else "other numbers"
    largest = float(b.detach().nan_to_num(0.0, 0.0, 0.0).abs().max()) if b.numel() else 0.0
    least = CLOSE.get(a.dtype, float(torch.finfo(a.dtype).eps)) * largest
    return "" if torch.allclose(a, b, rtol=0.0, atol=least, equal_nan=True) else "other numbers"
