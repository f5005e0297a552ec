"""Parts of fixed tensors, and where they come from: splits, indices, joined parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MOVED = {"getitem", "cat", "concat", "concatenate", "unsqueeze"}
"""Functions of which `source_dim` knows which dimension of an argument becomes which of the result."""
Spans = Sequence[tuple[int, int]]
DIVIDED = {"split", "chunk", "split_with_sizes", "tensor_split"}


def indices_of(name: str, parts: Sequence[Any], *args: Any, dim: int | None = None, **_: Any) -> list[tuple[Any, Any]] | None:
    """Return the parts that a function has made of one tensor, each with its index there; None for other functions. ``args``: its
    second argument; ``dim`` where that is given by name."""
    if name == "unbind":
        at = dim if dim is not None else args[0] if args else 0
        rank = parts[0].ndim + 1
        return [(part, (*[slice(None)] * (at % rank), i)) for i, part in enumerate(parts)]
    if name not in DIVIDED or dim is None:
        return None
    found, start = [], 0
    for part in parts:
        at, size = dim % part.ndim, part.shape[dim]
        found.append((part, (*[slice(None)] * at, slice(start, start + size))))
        start += size
    return found


def source_dim(value: Any, dim: int) -> tuple[tuple[Any, ...], int | None] | None:
    """Return what dimension ``dim`` of a recipe, counted from the last, comes from: the arguments, and their dimension (None: it is
    new there). None if that is not known."""
    name, rank = str(getattr(value.function, "__name__", "")).strip("_"), len(value.shape)
    if name == "unsqueeze":
        at = (value.args[1] if len(value.args) > 1 else value.kwargs["dim"]) % rank - rank
        return value.args[:1], None if dim == at else dim if dim > at else dim + 1
    if name != "getitem":
        along = value.args[1] if len(value.args) > 1 else value.kwargs.get("dim", 0)
        return (tuple(value.args[0]), dim) if along % rank - rank != dim else None
    (source, index), dims = value.args[:2], []
    wanted = list(index) if isinstance(index, tuple) else [index]
    if any(not (part is None or part is Ellipsis or isinstance(part, slice) or type(part) is int) for part in wanted):
        return None
    missing = len(source.shape) - sum(isinstance(part, (int, slice)) for part in wanted)
    at = wanted.index(Ellipsis) if Ellipsis in wanted else len(wanted)
    here = 0
    for part in (*wanted[:at], *[slice(None)] * missing, *wanted[at + 1 :]):
        if not isinstance(part, int):
            dims.append(None if part is None else here - len(source.shape))
        here += part is not None
    return (source,), dims[rank + dim]


def picks(value: Any) -> list[Any] | None:
    """Return by what a recipe picks elements, if it does so by a tensor of integers for every dimension; None for other indices."""
    source, index = value.args[:2]
    found = list(index) if isinstance(index, tuple) else [index]
    by_tensors = all(hasattr(part, "shape") for part in found) and len(found) == len(source.shape)
    kinds = (str(getattr(part, "tensor", part).dtype) for part in found) if by_tensors else ("",)
    return found if all(kind.startswith("torch.int") for kind in kinds) else None


def same_order(value: Any, first: Any, spans: Spans) -> list[tuple[int, int]] | None:
    """Return the spans of an argument whose dimensions are those of the result, but for some of size 1; None for other changes."""
    found, rest = [], [span for span, size in zip(spans, value.shape) if size > 1]
    if [size for size in first.shape if size > 1] != [size for size in value.shape if size > 1]:
        return None
    left = iter(rest)
    for size in first.shape:
        found.append(next(left) if size > 1 else (0, 1))
    return found


def sliced(first: Any, index: Any, spans: Spans) -> tuple[list[tuple[int, int]], tuple[slice, ...]] | None:
    """Return the spans of what is indexed by slices, whole numbers, None and ``...``, and the steps with which these are taken.
    None for an index by anything else."""
    wanted = list(index) if isinstance(index, tuple) else [index]
    steps = (part.step for part in wanted if isinstance(part, slice))
    if any(not (part is None or part is Ellipsis or isinstance(part, slice) or type(part) is int) for part in wanted):
        return None
    if any(step is not None and step < 1 for step in steps):
        return None
    missing = len(first.shape) - sum(isinstance(part, (slice, int)) for part in wanted)
    at = next((i for i, part in enumerate(wanted) if part is Ellipsis), len(wanted))
    wanted = [*wanted[:at], *[slice(None)] * missing, *wanted[at + 1 :]]
    kept = [span for part, span in zip((part for part in wanted if not isinstance(part, int)), spans) if part is not None]
    sizes, left, found, by = iter(first.shape), iter(kept), [], []
    for part in wanted:
        if part is None:
            continue
        size = next(sizes)
        start, _, step = (part % size, 0, 1) if isinstance(part, int) else part.indices(size)
        low, high = (0, 1) if isinstance(part, int) else next(left)
        found.append((start + low * step, start + max(low, high - 1) * step + (high > low)))
        by.append(slice(None, None, step))
    return found, tuple(by)


def cut_dim(index: Any, rank: int) -> tuple[int, slice] | None:
    """Return the only dimension that an index of slices and ``...`` takes a part of, and which; None for other indices."""
    wanted = list(index) if isinstance(index, tuple) else [index]
    if any(not (part is Ellipsis or isinstance(part, slice)) for part in wanted):
        return None
    if Ellipsis in wanted:
        at = wanted.index(Ellipsis)
        wanted[at : at + 1] = [slice(None)] * (rank - len(wanted) + 1)
    cut = [(dim, part) for dim, part in enumerate(wanted) if part != slice(None)]
    return cut[0] if len(cut) == 1 else None
