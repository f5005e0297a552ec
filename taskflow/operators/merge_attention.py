"""merge_attention: joins the attention to each block of keys into attention to all keys, weighted by the blocks' sums of
exponentials."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from taskflow.floats import sums_in
from taskflow.operators.attention_scope import AttentionScope, Span, blocks_of
from taskflow.operators.attention_tiles import FLOOR, LOW
from taskflow.operators.operator import INPUTS, Array, Call, Example, Operator, Reads, register
from taskflow.operators.spec import Dim, Spec, positive, sample_and_attributes, takes
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@register("merge_attention")
class MergeAttention(Operator):
    """x (N, Lq, H, B, E), sums (N, Lq, H, B), and lengths (N) integers if there is padding -> y (N, Lq, H, E). y is the mean of
    x with the weights softmax(sums) over the blocks of which the query sees something; 0 if there are none. Blocks that no
    query of a piece sees are not read. Forward saves the weights."""

    uniform = False  # how many blocks are seen depends on where the piece lies
    kept = INPUTS

    keys: int
    causal: bool = False
    window: int | None = None

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        if len(inputs) != 3:
            takes("merge_attention", inputs, 2)
        x, sums = inputs[:2]
        positive("merge_attention", keys=self.keys)
        if len(x.shape) != 5 or sums.shape != x.shape[:4] or sums.dtype != sums_in(x.dtype) or not x.differentiable:
            raise ValueError(f"merge_attention: inputs must be float (N, Lq, H, B, E) and (N, Lq, H, B), got {x} and {sums}")
        if not 1 <= x.shape[3] <= self.keys:
            raise ValueError(f"merge_attention: each block needs a key, got {x.shape[3]} blocks of {self.keys} keys")
        if len(inputs) == 3 and (inputs[2].shape != x.shape[:1] or inputs[2].dtype.kind not in "iu"):
            raise ValueError(f"merge_attention: lengths must be integers (N,), got {inputs[2]} for {x}")
        return (Spec((*x.shape[:3], x.shape[4]), x.dtype),)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        return sample_and_attributes(inputs[0].shape[:3])

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        first, last = self._blocks(inputs, (piece.lo[1], piece.hi[1]))
        if last <= first:
            return Reads(tuple(Rect((0,) * len(s.shape), (0,) * len(s.shape)) for s in inputs))
        sums = Rect((*piece.lo, first), (*piece.hi, last))
        x = Rect((*sums.lo, 0), (*sums.hi, inputs[0].shape[4]))
        return Reads((x, sums, Rect(piece.lo[:1], piece.hi[:1])) if len(inputs) == 3 else (x, sums))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return (Rect((*piece.lo, 0), (*piece.hi, inputs[0].shape[4])),)

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        return (Spec(self.reads(inputs, piece).inputs[1].shape, inputs[1].dtype),)

    def integers_below(self, inputs: Sequence[Spec]) -> int | None:
        return self.keys + 1 if len(inputs) == 3 else None

    def forward(self, call: Call) -> None:
        (x, sums), (y,), (weights,) = call.inputs[:2], call.outputs, call.saved
        if not x.size:
            y[...] = 0
            return
        seen = self._seen(call)
        levels = call.kernels.xp.where(seen, sums, sums.dtype.type(LOW))
        weights[...] = np.exp(levels - np.maximum(levels.max(axis=-1, keepdims=True), sums.dtype.type(FLOOR)))
        total = weights.sum(axis=-1, keepdims=True)
        weights /= call.kernels.xp.where(total > 0, total, 1)
        y[...] = (x * weights[..., None]).sum(axis=-2)

    def backward(self, call: Call) -> None:
        x, (weights,), (dx, dsums) = call.inputs[0], call.saved, call.grad_inputs[:2]
        dy = call.grad
        if not x.size:
            return
        if dx is not None:
            dx.put(weights[..., None] * dy[..., None, :])
        if dsums is not None:
            dweights = (x * dy[..., None, :]).sum(axis=-1)
            dsums.put(weights * (dweights - (weights * dweights).sum(axis=-1, keepdims=True)))

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        scope, rows = self._scope(inputs), (piece.lo[1], piece.hi[1])
        seen = [scope.queries_of(block) for block in blocks_of(self.keys, inputs[0].shape[3])]
        count = sum(max(0, min(rows[1], last) - max(rows[0], first)) for first, last in seen)
        return piece.shape[0] * piece.shape[2] * count * (2 * inputs[0].shape[4] + 4)

    def _scope(self, inputs: Sequence[Spec]) -> AttentionScope:
        return AttentionScope(inputs[0].shape[1], self.keys, self.causal, self.window)

    def _blocks(self, inputs: Sequence[Spec], rows: Span) -> Span:
        """The span of blocks of which some query of ``rows`` sees something."""
        seen = self._scope(inputs).keys_of(rows)
        numbers = [
            b for b, (first, last) in enumerate(blocks_of(self.keys, inputs[0].shape[3]))
            if max(first, seen[0]) < min(last, seen[1])
        ]
        return (numbers[0], numbers[-1] + 1) if numbers else (0, 0)

    def _seen(self, call: Call) -> Array:
        """True where a query sees something of a block: (samples or 1, rows, 1, blocks)."""
        scope, rows = self._scope(call.specs), (call.piece.lo[1], call.piece.hi[1])
        span, count = self._blocks(call.specs, rows), call.specs[0].shape[3]
        blocks = blocks_of(self.keys, count)[slice(*span)]
        firsts = call.kernels.constant(
            ("merge_attention", scope, count, rows, span), lambda: _first_keys(scope, rows, blocks)
        )
        if len(call.inputs) == 2:
            return (firsts < self.keys)[None, :, None]
        lengths = call.inputs[2]
        call.kernels.device.require(
            (lengths >= 0) & (lengths <= self.keys), lengths,
            f"{call.name}: lengths must be from 0 to {self.keys}, got {{given}}",
        )
        return firsts[None, :, None] < lengths.reshape(-1, 1, 1, 1)

    @classmethod
    def example(cls, random: Random) -> Example:
        causal, keys = random.random() < 0.7, random.randint(2, 8)
        blocks = random.randint(2, min(keys, 4))
        # Every query sees two blocks, or else some sum would not matter: over one block the weight is 1.
        first = blocks_of(keys, blocks)[0][1]
        queries = random.randint(1, max(1, keys - first)) if causal else random.randint(1, 5)
        widest = max(b - a for a, b in blocks_of(keys, blocks))
        window = widest + random.randint(1, 3) if causal and random.random() < 0.5 else None
        shape, real = (random.randint(1, 3), queries, random.randint(1, 3), blocks), np.dtype(np.float64)
        specs: tuple[Spec, ...] = (Spec((*shape, random.randint(1, 3)), real), Spec(shape, real))
        if random.random() < 0.3:
            specs += (Spec(shape[:1], np.dtype(np.int64)),)
        return Example(cls(keys, causal, window), specs, high=keys + 1)


def _first_keys(scope: AttentionScope, rows: Span, blocks: Sequence[Span]) -> Array:
    """The first key of each block that each query sees, (rows, blocks); behind the last key if it sees none."""
    return np.array([
        [scope.keys if (key := scope.first_key(row, block)) is None else key for block in blocks] for row in range(*rows)
    ])


def merge_attention(
    input: Tensor,
    sums: Tensor,
    keys: int,
    *,
    causal: bool = False,
    window: int | None = None,
    lengths: Tensor | None = None,
    name: str | None = None,
) -> Tensor:
    """Merge the outputs of `attention_blocks` into attention to all ``keys`` keys.

    Args: input (N, Lq, H, B, E), sums (N, Lq, H, B); the others as for `flash_attention`. Returns (N, Lq, H, E).
    """
    inputs = (input, sums) if lengths is None else (input, sums, lengths)
    return input.graph.apply(MergeAttention(keys, causal, window), inputs, name=name)[0]
