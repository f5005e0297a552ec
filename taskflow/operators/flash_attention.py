"""flash_attention: softmax(q k^T) v in tiles, with memory linear in the sequence (PyTorch:
torch.nn.functional.scaled_dot_product_attention). See `attention_tiles` for the sources."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from taskflow.floats import sums_in
from taskflow.operators.attention_blocks import attention_blocks
from taskflow.operators.attention_scope import Span
from taskflow.operators.merge_attention import merge_attention
from taskflow.operators.operator import Call, Dim, Example, Spec, register, sample_and_attributes
from taskflow.operators.tensor import Tensor
from taskflow.operators.tiled_attention import TiledAttention, random_inputs
from taskflow.regions import Rect


@register("flash_attention")
class FlashAttention(TiledAttention):
    """Inputs of `TiledAttention` -> y (N, Lq, H, E) = softmax(scale q k^T) v over the keys that a query sees, 0 where it sees
    none. Samples, queries and heads can be cut; keys only with `attention_blocks`. Forward saves the logarithm of each row's
    sum of exponentials, from which backward computes the weights again, tile by tile."""

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        self.check(inputs)
        return (Spec((*inputs[0].shape[:3], inputs[2].shape[3]), inputs[0].dtype),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        return sample_and_attributes(inputs[0].shape[:3])

    def keys_of(self, inputs: Sequence[Spec], piece: Rect) -> Span:
        return 0, inputs[1].shape[1]

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return (Rect((*piece.lo, 0), (*piece.hi, inputs[2].shape[3])),)

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        return (Spec(piece.shape, sums_in(inputs[0].dtype)),)

    def forward(self, call: Call) -> None:
        (q, k, v), (out,), (sums,) = call.inputs[:3], call.outputs, call.saved
        if q.shape[1] < out.shape[1]:  # some see nothing
            out[...] = 0
            sums[...] = 0
        if q.size:
            tiles = self.tiles(call)
            at = slice(tiles.rows[0] - call.piece.lo[1], tiles.rows[1] - call.piece.lo[1])
            tiles.forward(q, k, v, tiles.rows, tiles.keys, out[:, at], sums[:, at])

    def backward(self, call: Call) -> None:
        (q, k, v), (out,), (sums,) = call.inputs[:3], call.outputs, call.saved
        self.start(call)
        if q.size:
            tiles = self.tiles(call)
            at = slice(tiles.rows[0] - call.piece.lo[1], tiles.rows[1] - call.piece.lo[1])
            tiles.backward(
                q, k, v, tiles.rows, tiles.keys, out[:, at], sums[:, at], call.grad[:, at], None, call.grad_inputs[:3]
            )

    @classmethod
    def example(cls, random: Random) -> Example:
        causal = random.random() < 0.6
        window = random.randint(2, 4) if causal and random.random() < 0.5 else None
        queries = random.randint(1, 5)
        # Every query sees two keys, or else some number would not matter: over one key the weight is 1.
        keys = queries + random.randint(1, 3) if causal else random.randint(2, 6)
        specs = random_inputs(
            random.randint(1, 3), queries, keys, random.randint(1, 2), random.randint(1, 3), random.randint(1, 3),
            random.randint(1, 3), random.random() < 0.3,
        )
        operator = cls(random.uniform(0.3, 1.0), causal, window, random.choice((0.0, 0.0, 0.4)), random.randint(1, 4))
        return Example(operator, specs, high=keys + 1)


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    lengths: Tensor | None = None,
    dropout: float = 0.0,
    key_blocks: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Sum values, weighted by the softmax of scale times the products of queries and keys, without building the matrix of
    weights.

    Args: query (N, Lq, H, D), key (N, Lk, G, D), value (N, Lk, G, E); H a multiple of G: heads in groups of H / G share a key
    head. ``scale``: 1 / sqrt(D) if not given. ``causal``: query t sees the keys up to t + Lk - Lq (the last query is aligned
    with the last key, as in `softmax`; PyTorch's ``is_causal`` aligns the first ones). ``window``: of these only the last ones,
    this many, including its own. ``lengths`` (N) integers: sample n has this many keys; the others are padding. ``dropout``: of
    the weights, while training. ``key_blocks``: the same in two operators, of which the first can also be cut by this many
    blocks of keys; the second (``name``.merge) joins them. Returns (N, Lq, H, E), with zeros for queries that see nothing.
    """
    scale = query.shape[-1] ** -0.5 if scale is None and query.ndim else scale
    inputs = (query, key, value) if lengths is None else (query, key, value, lengths)
    if key_blocks is None:
        operator = FlashAttention(float(scale or 0), causal, window, dropout)
        return query.graph.apply(operator, inputs, name=name)[0]
    parts, sums = attention_blocks(
        query, key, value, key_blocks, scale=float(scale or 0), causal=causal, window=window, lengths=lengths, dropout=dropout,
        name=name,  # dropout's numbers go by it
    )
    return merge_attention(
        parts, sums, key.shape[1], causal=causal, window=window, lengths=lengths,
        name=None if name is None else f"{name}.merge",
    )
