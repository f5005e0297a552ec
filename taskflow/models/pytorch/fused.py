"""Several functions that one operator computes: norms, rotary positions, gated feed-forward layers, images among words.

As a module's code writes them, each makes half a dozen arrays, and in bfloat16 some of them in float32. The operators of our own
networks keep no more than backward reads. What is matched here is their formula, in whatever module it stands.
"""

from __future__ import annotations

import math
from typing import Any

from taskflow import operators as ops
from taskflow.models.pytorch.arithmetic import add
from taskflow.models.pytorch.attention_masks import causal_bias, fixed_mask
from taskflow.models.pytorch.guarding import guarded
from taskflow.models.pytorch.look import Fusion, Look, other_operand
from taskflow.models.pytorch.masks import lowest_score
from taskflow.models.pytorch.placing import picked, placed
from taskflow.models.pytorch.recipes import SAME
from taskflow.models.pytorch.registry import Again, name_of_type, number_of
from taskflow.models.pytorch.rotating import by_complex_numbers, by_halves, by_neighbours, by_parts
from taskflow.models.pytorch.sinks import attention_with_sinks
from taskflow.models.pytorch.site import Held
from taskflow.models.pytorch.steps import Fixed, Ref, TorchRecording, TorchStep
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


def fusions_of(recording: TorchRecording, module: Any) -> dict[int, Fusion]:
    """Return the fusions of a recording by their last steps; no step is in two."""
    found: dict[int, Fusion] = {}
    look = Look(recording, module)
    for step in recording.steps:
        for match in MATCHES:
            result = match(look, step)
            if result is not None and look.closed(result):
                found[max(result.inside)] = result
                look.taken |= result.inside
                break
    return found


# ---- x / sqrt(mean of x^2 + eps) weight ---------------------------------------------------------------------------------------


def _rms_norm(look: Look, step: TorchStep) -> Fusion | None:
    if not _is_inverse_root(step):
        return None
    inside = {step.number}
    shifted = look.step(step.args[0], "add", "radd")
    if shifted is None or len(shifted.args) != 2 or shifted.kwargs:
        return None
    variance, eps = (shifted.args if isinstance(shifted.args[0], Ref) else shifted.args[::-1])
    mean, number = look.step(variance, "mean"), number_of(eps)
    if mean is None or number is None or not _over_last(mean):
        return None
    squares = look.step(mean.args[0], "pow", "square", "mul")
    if squares is None or not _squares(squares):
        return None
    inside |= {shifted.number, mean.number, squares.number}
    x = look.source(squares.args[0], inside)
    product = look.reader(step)
    if product is None or product.name not in ("mul", "rmul"):
        return None
    inside.add(product.number)
    if look.source(other_operand(product, Ref(step.number)), inside) != x:
        return None
    return _weighted(look, product, x, number, inside)


def _is_inverse_root(step: TorchStep) -> bool:
    """True for ``rsqrt(x)`` and ``pow(x, -0.5)``."""
    if step.kind != "function" or step.kwargs:
        return False
    return (step.name == "rsqrt" and len(step.args) == 1) or (step.name == "pow" and step.args[1:] == (-0.5,))


def _weighted(look: Look, last: TorchStep, x: Ref, eps: float, inside: set[int]) -> Fusion | None:
    """The fusion whose last step multiplies by a weight, or by 1 + weight, and converts the result back."""
    weight, offset = None, 0.0
    while True:
        following = look.reader(last)
        if following is None:
            break
        if following.name in SAME and following.args[0] == Ref(last.number):
            if weight is not None and last.values[0].dtype is look.type(x):
                break
        elif following.name in ("mul", "rmul") and weight is None:
            with_weight = set(inside)
            weight, offset = _weight(look, other_operand(following, Ref(last.number)), with_weight)
            if weight is None:
                return None
            inside |= with_weight
        else:
            break
        last = following
        inside.add(last.number)
    if weight is None:
        return None

    def build(name: str, value: Any, held: Any) -> Any:
        if not isinstance(value, Tensor) or not isinstance(held, Held) or held.shape != value.shape[-1:] or value.ndim < 2:
            return None
        if not held.site.name.endswith(".weight"):
            return None
        return held.layer.build(ops.rms_norm, [held.tensor], value, eps, offset=offset)

    return Fusion(frozenset(inside), (x, weight), build)


