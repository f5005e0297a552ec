"""Types of kernels' arguments, `put`, which writes or adds a result, and windows that slide over images."""

from __future__ import annotations

from collections.abc import Iterator
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


def taps(
    kernel: tuple[int, ...], stride: Pair, dilation: Pair, out: tuple[int, ...]
) -> Iterator[tuple[int, int, tuple[Any, ...]]]:
    """Yield, for each element (i, j) of the kernel, the elements of the padded image's last two dimensions that it is applied
    to."""
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            starts = (i * dilation[0], j * dilation[1])
            seen = (slice(a, a + (size - 1) * step + 1, step) for a, size, step in zip(starts, out, stride))
            yield i, j, (..., *seen)
