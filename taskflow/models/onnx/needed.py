"""The package onnx, which is optional, and its reference evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np


def onnx_package() -> Any:
    """Return the package onnx. Raises ImportError that says how to install it."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError("ONNX: needs the package onnx: pip install 'soap-taskflow[onnx]'") from error
    return onnx


def first_line(error: Exception) -> str:
    """Return the first line of what an error says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def evaluator_of(model: Any) -> Any:
    """Return onnx's reference evaluator of a model, with GatherElements as the standard has it for all shapes."""
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    class GatherElements(OpRun):  # type: ignore[misc,unused-ignore]
        """One element for each index: onnx's own fails where the other dimensions of data and indices differ."""

        def _run(self, data: Any, indices: Any, axis: int = 0) -> tuple[Any]:
            part = data[tuple(slice(n if i != axis % data.ndim else None) for i, n in enumerate(indices.shape))]
            return (np.take_along_axis(part, indices, axis),)

    return ReferenceEvaluator(model, new_ops=[GatherElements])
