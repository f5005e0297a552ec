"""attention: sums of values, weighted by how well keys match queries; composed of matrix products, softmax and linear layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskflow.operators.binary import mul
from taskflow.operators.concat import concat
from taskflow.operators.dropout import dropout as drop
from taskflow.operators.linear import linear
from taskflow.operators.mask_padding import mask_padding
from taskflow.operators.matmul import matmul
from taskflow.operators.reshape import reshape
from taskflow.operators.softmax import softmax
from taskflow.operators.spec import positive
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.operators.transpose import transpose
from taskflow.operators.unary import scale, tanh


def attention(
    input: Tensor,
    memory: Tensor,
    *,
    padding: tuple[Tensor, int] | None = None,
    name: str | None = None,
    parameters: Sequence[Sequence[Parameter]] | None = None,
) -> tuple[Tensor, list[Sequence[Parameter]]]:
    """Global attention with the "general" score of Luong, Pham and Manning (arXiv 1508.04025, section 3.1).

        weights = softmax(input W_in memory^T),  output = tanh([weights memory; input] W_out)

    Args: input (N, T, H), such as a decoder's states; memory (N, S, H), such as an encoder's outputs. ``padding``: the memory's
    tokens, (N, S) integers, and the padding token, whose positions get no weight. Returns the output (N, T, H), and the
    parameters of ``name.linear_in`` and ``name.linear_out``, which another call shares if they are its ``parameters``.
    """
    name = name or "attention"
    if input.ndim != 3 or memory.ndim != 3 or input.shape[::2] != memory.shape[::2]:
        raise ValueError(f"{name}: needs (N, T, features) and (N, S, features), got {input} and {memory}")
    shared = [None, None] if parameters is None else parameters
    width, graph = input.shape[2], input.graph
    query = linear(input, width, False, name=f"{name}.linear_in", parameters=shared[0])
    scores = _masked(matmul(query, memory, transpose_other=True, name=f"{name}.scores"), padding, name)
    context = matmul(softmax(scores, -1, name=f"{name}.softmax"), memory, name=f"{name}.context")
    both = concat((context, input), 2, name=f"{name}.concat")
    result = linear(both, width, False, name=f"{name}.linear_out", parameters=shared[1])
    used = [graph.parameters_of(query), graph.parameters_of(result)]
    return tanh(result, name=f"{name}.tanh"), list(used)


def multi_head_attention(
    query: Tensor,
    memory: Tensor,
    num_heads: int,
    *,
    causal: bool = False,
    padding: tuple[Tensor, int] | None = None,
    dropout: float = 0.0,
    bias: bool = True,
    name: str | None = None,
) -> Tensor:
    """Scaled dot-product attention in parallel heads (Vaswani et al., arXiv 1706.03762, section 3.2).

    Args: query (N, T, H), memory (N, S, H), the same tensor for self-attention; ``num_heads`` divides H. ``causal``: position t
    of the query sees the memory up to t + S - T. ``padding``: the memory's tokens, (N, S) integers, and the padding token,
    whose positions get no weight. ``dropout``: of the weights. Returns (N, T, H). Its linear layers are ``name.q_proj``,
    ``k_proj``, ``v_proj`` and ``out_proj``.
    """
    name = name or "attention"
    positive(name, num_heads=num_heads)
    if query.ndim != 3 or memory.ndim != 3 or query.shape[::2] != memory.shape[::2] or query.shape[2] % num_heads:
        raise ValueError(
            f"{name}: needs (N, T, features), (N, S, features) with features a multiple of num_heads={num_heads}, "
            f"got {query} and {memory}"
        )
    q = attention_heads(query, num_heads, "q", bias=bias, name=name)
    k, v = (attention_heads(memory, num_heads, which, bias=bias, name=name) for which in "kv")
    return attend_heads(q, k, v, causal=causal, padding=padding, dropout=dropout, bias=bias, name=name)


def attention_heads(
    x: Tensor, num_heads: int, which: str, *, bias: bool = True, width: int | None = None, name: str
) -> Tensor:
    """Project x (N, T, H) to queries, keys or values (``which``: q, k, v) for `attend_heads`: (N, num_heads, T, H / num_heads);
    ``width`` in place of H, if there is one. The linear layer is ``name.q_proj``, ``k_proj`` or ``v_proj``; queries are divided
    by the root of their number of features."""
    samples, steps, width = *x.shape[:2], width or x.shape[2]
    projected = linear(x, width, bias, name=f"{name}.{which}_proj")
    parts = reshape(projected, (samples, steps, num_heads, width // num_heads), name=f"{name}.{which}_heads")
    found = transpose(parts, 1, 2, name=f"{name}.{which}_first")
    return scale(found, (width // num_heads) ** -0.5, name=f"{name}.scale") if which == "q" else found


def attend_heads(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, padding: tuple[Tensor, int] | None = None,
    lengths: Tensor | None = None, dropout: float = 0.0, bias: bool = True,
    masked: Callable[[Tensor], Tensor] = lambda scores: scores, seen: Tensor | None = None, name: str,
) -> Tensor:
    """Attend as `multi_head_attention` does, given queries q (N, heads, T, F), keys and values k, v (N, heads, S, F), such as
    those of earlier positions that a decoder keeps. ``lengths`` (N) integers: sample n has this many keys; the rest is padding.
    ``masked``: what becomes of the scores (N, heads, T, S) before their softmax. ``seen`` is a factor of the weights after it:
    with 0 for keys that are hidden, a query that sees none gets zeros. Returns (N, T, heads F), through the linear layer
    ``name.out_proj``."""
    samples, heads, steps, each = q.shape
    scores = masked(_masked(matmul(q, k, transpose_other=True, name=f"{name}.scores"), padding, name))
    weights = softmax(scores, -1, causal=causal, lengths=lengths, name=f"{name}.softmax")
    weights = weights if seen is None else mul(weights, seen, name=f"{name}.seen")
    if dropout:
        weights = drop(weights, dropout, name=f"{name}.drop")
    context = transpose(matmul(weights, v, name=f"{name}.context"), 1, 2, name=f"{name}.steps_first")
    joined = reshape(context, (samples, steps, heads * each), name=f"{name}.joined")
    return linear(joined, heads * each, bias, name=f"{name}.out_proj")


def _masked(scores: Tensor, padding: tuple[Tensor, int] | None, name: str) -> Tensor:
    """Scores (N, ..., S), very low where the memory is padding."""
    return scores if padding is None else mask_padding(scores, *padding, name=f"{name}.mask")
