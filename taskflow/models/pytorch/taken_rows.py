"""Rows that a mask of tokens chooses, which are changed and put back: ``x[mask, :] = x[mask, :] + rows``.

How many rows a mask chooses depends on numbers. Where the mask says which integers of an input are one number, and features of
images are added, there are as many as of these, and the whole is one step: `added_rows`.
"""

from __future__ import annotations

from typing import Any

import torch

from taskflow.models.pytorch.calls import INDEX_ASSIGNMENT, WITHOUT_SHAPE
from taskflow.models.pytorch.look import function_at
from taskflow.models.pytorch.placing import put_rows, token_of
from taskflow.models.pytorch.registry import FUNCTIONS
from taskflow.models.pytorch.site import Unsupported
from taskflow.models.pytorch.steps import Ref
from taskflow.operators.tensor import Tensor


def added_rows(x: torch.Tensor, tokens: torch.Tensor, token: int, rows: torch.Tensor) -> torch.Tensor:
    """Return x (N, T, D) with rows (M, D) added, one after the other, where tokens (N, T) are ``token``."""
    here = (tokens == token)[..., None].expand_as(x)
    return x + torch.zeros_like(x).masked_scatter(here, rows)


def _added(name: str, x: Tensor, tokens: Tensor, token: int, rows: Tensor) -> Tensor:
    return put_rows(name, x, tokens, token, rows, adds=True)


FUNCTIONS[added_rows] = _added


class TakenRows:
    """``x[mask, :]``, or with ``rows`` that sum, of a tensor whose mask is ``tokens == token``."""

    def __init__(self, x: torch.Tensor, tokens: Ref, token: int, rows: torch.Tensor | None = None) -> None:
        self.x, self.tokens, self.token, self.rows = x, tokens, token, rows

    def __add__(self, other: Any) -> TakenRows:
        if self.rows is not None or not isinstance(other, torch.Tensor) or other.ndim != 2:
            raise Unsupported(f"rows that a mask chooses: {WITHOUT_SHAPE['masked_select']}")
        return TakenRows(self.x, self.tokens, self.token, other)

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"{name} of rows that a mask chooses: their number {WITHOUT_SHAPE['masked_select']}")


def taken_or_put(recorder: Any, name: str, args: Any) -> TakenRows | torch.Tensor | None:
    """Return what ``x[mask, :]`` is, or x with its rows put back; None for another call of a `TorchRecorder`'s module."""
    if name == "__getitem__" and len(args) == 2 and isinstance(args[0], torch.Tensor):
        found = _token(recorder, *args)
        return None if found is None else TakenRows(args[0], *found)
    if name != INDEX_ASSIGNMENT or len(args) != 3 or not isinstance(args[2], TakenRows):
        return None
    x, taken = args[0], args[2]
    if taken.x is not x or taken.rows is None or _token(recorder, *args[:2]) != (taken.tokens, taken.token):
        raise Unsupported(f"rows that a mask chooses, put elsewhere: {WITHOUT_SHAPE['masked_select']}")
    tokens = recorder.steps[taken.tokens.step].values[taken.tokens.index]
    given = (recorder.reference(x), taken.tokens, taken.token, recorder.reference(taken.rows))
    x.copy_(added_rows(x, tokens, taken.token, taken.rows))
    recorder.writes.forget_others([x], "added_rows")
    recorder.add("function", added_rows, given, {}, x)
    return x  # type: ignore[no-any-return]


def _token(recorder: Any, x: Any, index: Any) -> tuple[Ref, int] | None:
    """The integers and the number by which an index ``mask`` or ``mask, :`` takes rows of x (N, T, D)."""
    mask, *others = index if isinstance(index, tuple) else (index,)
    if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool or any(one not in (slice(None), ...) for one in others):
        return None
    if not recorder.tracked(mask) or x.ndim != 3 or mask.shape != x.shape[:2] or id(mask) not in recorder.refs:
        return None
    return token_of(lambda value, *names: function_at(recorder.steps, value, *names), recorder.refs[id(mask)], mask.shape, set())
