"""Which GPU a rank uses: functions of their arguments alone."""

from __future__ import annotations

from collections.abc import Mapping

LOCAL_RANKS = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "PALS_LOCAL_RANKID")
"""Where launchers say which of a node's ranks this is."""
VARIABLE = "TASKFLOW_GPU"


def local_rank(environment: Mapping[str, str]) -> int:
    """Return this process's number among the ranks of its node; 0 without a launcher."""
    for name in LOCAL_RANKS:
        if environment.get(name, "").isdecimal():
            return int(environment[name])
    return 0


def choose_gpu(environment: Mapping[str, str], visible: int) -> int:
    """Return the number of this rank's GPU among the ``visible`` ones (after CUDA_VISIBLE_DEVICES). Ranks take GPUs in turn,
    starting again at the first if a node has more ranks than GPUs. TASKFLOW_GPU overrides this. Raises ValueError if it
    names no visible GPU."""
    asked = environment.get(VARIABLE, "")
    if not asked:
        return local_rank(environment) % visible
    if not asked.isdecimal() or int(asked) >= visible:
        raise ValueError(f"{VARIABLE} must be a GPU's number below {visible}, the GPUs that this process sees, got {asked!r}")
    return int(asked)
