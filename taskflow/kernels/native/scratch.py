"""Scratch memory, which a kernel needs for the duration of a call."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from taskflow.kernels.definitions import Array

_scratches = threading.local()


def scratch(shape: tuple[int, ...], dtype: np.dtype[Any], use: str) -> Array:
    """Return memory whose contents are needed only during one call: one block for each thread, ``use`` and dtype, which grows
    on demand."""
    blocks: dict[str, Array] = _scratches.__dict__
    size, name = int(np.prod(shape)), use + dtype.str
    block = blocks.get(name)
    if block is None or block.size < size:
        blocks[name] = block = np.empty(size, dtype)
    return block[:size].reshape(shape)
