"""TiledAttention: base of `flash_attention` and `attention_blocks`: their inputs, what a piece sees of them, and the
arithmetic."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taskflow.operators.attention_scope import AttentionScope, Span
from taskflow.operators.attention_tiles import Drop, Tiles
from taskflow.operators.dropout import generator_key
from taskflow.operators.operator import Array, Call, Keeps, Operator, Reads, Spec, Work, positive, takes
from taskflow.regions import Rect


@dataclass(frozen=True, slots=True)
class TiledAttention(Operator):
    """Queries (N, Lq, H, D), keys (N, Lk, G, D), values (N, Lk, G, E), and lengths (N) integers if there is padding. H is a
    multiple of G: heads [g H / G, (g + 1) H / G) share key head g. ``tile``: how many queries and keys are multiplied at once;
    it changes only rounding and memory."""

    work = Work.CONTRACTION
    uniform = False  # how many pairs see each other depends on where the piece lies
    kept = Keeps(weights=False)

    scale: float
    causal: bool = False
    window: int | None = None
    dropout: float = 0.0
    tile: int = 128

    def check(self, inputs: Sequence[Spec]) -> None:
        """Raise ValueError unless attributes and inputs fit."""
        if len(inputs) != 4:
            takes(self.kind, inputs, 3)
        q, k, v = inputs[:3]
        positive(self.kind, tile=self.tile)
        fits = all(len(s.shape) == 4 and s.dtype == q.dtype for s in inputs[:3]) and q.differentiable
        if not fits or k.shape[:3] != v.shape[:3] or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
            raise ValueError(
                f"{self.kind}: inputs must be float queries (N, Lq, H, D), keys (N, Lk, G, D) and values (N, Lk, G, E), got "
                f"{q}, {k} and {v}"
            )
        if not k.shape[2] or q.shape[2] % k.shape[2]:
            raise ValueError(f"{self.kind}: heads must be a multiple of the key heads, got {q.shape[2]} and {k.shape[2]}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"{self.kind}: dropout must be at least 0 and below 1, got {self.dropout}")
        if self.window is not None and (not self.causal or self.window < 1):
            raise ValueError(f"{self.kind}: a window must be at least 1 and needs causal, got {self.window}")
        if len(inputs) == 4 and (inputs[3].shape != q.shape[:1] or inputs[3].dtype.kind not in "iu"):
            raise ValueError(f"{self.kind}: lengths must be integers (N,), got {inputs[3]} for {q}")

    def scope(self, inputs: Sequence[Spec]) -> AttentionScope:
        """Return which keys a query sees."""
        return AttentionScope(inputs[0].shape[1], inputs[1].shape[1], self.causal, self.window)

    def rects(self, inputs: Sequence[Spec], piece: Rect, rows: Span, keys: Span) -> Reads:
        """Return the Rects of queries ``rows`` and keys ``keys``, for the samples and heads of a piece (n, query, head, ...)."""
        if rows[1] <= rows[0]:
            return Reads(tuple(Rect((0,) * len(s.shape), (0,) * len(s.shape)) for s in inputs))
        (n0, _, h0), (n1, _, h1) = piece.lo[:3], piece.hi[:3]
        each = inputs[0].shape[2] // inputs[1].shape[2]
        groups = (h0 // each, (h1 - 1) // each + 1)
        q = Rect((n0, rows[0], h0, 0), (n1, rows[1], h1, inputs[0].shape[3]))
        k, v = (Rect((n0, keys[0], groups[0], 0), (n1, keys[1], groups[1], s.shape[3])) for s in inputs[1:3])
        return Reads((q, k, v, Rect((n0,), (n1,))) if len(inputs) == 4 else (q, k, v))

    def integers_below(self, inputs: Sequence[Spec]) -> int | None:
        return inputs[1].shape[1] + 1 if len(inputs) == 4 else None

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        """Count for one head's query and key their products, and five operations for the weight."""
        return self._pairs(inputs, piece) * (2 * (inputs[0].shape[3] + inputs[2].shape[3]) + 5)

    def backward_flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return self._pairs(inputs, piece) * (2 * (3 * inputs[0].shape[3] + 2 * inputs[2].shape[3]) + 9)

    def _pairs(self, inputs: Sequence[Spec], piece: Rect) -> int:
        """How many queries and keys of a piece see each other."""
        seen = self.scope(inputs).pairs((piece.lo[1], piece.hi[1]), self.keys_of(inputs, piece))
        return piece.shape[0] * piece.shape[2] * seen

    @abstractmethod
    def keys_of(self, inputs: Sequence[Spec], piece: Rect) -> Span:
        """Return the keys that are a piece's, whether or not its queries see them."""

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        return self.rects(inputs, piece, *self.scope(inputs).within((piece.lo[1], piece.hi[1]), self.keys_of(inputs, piece)))

    def tiles(self, call: Call) -> Tiles:
        """Return the arithmetic of a task that reads something."""
        q, k = call.reads.inputs[:2]
        (samples, queries, heads, _), (_, keys, groups, _) = call.specs[0].shape, call.specs[1].shape
        drop = None
        if self.dropout and call.state.training:
            key = generator_key(call.state, call.name)
            drop = Drop(key, call.state.step, (samples, heads, queries, keys), self.dropout)
        lengths: Array | None = None
        if len(call.inputs) == 4:
            lengths = call.inputs[3]
            call.kernels.device.require(
                (lengths >= 0) & (lengths <= keys), lengths, f"{call.name}: lengths must be from 0 to {keys}, got {{given}}"
            )
        return Tiles(
            call.kernels, self.scope(call.specs), self.scale, self.tile, heads // groups, samples=_span(q, 0),
            heads=_span(q, 2), rows=_span(q, 1), keys=_span(k, 1), lengths=lengths, drop=drop,
        )

    @staticmethod
    def start(call: Call) -> None:
        """Zero the gradients that do not add to earlier values."""
        for target in call.grad_inputs:
            if target is not None and not target.accumulate:
                target.array[...] = 0


def _span(rect: Rect, dim: int) -> Span:
    return rect.lo[dim], rect.hi[dim]


def random_inputs(
    samples: int, queries: int, keys: int, groups: int, each: int, width: int, value: int, lengths: bool
) -> tuple[Spec, ...]:
    """Return inputs of an example."""
    real = np.dtype(np.float64)
    q = Spec((samples, queries, groups * each, width), real)
    k, v = (Spec((samples, keys, groups, w), real) for w in (width, value))
    return (q, k, v, Spec((samples,), np.dtype(np.int64))) if lengths else (q, k, v)
