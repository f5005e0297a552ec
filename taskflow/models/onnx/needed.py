"""Import of the package onnx, which is optional."""

from __future__ import annotations

from typing import Any


def onnx_package() -> Any:
    """Return the package onnx. Raises ImportError that says how to install it."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError("ONNX: needs the package onnx: pip install 'soap-taskflow[onnx]'") from error
    return onnx
