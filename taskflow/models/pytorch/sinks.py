"""Attention with sinks, as GPT-OSS's code writes it: a trained score more in the softmax of each head, to which no value belongs.

That is attention without the sink times the share of the keys, sigmoid(logsumexp of the scores - sink): no matrix of scores is
kept.
"""

from __future__ import annotations

from typing import Any

from taskflow import operators as ops
from taskflow.models.pytorch.attention_masks import fixed_mask
from taskflow.models.pytorch.look import Fusion, Look
from taskflow.models.pytorch.recording import dropout_of
from taskflow.models.pytorch.registry import Again, Later, graph_of, in_order, number_of, swapped, tensor_of
from taskflow.models.pytorch.steps import Fixed, Ref, TorchStep
from taskflow.operators.attention_blocks import attention_blocks

JOINS = ("cat", "concat", "concatenate")


def attention_with_sinks(look: Look, step: TorchStep) -> Fusion | None:
    """Match ``dropout(softmax(cat((q k^T scale + mask, sinks)) - max)[..., :-1]) v``, with one sink for each head."""
    if step.kind != "function" or step.name != "matmul" or len(step.args) != 2 or not isinstance(step.args[1], Ref):
        return None
    inside = {step.number}
    weights, value = look.source(step.args[0], inside), step.args[1]
    drop, rate = look.step(weights, "dropout"), 0.0
    if drop is not None:
        inside.add(drop.number)
        rate, training = dropout_of(*drop.args, **drop.kwargs)
        rate, weights = rate if training else 0.0, look.source(drop.args[0], inside)
    cut = look.step(weights, "getitem")
    softmax = look.step(look.source(cut.args[0], inside), "softmax") if cut is not None else None
    if cut is None or softmax is None or cut.args[1] != (Ellipsis, slice(None, -1, None)) or not _over_last(softmax):
        return None
    inside |= {cut.number, softmax.number}
    joined = _joined(look, look.source(softmax.args[0], inside), inside)
    scores = _scores(look, joined[0], inside) if joined is not None else None
    if joined is None or scores is None:
        return None
    sinks = _sinks(look, joined[1], inside)
    query, key, factor, mask = scores
    if sinks is None or look.shape(sinks) != look.shape(query)[1:2]:
        return None

    def build(name: str, *given: Any) -> Any:
        return _built(name, *given, factor=factor, mask=mask, dropout=rate)

    return Fusion(frozenset(inside), (query, key, value, sinks), build, True)


def _over_last(step: TorchStep) -> bool:
    dim = step.kwargs.get("dim", step.args[1] if len(step.args) > 1 else None)
    return dim in (-1, step.values[0].ndim - 1)


def _joined(look: Look, value: Any, inside: set[int]) -> tuple[Any, Any] | None:
    """Scores and sinks that a softmax is of; their largest may have been taken away."""
    less = look.step(value, "sub")
    if less is not None and len(less.args) == 2 and not less.kwargs:
        largest = look.step(less.args[1], "max", "amax")
        if largest is None or largest.args[0] != less.args[0] or less.args[1].index or not _over_last(largest):
            return None
        inside |= {less.number, largest.number}
        value = less.args[0]
    joined = look.step(value, *JOINS)
    if joined is None or len(joined.args[0]) != 2 or (joined.args[1:] or (joined.kwargs.get("dim"),)) not in ((-1,), (3,)):
        return None
    inside.add(joined.number)
    return joined.args[0][0], joined.args[0][1]


def _scores(look: Look, value: Any, inside: set[int]) -> tuple[Ref, Ref, float, Fixed | None] | None:
    """Queries, keys, the factor of their products, and the mask that is added."""
    mask: Fixed | None = None
    masked = look.step(value, "add")
    if masked is not None and len(masked.args) == 2 and not masked.kwargs and isinstance(masked.args[1], Fixed):
        inside.add(masked.number)
        value, mask = masked.args
    scaled = look.step(value, "mul")
    factor = number_of(scaled.args[1]) if scaled is not None and len(scaled.args) == 2 else None
    product = look.step(scaled.args[0], "matmul") if scaled is not None else None
    turned = look.step(product.args[1], "transpose") if product is not None else None
    if scaled is None or factor is None or product is None or turned is None or turned.args[1:] not in ((2, 3), (-1, -2), (-2, -1)):
        return None
    query, key = product.args[0], turned.args[0]
    if not isinstance(query, Ref) or not isinstance(key, Ref) or {len(look.shape(query)), len(look.shape(key))} != {4}:
        return None
    inside |= {scaled.number, product.number, turned.number}
    return query, key, factor, mask


def _sinks(look: Look, value: Any, inside: set[int]) -> Ref | None:
    """The parameter (heads) that has been repeated to (N, heads, T, 1)."""
    repeated = look.step(value, "expand")
    alone = look.step(repeated.args[0], "reshape", "view") if repeated is not None else None
    if repeated is None or alone is None or not look.parameter(alone.args[0]):
        return None
    sinks = alone.args[0]
    if len(look.shape(sinks)) != 1 or tuple(alone.values[0].shape) != (1, *look.shape(sinks), 1, 1):
        return None
    inside |= {repeated.number, alone.number}
    return sinks  # type: ignore[no-any-return]


def _built(
    name: str, query: Any, key: Any, value: Any, sinks: Any, *, factor: float, mask: Fixed | None, dropout: float
) -> Any:
    """The operators; None where the mask is no rule."""
    rest, causal, window = (None, False, None) if mask is None else fixed_mask(mask, query.shape[2], key.shape[2])
    if rest is not None or (causal and query.shape[2] != key.shape[2]):
        return None
    if isinstance(key, Again) and isinstance(value, Again) and key.times == value.times:
        key, value = key.base, value.base
    if query.shape[1] % key.shape[1] or key.shape[:3] != value.shape[:3]:
        return None
    q, k, v = (swapped(part, 1, 2, f"{name}.{at}") for part, at in zip((query, key, value), "qkv"))
    parts, sums = attention_blocks(
        q, k, v, 1, scale=factor, causal=causal, window=window, dropout=dropout, name=f"{name}.attention"
    )
    sink = ops.cast(in_order(tensor_of(sinks, graph_of(query), name)), sums.dtype, name=f"{name}.sinks_type")
    sink = ops.reshape(sink, (1, 1, sink.shape[0], 1), name=f"{name}.sinks")
    share = ops.sigmoid(ops.sub(sums, sink, name=f"{name}.over_sinks"), name=f"{name}.share")
    share = ops.cast(share, parts.dtype, name=f"{name}.share_type")
    result = ops.reshape(parts, (*q.shape[:3], v.shape[3]), name=f"{name}.block")
    return Later(ops.mul(result, share, name=f"{name}.seen"), (1, 2), name)
