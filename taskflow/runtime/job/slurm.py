"""Slurm: what srun tells its tasks, what MPICH needs to start by it, and a job whose ranks nobody has started.

Imports neither numpy nor mpi4py, as ``launch`` does, which calls it before numpy is imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

NETMOD = "MPIR_CVAR_CH4_NETMOD"
"""MPICH's variable for its network layer."""


def step_size(environ: Mapping[str, str]) -> int | None:
    """Return the number of tasks of the step that srun has started this process in; None if srun has not."""
    return number(environ.get("SLURM_STEP_NUM_TASKS"))


def tasks_here(environ: Mapping[str, str]) -> int:
    """Return the number of the step's tasks on this node, by Slurm's list of counts: "2(x3),1" is 2, 2, 2, 1. 0 if it does not
    say."""
    node = number(environ.get("SLURM_NODEID")) or 0
    for count, repeat in re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", "")):
        node -= int(repeat or 1)
        if node < 0:
            return int(count)
    return 0


def serves_pmi(environ: Mapping[str, str]) -> bool:
    """Whether the PMI variables of this process are srun's (``--mpi=pmi2``). Those of a mpirun within the job, whose proxies srun
    has started, come with the number of ranks on a node."""
    same = environ.get("PMI_SIZE") == environ.get("SLURM_STEP_NUM_TASKS") and environ.get("PMI_RANK") == environ.get("SLURM_PROCID")
    return same and "MPI_LOCALNRANKS" not in environ


def netmod(library: str, environ: Mapping[str, str]) -> str:
    """Return the value that NETMOD must have for ranks on several nodes that srun has started by PMI; empty if none is needed.

    MPICH then sends each node's address to Slurm's PMI in lines of up to 1,080 bytes. Slurm reads 1,024, and MPICH stops, or not,
    by what was in its memory (pmodels/mpich issue 6924; 5 of 8 starts with MPICH 5.0.2 and Slurm 22.05). UCX's addresses are long
    enough for that and libfabric's are not. ``library``: what MPI says of itself.
    """
    device = re.search(r"MPICH Device:\s*ch4:(.*)", library)
    layers = set() if device is None else set(re.split(r"[\s,]+", device[1]))
    return "ofi" if {"ucx", "ofi"} <= layers and not environ.get(NETMOD) else ""


def not_started(environ: Mapping[str, str]) -> int:
    """Return the number of tasks of the Slurm job that this process, no rank of any launcher, is the only one of; 0 if there is no
    such job, or srun was asked for one task."""
    tasks = number(environ.get("SLURM_NTASKS")) or 0
    return tasks if tasks > 1 and step_size(environ) is None else 0


def number(text: str | None) -> int | None:
    """Return a variable's whole number; None if it is not set or is something else."""
    return int(text) if text is not None and text.strip().isdigit() else None
