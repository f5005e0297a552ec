"""Convolutions of one and of three dimensions, by that of images: the same products, of the same arrays in another shape."""

from __future__ import annotations

from typing import Any

from torch import nn

from taskflow import operators as ops
from taskflow.models.pytorch.site import Site, Unsupported, require
from taskflow.operators.tensor import Tensor

Edges = list[tuple[int, int]]


def padding_of(m: Any) -> Edges:
    """Return how much a convolution pads before and behind each dimension."""
    require(m.padding_mode == "zeros", f"padding_mode {m.padding_mode!r}; only zeros")
    if m.padding == "same":
        totals = [d * (k - 1) for d, k in zip(m.dilation, m.kernel_size)]
        return [(total // 2, total - total // 2) for total in totals]
    if isinstance(m.padding, str):
        return [(0, 0)] * len(m.kernel_size)
    return [(width, width) for width in m.padding]


def as_planes(kind: type[nn.Module], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the weight that an operator of images has in place of a layer's weight of ``shape``."""
    if issubclass(kind, (nn.Conv1d, nn.ConvTranspose1d)):
        return (*shape[:2], 1, shape[2])
    return (shape[0], shape[1] * shape[2], *shape[3:]) if issubclass(kind, nn.Conv3d) else shape


def of_rows(site: Site, m: Any, x: Tensor, output_size: Any = None) -> Any:
    """Conv1d and ConvTranspose1d, as those of images of one row."""
    if x.ndim != 3:
        raise Unsupported("one sample alone, without a dimension of samples, is not supported")
    images = ops.reshape(x, (*x.shape[:2], 1, x.shape[2]), name=f"{site.name}.rows")
    bias, own = m.bias is not None, [m.weight, m.bias]
    if m.transposed:
        require(output_size is None, "output_size in the call is not supported; give output_padding instead")
        (pad,) = padding_of(m)
        y = site.build(
            ops.conv_transpose2d, own, images, m.out_channels, (1, *m.kernel_size), (1, *m.stride), (0, pad[0]),
            (0, *m.output_padding), m.groups, bias, (1, *m.dilation),
        )
    else:
        y = site.build(
            ops.conv2d, own, images, m.out_channels, (1, *m.kernel_size), (1, *m.stride), ((0, 0), *padding_of(m)),
            (1, *m.dilation), m.groups, bias,
        )
    return ops.reshape(y, (*y.shape[:2], y.shape[3]), name=f"{site.name}.line")


def of_volumes(site: Site, m: nn.Conv3d, x: Tensor) -> Any:
    """Conv3d, as that of images whose channels are those of all planes that a kernel sees. Planes that several kernels see are
    copied for each."""
    if x.ndim != 5:
        raise Unsupported("one sample alone, without a dimension of samples, is not supported")
    (front, back), *edges = padding_of(m)
    (deep, *kernel), (step, *strides), (apart, *dilation) = m.kernel_size, m.stride, m.dilation
    if front or back:
        x = ops.pad(x, (0, 0, 0, 0, front, back), name=f"{site.name}.padded")
    samples, channels, planes, *image = x.shape
    count = (planes - apart * (deep - 1) - 1) // step + 1
    require(count > 0, f"a kernel of {deep} planes, {apart} apart, is larger than the {planes} planes that there are")
    if (step, apart) == (deep, 1) or deep == 1:
        x = _every(x, 0, count, step, f"{site.name}.planes") if deep == 1 else _first(x, count * deep, f"{site.name}.planes")
        x = ops.reshape(x, (samples, channels, count, deep, *image), name=f"{site.name}.windows")
    else:
        each = [_every(x, i * apart, count, step, f"{site.name}.plane{i}") for i in range(deep)]
        alone = [ops.reshape(part, (samples, channels, count, 1, *image), name=f"{part.name}.alone") for part in each]
        x = ops.concat(alone, 3, name=f"{site.name}.windows")
    x = ops.transpose(x, 1, 2, name=f"{site.name}.turned")
    x = ops.reshape(x, (samples * count, channels * deep, *image), name=f"{site.name}.images")
    sizes = (m.out_channels, kernel, strides, edges, dilation, m.groups)
    y = site.build(ops.conv2d, [m.weight, m.bias], x, *sizes, m.bias is not None)
    y = ops.reshape(y, (samples, count, *y.shape[1:]), name=f"{site.name}.volumes")
    return ops.transpose(y, 1, 2, name=f"{site.name}.channels")


def _first(x: Tensor, count: int, name: str) -> Tensor:
    return x if x.shape[2] == count else ops.narrow(x, 2, 0, count, name=name)


def _every(x: Tensor, start: int, count: int, step: int, name: str) -> Tensor:
    """``count`` planes from ``start`` on, so many apart."""
    if step == 1 or count == 1:
        return x if x.shape[2] == count else ops.narrow(x, 2, start, count, name=name)
    if (missing := start + count * step - x.shape[2]) > 0:
        x = ops.pad(x, (0, 0, 0, 0, 0, missing), name=f"{name}.longer")
    x = ops.narrow(x, 2, start, count * step, name=f"{name}.range") if x.shape[2] > count * step else x
    x = ops.reshape(x, (*x.shape[:2], count, step, *x.shape[3:]), name=f"{name}.steps")
    return ops.select(x, 3, 0, name=name)
