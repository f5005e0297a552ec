"""Functions that are recorded as the functions they are made of: rests, bounds, determinants, bags of rows."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from taskflow.models.pytorch.site import require
from taskflow.models.pytorch.taken_apart import APART, apart

# ---- rests of divisions ------------------------------------------------------------------------------------------------------


def _rest(input: Any, other: Any, rounding: str) -> Any:
    """What is left of a division; of integers there is an operator."""
    if not any(isinstance(one, torch.Tensor) and one.is_floating_point() for one in (input, other)):
        return NotImplemented
    return input - other * getattr(input / other, rounding)()


apart("remainder", "remainder_")(lambda input, other: _rest(input, other, "floor"))
apart("fmod", "fmod_")(lambda input, other: _rest(input, other, "trunc"))
APART[torch.Tensor.__rmod__] = lambda input, other: _rest(other, input, "floor")


@apart("floor_divide", "floor_divide_", "__floordiv__")
def _floor_divide(input: Any, other: Any) -> Any:
    if not any(isinstance(one, torch.Tensor) and one.is_floating_point() for one in (input, other)):
        return NotImplemented
    return (input / other).floor()


# ---- bounds ------------------------------------------------------------------------------------------------------------------


@apart("clamp", "clamp_", "clip")
def _clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    """Numbers between bounds that are tensors; between numbers there is an operator."""
    if not any(isinstance(bound, torch.Tensor) for bound in (min, max)):
        return NotImplemented
    input = input if min is None else torch.where(input < min, min, input)
    return input if max is None else torch.where(input > max, max, input)


# ---- determinants ------------------------------------------------------------------------------------------------------------


def _logdet(input: Any) -> Any:
    """The logarithm of a determinant; no number of one below 0."""
    sign, logarithm = torch.linalg.slogdet(input)
    return logarithm + sign.log()


def _det(input: Any) -> Any:
    sign, logarithm = torch.linalg.slogdet(input)
    return sign * logarithm.exp()


apart("logdet")(_logdet)
apart("det")(_det)
APART[torch.linalg.det] = _det


# ---- channels that are dropped as a whole -----------------------------------------------------------------------------------


@apart("dropout1d", "dropout2d", "dropout3d")
def _dropped_channels(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Channels (N, C, ...) of which each is left out as a whole, or is multiplied as dropout does it."""
    require(input.ndim > 2, "dropout of channels: needs a dimension of samples and one of channels")
    ones = input.detach().flatten(2)[..., :1] * 0 + 1
    kept = F.dropout(ones, p, training)
    return input * kept.reshape(*input.shape[:2], *[1] * (input.ndim - 2))


# ---- systems of equations ----------------------------------------------------------------------------------------------------


def _solved(A: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    """What a triangular matrix makes B of: B by its inverse, which is fixed where the matrix is, such as that of a normal prior."""
    require(not unitriangular, "solve_triangular: with ones on the diagonal (unitriangular)")
    inverse = torch.linalg.inv(A.triu() if upper else A.tril())
    return inverse @ B if left else B @ inverse


APART[torch.linalg.solve_triangular] = _solved


# ---- bags of rows ------------------------------------------------------------------------------------------------------------


@apart("embedding_bag")
def _bag(
    input: Any, weight: Any, offsets: Any = None, max_norm: None = None, norm_type: float = 2, scale_grad_by_freq: bool = False,
    mode: str = "mean", sparse: bool = False, per_sample_weights: Any = None, include_last_offset: bool = False,
    padding_idx: None = None,
) -> Any:
    """Rows of a table, together for each sample: of (N, B) indices, or of all indices in a row and where each sample's begin."""
    rows = F.embedding(input, weight, None, max_norm, norm_type, scale_grad_by_freq, sparse)
    rows = rows if per_sample_weights is None else rows * per_sample_weights[..., None]
    if input.ndim == 2:
        return rows.sum(1) if mode == "sum" else rows.mean(1) if mode == "mean" else rows.amax(1)
    bags = offsets.shape[0] - include_last_offset
    begun = torch.arange(input.shape[0])[:, None] >= offsets[None, :bags]
    places = begun.long().sum(1) - 1  # the last bag that begins there or before
    none = torch.zeros((bags, weight.shape[1]), dtype=weight.dtype)
    kind = {"sum": "sum", "mean": "mean", "max": "amax"}[mode]
    return none.scatter_reduce(0, places[:, None].expand(rows.shape), rows, kind, include_self=False)
