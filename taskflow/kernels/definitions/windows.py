"""Windows that slide over images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from taskflow.kernels.definitions.arrays import Pair


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
