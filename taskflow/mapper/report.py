"""Profile: what one rank measured of one step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeasuredTask:
    """One task or wait: its kind (``forward``, ``send``, ``arrive``, ...), its place, and its start and end in seconds of the
    rank's clock."""

    task: int
    name: str
    kind: str
    processor: int
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Profile:
    """A step as one rank saw it."""

    rank: int
    step: int
    tasks: tuple[MeasuredTask, ...]

    @property
    def seconds(self) -> float:
        """Duration from the first task's start to the last one's end."""
        return self.tasks[-1].end - self.tasks[0].start if self.tasks else 0.0

    def by_kind(self) -> dict[str, float]:
        """Return seconds by kind of task."""
        total: dict[str, float] = {}
        for task in self.tasks:
            total[task.kind] = total.get(task.kind, 0.0) + task.seconds
        return total
