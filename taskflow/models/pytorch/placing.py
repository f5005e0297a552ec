"""Places of tokens: features of images put there (`masked_scatter`), and features taken from there, one of each sample."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, cast

import numpy as np
import torch

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.pytorch.calls import INDEX_ASSIGNMENT, WITHOUT_SHAPE
from taskflow.models.pytorch.look import Fusion, Look, function_at
from taskflow.models.pytorch.registry import FUNCTIONS, array_of, number_of
from taskflow.models.pytorch.site import Unsupported, require
from taskflow.models.pytorch.steps import Fixed, Ref, TorchStep
from taskflow.operators.embedding import Embedding
from taskflow.operators.tensor import Tensor


def placed(look: Look, step: TorchStep) -> Fusion | None:
    """Match ``x.masked_scatter(tokens == token, rows)``, where the mask is the same for all features. The rows may have been taken
    apart by samples, and joined.

    PyTorch takes rows for all samples one after the other; here each sample has its own, equally many. What transformers checks,
    that there are as many places as rows, and the operator's own check that no sample has more, make that the same.
    """
    if step.kind != "function" or step.values[0].ndim != 3:
        return None
    inside, adds = {step.number}, step.name == "added_rows"
    if adds:
        x, tokens, token, rows = step.args
    elif step.name == "masked_scatter" and len(step.args) == 3:
        x, mask, rows = step.args
        found = token_of(look.step, mask, tuple(step.values[0].shape[:2]), inside)
        if found is None:
            return None
        tokens, token = found
    else:
        return None
    if not isinstance(x, Ref) or not isinstance(rows, Ref):
        return None
    rows = _whole(look, rows, inside)

    def build(name: str, input: Any, tokens: Any, rows: Any) -> Any:
        if not all(isinstance(each, Tensor) for each in (input, tokens, rows)) or tokens.dtype != np.int64:
            return None
        return put_rows(name, input, tokens, token, rows, adds)

    return Fusion(frozenset(inside), (x, tokens, rows), build)


def put_rows(name: str, input: Tensor, tokens: Tensor, token: int, rows: Tensor, adds: bool = False) -> Tensor:
    """Return x (N, T, D) with rows, equally many for each sample, put where tokens (N, T) are ``token``, or added there."""
    samples, _, features = input.shape
    count = prod(rows.shape)
    require(count % (samples * features) == 0, f"rows {list(rows.shape)} are not equally many for each of {samples} samples")
    require(count <= input.shape[1] * samples * features, f"an image or a sound of {count // samples // features:,} rows among "
            f"{input.shape[1]:,} tokens of a sample; it needs at least as many (--set steps=)")
    for node in cast(OperatorGraph, tokens.graph):
        table = node.operator.num_embeddings if isinstance(node.operator, Embedding) and node.inputs[0] is tokens else token + 1
        require(token < table, f"rows are put where integers are {token:,}, and {node.name}, which reads these integers, has rows "
                f"for those below {table:,}: take a number below that for them (in a config such as image_token_index, "
                "image_token_id or audio_token_id), or a larger vocabulary (vocab_size)")
    shape = (samples, count // samples // features, features)
    each = rows if rows.shape == shape else ops.reshape(rows, shape, name=f"{name}.rows")
    return ops.masked_scatter(input, tokens, token, each, adds=adds, name=name)


def token_of(
    step_of: Callable[..., TorchStep | None], mask: Any, shape: tuple[int, ...], inside: set[int]
) -> tuple[Ref, int] | None:
    """Return the integers (N, T) and the number that a mask compares; None for a mask that differs along further dimensions.
    ``step_of``: the step that returned a value, if it has one of some names. Steps of the mask are put ``inside``."""
    while (moved := step_of(mask, "unsqueeze", "to", "expand_as", "expand", "getitem")) is not None:
        if moved.name == "unsqueeze" and (moved.args[1:] or (moved.kwargs.get("dim"),)) not in ((-1,), (2,)):
            return None
        if moved.values[0].dtype is not torch.bool or (moved.name == "getitem" and moved.args[1] != (Ellipsis, 0)):
            return None
        inside.add(moved.number)
        mask = moved.args[0]
    compared = step_of(mask, "eq")
    if compared is None or len(compared.args) != 2 or tuple(compared.values[0].shape) != tuple(shape):
        return None
    tokens, number = compared.args if isinstance(compared.args[0], Ref) else compared.args[::-1]
    value = number_of(number)
    if value is None or not isinstance(tokens, Ref):
        return None
    inside.add(compared.number)
    return tokens, int(value)


def _whole(look: Any, rows: Ref, inside: set[int]) -> Ref:
    """What rows were before they were taken apart along the first dimension and joined again."""
    joined = look.step(rows, "cat", "concat", "concatenate")
    if joined is None or not isinstance(joined.args[0], (list, tuple)):
        return rows
    parts, along = joined.args[0], joined.args[1] if len(joined.args) > 1 else joined.kwargs.get("dim", 0)
    apart = look.step(parts[0], "unbind", "split", "chunk") if parts else None
    if apart is None or along != 0:
        return rows
    skip = 1 if apart.name == "unbind" else 2
    if (apart.args[skip:] or (apart.kwargs.get("dim", 0),)) != (0,):
        return rows
    whole = apart.args[0]
    if list(parts) != [Ref(apart.number, i) for i in range(len(apart.values))] or not isinstance(whole, Ref):
        return rows
    inside |= {joined.number, apart.number}
    return whole


# ---- x[arange(N), tokens.argmax(-1)] -------------------------------------------------------------------------------------------


def picked(look: Look, step: TorchStep) -> Fusion | None:
    """Match ``x[arange(N), where]``, where ``where`` is ``tokens.argmax(-1)`` or
    ``(tokens == token).int().argmax(-1)``: of each sample the features at its largest token, or where it first has one."""
    if step.kind != "function" or step.name != "getitem" or len(step.args) != 2 or step.values[0].ndim != 2:
        return None
    x, index = step.args
    if not isinstance(x, Ref) or not isinstance(index, tuple) or len(index) != 2 or not isinstance(index[0], Fixed):
        return None
    samples, largest = look.steps[x.step].values[x.index].shape[0], look.step(index[1], "argmax")
    if largest is None or (largest.args[1:] or (largest.kwargs.get("dim"),)) not in ((-1,), (1,)):
        return None
    inside = {step.number, largest.number}
    tokens, token = _integers(look, largest.args[0], inside), None
    if (compared := look.step(tokens, "eq")) is not None and len(compared.args) == 2:
        inside.add(compared.number)
        (tokens, token) = compared.args if isinstance(compared.args[0], Ref) else compared.args[::-1]
        tokens = _integers(look, tokens, inside)
        if number_of(token) is None:
            return None
    if not isinstance(tokens, Ref) or look.steps[tokens.step].values[tokens.index].is_floating_point():
        return None
    each = index[0]

    def build(name: str, input: Any, tokens: Any) -> Any:
        fits = isinstance(input, Tensor) and input.ndim == 3 and isinstance(tokens, Tensor) and tokens.shape == input.shape[:2]
        if not fits or each.tensor.shape != (samples,) or (array_of(each) != np.arange(samples)).any():
            return None
        here = tokens if token is None else ops.compare(tokens, "eq", int(number_of(token) or 0), name=f"{name}.here")
        where = ops.reshape(ops.argmax(here, name=f"{name}.where"), (samples, 1), name=f"{name}.one")
        return ops.reshape(ops.gather(input, where, name=f"{name}.row"), (samples, input.shape[2]), name=name)

    return Fusion(frozenset(inside), (x, tokens), build)


def _integers(look: Any, value: Any, inside: set[int]) -> Any:
    """What integers or truth values were before they were converted to other integers."""
    while (step := look.step(value, "to", "int", "long")) is not None and not step.values[0].is_floating_point():
        inside.add(step.number)
        value = step.args[0]
    return value


# Rows that a mask of tokens chooses, which are changed and put back: ``x[mask, :] = x[mask, :] + rows``.
# How many rows a mask chooses depends on numbers. Where the mask says which integers of an input are one number, and features
# of images are added, there are as many as of these, and the whole is one step: `added_rows`.
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
