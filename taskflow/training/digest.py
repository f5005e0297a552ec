"""Digests of data: short texts that are equal where the data are, to find ranks that were given different files."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np

_BLOCK = 1 << 20  # bytes
_MOST = 1 << 10  # blocks that are read of one array; of a larger one so many, evenly spread, and always both ends


def digest_of(*values: Any) -> str:
    """A text that depends on arrays (shape, type and values) and on what else is given (by its ``str``).

    Of an array beyond a gibibyte, blocks of a mebibyte are read, a gibibyte together: two such arrays of one length that differ
    only between the blocks have one digest.
    """
    digest = blake2b(digest_size=16)
    for value in values:
        if isinstance(value, np.ndarray):
            _add(digest, value)
        else:
            digest.update(f"{value!s}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _add(digest: Any, array: np.ndarray[Any, Any]) -> None:
    digest.update(f"{array.dtype.str}{array.shape}\0".encode())
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    count = -(-flat.size // _BLOCK)
    chosen = range(count) if count <= _MOST else np.linspace(0, count - 1, _MOST).astype(np.int64)
    for block in chosen:
        digest.update(flat[block * _BLOCK : (block + 1) * _BLOCK].data)
