"""The package onnx, which not everyone has."""

from __future__ import annotations

from typing import Any


def onnx_package() -> Any:
    """The package onnx; ImportError that says how to get it."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError("ONNX: needs the package onnx: pip install 'soap-taskflow[onnx]'") from error
    return onnx
