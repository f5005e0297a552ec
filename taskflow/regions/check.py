"""Checks of launches: refused are those whose arguments or point tasks interfere with each other, so that their meaning would
depend on chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taskflow.regions.privilege import Privilege, Requirement
from taskflow.regions.region import LogicalRegion
from taskflow.regions.segments import RectIndex

Point = tuple[int, ...]
_Use = tuple[Point, int, Requirement]  # point task, argument, requirement


class PrivilegeError(ValueError):
    """Error for a launch whose requirements conflict with each other."""


def check_privileges(task: str, requirements: Sequence[Requirement], arguments: Sequence[str] = ()) -> None:
    """Raise PrivilegeError if two arguments of one launch of ``task`` overlap and their privileges interfere.

    ``arguments``: names of the arguments, for the message; without them they are numbered.
    """
    for j, later in enumerate(requirements):
        for i, earlier in enumerate(requirements[:j]):
            if earlier.conflicts(later):
                raise PrivilegeError(
                    f"{task}: arguments {_argument(arguments, i)} ({earlier}) and {_argument(arguments, j)} ({later}) "
                    f"of one task must not interfere, but share {earlier.rect.intersect(later.rect)}; "
                    f"use one read-write argument, or disjoint Rects"
                )


def check_index_launch(
    task: str, points: Mapping[Point, Sequence[Requirement]], arguments: Sequence[str] = ()
) -> None:
    """Raise PrivilegeError if some point task's arguments interfere with each other or with another point task's.

    Point tasks of an index launch have no order. So no other task may touch what one writes, or read or write what one reduces
    into. The cost grows with the number of overlapping pieces, not of all pairs of pieces.
    """
    seen: dict[tuple[LogicalRegion, Privilege], RectIndex[_Use]] = {}
    for point, requirements in points.items():
        check_privileges(f"{task} at point {point}", requirements, arguments)
        for i, requirement in enumerate(requirements):
            _refuse_conflicts(task, seen, (point, i, requirement), arguments)
        for i, requirement in enumerate(requirements):
            if not requirement.rect.empty:
                index = seen.setdefault((requirement.region, _use(requirement)), RectIndex())
                if requirement.rect not in index:
                    index[requirement.rect] = (point, i, requirement)


def _use(requirement: Requirement) -> Privilege:
    return Privilege.WRITE if requirement.privilege.writes else requirement.privilege


def _refuse_conflicts(
    task: str, seen: Mapping[tuple[LogicalRegion, Privilege], RectIndex[_Use]], use: _Use, arguments: Sequence[str]
) -> None:
    """Raise PrivilegeError if this use conflicts with one of an earlier point task."""
    point, argument, requirement = use
    for privilege in (Privilege.READ, Privilege.WRITE, Privilege.REDUCE):
        index = seen.get((requirement.region, privilege))
        if index is None or (privilege is _use(requirement) and privilege is not Privilege.WRITE):
            continue
        for rect, (other, i, earlier) in index.overlapping(requirement.rect):
            raise PrivilegeError(
                f"{task}: point tasks of one index launch must not interfere, but argument "
                f"{_argument(arguments, argument)} ({requirement}) of point {point} shares "
                f"{rect.intersect(requirement.rect)} with argument {_argument(arguments, i)} ({earlier}) of point "
                f"{other}; write through a disjoint partition, use reduce(+), or launch the points one by one"
            )


def _argument(arguments: Sequence[str], i: int) -> str:
    return repr(arguments[i]) if i < len(arguments) else str(i)
