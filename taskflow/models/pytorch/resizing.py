"""Images of another size: resampling by any of PyTorch's modes, and pixels from channels."""

from __future__ import annotations

from string import ascii_lowercase
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from taskflow import operators as ops
from taskflow.models.pytorch.registry import constant, graph_of, stands_for, tensor_of
from taskflow.models.pytorch.site import Site, require
from taskflow.operators.tensor import Tensor

ALONG_ONE = {"linear": "bilinear", "trilinear": "bilinear"}  # each works along one dimension after the other


def upsample(site: Site, m: nn.Upsample, x: Tensor) -> Any:
    """nn.Upsample and interpolate. Along each dimension every result is a weighted sum, as a product with a fixed matrix; nearest
    neighbours by whole factors are repeated instead."""
    require(x.ndim > 2, f"only of (N, C, ...), not {x}")
    spatial = x.ndim - 2
    sizes, factors = (_each(value, spatial) for value in (m.size, m.scale_factor))
    times = [f if f is not None else s / n for n, s, f in zip(x.shape[2:], sizes, factors) if f is not None or s is not None]
    if m.mode == "nearest" and all(t == int(t) for t in times):
        return _repeated(site, x, [int(t) for t in times])
    for i, (size, factor) in enumerate(zip(sizes, factors)):
        dim, whole = i + 2, torch.eye(x.shape[i + 2], dtype=torch.float64)
        row = F.interpolate(
            whole[:, None, None], None if size is None else (1, size), None if factor is None else (1.0, float(factor)),
            ALONG_ONE.get(m.mode, m.mode), m.align_corners, getattr(m, "recompute_scale_factor", None),
            bool(getattr(m, "antialias", False)),
        )[:, 0, 0]
        if row.shape == whole.shape and torch.equal(row, whole):
            continue
        letters = ascii_lowercase[: x.ndim]
        matrix = constant(x.graph, np.asarray(row.T).astype(x.dtype), f"{site.name}.weights{i}")
        name = site.name if i == spatial - 1 else f"{site.name}.along{i}"
        x = ops.einsum(f"{letters},z{letters[dim]}->{letters.replace(letters[dim], 'z')}", x, matrix, name=name)
    return x


def _each(value: Any, count: int) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value] * count


def _repeated(site: Site, x: Tensor, times: list[int]) -> Tensor:
    """Each element that many times, in dimensions of their own, which are joined."""
    whole = (*x.shape[:2], *(n * t for n, t in zip(x.shape[2:], times)))
    for number, count in enumerate(times):
        dim = 2 + number
        if count > 1:
            at = f"{site.name}.{number}"
            alone = ops.reshape(x, (*x.shape[: dim + 1], 1, *x.shape[dim + 1 :]), name=f"{at}.each")
            again = ops.concat([alone] * count, dim + 1, name=f"{at}.again")
            x = ops.reshape(again, (*x.shape[:dim], count * x.shape[dim], *x.shape[dim + 1 :]), name=f"{at}.joined")
    return ops.reshape(x, whole, name=site.name)


@stands_for("grid_sample", raw=True)
def grid_sample(
    name: str, input: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None,
) -> Tensor:
    """Images at computed or fixed places between their pixels."""
    require(len(input.shape) == 4, f"only of (N, C, H, W), not of {len(input.shape)} dimensions")
    x, at = (tensor_of(value, graph_of(input, grid), name) for value in (input, grid))
    return ops.grid_sample(x, at, mode, padding_mode, bool(align_corners), name=name)


def pixel_shuffle(site: Site, m: Any, x: Tensor) -> Any:
    """nn.PixelShuffle: (N, C r r, H, W) -> (N, C, H r, W r)."""
    r, (n, channels, rows, columns) = m.upscale_factor, x.shape
    x = ops.reshape(x, (n, channels // r**2, r, r, rows, columns), name=f"{site.name}.parts")
    for number, (a, b) in enumerate(((2, 4), (3, 4), (4, 5))):  # (n, c, rows, r, columns, r)
        x = ops.transpose(x, a, b, name=f"{site.name}.turned{number}")
    return ops.reshape(x, (n, channels // r**2, rows * r, columns * r), name=site.name)


def pixel_unshuffle(site: Site, m: Any, x: Tensor) -> Any:
    """nn.PixelUnshuffle: (N, C, H r, W r) -> (N, C r r, H, W)."""
    r, (n, channels, rows, columns) = m.downscale_factor, x.shape
    x = ops.reshape(x, (n, channels, rows // r, r, columns // r, r), name=f"{site.name}.parts")
    for number, (a, b) in enumerate(((4, 5), (3, 4), (2, 4))):  # (n, c, r, r, rows, columns)
        x = ops.transpose(x, a, b, name=f"{site.name}.turned{number}")
    return ops.reshape(x, (n, channels * r**2, rows // r, columns // r), name=site.name)


def channel_shuffle(site: Site, m: Any, x: Tensor) -> Any:
    """nn.ChannelShuffle: channels of all groups in turn."""
    n, channels, *rest = x.shape
    x = ops.reshape(x, (n, m.groups, channels // m.groups, *rest), name=f"{site.name}.groups")
    return ops.reshape(ops.transpose(x, 1, 2, name=f"{site.name}.turned"), (n, channels, *rest), name=site.name)
