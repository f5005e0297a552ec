"""Digests of data: short texts that are equal if the data are, to find ranks that were given different files."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

_BLOCK = 1 << 20  # bytes
_MOST = 1 << 10  # blocks that are read of one array; of a larger one so many, evenly spread, and always both ends
_MOST_FILES = 1 << 10  # that are looked into; of more so many, evenly spread, and always the first and the last


def digest_of(*values: Any) -> str:
    """Return a text that depends on arrays (shape, type and values) and on the other arguments (by their ``str``).

    Of an array of more than 1 GiB, only blocks of 1 MiB are read, 1 GiB in all. Two such arrays of one length that differ only
    between the blocks have the same digest.
    """
    digest = blake2b(digest_size=16)
    for value in values:
        if isinstance(value, np.ndarray):
            _add(digest, value)
        else:
            digest.update(f"{value!s}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def digest_of_files(paths: Sequence[str]) -> str:
    """Return a text that depends on the contents of the files, in this order, but not on their names.

    At most 1024 files are read, evenly spread, and of each the first MiB: at most 1 GiB, for pictures about a tenth of that. So
    a million files take a second and not an epoch. If every file should count, add what is known of each without reading it,
    such as its name and size. Raises OSError if one cannot be read.
    """
    digest = blake2b(f"{len(paths)}\0".encode(), digest_size=16)
    for number in _spread(len(paths), _MOST_FILES):
        with open(paths[number], "rb") as file:
            start = file.read(_BLOCK)
        digest.update(f"{len(start)}\0".encode())
        digest.update(start)
    return digest.hexdigest()


def _spread(count: int, most: int) -> Sequence[int]:
    """All of 0 ... count - 1, or ``most`` of them, evenly spread and always both ends."""
    return range(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64).tolist()


def _add(digest: Any, array: np.ndarray[Any, Any]) -> None:
    digest.update(f"{array.dtype.str}{array.shape}\0".encode())
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    count = -(-flat.size // _BLOCK)
    for block in _spread(count, _MOST):
        digest.update(flat[block * _BLOCK : (block + 1) * _BLOCK].data)
