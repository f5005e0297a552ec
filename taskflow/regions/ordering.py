"""Logical half of the dependence analysis: which earlier launches a launch must wait for.

After Legion (Bauer, Treichler, Slaughter, Aiken: "Legion: Expressing Locality and Independence with Logical Regions", SC 2012),
on Rects instead of region trees.

For every point of a region the launches that touched it form epochs: sequences of launches that do not interfere with each
other (one writer, or readers, or reducers). A launch joins the current epoch if it does not interfere with it, and then waits
for the epoch before; otherwise it waits for the current epoch and begins a new one. So every launch of an epoch waits for every
launch of the epoch before, which gives a path between any two launches that conflict, and older epochs may be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from taskflow.regions.privilege import Privilege, Requirement
from taskflow.regions.rect import Rect
from taskflow.regions.region import LogicalRegion
from taskflow.regions.segments import DisjointMap, canonical


class DependenceKind(Enum):
    """Reason why a launch waits for another."""

    TRUE = "true"  # it reads what the earlier one wrote or reduced
    ANTI = "anti"  # it writes or reduces what the earlier one read
    OUTPUT = "output"  # it writes or reduces what the earlier one wrote, or writes what the earlier one reduced
    ORDER = "order"  # both reduce into one partial instance, which takes one at a time, in program order


@dataclass(frozen=True, slots=True)
class Dependence:
    """Order between two launches: ``later`` must start after ``earlier`` has ended, because both touch ``rect`` of ``region``."""

    earlier: int
    later: int
    region: LogicalRegion
    rect: Rect
    kind: DependenceKind

    def __str__(self) -> str:
        return f"{self.earlier} -> {self.later} {self.kind.value} {self.region.name}{self.rect}"


@dataclass(frozen=True, slots=True)
class _Epoch:
    """Last accesses to some points. ``use`` is READ, WRITE or REDUCE; READ_WRITE counts as WRITE."""

    use: Privilege
    users: tuple[int, ...]  # rising
    before_use: Privilege | None = None
    before: tuple[int, ...] = ()


_Found = dict[tuple[int, DependenceKind], list[Rect]]


class Ordering:
    """Epochs of one region."""

    __slots__ = ("_epochs", "_region")

    def __init__(self, region: LogicalRegion) -> None:
        self._region = region
        self._epochs: DisjointMap[_Epoch] = DisjointMap()

    def record(self, launch: int, requirement: Requirement) -> list[Dependence]:
        """Record that ``launch`` (not below any earlier one) makes this requirement. Returns what it must wait for, sorted by
        the number of the earlier launch; the Rects of one pair and kind are disjoint."""
        found: _Found = {}
        privilege, rect = requirement.privilege, requirement.rect
        if privilege.writes:
            for part, epoch in self._epochs.within(rect):
                _wait(found, epoch.users, _kind(epoch.use, privilege), part)
            self._epochs.assign(rect, _Epoch(Privilege.WRITE, (launch,)))
        else:
            self._join(launch, requirement, found)
        return [
            Dependence(earlier, launch, self._region, part, kind)
            for (earlier, kind), parts in sorted(found.items(), key=lambda item: (item[0][0], item[0][1].value))
            if earlier != launch
            for part in canonical(parts)
        ]

    def _join(self, launch: int, requirement: Requirement, found: _Found) -> None:
        """A READ or REDUCE joins each part's epoch or begins a new one."""
        privilege = requirement.privilege

        def change(part: Rect, epoch: _Epoch | None) -> _Epoch:
            if epoch is None:
                return _Epoch(privilege, (launch,))
            if epoch.use is not privilege:
                _wait(found, epoch.users, _kind(epoch.use, privilege), part)
                return _Epoch(privilege, (launch,), epoch.use, epoch.users)
            if epoch.before_use is not None:
                _wait(found, epoch.before, _kind(epoch.before_use, privilege), part)
            if epoch.users and epoch.users[-1] == launch:
                return epoch
            return _Epoch(privilege, (*epoch.users, launch), epoch.before_use, epoch.before)

        self._epochs.update(requirement.rect, change)

    def forget(self, below: int) -> None:
        """Stop waiting for launches with a number below ``below``."""
        self._epochs.replace(lambda e: _Epoch(e.use, _from(e.users, below), e.before_use, _from(e.before, below)))


def _from(users: tuple[int, ...], below: int) -> tuple[int, ...]:
    return users if not users or users[0] >= below else tuple(user for user in users if user >= below)


def _kind(earlier: Privilege, later: Privilege) -> DependenceKind:
    """The kind of a dependence between two uses that interfere."""
    if later.reads and earlier is not Privilege.READ:
        return DependenceKind.TRUE
    return DependenceKind.ANTI if earlier is Privilege.READ else DependenceKind.OUTPUT


def _wait(found: _Found, users: Iterable[int], kind: DependenceKind, part: Rect) -> None:
    for user in users:
        found.setdefault((user, kind), []).append(part)
