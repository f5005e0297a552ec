"""attention_blocks: attention to each block of keys by itself, so that attention can be cut by keys; `merge_attention` joins
the blocks."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from taskflow.floats import sums_in
from taskflow.operators.attention_scope import Span, blocks_of
from taskflow.operators.operator import Call, Dim, Example, Soap, Spec, positive, register, sample_and_attributes
from taskflow.operators.tensor import Tensor
from taskflow.operators.tiled_attention import TiledAttention, random_inputs
from taskflow.regions import Rect


@register("attention_blocks")
class AttentionBlocks(TiledAttention):
    """Inputs of `TiledAttention` -> y (N, Lq, H, B, E), the attention of each query to each of ``blocks`` blocks of the keys by
    itself, and the logarithm of its sum of exponentials (N, Lq, H, B). Both are 0 where a query sees nothing of the block.
    Block b is [b Lk / B, (b + 1) Lk / B), rounded down: fixed by the model, not by the strategy. A piece whose queries see
    nothing of its blocks reads nothing."""

    blocks: int = 2

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        self.check(inputs)
        positive("attention_blocks", blocks=self.blocks)
        keys = inputs[1].shape[1]
        if self.blocks > keys:
            raise ValueError(f"attention_blocks: each block needs a key, got {self.blocks} blocks of {keys} keys")
        shape, dtype = (*inputs[0].shape[:3], self.blocks), inputs[0].dtype
        return (Spec((*shape, inputs[2].shape[3]), dtype), Spec(shape, sums_in(dtype)))

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        return (*sample_and_attributes(inputs[0].shape[:3]), Dim("b", self.blocks, Soap.ATTRIBUTE))

    def keys_of(self, inputs: Sequence[Spec], piece: Rect) -> Span:
        blocks = blocks_of(inputs[1].shape[1], self.blocks)[piece.lo[3] : piece.hi[3]]
        return (blocks[0][0], blocks[-1][1]) if blocks else (0, 0)

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return (Rect((*piece.lo, 0), (*piece.hi, inputs[2].shape[3])), piece)

    def forward(self, call: Call) -> None:
        (q, k, v), (out, sums) = call.inputs[:3], call.outputs
        out[...] = 0
        sums[...] = 0
        if q.size:
            tiles = self.tiles(call)
            for number, rows, keys, at in self._seen(call):
                tiles.forward(q, k, v, rows, keys, out[:, at, :, number], sums[:, at, :, number])

    def backward(self, call: Call) -> None:
        (q, k, v), (out, sums), (dout, dsums) = call.inputs[:3], call.outputs, call.grad_outputs
        self.start(call)
        if q.size:
            tiles = self.tiles(call)
            for number, rows, keys, at in self._seen(call):
                part = (slice(None), at, slice(None), number)
                tiles.backward(
                    q, k, v, rows, keys, out[part], sums[part], None if dout is None else dout[part],
                    None if dsums is None else dsums[part], call.grad_inputs[:3],
                )

    def _seen(self, call: Call) -> list[tuple[int, Span, Span, slice]]:
        """For each block of the piece that is at least partly visible: its number in the piece, the queries and keys, and the
        place of these queries in the piece."""
        scope, first = self.scope(call.specs), call.piece.lo[1]
        found = []
        for number, block in enumerate(blocks_of(scope.keys, self.blocks)[call.piece.lo[3] : call.piece.hi[3]]):
            rows, keys = scope.within((first, call.piece.hi[1]), block)
            if rows[1] > rows[0]:
                found.append((number, rows, keys, slice(rows[0] - first, rows[1] - first)))
        return found

    @classmethod
    def example(cls, random: Random) -> Example:
        causal, keys = random.random() < 0.7, random.randint(2, 7)
        window = random.randint(1, 5) if causal and random.random() < 0.5 else None
        specs = random_inputs(
            random.randint(1, 3), random.randint(1, 6), keys, random.randint(1, 2), random.randint(1, 2), random.randint(1, 3),
            random.randint(1, 3), random.random() < 0.3,
        )
        operator = cls(
            random.uniform(0.3, 1.0), causal, window, random.choice((0.0, 0.0, 0.4)), random.randint(1, 4),
            random.randint(1, min(keys, 4)),
        )
        return Example(operator, specs, high=keys + 1)


def attention_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    blocks: int,
    *,
    scale: float,
    causal: bool = False,
    window: int | None = None,
    lengths: Tensor | None = None,
    dropout: float = 0.0,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend to each of ``blocks`` blocks of keys by itself. `flash_attention` builds this operator and the one that merges the
    blocks.

    Args: as for `flash_attention`. Returns (N, Lq, H, blocks, E), and the logarithms of the sums of exponentials (N, Lq, H,
    blocks).
    """
    inputs = (query, key, value) if lengths is None else (query, key, value, lengths)
    y, sums = query.graph.apply(AttentionBlocks(scale, causal, window, dropout, blocks=blocks), inputs, name=name)
    return y, sums
