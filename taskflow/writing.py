"""Writing of files and JSON: readers see no file, the old one or the complete new one, and only valid JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Return the name of a file to write beside ``path``, which replaces ``path`` when the block ends.

    If an error ends the block, the old file is unchanged and nothing is left beside it. An OSError that names no file (a full
    disk names none) gets the name of this one.
    """
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()


def json_text(value: Any, indent: int | None = None, packed: bool = False) -> str:
    """Return ``value`` as JSON; ``packed``: without spaces. Raises ValueError if a number in it is not finite, since JSON has
    neither NaN nor Infinity."""
    return json.dumps(value, indent=indent, separators=(",", ":") if packed else None, allow_nan=False)
