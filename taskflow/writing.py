"""Files and JSON are written alike: readers see no file, the old one or the whole new one, and no JSON that is none."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """The name of a file beside ``path`` to write, which takes the place of ``path`` when the block ends.

    If an error ends the block, the old file stays as it was and nothing is left beside it. An OSError that names no file
    (a full disk names none) gets the name of this one.
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
    """``value`` as JSON, ``packed``: without spaces. ValueError if a number in it is not finite: JSON has neither NaN nor
    Infinity."""
    return json.dumps(value, indent=indent, separators=(",", ":") if packed else None, allow_nan=False)
