"""JSON files of all kinds: what is wrong with one is said alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: str | Path, what: str) -> Any:
    """What is in the file. ``what``: which kind of file it should be ("machine file").

    FileNotFoundError if there is none; ValueError if it is a folder or not JSON.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{what} {path}: is a folder, not a file")
    if not path.is_file():
        raise FileNotFoundError(f"{what} {path} does not exist")
    try:
        return json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    except RecursionError:
        raise ValueError(f"{path}: not JSON that can be read: tables and lists lie too deep in each other") from None
