"""Repeated launches: whether a launch is a recorded one again, and which values it passes this time."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np

from taskflow.partition import Partition
from taskflow.regions import LogicalRegion
from taskflow.tasks.launch.function import TaskFunction
from taskflow.tasks.launch.future import Future
from taskflow.tasks.launch.launch import Argument, Launch, Over, Piece, Place, extents_of, piece_rect

_CONTAINERS = (list, dict, set, bytearray)


def repeats(
    launch: Launch, task: TaskFunction, over: Over, given: dict[str, Any], place: Place | None, reduce: str | None, owner: object
) -> bool:
    """True if these are the arguments of ``launch`` again, as far as its analysis depends on them: its task, colors, regions,
    pieces and processors. Values of constants may differ. ``owner``: of Futures that the same program computes."""
    if task is not launch.task or reduce != launch.reduce or len(given) != len(launch.arguments) + len(launch.constants):
        return False
    try:  # plain loops: this is what a replay costs
        if over is not launch.over and extents_of(task, over) != launch.extents:
            return False
        for argument in launch.arguments:
            if not _same_pieces(launch, argument, given[argument.name]):
                return False
        for name, value in launch.constants.items():
            if (new := given[name]) is not value and not _same_kind(value, new, owner):
                return False
        return place is launch.place or _same_places(launch, place)
    except (KeyError, TypeError, ValueError):  # whoever analyses the launch says what is wrong with it
        return False


def _same_places(launch: Launch, place: Place | None) -> bool:
    if place is None or launch.place is None:
        return False
    return all(place(point.color) == point.processor for point in launch.points)


def _same_pieces(launch: Launch, argument: Argument, value: Any) -> bool:
    if not argument.listed and type(value) is tuple and len(value) == 2:
        region, piece = argument.regions[0]
        if value[0] is region and value[1] is piece:
            return True
    entries = value if isinstance(value, list) else [value]
    if isinstance(value, list) is not argument.listed or len(entries) != len(argument.regions):
        return False
    for entry, (region, piece) in zip(entries, argument.regions):
        other, cut = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, None)
        if not isinstance(other, LogicalRegion) or other != region or not (cut is piece or _same_rects(launch, region, cut, piece)):
            return False
    return True


def _same_rects(launch: Launch, region: LogicalRegion, one: Piece, two: Piece) -> bool:
    """True if two cuts are equal at all points, though made anew."""
    if isinstance(one, Partition) and (one.space != region.rect or tuple(one.colors) != launch.extents):
        return False
    return all(piece_rect(region, one, point.color) == piece_rect(region, two, point.color) for point in launch.points)


def _same_kind(old: Any, new: Any, owner: object) -> bool:
    """True if a constant was and is a value, or the same Future of this program, or a Future of others."""
    if not (isinstance(old, Future) or isinstance(new, Future)):
        return True
    return isinstance(old, Future) and isinstance(new, Future) and owner not in (old.owner, new.owner)


def pass_values(launch: Launch, given: dict[str, Any]) -> None:
    """Have the bound calls of a repeated launch use the values that constants have now. What may change until they run (arrays,
    lists, dicts and sets) is copied; other objects are passed as they are."""
    for name, old in launch.constants.items():
        value = given[name]
        if value is old and not isinstance(value, (np.ndarray, *_CONTAINERS)):
            continue
        launch.constants[name] = value = by_value(value)
        at = launch.task.parameters.index(name)
        for call, late in launch.bound:
            if isinstance(value, Future):
                late[at] = value.now
            else:
                call[at] = value


def by_value(value: Any) -> Any:
    """Return a copy of an array or a container that may change; anything else itself."""
    if isinstance(value, np.ndarray):
        return value.copy() if value.flags.writeable else value
    return deepcopy(value) if isinstance(value, _CONTAINERS) else value
