"""What `try.py` has written: plans, with the seconds of their steps."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from msgspec import UNSET, Meta

from taskflow.mapper import MadeFrom
from taskflow.reading import Count, Entry, Name, Positive, read_as, read_json
from taskflow.trial.script import FORMAT


class TriedPlan(Entry, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A plan that was tried, or has failed (``error``)."""

    name: Name
    plan: str | None
    contents: Annotated[Any, Meta(description="Of the plan's file, if it has no notation.")] = UNSET
    made_from: MadeFrom
    error: str | None
    step_seconds: list[Positive]
    median_seconds: Positive | None
    memory_bytes: Count | None = None


class TriedAbout(Entry, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """When they were tried."""

    when: datetime


class TriedFile(Entry, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """All plans that were tried."""

    format: Name
    about: TriedAbout
    plans: list[TriedPlan]


def read_tried(path: str | Path) -> TriedFile | None:
    """Read what `try.py` has written. None for other JSON files. Raises FileNotFoundError if there is no such file, ValueError with
    the key's place for contents that are not permitted."""
    content: Any = read_json(path, "plan")
    if not isinstance(content, dict) or not str(content.get("format")).startswith("taskflow-try"):
        return None
    if content["format"] != FORMAT:
        raise ValueError(f"{path}: format {content['format']!r}; this taskflow reads {FORMAT!r}")
    return read_as(TriedFile, content, str(path))
