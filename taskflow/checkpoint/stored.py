"""StoredWeights: the arrays of a file by name, whatever its format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class StoredWeights(Mapping[str, Array]):
    """Arrays by name, each read only when it is asked for. ``shapes`` and ``metadata`` (texts that the writer added) are read
    at once. ``sealed``: each array has a checksum, which is compared when it is read."""

    def __init__(
        self, source: str, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], Array],
        metadata: Mapping[str, str] | None = None, sealed: bool = False,
    ) -> None:
        self.source, self.shapes, self.metadata = source, dict(shapes), dict(metadata or {})
        self._read, self.sealed = read, sealed

    def __getitem__(self, name: str) -> Array:
        if name not in self.shapes:
            raise KeyError(f"{self.source} has no array {name!r}")
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def verify(self, names: Iterable[str]) -> None:
        """Read the arrays, so that each is compared with its checksum. Raises ValueError that names one that is damaged."""
        for name in names if self.sealed else ():
            self[name]
