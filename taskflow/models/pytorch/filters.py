"""Convolutions whose filters are no parameters of a layer: computed, fixed, or parameters of another name; windows as a tensor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from taskflow import operators as ops
from taskflow.models.pytorch.convolving import padding_of
from taskflow.models.pytorch.registry import constant, graph_of, tensor_of
from taskflow.models.pytorch.site import require
from taskflow.operators.tensor import Tensor


def filtered(name: str, input: Any, weight: Any, bias: Any, options: dict[str, Any]) -> Tensor:
    """Build a convolution of one or two dimensions whose weight is computed, fixed, or not called so. ``options``: attributes of
    torch.nn.Conv1d or Conv2d."""
    graph = graph_of(input, weight, bias)
    x, filters = tensor_of(input, graph, name), tensor_of(weight, graph, f"{name}.filters")
    edges, line = padding_of(SimpleNamespace(**options)), x.ndim == 3
    stride, dilation = options["stride"], options["dilation"]
    if line:  # images of one row
        x = ops.reshape(x, (*x.shape[:2], 1, x.shape[2]), name=f"{name}.rows")
        filters = ops.reshape(filters, (*filters.shape[:2], 1, filters.shape[2]), name=f"{name}.filter_rows")
        edges, stride, dilation = [(0, 0), *edges], (1, *stride), (1, *dilation)
    require(x.ndim == filters.ndim == 4, "one sample alone, without a dimension of samples, is not supported")
    y = ops.filter2d(x, filters, stride, edges, dilation, options["groups"], name=f"{name}.filtered")
    if bias is not None:
        each = ops.reshape(tensor_of(bias, graph, f"{name}.bias"), (1, y.shape[1], 1, 1), name=f"{name}.channels")
        y = ops.add(y, each, name=name)
    return ops.reshape(y, (*y.shape[:2], y.shape[3]), name=f"{name}.line") if line else y


def windows(name: str, x: Tensor, kernel: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """Build torch.nn.functional.unfold: the elements (N, C kh kw, L) that each place of a kernel sees, by filters of one 1 each."""
    height, width = kernel if isinstance(kernel, (tuple, list)) else (kernel, kernel)
    each = np.eye(height * width, dtype=x.dtype).reshape(-1, 1, height, width)
    filters = constant(x.graph, np.tile(each, (x.shape[1], 1, 1, 1)), f"{name}.ones")
    y = ops.filter2d(x, filters, stride, padding, dilation, x.shape[1], name=f"{name}.windows")
    return ops.reshape(y, (*y.shape[:2], y.shape[2] * y.shape[3]), name=name)
