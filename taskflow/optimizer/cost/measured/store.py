"""CostStore: measured costs on disk, one file for each identity. A file with any error counts as empty."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from taskflow.optimizer.cost.measured.identity import digest
from taskflow.writing import replacing

FORMAT, VERSION = "taskflow-costs", 1
TURN_SECONDS = 4e-3  # that a program has a core before another gets it, by Linux's default; a few at least
TURNS = 0.1  # of a task: more of it in other programs' turns disturbs


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of a measurement. ``seconds``: the median of ``repeats`` runs. ``spread``: the distance of the quartiles divided
    by the median. ``interruptions``: how many turns of other programs were in each of these runs, at most."""

    seconds: float
    spread: float
    repeats: int
    interruptions: int = field(default=0, compare=False)

    @property
    def disturbed(self) -> bool:
        """True if other programs' turns are a part of the seconds that counts."""
        return self.interruptions * TURN_SECONDS > TURNS * self.seconds


class CostStore:
    """Measurements by a text that names what was measured. ``folder`` None: nothing is kept on disk."""

    def __init__(self, folder: Path | None, identity: dict[str, str]) -> None:
        self.identity = identity
        self.path = None if folder is None else folder / f"costs-{digest(identity)}.json"
        self.entries = self._read()
        self._own: set[str] = set()  # keys of what this process has measured

    def get(self, key: str) -> Measurement | None:
        """Return the measurement under this key; None if there is none."""
        return self.entries.get(key)

    def doubtful(self, key: str) -> bool:
        """True if another process left this measurement, and it is `disturbed`: it is to be made anew, if that may be."""
        return key not in self._own and self.entries[key].disturbed

    def put(self, key: str, value: Measurement) -> None:
        """Add a measurement, also to the file, where it joins what other processes have added meanwhile."""
        self.entries[key] = value
        self._own.add(key)
        if self.path is None:
            return
        found = self._read()
        calm = {one for one, entry in found.items() if not entry.disturbed}
        self.entries = {**found, **{one: own for one, own in self.entries.items() if one not in calm or not own.disturbed}}
        with contextlib.suppress(OSError):  # a folder that cannot be written: measure again next time
            self._write(self.path)

    def _read(self) -> dict[str, Measurement]:
        if self.path is None:
            return {}
        try:
            content = json.loads(self.path.read_text("utf-8"))
            if (content["format"], content["version"], content["identity"]) != (FORMAT, VERSION, self.identity):
                return {}
            return {key: _measurement(entry) for key, entry in content["entries"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _write(self, path: Path) -> None:
        """Atomic: readers see the old file or the whole new one."""
        content = {
            "format": FORMAT, "version": VERSION, "identity": self.identity,
            "entries": {
                key: [m.seconds, m.spread, m.repeats, *[m.interruptions] * m.disturbed] for key, m in self.entries.items()
            },
        }  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, lasting=False) as file:
            file.write_text(json.dumps(content, indent=0), encoding="utf-8")


def _measurement(entry: Any) -> Measurement:
    seconds, spread, repeats, *interruptions = entry
    value = Measurement(float(seconds), float(spread), int(repeats), int(*interruptions))
    if not (isfinite(value.seconds) and value.seconds > 0 and isfinite(value.spread) and value.repeats > 0):
        raise ValueError(f"not a measurement: {entry}")
    return value
