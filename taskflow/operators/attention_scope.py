"""AttentionScope: which keys a query sees, by position alone, and the number of such pairs, from which costs and Rects follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Span = tuple[int, int]  # from, to below


@dataclass(frozen=True, slots=True)
class AttentionScope:
    """Keys that each query sees, which are one span. Query t of ``queries`` is aligned with key t + keys - queries: the last
    query with the last key. ``causal``: it sees the keys up to that one. ``window``: of these only the last ones, this many."""

    queries: int
    keys: int
    causal: bool = False
    window: int | None = None

    def keys_of(self, rows: Span) -> Span:
        """Return the span of keys that some query of ``rows`` sees."""
        if not self.causal or rows[1] <= rows[0]:
            return 0, self.keys if rows[1] > rows[0] else 0
        first = 0 if self.window is None else max(0, rows[0] + self._shift - self.window + 1)
        last = max(0, min(self.keys, rows[1] + self._shift))
        return first, max(first, last)

    def queries_of(self, keys: Span) -> Span:
        """Return the span of queries that see some key of ``keys``."""
        if keys[1] <= keys[0]:
            return 0, 0
        if not self.causal:
            return 0, self.queries
        first = max(0, keys[0] - self._shift)
        last = self.queries if self.window is None else min(self.queries, keys[1] - 1 + self.window - self._shift)
        return first, max(first, last)

    def within(self, rows: Span, keys: Span) -> tuple[Span, Span]:
        """Return the queries of ``rows`` that see a key of ``keys``, and the keys of ``keys`` that they see; both empty if
        there are none."""
        rows = _common(rows, self.queries_of(keys))
        keys = _common(keys, self.keys_of(rows))
        return (rows, keys) if rows[1] > rows[0] and keys[1] > keys[0] else ((0, 0), (0, 0))

    def pairs(self, rows: Span, keys: Span) -> int:
        """Return the number of (query, key) pairs of two spans that see each other."""
        if not self.causal:
            return max(0, rows[1] - rows[0]) * max(0, keys[1] - keys[0])
        after = self._before(rows, keys[0]) - self._before(rows, keys[1])
        if self.window is None:
            return after
        return after - self._before(rows, keys[0] + self.window) + self._before(rows, keys[1] + self.window)

    def first_key(self, row: int, keys: Span) -> int | None:
        """Return the first key of ``keys`` that a query sees; None if it sees none of them."""
        first, last = _common(keys, self.keys_of((row, row + 1)))
        return first if last > first else None

    @property
    def _shift(self) -> int:
        return self.keys - self.queries

    def _before(self, rows: Span, key: int) -> int:
        """The sum over ``rows`` of how many keys from ``key`` on there are up to the one beside the query."""
        return _triangle(rows[1] + self._shift - key) - _triangle(rows[0] + self._shift - key)


def blocks_of(keys: int, blocks: int) -> list[Span]:
    """Divide the keys into ``blocks`` blocks, as evenly as possible."""
    edges = [b * keys // blocks for b in range(blocks + 1)]
    return list(zip(edges, edges[1:]))


def tiles_of(span: Span, size: int) -> list[Span]:
    """Divide a span into tiles of ``size``."""
    return [(at, min(span[1], at + size)) for at in range(span[0], span[1], size)]


def heads_and_groups(heads: Span, per_group: int) -> Sequence[tuple[slice, slice]]:
    """Divide ``heads`` into runs that share their key heads evenly: those of a first group that is cut, of whole groups, and of
    a last one. Returns slices among these heads and among the key heads that they need."""
    found, at, first = [], heads[0], heads[0] // per_group
    while at < heads[1]:
        if at % per_group == 0 and heads[1] - at >= per_group:
            groups = (heads[1] - at) // per_group
            count = groups * per_group
        else:
            groups, count = 1, min(heads[1], (at // per_group + 1) * per_group) - at
        group = at // per_group - first
        found.append((slice(at - heads[0], at - heads[0] + count), slice(group, group + groups)))
        at += count
    return found


def _common(a: Span, b: Span) -> Span:
    return max(a[0], b[0]), min(a[1], b[1])


def _triangle(count: int) -> int:
    return count * (count + 1) // 2 if count > 0 else 0
