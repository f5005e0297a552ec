"""Launch: a task on one or many points, with all arguments checked and the processors chosen."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from taskflow.partition import Color, Partition
from taskflow.regions import LogicalRegion, Privilege, PrivilegeError, Rect, Requirement, check_index_launch
from taskflow.tasks.launch.function import TaskFunction
from taskflow.tasks.launch.future import OPERATIONS

Over = Partition | int | Sequence[int] | None
Place = Callable[[Color], int]
Piece = Partition | Rect | None  # by color; the same for all colors; the whole region


@dataclass(frozen=True, slots=True)
class Argument:
    """Region parameter: its regions, each with its partition; ``listed``: the function gets them as a list."""

    name: str
    privilege: Privilege
    regions: tuple[tuple[LogicalRegion, Piece], ...]
    listed: bool

    def requirements(self, color: Color) -> list[Requirement]:
        """Return what the point task of ``color`` touches of each region."""
        return [Requirement(region, piece_rect(region, piece, color), self.privilege) for region, piece in self.regions]


@dataclass(frozen=True, slots=True)
class Point:
    """One point task: requirements in the order of the launch's arguments and their lists."""

    color: Color
    processor: int
    requirements: tuple[Requirement, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch of a task. ``constants``: by parameter. ``reduce``: how results are reduced (None: they are dropped). ``over``,
    ``place``: as they were given; ``extents``: of the colors. ``bound``: for each call that was bound to arrays, its arguments,
    and by number those that are only known when it runs; a launch that repeats this one has its values there."""

    task: TaskFunction
    arguments: tuple[Argument, ...]
    constants: dict[str, Any]
    points: tuple[Point, ...]
    reduce: str | None
    over: Over
    extents: tuple[int, ...]
    place: Place | None
    bound: list[tuple[list[Any], dict[int, Callable[[], float]]]] = field(default_factory=list, compare=False)

    def __str__(self) -> str:
        return f"{self.task.name} over {len(self.points)} points"


def make_launch(
    task: TaskFunction,
    over: Over,
    given: dict[str, Any],
    *,
    processors: int,
    regions: Container[LogicalRegion],
    place: Place | None = None,
    reduce: str | None = None,
) -> Launch:
    """Check a launch and choose its processors: point ``i`` of ``n`` runs on ``place(color)``, else on ``i * processors // n``.

    ``over``: the colors, given by a partition, a number or extents; None for a single task. ``given``: the arguments by name;
    for a region parameter a region (all of it), ``(region, partition)``, ``(region, Rect)``, or a list of these; for others a
    constant. Raises TypeError (names), ValueError (cuts, places), PrivilegeError (privileges).
    """
    if not isinstance(task, TaskFunction):
        raise TypeError(f"launch: needs a function declared with @taskflow.task(...), got {task!r}")
    if reduce is not None and reduce not in OPERATIONS:
        raise ValueError(f"{task.name}: reduce must be one of {', '.join(OPERATIONS)} or None, got {reduce!r}")
    _check_names(task, given)
    extents = extents_of(task, over)
    arguments = tuple(
        _argument(task, name, privilege, given[name], extents, regions) for name, privilege in task.privileges.items()
    )
    constants = {name: value for name, value in given.items() if name not in task.privileges}
    for name, value in constants.items():
        if _is_region(value):
            raise PrivilegeError(
                f"task {task.name}: argument {name!r} is a region, but the task declares no privilege for it; add "
                f'{name}="read" (write, read-write, reduce) to its @task'
            )
    colors = list(Rect.of(extents).points())
    points = []
    for i, color in enumerate(colors):
        processor = i * processors // len(colors) if place is None else place(color)
        if not isinstance(processor, int) or not 0 <= processor < processors:
            raise ValueError(f"{task.name}: place({color}) must be a processor from 0 to {processors - 1}, got {processor!r}")
        points.append(Point(color, processor, tuple(q for a in arguments for q in a.requirements(color))))
    names = [a.name for a in arguments for _ in a.regions]
    check_index_launch(f"task {task.name}", {p.color: p.requirements for p in points}, names)
    return Launch(task, arguments, constants, tuple(points), reduce, over, extents, place)


def _check_names(task: TaskFunction, given: dict[str, Any]) -> None:
    for name in given:
        if name not in task.parameters:
            raise TypeError(f"task {task.name}: has no parameter {name!r}; it has {', '.join(task.parameters)}")
    for name in task.parameters:
        if name not in given and (name in task.privileges or (name not in task.defaults and name != "color")):
            raise TypeError(f"task {task.name}: argument {name!r} is missing")


def extents_of(task: TaskFunction, over: Over) -> tuple[int, ...]:
    """Return the extents of a launch's colors. Raises ValueError if there is none."""
    if over is None:
        return ()
    extents = over.colors if isinstance(over, Partition) else (over,) if isinstance(over, int) else tuple(over)
    if prod(extents) < 1 or min(extents, default=1) < 1:
        raise ValueError(f"{task.name}: over must have at least one color, got {extents}")
    return extents


def _is_region(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_is_region(item) for item in value)
    return isinstance(value, LogicalRegion)


def _argument(
    task: TaskFunction, name: str, privilege: Privilege, value: Any, extents: tuple[int, ...],
    known: Container[LogicalRegion],
) -> Argument:
    who = f"task {task.name}, argument {name!r}"
    listed = isinstance(value, list)
    entries = value if listed else [value]
    return Argument(name, privilege, tuple(_entry(who, entry, extents, known) for entry in entries), listed)


def _entry(
    who: str, entry: Any, extents: tuple[int, ...], known: Container[LogicalRegion]
) -> tuple[LogicalRegion, Piece]:
    region, piece = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, None)
    if not isinstance(region, LogicalRegion) or not (piece is None or isinstance(piece, (Partition, Rect))):
        raise TypeError(f"{who}: must be a region, (region, partition), (region, Rect) or a list of these, got {entry!r}")
    if region not in known:
        raise ValueError(f"{who}: region {region} was not made by this Tasks; make it with its region()")
    if isinstance(piece, Partition):
        if piece.space != region.rect:
            raise ValueError(f"{who}: the partition must cut {region.rect}, all of region {region}, but it cuts {piece.space}")
        if tuple(piece.colors) != extents:
            raise ValueError(
                f"{who}: the partition must have the colors of the launch, {extents}, but it has {tuple(piece.colors)}"
            )
    elif isinstance(piece, Rect) and (piece.ndim != region.rect.ndim or not region.rect.contains(piece)):
        raise ValueError(f"{who}: {piece} is not in region {region}")
    return region, piece


def piece_rect(region: LogicalRegion, piece: Piece, color: Color) -> Rect:
    """Return what the point task of ``color`` gets of a region."""
    if piece is None:
        return region.rect
    return piece.rect(color) if isinstance(piece, Partition) else piece
