"""Parts of fixed tensors, and where they come from: splits, indices, joined parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MOVED = {"getitem", "cat", "concat", "concatenate", "unsqueeze"}
"""Functions of which `source_dim` knows which dimension of an argument becomes which of the result."""
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
