"""What forward is tried with: the examples that a caller gives, as tensors without numbers where only shapes are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


def examples_of(module: Any, examples: Sequence[Any]) -> list[Any]:
    """Examples as tensors (a shape: on the device meta, of the module's type); numbers, texts, None as they are. Raises
    ValueError if the module is none, or for an example that is neither."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"from_torch: module must be a torch.nn.Module, got {type(module).__name__}")
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
    found: list[Any] = []
    for number, example in enumerate(examples):
        shape = isinstance(example, (tuple, list)) and all(isinstance(size, int) and size > 0 for size in example)
        if shape and example:
            found.append(torch.empty(tuple(example), dtype=dtype, device="meta"))
        elif _dense(example) or example is None or isinstance(example, (bool, int, float, str)):
            found.append(example)
        elif hasattr(example, "shape") and hasattr(example, "dtype"):
            found.append(torch.empty(tuple(example.shape), dtype=getattr(torch, str(example.dtype)), device="meta"))
        else:
            raise ValueError(
                f"from_torch: example {number} must be a shape, a dense real tensor, a number, a text or None, got "
                f"{type(example).__name__} {str(example)[:60]}"
            )
    return found


def _dense(example: Any) -> bool:
    return isinstance(example, torch.Tensor) and example.layout is torch.strided and not example.is_complex()
