"""The softmax of scores that a fixed mask hides, as code of attention writes it: where the mask is causal, it is a rule."""

from __future__ import annotations

import math
from typing import Any

from taskflow import operators as ops
from taskflow.models.pytorch.arithmetic import add
from taskflow.models.pytorch.attention_masks import causal_bias, fixed_mask
from taskflow.models.pytorch.look import Fusion, Look
from taskflow.models.pytorch.masks import lowest_score
from taskflow.models.pytorch.registry import name_of_type, number_of
from taskflow.models.pytorch.steps import Fixed, Ref, TorchStep
from taskflow.operators.tensor import Tensor


def causal_softmax(look: Look, step: TorchStep) -> Fusion | None:
    """Match ``softmax(scores.masked_fill(mask, lowest))`` and ``softmax(scores + mask)``."""
    if step.kind != "function" or step.name != "softmax" or not step.args or step.values[0].ndim < 2:
        return None
    dim = step.kwargs.get("dim", step.args[1] if len(step.args) > 1 else None)
    inside = {step.number}
    hiding = look.step(look.source(step.args[0], inside), "masked_fill", "add")
    if hiding is None or dim not in (-1, step.values[0].ndim - 1) or hiding.kwargs or not isinstance(hiding.args[0], Ref):
        return None
    scores, mask = hiding.args[0], hiding.args[1]
    number = number_of(hiding.args[2]) if len(hiding.args) == 3 else -math.inf
    if not isinstance(mask, Fixed) or number is None or look.shape(scores) != tuple(step.values[0].shape):
        return None
    rows, columns = look.shape(scores)[-2:]
    added = hiding.name == "add"
    if rows != columns or added is not mask.tensor.is_floating_point():
        return None
    inside.add(hiding.number)

    def build(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor) or number > lowest_score(value.dtype):
            return None
        rest, hides_later, window = fixed_mask(mask, rows, columns, allowed=False)
        if window is not None:
            return None
        if rest is not None:
            bias = causal_bias(mask, rows, columns)
            if bias is None:
                return None
            value, hides_later = add(f"{name}.biased", value, bias), True
        wide = ops.cast(value, name_of_type(step.values[0].dtype), name=f"{name}.wide")
        return ops.softmax(wide, -1, causal=hides_later, name=name)

    return Fusion(frozenset(inside), (scores,), build)
