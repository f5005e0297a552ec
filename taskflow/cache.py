"""The cache folder, for files that can be made again: tokenised texts, measured costs, measured machines."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """Return $TASKFLOW_CACHE, else taskflow in $XDG_CACHE_HOME, else ~/.cache/taskflow; None if there is no home folder."""
    if own := os.environ.get("TASKFLOW_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG specification has relative paths ignored
        return Path(base, "taskflow")
    try:
        return Path.home() / ".cache" / "taskflow"
    except RuntimeError:
        return None