def _weight(look: Look, value: Any, inside: set[int]) -> tuple[Ref | None, float]:
    value = look.source(value, inside)
    shifted = look.step(value, "add", "radd")
    if shifted is not None and len(shifted.args) == 2 and not shifted.kwargs:
        one = next((number_of(arg) for arg in shifted.args if number_of(arg) is not None), None)
        inner = next((arg for arg in shifted.args if isinstance(arg, Ref)), None)
        inside.add(shifted.number)
        inner = look.source(inner, inside)
        return (inner, float(one)) if one is not None and look.parameter(inner) else (None, 0.0)
    return (value, 0.0) if look.parameter(value) else (None, 0.0)


def _over_last(mean: TorchStep) -> bool:
    bound = dict(zip(("input", "dim", "keepdim"), mean.args)) | mean.kwargs
    dim = bound.get("dim")
    last = mean.values[0].ndim - 1
    return bound.get("keepdim") is True and (dim in (-1, last) or (isinstance(dim, (tuple, list)) and list(dim) in ([-1], [last])))


def _squares(step: TorchStep) -> bool:
    if step.name == "mul":
        return len(step.args) == 2 and step.args[0] == step.args[1]
    return step.name == "square" or (len(step.args) == 2 and not step.kwargs and step.args[1] == 2)


# ---- silu(gate) x -------------------------------------------------------------------------------------------------------------


def _swiglu(look: Look, step: TorchStep) -> Fusion | None:
    if step.kind != "function" or step.name != "mul" or len(step.args) != 2 or step.kwargs:
        return None
    for gate, x in (step.args, step.args[::-1]):
        result = look.steps[gate.step] if isinstance(gate, Ref) and isinstance(x, Ref) else None
        if result is None or not _is_silu(look, result) or not result.args or not isinstance(result.args[0], Ref):
            continue
        if look.readers[result.number] != [step.number] or result.values[0].shape != look.steps[x.step].values[x.index].shape:
            continue

        def build(name: str, gate: Any, x: Any) -> Any:
            fits = isinstance(gate, Tensor) and isinstance(x, Tensor) and gate.spec == x.spec
            return ops.swiglu(gate, x, name=name) if fits else None

        return Fusion(frozenset({step.number, result.number}), (result.args[0], x), build)
    return None


def _is_silu(look: Look, step: TorchStep) -> bool:
    if step.kind == "module":
        return type(look.module.get_submodule(step.target)).__name__ in ("SiLU", "SiLUActivation")
    return step.kind == "function" and step.name == "silu"


# ---- heads of keys and values, each for several heads of queries ---------------------------------------------------------------


def _again(look: Look, step: TorchStep) -> Fusion | None:
    """``x[:, :, None].expand(N, G, times, T, D).reshape(N, G times, T, D)``."""
    if step.kind != "function" or step.name not in ("reshape", "flatten", "view") or step.values[0].ndim != 4:
        return None
    repeated = look.step(step.args[0], "expand")
    alone = look.step(repeated.args[0], "getitem", "unsqueeze") if repeated is not None else None
    x = alone.args[0] if alone is not None else None
    if repeated is None or alone is None or not isinstance(x, Ref):
        return None
    before, after = alone.values[0].shape, repeated.values[0].shape
    given = look.steps[x.step].values[x.index].shape
    grouped = len(given) == 4 and before == (*given[:2], 1, *given[2:]) and after == (*given[:2], after[2], *given[2:])
    if not grouped or step.values[0].shape != (given[0], given[1] * after[2], *given[2:]):
        return None
    times = int(after[2])
    inside = frozenset({step.number, repeated.number, alone.number})
    return Fusion(inside, (x,), lambda name, value: Again(value, times, name), True)


MATCHES = (
    _rms_norm, by_halves, by_neighbours, by_parts, by_complex_numbers, attention_with_sinks, causal_softmax, _swiglu, _again,
    placed, picked, guarded,
)
