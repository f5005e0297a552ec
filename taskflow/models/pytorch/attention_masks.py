"""Masks of attention: a rule by positions where there is one (causal, a window), else numbers that are added to the scores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from taskflow import operators as ops
from taskflow.models.pytorch.arithmetic import add
from taskflow.models.pytorch.masks import Mask, lowest_score
from taskflow.models.pytorch.recipes import LARGE, Recipe, block, derived, numpy_of, varies
from taskflow.models.pytorch.registry import constant_of, lowest_of
from taskflow.models.pytorch.site import Held, require
from taskflow.models.pytorch.steps import Fixed
from taskflow.operators.tensor import Tensor

MOST_ROWS = 2048  # of queries that are all looked at; of more, those at both ends and some between
ROWS = 64  # that are looked at together


def fixed_mask(mask: Fixed, rows: int, columns: int, allowed: bool = True) -> tuple[Fixed | None, bool, int | None]:
    """Return the rest of a fixed attention mask, whether it hides later keys, and the window: how many keys each query sees then.
    ``allowed``: whether True is what is seen; numbers are added. The rest is None where the rule says all: for the causal mask,
    with a window or without, and for one that hides nothing."""
    source = mask.recipe or mask.tensor
    if len(source.shape) < 2 or tuple(source.shape[-2:]) != (rows, columns):
        return mask, False, None
    if any(varies(source, dim) for dim in range(-len(source.shape), -2)):
        return mask, False, None
    spans: list[tuple[int, int]] = []  # the keys that each query sees
    plain = True
    for low, high in _looked_at(rows):
        hidden = _hidden(source, low, high, allowed)
        if hidden is None:
            return mask, False, None
        for row, seen in zip(range(low, high), ~hidden):
            first, count = int(seen.argmax()), int(seen.sum())
            if not count or not seen[first : first + count].all():
                return mask, False, None
            spans.append((row - first, row - first - count + 1))  # keys before its own that it sees; how far the last one is
            plain = plain and count == columns
    if plain:
        return None, False, None
    if rows != columns or any(last for _, last in spans):
        return mask, False, None
    width = max(before for before, _ in spans) + 1
    fits = all(before == min(row, width - 1) for row, (before, _) in zip(_numbers(rows), spans))
    return (None, True, width if width < columns else None) if fits else (mask, False, None)


def _looked_at(rows: int) -> list[tuple[int, int]]:
    """Runs of queries."""
    if rows <= MOST_ROWS:
        return [(low, min(rows, low + ROWS)) for low in range(0, rows, ROWS)]
    between = [part * rows // 16 for part in range(1, 16)]
    return [(0, ROWS), *((low, low + 8) for low in between), (rows - ROWS, rows)]


def _numbers(rows: int) -> Iterator[int]:
    for low, high in _looked_at(rows):
        yield from range(low, high)


def _hidden(source: Any, low: int, high: int, allowed: bool) -> np.ndarray[Any, Any] | None:
    """Which keys some queries do not see (queries, keys); None for a mask that says more."""
    spans = [*[(0, 1)] * (len(source.shape) - 2), (low, high), (0, source.shape[-1])]
    numbers = numpy_of(block(source, spans)).reshape(high - low, -1)
    if numbers.dtype == bool:
        return ~numbers if allowed else numbers
    hidden = numbers <= lowest_of(numbers.dtype)
    return None if bool(numbers[~hidden].any()) else hidden


def masked_scores(name: str, scores: Tensor, mask: Any, allowed: bool) -> Tensor:
    """Return scores (..., T, S) with a mask. A mask of numbers, which may be computed, is added. A fixed boolean mask is True
    for what is ``allowed`` (or else for what is not)."""
    if mask is None:
        return scores
    if isinstance(mask, Mask):
        seen = ops.cast(mask.tensor, scores.dtype, name=f"{name}.cast")
        hidden = ops.scale(ops.shift(seen, -1.0, name=f"{name}.hidden"), -lowest_score(scores.dtype), name=f"{name}.low")
        return ops.add(scores, hidden, name=f"{name}ed")
    if isinstance(mask, (Tensor, Held)):
        return add(f"{name}ed", scores, mask)  # type: ignore[no-any-return]
    require(isinstance(mask, Fixed), "masks that are inputs, or are computed from them, are not supported (attn_mask)")
    source: Any = mask.recipe or mask.tensor
    dims = len(source.shape)
    for dim in range(dims - 2):  # such as the same for all samples: what repeats is kept once
        if source.shape[dim] > 1 and not varies(source, dim - dims):
            source = derived(torch.Tensor.__getitem__, source, (slice(None),) * dim + (slice(0, 1),))
    if mask.tensor.dtype is torch.bool:
        numbers = torch.tensor([0.0, -torch.inf])
        visible = source if allowed else derived(torch.logical_not, source)
        source = derived(torch.where, visible, numbers[0], numbers[1])
    few = math.prod(source.shape) > LARGE
    looked = [(0, min(size, ROWS) if few and i == dims - 2 else size) for i, size in enumerate(source.shape)]
    rows = numpy_of(block(source, looked))
    require(bool((rows > -np.inf).any(-1).all()), "a mask hides all keys of some query")
    source = derived(torch.Tensor.to, source, getattr(torch, str(scores.dtype)))
    return ops.add(scores, constant_of(_fixed(source), scores.graph, name), name=f"{name}ed")


def _fixed(source: Recipe) -> Fixed:
    return Fixed(source.tensor, 0, "", source)
