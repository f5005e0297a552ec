"""The compiled twin of places.py."""

from collections.abc import Sequence

def places(sizes: Sequence[int], first: Sequence[int], last: Sequence[int], most: int) -> list[int] | None: ...
