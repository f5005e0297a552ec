"""Masks of attention: a rule by positions where there is one (causal, a window), else numbers that are added to the scores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from taskflow import operators as ops
from taskflow.models.pytorch.arithmetic import add
from taskflow.models.pytorch.masks import Mask, lowest_score
from taskflow.models.pytorch.recipes import LARGE, Recipe, block, derived, numpy_of, varies
from taskflow.models.pytorch.registry import constant_of, fixed_of, lowest_of, once_of
from taskflow.models.pytorch.site import Held, require
from taskflow.models.pytorch.steps import Fixed
from taskflow.operators.attention_scope import Span
from taskflow.operators.tensor import Tensor

MOST_ROWS = 2048  # of queries that are all looked at; of more, those at both ends and some between
ROWS = 64  # that are looked at together
MOST_HEADS = 1024  # for each of which a mask may add numbers of its own
MOST_KNOWN = 64  # masks whose spans are kept
CLOSE = 3e-7  # of the largest number: differences of positions times a slope, in float32


def fixed_mask(mask: Fixed, rows: int, columns: int, allowed: bool = True) -> tuple[Fixed | None, bool, int | None]:
    """Return the rest of a fixed attention mask, whether it hides later keys, and the window: how many keys each query sees then.
    ``allowed``: whether True is what is seen; numbers are added. The rest is None where the rule says all: for the causal mask,
    with a window or without, and for one that hides nothing."""
    spans = _spans(mask, rows, columns, allowed)
    if spans is None:
        return mask, False, None
    if all(first == 0 and last == columns for first, last in spans.values()):
        return None, False, None
    if not _sees_itself_last(spans, rows, columns):
        return mask, False, None
    width = max(row - first for row, (first, _) in spans.items()) + 1
    fits = all(first == max(0, row - width + 1) for row, (first, _) in spans.items())
    return (None, True, width if width < columns else None) if fits else (mask, False, None)


def chunk_of(mask: Fixed, rows: int, columns: int, allowed: bool = True) -> int | None:
    """Return how many keys a chunk has, if a fixed attention mask lets each query see the keys of its own chunk up to its own
    (Llama 4); None for other masks, and where the last chunk is shorter."""
    spans = _spans(mask, rows, columns, allowed)
    if spans is None or not _sees_itself_last(spans, rows, columns):
        return None
    size = max(row - first for row, (first, _) in spans.items()) + 1
    fits = all(first == row - row % size for row, (first, _) in spans.items())
    return size if fits and rows % size == 0 else None


def causal_bias(mask: Fixed, rows: int, columns: int) -> Fixed | None:
    """Return what a fixed mask (..., T, T) that is added adds for each key (..., 1, T), if it hides later keys beside that: as
    ALiBi does (Press, Smith, Lewis, arXiv 2108.12409). None for other masks. What differs among queries alone is left out, since
    the softmax does."""
    source = once_of(mask)
    shape = tuple(source.shape)
    if rows != columns or len(shape) < 2 or shape[-2:] != (rows, columns) or math.prod(shape[:-2]) > MOST_HEADS:
        return None
    if not mask.tensor.is_floating_point():
        return None
    whole = [(0, size) for size in shape]
    last = block(source, [*whole[:-2], (rows - 1, rows), whole[-1]])
    lowest, added = float(torch.finfo(last.dtype).min), last.double().numpy()
    if (added <= lowest).any():
        return None
    close = CLOSE * float(np.abs(added).max(initial=0.0))
    for low, high in _looked_at(rows):
        few = [*[(0, 1)] * (len(shape) - 2), (low, high), whole[-1]]
        for spans in (few, [*whole[:-2], (low, low + 1), whole[-1]]):
            part, numbers = block(source, spans).double().numpy(), added[tuple(slice(*span) for span in spans[:-2])]
            seen = np.arange(columns) <= np.arange(*spans[-2])[:, None]
            over = np.where(seen, part - numbers, 0)
            if (part[..., ~seen] > lowest).any() or (np.abs(over - np.where(seen, over[..., :1], 0)) > close).any():
                return None
    return fixed_of(last)


def _spans(mask: Fixed, rows: int, columns: int, allowed: bool) -> dict[int, Span] | None:
    """`_looked_for`, once for each mask that layers compute alike."""
    if not isinstance(mask.recipe, Recipe):
        return _looked_for(mask, rows, columns, allowed)
    key = mask.recipe.digest(), rows, columns, allowed
    if key not in _SPANS:
        if len(_SPANS) >= MOST_KNOWN:
            _SPANS.clear()
        _SPANS[key] = _looked_for(mask, rows, columns, allowed)
    return _SPANS[key]


_SPANS: dict[tuple[str, int, int, bool], dict[int, Span] | None] = {}


def _looked_for(mask: Fixed, rows: int, columns: int, allowed: bool) -> dict[int, Span] | None:
    """For each query that is looked at the keys that it sees, from the first to below the last; None if these are no span, or a
    mask differs among samples or heads, or is of another size."""
    source = mask.recipe or mask.tensor
    if len(source.shape) < 2 or tuple(source.shape[-2:]) != (rows, columns):
        return None
    if any(varies(source, dim) for dim in range(-len(source.shape), -2)):
        return None
    spans: dict[int, Span] = {}
    for low, high in _looked_at(rows):
        hidden = _hidden(source, low, high, allowed)
        if hidden is None:
            return None
        for row, seen in zip(range(low, high), ~hidden):
            first, count = int(seen.argmax()), int(seen.sum())
            if not count or not seen[first : first + count].all():
                return None
            spans[row] = (first, first + count)
    return spans


def _sees_itself_last(spans: dict[int, Span], rows: int, columns: int) -> bool:
    return rows == columns and all(last == row + 1 for row, (_, last) in spans.items())


def _looked_at(rows: int) -> list[tuple[int, int]]:
    """Runs of queries."""
    if rows <= MOST_ROWS:
        return [(low, min(rows, low + ROWS)) for low in range(0, rows, ROWS)]
    between = [part * rows // 16 for part in range(1, 16)]
    return [(0, ROWS), *((low, low + 8) for low in between), (rows - ROWS, rows)]


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
    source = once_of(mask)
    dims = len(source.shape)
    if mask.tensor.dtype is torch.bool:
        numbers = torch.tensor([0.0, -torch.inf])
        visible = source if allowed else derived(torch.logical_not, source)
        source = derived(torch.where, visible, numbers[0], numbers[1])
    few = math.prod(source.shape) > LARGE
    looked = [(0, min(size, ROWS) if few and i == dims - 2 else size) for i, size in enumerate(source.shape)]
    rows = numpy_of(block(source, looked))
    require(bool((rows > -np.inf).any(-1).all()), "a mask hides all keys of some query")
    source = derived(torch.Tensor.to, source, getattr(torch, str(scores.dtype)))
    return ops.add(scores, constant_of(fixed_of(source), scores.graph, name), name=f"{name}ed")

