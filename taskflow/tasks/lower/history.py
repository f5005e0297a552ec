"""History: which tasks last wrote each part of each buffer, and which have read it since then, found without comparing all
parts.

Which Rects overlap and which contain each other depends only on the Rects, so it is found once for all buffers of one shape.
Otherwise the copies of a bundle on 64 processors, each cut into 64 chunks, would ask the same questions 64 times.
"""

from __future__ import annotations

from taskflow.regions import Rect


class RectNumbers:
    """All Rects that were ever used in buffers of one shape, numbered, with the relations between them."""

    __slots__ = ("_numbers", "_rects", "holds", "meets")

    def __init__(self) -> None:
        self._numbers: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        self._rects: list[Rect] = []
        self.meets: list[set[int]] = []  # by Rect: those that share points with it
        self.holds: list[set[int]] = []  # by Rect: those that lie in it, an empty one in every Rect

    def number(self, rect: Rect) -> int:
        """Return the Rect's number."""
        key = rect.lo, rect.hi
        found = self._numbers.get(key)
        return self._add(rect) if found is None else found

    def _add(self, rect: Rect) -> int:
        number = self._numbers[rect.lo, rect.hi] = len(self._rects)
        self._rects.append(rect)
        self.meets.append({i for i, other in enumerate(self._rects) if other.overlaps(rect)})
        self.holds.append({i for i, other in enumerate(self._rects) if rect.contains(other)})
        for i in self.meets[number]:
            self.meets[i].add(number)
        for i, other in enumerate(self._rects):
            if other.contains(rect):
                self.holds[i].add(number)
        return number


class History:
    """Writers and readers of the parts of one buffer, by the numbers of their Rects in ``space``."""

    __slots__ = ("readers", "space", "writers")

    def __init__(self, space: RectNumbers) -> None:
        self.space = space
        self.writers: dict[int, list[int]] = {}
        self.readers: dict[int, list[int]] = {}

    def read(self, rect: int, task: int, after: set[int]) -> None:
        """Record that ``task`` reads ``rect``: add to ``after`` the tasks that it must wait for."""
        if self.writers:
            _add_those(self.writers, self.space.meets[rect], after)
        tasks = self.readers.get(rect)
        if tasks is None:
            self.readers[rect] = [task]
        else:
            tasks.append(task)

    def write(self, rect: int, task: int, after: set[int]) -> None:
        """Record that ``task`` writes ``rect``: add to ``after`` the tasks that it must wait for, perhaps itself. A task that
        waits for this one need not wait for earlier accesses to parts of ``rect``."""
        meets, holds = self.space.meets[rect], self.space.holds[rect]
        for table in (self.writers, self.readers):
            if not table:
                continue
            _add_those(table, meets, after)
            found = [i for i in table if i in holds] if len(table) < len(holds) else [i for i in holds if i in table]
            for other in found:
                if task not in table.pop(other):
                    continue
                table[other] = [task]  # what it reads or writes itself stays
        self.writers.setdefault(rect, []).append(task)


def _add_those(table: dict[int, list[int]], meets: set[int], into: set[int]) -> None:
    """Add the tasks of the entries whose numbers are in ``meets``, looking at the fewer of the two."""
    if len(table) <= len(meets):
        for number, tasks in table.items():
            if number in meets:
                into.update(tasks)
    else:
        for number in meets:
            if number in table:
                into.update(table[number])
