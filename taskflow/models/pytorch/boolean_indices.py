"""Indices by truth values: fixed ones are the places that they name, before anything is recorded."""

from __future__ import annotations

from typing import Any

import torch

from taskflow.models.pytorch.calls import WITHOUT_SHAPE
from taskflow.models.pytorch.site import Unsupported


def indexed_by_places(recorder: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of ``x[index]`` with the places of fixed truth values for these. Raises Unsupported for computed ones:
    only the data tell how many they take."""
    parts = args[1] if isinstance(args[1], tuple) else (args[1],)
    if not any(map(_is_truth, parts)):
        return args
    wanted: list[Any] = []
    for part in parts:
        if _is_truth(part) and recorder.tracked(part):
            raise Unsupported(f"an index by a mask in {recorder.inside or 'forward'} {WITHOUT_SHAPE['masked_select']}")
        known = _is_truth(part) and not recorder.shadow.is_foreign(part)
        wanted += part.nonzero(as_tuple=True) if known else [part]
    return (args[0], tuple(wanted) if len(wanted) > 1 else wanted[0], *args[2:])


def _is_truth(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.dtype is torch.bool
