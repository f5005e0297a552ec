"""Arithmetic of fused attention: softmax(q k^T) v in tiles of queries and keys, with running maximum and sum, so that the whole
matrix of scores never exists.

Dao, Fu, Ermon, Rudra, Ré, "FlashAttention", arXiv 2205.14135, algorithms 1 and 4; Milakov and Gimelshein, "Online normalizer
calculation for softmax", arXiv 1805.02867.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from taskflow.kernels import KernelSet, Key
from taskflow.operators.attention_scope import AttentionScope, Span, heads_and_groups, tiles_of
from taskflow.operators.operator import Array, Target

LOW = -1e30
"""The score of a key that a query does not see; finite, so that differences of two such are numbers."""
FLOOR = LOW / 2
"""The least running maximum: exp(LOW - FLOOR) is 0."""
TOGETHER = 1 << 20
"""Scores that are worked on at once, unless one tile of one sample has more."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Dropout of weights: element (n, h, t, s) of an array of ``shape`` has the random number of its position."""

    key: Key
    stream: int
    shape: tuple[int, int, int, int]
    p: float


@dataclass(frozen=True, slots=True)
class Tiles:
    """Attention of one piece. ``samples``, ``heads``, ``rows``, ``keys``: the spans of the whole tensors that its arrays hold:
    q (samples, rows, heads, D), k and v (samples, keys, their key heads, D or E)."""

    kernels: KernelSet
    scope: AttentionScope
    scale: float
    tile: int
    per_group: int  # heads that share a key head
    samples: Span
    heads: Span
    rows: Span
    keys: Span
    lengths: Array | None  # (samples) integers: how many keys there are
    drop: Drop | None

    def forward(self, q: Array, k: Array, v: Array, rows: Span, keys: Span, out: Array, sums: Array) -> None:
        """Compute, for the queries ``rows`` and the keys ``keys``, both within this piece: out (samples, rows, heads, E), the
        mean of values, and sums (samples, rows, heads), the logarithm of the sum of exp(score). Both are 0 where nothing is
        seen."""
        xp = self.kernels.xp
        for n, hs, gs in self._parts():
            keyed = {s: (self._keyed(k, n, gs, s), self._keyed(v, n, gs, s)) for s in tiles_of(keys, self.tile)}
            for t in tiles_of(rows, self.tile):
                asked = self._asked(q, n, hs, gs, t, self.rows)
                asked *= asked.dtype.type(self.scale)
                top = xp.full((*asked.shape[:-1], 1), FLOOR, asked.dtype)
                total = xp.zeros(top.shape, asked.dtype)
                mixed = xp.zeros((*asked.shape[:-1], v.shape[-1]), asked.dtype)
                for s, (key, value) in keyed.items():
                    scores = self._scores(asked, key, n, hs, t, s)
                    if scores is None:
                        continue
                    new = np.maximum(top, scores.max(axis=-1, keepdims=True))
                    weights = np.exp(scores - new)
                    fade = np.exp(top - new)
                    total = total * fade + weights.sum(axis=-1, keepdims=True)
                    mixed *= fade
                    self.kernels.matmul(self._dropped(weights, n, hs, t, s), value, out=mixed, accumulate=True)
                    top = new
                seen = total > 0
                total = xp.where(seen, total, 1)
                at = slice(t[0] - rows[0], t[1] - rows[0])
                out[n, at, hs] = self._laid(mixed / total, t)
                sums[n, at, hs] = self._laid(xp.where(seen, top + np.log(total), 0), t)[..., 0]

    def backward(
        self, q: Array, k: Array, v: Array, rows: Span, keys: Span, out: Array, sums: Array, dout: Array | None,
        dsums: Array | None, into: tuple[Target | None, ...],
    ) -> None:
        """Add the gradients of q, k and v that follow from those of `forward`'s results (None: zero) to the arrays of ``into``."""
        xp, kernels = self.kernels.xp, self.kernels
        dq, dk, dv = (None if target is None else target.array for target in into)
        for n, hs, gs in self._parts():
            keyed = {s: (self._keyed(k, n, gs, s), self._keyed(v, n, gs, s)) for s in tiles_of(keys, self.tile)}
            added = {s: tuple(xp.zeros(one.shape, one.dtype) for one in pair) for s, pair in keyed.items()}
            for t in tiles_of(rows, self.tile):
                asked = self._asked(q, n, hs, gs, t, self.rows)
                asked *= asked.dtype.type(self.scale)
                width = v.shape[-1]
                given = (
                    xp.zeros((*asked.shape[:-1], width), asked.dtype) if dout is None
                    else self._asked(dout, n, hs, gs, t, rows)
                )
                level = self._asked(sums[..., None], n, hs, gs, t, rows)
                lost = (given * self._asked(out, n, hs, gs, t, rows)).sum(axis=-1, keepdims=True)
                if dsums is not None:
                    lost -= self._asked(dsums[..., None], n, hs, gs, t, rows)
                turned = xp.zeros(asked.shape, asked.dtype)
                for s, (key, value) in keyed.items():
                    scores = self._scores(asked, key, n, hs, t, s)
                    if scores is None:
                        continue
                    weights = np.exp(scores - level)
                    if dv is not None:
                        kept = self._dropped(weights, n, hs, t, s)
                        kernels.matmul(kept.swapaxes(-1, -2), given, out=added[s][1], accumulate=True)
                    kernels.matmul(given, value.swapaxes(-1, -2), out=scores)
                    weights *= self._dropped(scores, n, hs, t, s) - lost
                    if dq is not None:
                        kernels.matmul(weights, key, out=turned, accumulate=True)
                    if dk is not None:
                        kernels.matmul(weights.swapaxes(-1, -2), asked, out=added[s][0], accumulate=True)
                if dq is not None:
                    turned *= turned.dtype.type(self.scale)
                    dq[n, t[0] - self.rows[0] : t[1] - self.rows[0], hs] += self._laid(turned, t)
            for s, pair in added.items():
                for target, one in zip((dk, dv), pair):
                    if target is not None:
                        target[n, s[0] - self.keys[0] : s[1] - self.keys[0], gs] += one.transpose(0, 2, 1, 3)

    def _parts(self) -> Iterator[tuple[slice, slice, slice]]:
        """Samples, heads and key heads that are worked on together."""
        count = self.samples[1] - self.samples[0]
        for hs, gs in heads_and_groups(self.heads, self.per_group):
            together = max(1, TOGETHER // ((hs.stop - hs.start) * self.tile**2))
            for first in range(0, count, together):
                yield slice(first, min(count, first + together)), hs, gs

    def _asked(self, x: Array, n: slice, hs: slice, gs: slice, t: Span, held: Span) -> Array:
        """Rows t of x (samples, rows, heads, D), which holds the rows ``held``: (samples, key heads, t and heads of
        each, D)."""
        part = x[n, t[0] - held[0] : t[1] - held[0], hs]
        samples, rows, heads, width = part.shape
        groups = gs.stop - gs.start
        parted = part.reshape(samples, rows, groups, heads // groups, width).transpose(0, 2, 1, 3, 4)
        # Never a view: who asks may change it.
        return parted.copy().reshape(samples, groups, rows * (heads // groups), width)

    def _keyed(self, x: Array, n: slice, gs: slice, s: Span) -> Array:
        """Keys s of x (samples, keys, key heads, D): (samples, key heads, keys, D)."""
        return self.kernels.xp.ascontiguousarray(x[n, s[0] - self.keys[0] : s[1] - self.keys[0], gs].transpose(0, 2, 1, 3))

    def _laid(self, x: Array, t: Span) -> Array:
        """Put together what `_asked` took apart, as it lay: (samples, rows, heads, D)."""
        samples, groups, _, width = x.shape
        parted = x.reshape(samples, groups, t[1] - t[0], -1, width).transpose(0, 2, 1, 3, 4)
        return parted.reshape(samples, t[1] - t[0], -1, width)

    def _scores(self, asked: Array, key: Array, n: slice, hs: slice, t: Span, s: Span) -> Array | None:
        """(samples, key heads, rows of `_asked`, s): products, `LOW` where nothing is seen; None if nothing is seen at
        all."""
        pairs = self.scope.pairs(t, s)
        if not pairs:
            return None
        scores = self.kernels.xp.empty((*asked.shape[:-1], s[1] - s[0]), asked.dtype)
        self.kernels.matmul(asked, key.swapaxes(-1, -2), out=scores)
        if self.lengths is None and pairs == (t[1] - t[0]) * (s[1] - s[0]):
            return scores
        apart = scores.reshape(*scores.shape[:2], t[1] - t[0], -1, s[1] - s[0])
        return self.kernels.xp.where(self._seen(n, t, s), apart, scores.dtype.type(LOW)).reshape(scores.shape)

    def _seen(self, n: slice, t: Span, s: Span) -> Array:
        """True where the queries t see the keys s: (samples or 1, 1, t, 1, s)."""
        scope, beside = self.scope, t[0] + self.scope.keys - self.scope.queries - s[0]
        shape = (t[1] - t[0], s[1] - s[0])
        seen = self.kernels.constant(
            ("attention scope", scope.causal, scope.window, beside, *shape),
            lambda: _mask(beside, *shape, scope.window if scope.causal else None, scope.causal),
        ).reshape(1, 1, shape[0], 1, shape[1])
        if self.lengths is None:
            return seen
        columns = self.kernels.constant(("attention keys", *s), lambda: np.arange(*s))
        return seen & (columns.reshape(1, 1, 1, 1, -1) < self.lengths[n].reshape(-1, 1, 1, 1, 1))

    def _dropped(self, weights: Array, n: slice, hs: slice, t: Span, s: Span) -> Array:
        """Weights of `_scores`' shape after dropout."""
        if self.drop is None:
            return weights
        samples, groups, _, columns = weights.shape
        low = (self.samples[0] + n.start, self.heads[0] + hs.start, t[0], s[0])
        numbers = self.kernels.xp.empty((samples, hs.stop - hs.start, t[1] - t[0], columns), weights.dtype)
        self.kernels.uniform(self.drop.key, self.drop.stream, self.drop.shape, low, out=numbers)
        parted = numbers.reshape(samples, groups, -1, t[1] - t[0], columns).transpose(0, 1, 3, 2, 4)
        stays = (parted >= self.drop.p).reshape(weights.shape)
        return weights * stays * weights.dtype.type(1 / (1 - self.drop.p))


def _mask(beside: int, rows: int, columns: int, window: int | None, causal: bool) -> Array:
    """True where row t sees column s: s is at most t + beside and, with a window, above t + beside - window."""
    behind = np.arange(rows)[:, None] + beside - np.arange(columns)  # how far the key lies back
    if not causal:
        return np.ones((rows, columns), np.bool_)
    return (behind >= 0) & (behind < window) if window is not None else behind >= 0
