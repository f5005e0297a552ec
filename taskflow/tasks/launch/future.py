"""Future: the number to which the results of an index launch are reduced."""

from __future__ import annotations

from typing import Any

import numpy as np

OPERATIONS: dict[str, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum}


class Future:
    """Number (float64) that launches compute. `get` returns it on every rank. A launch may take it as a constant, and then uses
    the value that it has when the task runs. The launches of a trace keep their Futures, whose values are those of the latest
    iteration."""

    __slots__ = ("_cell", "_guard", "name", "owner")

    def __init__(self, name: str, guard: Any, owner: object = None) -> None:
        """``guard()`` raises if the value must not be looked at now; ``owner`` is the trace in whose body it is made."""
        self.name = name
        self.owner = owner
        self._guard = guard
        self._cell: Any = None

    def get(self) -> float:
        """Return the value. Raises RuntimeError inside the body of a trace, which must not depend on values."""
        self._guard()
        return self.now()

    def now(self) -> float:
        """Return the value, for tasks. Raises RuntimeError if the launch has not run."""
        if self._cell is None:
            raise RuntimeError(f"{self.name} has no value: its launch has not run")
        return float(self._cell[0])

    def settle(self, cell: Any) -> None:
        """Take the value from element 0 of ``cell`` from now on."""
        self._cell = cell

    def __str__(self) -> str:
        return self.name


class Combine:
    """Task that reduces the results of all colors, in color order (numpy's order of summing an array)."""

    __slots__ = ("_operation",)

    def __init__(self, operation: str) -> None:
        self._operation = OPERATIONS[operation]

    def bind(self, arrays: Any) -> Any:
        """Return a function that reduces the results (the first array) into the one element of the second."""
        values, total = arrays
        reduce = self._operation.reduce

        def combine() -> None:
            total[0] = reduce(values)

        return combine

    def explain(self, error: Exception) -> Exception | None:
        """Return None: no error of this task can be explained more clearly."""
        return None
