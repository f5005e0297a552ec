"""Random failures of elastic jobs, as many as one likes: the jobs of `test_elastic`, of further seeds.

    python tests/runtime/random_failures.py FAILURES [FIRST [AT_ONCE [MINUTES]]]

Draws jobs from seed FIRST (0) on until so many starts have failed, AT_ONCE (3) beside each other, since they mostly wait; no job
begins after MINUTES. It prints a line a job, and of each that deviates what it said and where its files are. Exit status 1 if one
does.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import conftest  # noqa: E402, F401 (what it sets in the environment)
import test_elastic as elastic  # noqa: E402

LIMIT_SECONDS = 900.0  # of a job: several are beside each other
SHOWN = 6000  # characters of what a job that deviates said last


@dataclass
class Count:
    """What the jobs have in common; ``lock`` is for all of it."""

    failures: int
    until: float
    seeds: Iterator[int]
    seen: int = 0
    wrong: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next_seed(self) -> int | None:
        with self.lock:
            return next(self.seeds) if self.seen < self.failures and time.monotonic() < self.until else None

    def ended(self, seed: int, line: str, failed: int, deviation: str) -> None:
        with self.lock:
            self.seen += failed
            if deviation:
                self.wrong.append(seed)
            print(f"{self.seen} failures: seed {seed}: {line}: {deviation or 'well'}", flush=True)


def job(seed: int, folder: Path, alone: list[list[object]], count: Count) -> bool:
    """Run the job of a seed; True if it is as it must be."""
    span, faults = elastic.drawn(seed)
    began, said, deviation = time.monotonic(), "", ""
    try:
        notes, said = elastic.train(folder, span, faults, limit=LIMIT_SECONDS)
        elastic.check(notes, alone)
    except BaseException as error:  # pytest's own are no Exceptions
        said = said or str(error)
        deviation = f"{type(error).__name__}: {str(error)[-SHOWN:]}"
    failed = len(re.findall(r"restart \d+ of \d+: on", said))
    if failed > len(faults) and not deviation:
        deviation = f"failed {failed} times, more often than it was made to:\n{said[-SHOWN:]}"
    count.ended(seed, f"{span} {faults}: failed {failed} times, {time.monotonic() - began:.0f} s", failed, deviation)
    return not deviation


def work(count: Count, alone: list[list[object]]) -> None:
    while (seed := count.next_seed()) is not None:
        folder = Path(tempfile.mkdtemp(prefix=f"failures{seed}-"))
        if job(seed, folder, alone, count):
            shutil.rmtree(folder)
        else:
            print(f"seed {seed}: {folder}", flush=True)


def main() -> int:
    """Run them."""
    words = [int(word) for word in sys.argv[1:]]
    failures, first, at_once, minutes = (*words, *(20, 0, 3, 10**6)[len(words) :])
    with tempfile.TemporaryDirectory() as folder:
        alone = elastic.train(Path(folder), "", [])[0]
    count = Count(failures, time.monotonic() + 60 * minutes, iter(range(first, first + 10**6)))
    threads = [threading.Thread(target=work, args=(count, alone)) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{count.seen} failures; deviating seeds: {sorted(count.wrong) or 'none'}")
    return int(bool(count.wrong))


if __name__ == "__main__":
    sys.exit(main())
