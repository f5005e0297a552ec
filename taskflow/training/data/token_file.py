"""Tokens on disk: written piece by piece and then mapped, so that a text may be larger than memory."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from taskflow.cache import cache_folder
from taskflow.training.data.tokens import TokenArray

PART = 1 << 20
"""Tokens that are worked on at once."""


def on_disk(pieces: Iterator[TokenArray], dtype: np.dtype[Any]) -> TokenArray:
    """Return all pieces one after the other, as a read-only memory map of a file without a name, which is deleted with the map.

    The file is made in the cache folder, or in the folder for temporary files if that cannot be written. Raises OSError if
    there is no room.
    """
    folder = _folder() or tempfile.gettempdir()
    with tempfile.TemporaryFile(buffering=0, dir=folder) as file:  # a buffer would fail once more when it is closed
        count = 0
        for piece in pieces:
            _write(file, np.ascontiguousarray(piece, dtype), folder)
            count += len(piece)
        if not count:
            return np.empty(0, dtype)
        return np.asarray(np.memmap(file, dtype, "r", 0, (count,)))


def _write(file: io.FileIO, piece: TokenArray, folder: str | Path) -> None:
    rest = memoryview(piece.tobytes())
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        raise OSError(
            f"the text's tokens cannot be kept in {folder}: {error.strerror}; make room there, or set TASKFLOW_CACHE to a "
            f"folder that has it"
        ) from error


def parts(tokens: TokenArray) -> Iterator[TokenArray]:
    """Yield views of the tokens, `PART` at a time."""
    for first in range(0, len(tokens), PART):
        yield tokens[first : first + PART]


def _folder() -> Path | None:
    folder = cache_folder()
    if folder is not None:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    return None
