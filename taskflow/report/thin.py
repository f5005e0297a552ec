"""Downsampling of the timeline of a step with very many tasks: neighbours are joined, and totals stay what they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_ROWS = 250_000


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the timeline. Times are in ticks from the step's start. A row may stand for ``count`` tasks of one category on
    the same processors. They were busy for ``busy`` ticks between ``start`` and ``end``, and moved ``nbytes`` in all. The other
    columns are the first task's: ``operator`` (0: none or several, else its number plus 1), ``micro`` (likewise for its
    micro-batch), ``piece`` and ``task``."""

    category: NDArray[np.int64]
    processor: NDArray[np.int64]
    source: NDArray[np.int64]
    operator: NDArray[np.int64]
    piece: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    busy: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    count: NDArray[np.int64]
    critical: NDArray[np.int64]
    task: NDArray[np.int64]
    micro: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.category)

    def columns(self) -> dict[str, NDArray[np.int64]]:
        """Return the columns in order of start, which packs best."""
        order = np.argsort(self.start, kind="stable")
        return {name: getattr(self, name)[order] for name in self.__slots__}


def thin(rows: Rows, most: int = MOST_ROWS) -> tuple[Rows, int]:
    """Return at most about ``most`` rows, and the length in ticks below which rows were joined (0: none were). Tasks on the
    critical path are never joined. Rows of one operator are joined first, then any; longer and longer ones, until few enough
    are left."""
    if len(rows) <= most:
        return rows, 0
    end = int(rows.end.max())
    ticks = max(1, end // 20_000)
    while len(rows) > most and ticks <= 2 * end:
        for same_operator in (True, False):
            rows = _join(rows, ticks, same_operator)
            if len(rows) <= most:
                break
        else:
            ticks *= 2
    return rows, ticks


def _join(rows: Rows, ticks: int, same_operator: bool) -> Rows:
    """Join neighbours on one lane that are shorter than ``ticks`` and no further apart than that."""
    order = np.lexsort((rows.start, rows.category, rows.source, rows.processor))
    sorted_rows = [getattr(rows, name)[order] for name in Rows.__slots__]
    category, processor, source, operator, piece, start, end, busy, nbytes, count, critical, task, micro = sorted_rows
    short = (end - start < ticks) & (critical == 0)
    joins = np.zeros(len(rows), bool)
    joins[1:] = (
        short[1:] & short[:-1] & (category[1:] == category[:-1]) & (processor[1:] == processor[:-1])
        & (source[1:] == source[:-1]) & (start[1:] - end[:-1] < ticks)
    )
    if same_operator:
        joins[1:] &= operator[1:] == operator[:-1]
    first = np.flatnonzero(~joins)
    mixed, several = (np.minimum.reduceat(of, first) != np.maximum.reduceat(of, first) for of in (operator, micro))
    return Rows(
        category[first], processor[first], source[first], np.where(mixed, 0, operator[first]), piece[first], start[first],
        np.maximum.reduceat(end, first), np.add.reduceat(busy, first), np.add.reduceat(nbytes, first),
        np.add.reduceat(count, first), critical[first], task[first],
        np.where(several, 0, micro[first]),
    )
