"""The tasks that must be waited for, against a look at all parts."""

from random import Random

import pytest

from taskflow.regions import Rect
from taskflow.tasks.lower.history import History, RectNumbers


def rect(random: Random, dims: int) -> Rect:
    lo = [random.randrange(5) for _ in range(dims)]
    return Rect(tuple(lo), tuple(a + random.randrange(4) for a in lo))


@pytest.mark.parametrize("seed", range(60))
def test_history_is_what_a_scan_finds(seed: int) -> None:
    random = Random(seed)
    dims, space = random.randint(1, 3), RectNumbers()
    histories = [History(space) for _ in range(2)]  # one space serves several buffers
    tables: list[tuple[list, list]] = [([], []) for _ in histories]  # (Rect, task) of writers, of readers
    waits = 0
    for task in range(80):
        which = random.randrange(2)
        history, (writers, readers) = histories[which], tables[which]
        reads = [rect(random, dims) for _ in range(random.randrange(3))]
        writes = [rect(random, dims) for _ in range(random.randrange(3))]
        found: set[int] = set()
        for part in reads:
            history.read(space.number(part), task, found)
        for part in writes:
            history.write(space.number(part), task, found)
        found.discard(task)
        wanted = {t for part in reads for r, t in writers if r.overlaps(part)}
        wanted |= {t for part in writes for r, t in [*writers, *readers] if r.overlaps(part)}
        assert found == wanted
        waits += len(wanted)
        for part in reads:
            readers.append((part, task))
        for part in writes:
            for table in (writers, readers):
                table[:] = [(r, t) for r, t in table if t == task or not part.contains(r)]
            writers.append((part, task))
    assert waits > 10
