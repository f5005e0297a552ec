"""Functions of torch that change a tensor's type or place, or nothing."""

from __future__ import annotations

from typing import Any

import torch

from taskflow import operators as ops
from taskflow.models.pytorch.registry import Lazy, graph_of, name_of_type, stands_for, tensor_of
from taskflow.operators.tensor import Tensor

TO_FLOAT = {"float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16}


@stands_for("contiguous", "clone", "to", *TO_FLOAT, "int", "long", "type_as", "cpu", "cuda", "detach", "type", later=True)
def unchanged(name: str, input: Any, *args: Any, **options: Any) -> Any:
    """Return the same numbers, integers as floats where that is asked. Comparing with PyTorch finds what is not the same."""
    wanted = [value for value in (*args, *options.values()) if isinstance(value, torch.dtype) and value.is_floating_point]
    wanted += [dtype for asked, dtype in TO_FLOAT.items() if _asks(name, asked)]
    if wanted and isinstance(input, Tensor) and input.dtype.kind in "iu":
        return ops.to_float(input, name_of_type(wanted[0]), name=name)
    whole = torch.int64 in (*args, *options.values()) or _asks(name, "long")
    if whole and isinstance(input, Tensor) and input.spec.differentiable:
        return ops.to_integer(input, name=name)
    return input if isinstance(input, Lazy) else tensor_of(input, graph_of(input), name)


def _asks(name: str, what: str) -> bool:
    """True if an operator's name is that of a function."""
    return name.rpartition(".")[2].rstrip("0123456789_") == what
