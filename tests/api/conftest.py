"""Starts ranks with mpirun."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ranks():
    """``ranks(count, script, *arguments)`` runs a Python script and returns what it wrote to standard output; with a count of
    0 without mpirun, for scripts that start it themselves."""
    mpirun = shutil.which("mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if mpirun is None:
        pytest.skip("no mpirun")

    def run(count: int, *command: str, seconds: float = 120.0) -> str:
        paths = [str(ROOT), str(ROOT / "tests" / "api")]
        start = [mpirun, "-n", str(count)] if count else []
        done = subprocess.run(
            [*start, sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=seconds,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
