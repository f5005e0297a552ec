"""`nan_to_num`: behind a softmax whose mask hides whole rows, and where nothing in forward is infinite on purpose.

A mask's minus infinity is a very low number in a graph (`masks.lowest_score`), so that a row that is hidden as a whole is not NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from taskflow import operators as ops
from taskflow.models.pytorch.look import Fusion, Look
from taskflow.models.pytorch.masks import Mask, Side, as_floats, chosen, filled, opposite_of
from taskflow.models.pytorch.registry import number_of, only_number, stands_for
from taskflow.models.pytorch.site import Unsupported
from taskflow.models.pytorch.steps import Fixed, Ref, TorchStep, leaves
from taskflow.operators.tensor import Tensor

ARGUMENTS = ("input", "nan", "posinf", "neginf")


@stands_for("nan_to_num", "nan_to_num_")
def nan_to_num(name: str, *args: Any, **kwargs: Any) -> Any:
    """Raise Unsupported: what is understood is matched by `guarded`."""
    raise Unsupported(
        "replaces numbers that are not finite, but forward uses infinity elsewhere, which is a very low number here: only that of "
        "a masked_fill right before softmax is understood; see to it that no row of a mask is hidden as a whole"
    )


def guarded(look: Look, step: TorchStep) -> Fusion | None:
    """Match `nan_to_num`."""
    if step.kind != "function" or step.name.rstrip("_") != "nan_to_num":
        return None
    given = dict(zip(ARGUMENTS, step.args)) | step.kwargs
    x = given.pop("input")
    softmax = look.step(x, "softmax")
    hiding = look.step(softmax.args[0], "masked_fill") if softmax is not None and softmax.args else None
    if softmax is not None and hiding is not None and not hiding.kwargs and number_of(hiding.args[2]) == -math.inf:
        dim = softmax.kwargs.get("dim", softmax.args[1] if len(softmax.args) > 1 else None)
        scores, mask = hiding.args[:2]
        if isinstance(dim, int) and isinstance(scores, Ref) and not given.get("nan"):
            needs = (scores, mask) if isinstance(mask, Ref) else (scores,)
            return Fusion(frozenset({step.number, softmax.number, hiding.number}), needs, partial(_rows_seen, dim, mask))
    return None if _has_infinity(look) else Fusion(frozenset({step.number}), (x,), _finite(given))


def _rows_seen(dim: int, fixed: Any, name: str, scores: Any, computed: Any = None) -> Any:
    """Shares of each row, or zeros where all of it is hidden."""
    mask = computed.mask() if isinstance(computed, Side) else fixed if computed is None else computed
    if not isinstance(scores, Tensor) or not isinstance(mask, (Mask, Fixed)):
        return None
    graph: Any = scores.graph
    seen: Any = as_floats(graph, f"{name}.seen", opposite_of(graph, f"{name}.seen", mask))
    at = dim % scores.ndim - scores.ndim
    if -at <= seen.ndim and seen.shape[at] > 1:
        seen = ops.amax(seen, at, True, name=f"{name}.some")
    hidden = Mask(as_floats(graph, f"{name}.hides", mask)) if isinstance(mask, Fixed) else mask  # type: ignore[arg-type]
    shares = ops.softmax(filled(graph, f"{name}.hidden", scores, hidden, -math.inf), dim, name=f"{name}.shares")
    return ops.mul(shares, ops.cast(seen, shares.dtype, name=f"{name}.type"), name=name)


def _finite(given: Mapping[str, Any]) -> Any:
    def build(name: str, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return None
        most = float(torch.finfo(getattr(torch, str(x.dtype))).max)
        ends = [number_of(given.get(key)) for key in ("neginf", "posinf")]
        bounds = [end if value is None else value for end, value in zip((-most, most), ends)]
        bounded = x
        for relation, end, bound in (("lt", -most, bounds[0]), ("gt", most, bounds[1])):
            beyond = Side(x, relation, end, f"{name}.{relation}")
            bounded = chosen(x.graph, f"{name}.{relation}_bound", beyond, bound, bounded)  # type: ignore[arg-type]
        none = Mask(ops.compare(x, "ne", x, name=f"{name}.none"))
        return chosen(x.graph, name, none, number_of(given.get("nan")) or 0.0, bounded)  # type: ignore[arg-type]

    return build


def _has_infinity(look: Look) -> bool:
    """True if a step is given infinity."""
    if guarded not in look.known:
        look.known[guarded] = any(
            (isinstance(value, float) and math.isinf(value)) or (isinstance(value, Fixed) and _is_infinite(value))
            for step in look.steps for value in leaves((step.args, step.kwargs))
        )
    return bool(look.known[guarded])


def _is_infinite(value: Fixed) -> bool:
    if not value.tensor.is_floating_point():
        return False
    if value.recipe is not None:
        number = only_number(value)
        return number is None or math.isinf(number)
    return bool(value.tensor.isinf().any())
