"""`task`: declares what a Python function does with each of its region arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from taskflow.regions import Privilege

_PRIVILEGES = {p.value: p for p in Privilege} | {"reduce": Privilege.REDUCE}
RESERVED = ("function", "over", "place", "reduce", "self")
"""Names that `Tasks.launch` has for itself; ``color`` is given to a task that asks for it."""


@dataclass(frozen=True, slots=True, eq=False)
class TaskFunction:
    """Function with a privilege for each of its region parameters. Calling it calls the function."""

    function: Callable[..., Any]
    name: str
    privileges: Mapping[str, Privilege]
    parameters: tuple[str, ...]
    defaults: Mapping[str, Any]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{p}: {q.value}' for p, q in self.privileges.items())})"


class _Decorator(Protocol):
    def __call__(self, function: Callable[..., Any], /) -> TaskFunction: ...


def task(**privileges: str | Privilege) -> _Decorator:
    """Declare a task: ``@task(new="write", old="read")`` above ``def heat(new, old, alpha)``.

    ``privileges``: "read", "write", "read-write" or "reduce" (or a Privilege) for each parameter that is given a region. The
    function gets numpy arrays that hold exactly the Rects of the launch (a list of arrays where the launch gave a list):

    - read: read-only.
    - write: every element must be set; before, it contains arbitrary values.
    - read-write: values that it may change.
    - reduce: zeros, to which it adds; the sum is added to the region when somebody reads it.

    The other parameters are constants. A parameter called ``color`` that the launch leaves out gets the point task's color.
    Raises ValueError or TypeError for a name or privilege that does not fit the function.
    """

    def declare(function: Callable[..., Any]) -> TaskFunction:
        name = getattr(function, "__name__", str(function))
        parameters = inspect.signature(function).parameters
        for parameter in parameters.values():
            if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
                raise TypeError(f"task {name}: parameter {parameter} must be a plain one, not *, ** or keyword-only")
            if parameter.name in RESERVED:
                raise ValueError(f"task {name}: a parameter must not be called {parameter.name!r}: launch has its own")
        for parameter_name in privileges:
            if parameter_name not in parameters:
                raise ValueError(
                    f"task {name}: declares {parameter_name!r}, but its parameters are {', '.join(parameters)}"
                )
        declared = {who: _privilege(name, who, what) for who, what in privileges.items()}
        defaults = {p.name: p.default for p in parameters.values() if p.default is not p.empty}
        return TaskFunction(function, name, declared, tuple(parameters), defaults)

    return declare


def _privilege(task_name: str, parameter: str, what: str | Privilege) -> Privilege:
    if isinstance(what, Privilege):
        return what
    if what not in _PRIVILEGES:
        raise ValueError(
            f"task {task_name}: the privilege of {parameter!r} must be one of {', '.join(_PRIVILEGES)}, got {what!r}"
        )
    return _PRIVILEGES[what]
