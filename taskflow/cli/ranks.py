"""Ranks: which of the processes that mpirun starts runs a command. Starts no MPI."""

from __future__ import annotations

from taskflow.runtime.job import speaks

TOGETHER = ("taskflow profile", "taskflow machine measure")
"""Commands whose ranks work together, beside `taskflow train`; of all others rank 0 alone does the work."""


def works(path: str) -> bool:
    """True if this process should run the command ``path``, such as ``taskflow search``."""
    return path in TOGETHER or speaks()
