"""Privileges: what a task may do with a Rect of a region, and when two privileges interfere (Legion's terms)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from taskflow.regions.rect import Rect
from taskflow.regions.region import LogicalRegion


class Privilege(Enum):
    """Kind of access. READ sees values. WRITE replaces every value of the Rect without seeing it. READ_WRITE sees and replaces.
    REDUCE adds to values that it does not see, so that several reductions may happen in any order or at once."""

    READ = "read"
    WRITE = "write"
    READ_WRITE = "read-write"
    REDUCE = "reduce(+)"

    @property
    def reads(self) -> bool:
        """True if the task sees the values that were there before."""
        return self in (Privilege.READ, Privilege.READ_WRITE)

    @property
    def writes(self) -> bool:
        """True if the task replaces values (a reduction does not replace: it adds)."""
        return self in (Privilege.WRITE, Privilege.READ_WRITE)


def interferes(earlier: Privilege, later: Privilege) -> bool:
    """True if two tasks with these privileges on overlapping Rects must keep their order.

    Two reads commute, and two reductions with the same operator commute; every other pair does not.
    """
    return not (earlier is later and earlier in (Privilege.READ, Privilege.REDUCE))


@dataclass(frozen=True, slots=True)
class Requirement:
    """One argument of a task: the Rect of a region that it touches, and the privilege."""

    region: LogicalRegion
    rect: Rect
    privilege: Privilege

    def conflicts(self, later: Requirement) -> bool:
        """True if ``later`` must wait for this one: same region, overlapping Rects, interfering privileges."""
        return (
            self.region is later.region
            and interferes(self.privilege, later.privilege)
            and self.rect.overlaps(later.rect)
        )

    def __str__(self) -> str:
        return f"{self.privilege.value} {self.region.name}{self.rect}"
