"""Convolutions whose filters are no parameters of a layer: computed, fixed, or parameters of another name; windows as a
tensor, and back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from taskflow import operators as ops
from taskflow.models.pytorch.convolving import padding_of
from taskflow.models.pytorch.registry import constant, graph_of, stands_for, tensor_of
from taskflow.models.pytorch.site import Site, require
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


MOST_PLACES = 64  # of a window: each becomes a few operators


def folded(name: str, x: Tensor, size: Any, kernel: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """Build the sum of windows x (N, C kh kw, L) at their places of images (N, C, H, W): for each element of the kernel the
    windows' elements, a stride apart, moved to where it lies."""
    size, kernel, dilation, padding, stride = map(_both, (size, kernel, dilation, padding, stride))
    places = kernel[0] * kernel[1]
    require(x.ndim == 3, "one image alone, without a dimension of samples, is not supported")
    require(places <= MOST_PLACES, f"windows of {places} elements; at most {MOST_PLACES}")
    counts = [
        (whole + 2 * edge - apart * (length - 1) - 1) // step + 1
        for whole, length, apart, edge, step in zip(size, kernel, dilation, padding, stride)
    ]
    samples, channels = x.shape[0], x.shape[1] // places
    x = ops.reshape(x, (samples, channels, places, *counts), name=f"{name}.windows")
    result: Tensor | None = None
    for number in range(places):
        at = f"{name}.{number}"
        part = ops.narrow(x, 2, number, 1, name=f"{at}.of_each") if places > 1 else x
        part = ops.reshape(part, (samples, channels, *counts), name=f"{at}.element")
        offsets = divmod(number, kernel[1])
        for i in (0, 1):
            part = _placed(f"{at}.dim{i}", part, 2 + i, stride[i], offsets[i] * dilation[i] - padding[i], size[i])
        result = part if result is None else ops.add(result, part, name=f"{at}.sum")
    assert result is not None, "a window has elements"
    return result


def _both(value: Any) -> tuple[int, int]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)  # type: ignore[return-value]


def _placed(name: str, x: Tensor, dim: int, step: int, first: int, size: int) -> Tensor:
    """Elements of a dimension ``step`` apart in one of ``size``, the first of them at ``first``; what lies outside is left out."""
    count, behind = x.shape[dim], x.ndim - 1 - dim
    if step > 1:
        x = ops.reshape(x, (*x.shape[: dim + 1], 1, *x.shape[dim + 1 :]), name=f"{name}.each")
        x = ops.pad(x, (*(0, 0) * behind, 0, step - 1), name=f"{name}.apart")
        x = ops.reshape(x, (*x.shape[:dim], count * step, *x.shape[dim + 2 :]), name=f"{name}.line")
    low, high = max(0, -first), min(x.shape[dim], size - first)
    if (low, high) != (0, x.shape[dim]):
        x = ops.narrow(x, dim, low, high - low, name=f"{name}.inside")
    before, after = max(0, first), size - max(0, first) - (high - low)
    return ops.pad(x, (*(0, 0) * behind, before, after), name=name) if before or after else x


@stands_for("fold")
def fold(name: str, input: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    """Put windows back."""
    return folded(name, input, output_size, kernel_size, dilation, padding, stride)


def fold_layer(site: Site, m: Any, x: Tensor) -> Any:
    """torch.nn.Fold."""
    return folded(site.name, x, m.output_size, m.kernel_size, m.dilation, m.padding, m.stride)
