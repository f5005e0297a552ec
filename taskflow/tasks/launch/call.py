"""PointCall: a point task bound to its arrays, and clearer errors for mistakes in the user's function."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from taskflow.regions import Privilege, PrivilegeError, Requirement
from taskflow.tasks.launch.future import Future
from taskflow.tasks.launch.launch import Launch, Point


@dataclass(frozen=True, slots=True)
class PointCall:
    """Call of a point task. Its arrays are those of the requirements, then one for each of ``inputs`` (futures that the same
    graph computes, by parameter), then the element that takes its result, if results are reduced.

    ``zeroed``: for each requirement, whether its memory is zero when the task starts (reductions only).
    """

    launch: Launch
    point: Point
    zeroed: tuple[bool, ...]
    inputs: tuple[str, ...] = ()

    def bind(self, arrays: Sequence[Any]) -> Callable[[], object]:
        """Return a function that calls the user's function with these arrays; the class says in which order they are."""
        launch, count = self.launch, len(self.point.requirements)
        adds: list[tuple[Any, Any]] = []  # (what the task adds to, where that is added)
        views = [_view(q, a, z, adds) for q, a, z in zip(self.point.requirements, arrays, self.zeroed)]
        cells = dict(zip(self.inputs, arrays[count:]))
        result = arrays[count + len(self.inputs)] if launch.reduce is not None else None
        values = self._regions(views)
        call: list[Any] = []
        late: dict[int, Callable[[], float]] = {}
        for i, name in enumerate(launch.task.parameters):
            if name in cells:
                late[i] = partial(_number, cells[name])
            elif isinstance(future := launch.constants.get(name), Future):
                late[i] = future.now
            call.append(values.get(name))
        if not (launch.constants or adds or launch.reduce):
            return partial(launch.task.function, *call)
        launch.bound.append((call, late))
        return _action(launch, call, late, adds, result)

    def _regions(self, views: list[Any]) -> dict[str, Any]:
        """Every parameter's value."""
        launch = self.launch
        values: dict[str, Any] = {"color": self.point.color, **launch.task.defaults, **launch.constants}
        at = 0
        for argument in launch.arguments:
            own = views[at : at + len(argument.regions)]
            at += len(own)
            values[argument.name] = own if argument.listed else own[0]
        return values

    def explain(self, error: Exception) -> Exception | None:
        """Return a PrivilegeError for a write to a read-only array, which names the line that wrote."""
        if not isinstance(error, ValueError) or "read-only" not in str(error):
            return None
        task = self.launch.task
        readable = [name for name, privilege in task.privileges.items() if privilege is Privilege.READ]
        code = getattr(task.function, "__code__", None)
        lines = [
            linecache.getline(frame.f_code.co_filename, number)
            for frame, number in traceback.walk_tb(error.__traceback__)
            if frame.f_code is code
        ]
        named = [name for name in readable if lines and re.search(rf"\b{re.escape(name)}\b", lines[-1])]
        which = ", ".join(map(repr, named or readable))
        return PrivilegeError(
            f"task {task.name} at point {self.point.color}: wrote to {which}, which it declares as read; declare it as "
            f"write, read-write or reduce"
        )

    def __str__(self) -> str:
        return f"{self.launch.task.name}{list(self.point.color)}"


def _view(requirement: Requirement, array: Any, zeroed: bool, adds: list[tuple[Any, Any]]) -> Any:
    """Argument that the function gets for one requirement."""
    if array is None:
        array = np.zeros(requirement.rect.shape, requirement.region.dtype)
        zeroed = True
    if requirement.privilege is Privilege.READ:
        array = array.view()
        array.flags.writeable = False
    elif requirement.privilege is Privilege.REDUCE and not zeroed:
        # Others have added to this memory: the function gets zeros of its own, so that it cannot read or undo that.
        own = np.zeros(array.shape, array.dtype)
        adds.append((own, array))
        return own
    return array


def _action(
    launch: Launch, call: list[Any], late: dict[int, Callable[[], float]], adds: list[tuple[Any, Any]], result: Any
) -> Callable[[], None]:
    function = launch.task.function
    if not (late or adds or launch.reduce):
        return lambda: function(*call)

    def run() -> None:
        for i, get in late.items():
            call[i] = get()
        for own, _ in adds:
            own.fill(0)
        value = function(*call)
        for own, target in adds:
            np.add(target, own, out=target)
        if result is not None:
            if value is None:
                raise TypeError(f"task {launch.task.name}: must return a number to be reduced by {launch.reduce!r}, got None")
            result[0] = value

    return run


def _number(cell: Any) -> float:
    return float(cell[0])
