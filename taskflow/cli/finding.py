"""Finding: one line of `taskflow doctor`. Also safe ways to look for what may be missing, hang or crash."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

OK, NOTE, MISSING, WRONG = "ok", "note", "missing", "wrong"
SECONDS = 60.0  # after which a program that is tried counts as hanging


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `taskflow doctor`. ``state``: ``ok``; ``note`` (not needed); ``missing`` (taskflow runs, but slower or
    without some feature); ``wrong`` (it cannot run). ``remedy``: the command that helps, if there is one."""

    about: str
    state: str
    found: str
    remedy: str = ""


def package(name: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def tried(*command: str, environ: dict[str, str] | None = None) -> tuple[int, str]:
    """Return the exit code and output of a program; -1 and the reason if it could not be run or took more than SECONDS."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=environ, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, f"{type(error).__name__}: {error}"
    return done.returncode, (done.stdout or done.stderr).strip()
