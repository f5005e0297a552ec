"""Types of kernels' arguments, and `put`, which writes or adds a result."""

from __future__ import annotations

from typing import Any

Array = Any
Pair = tuple[int, int]  # of the two dimensions of an image: height, width
Padding = tuple[tuple[int, int], tuple[int, int]]  # zeros (top, bottom), (left, right)
Split = tuple[int, int, int]  # classes; into how many blocks they are divided; the number of the first block that is here
Key = tuple[int, int]  # two 32-bit words: the key of the counter-based generator


def put(value: Array, out: Array, accumulate: bool) -> None:
    """Fill ``out`` with the value, or add the value to it."""
    if accumulate:
        out += value
    else:
        out[...] = value
