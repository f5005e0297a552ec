"""Starts ranks with mpirun."""

from __future__ import annotations

import os

import pytest
from starting import MPIRUN, ROOT, run_python


@pytest.fixture
def ranks():
    """``ranks(count, script, *arguments)`` runs a Python script and returns what it wrote to standard output; with a count of
    0 without mpirun, for scripts that start it themselves."""
    if MPIRUN is None:
        pytest.skip("no mpirun")

    def run(count: int, *command: str) -> str:
        done = run_python(*command, ranks=count, limit=120, extra={"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'api'}"})
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
