"""Choice of how arrays in the memory of GPUs get from rank to rank. The choice is a pure function; `for_device` carries it out."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskflow.kernels import ArrayDevice
from taskflow.runtime.transport.base import Transport

NCCL, CUDA_MPI, HOST_MPI = "nccl", "mpi-cuda", "mpi-host"
WAYS = (NCCL, CUDA_MPI, HOST_MPI)
VARIABLE = "TASKFLOW_TRANSFERS"
SHARED_GPU_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"
SHARED_GPU_NCCL = 23000
"""From this NCCL on (2.30), several ranks may use one GPU, if the variable is 1."""


@dataclass(frozen=True, slots=True)
class TransferChoice:
    """The chosen way, and the reason."""

    way: str
    why: str

    def __str__(self) -> str:
        return f"{self.way} ({self.why})"


@dataclass(frozen=True, slots=True)
class RankCapabilities:
    """Capabilities of one rank. ``gpu``: a name of its GPU that no other GPU of the job has. ``nccl``: NCCL's version as NCCL
    encodes it (23203 is 2.32.3), 0 without NCCL. ``cuda_mpi``: whether MPI accepts addresses in the GPU's memory."""

    gpu: str
    nccl: int
    cuda_mpi: bool


def choose_transfers(offers: Sequence[RankCapabilities], environment: Mapping[str, str]) -> TransferChoice:
    """Return the best way that all ranks have: NCCL between GPUs if no two ranks share one, else MPI from the GPU's memory,
    else MPI through pinned memory of the host. TASKFLOW_TRANSFERS chooses another available way.

    Raises ValueError for a way that is not available or does not exist.
    """
    asked = environment.get(VARIABLE, "")
    if asked not in ("", *WAYS):
        raise ValueError(f"{VARIABLE} must be {', '.join(WAYS[:-1])} or {WAYS[-1]}, got {asked!r}")
    against = {NCCL: _against_nccl(offers, environment), CUDA_MPI: _against_cuda_mpi(offers), HOST_MPI: ""}
    if asked:
        if against[asked]:
            raise ValueError(f"{VARIABLE}={asked} is not possible: {against[asked]}; unset it, or use {HOST_MPI}")
        return TransferChoice(asked, f"as {VARIABLE} says")
    reasons: list[str] = []
    for way in WAYS:
        if not against[way]:
            return TransferChoice(way, "; ".join(reasons) or "each rank has its own GPU")
        reasons.append(f"no {way}: {against[way]}")
    raise AssertionError("MPI through the host's memory is always possible")


def _against_nccl(offers: Sequence[RankCapabilities], environment: Mapping[str, str]) -> str:
    """Why NCCL cannot be used; "" if it can."""
    without = [rank for rank, offer in enumerate(offers) if not offer.nccl]
    if without:
        from taskflow.kernels.gpu.diagnostics import INSTALL  # here, for most programs need nothing of the GPU's rooms

        return f"rank {without[0]} does not find it ({INSTALL})"
    if len({offer.nccl for offer in offers}) > 1:
        return f"ranks have different versions, {sorted({offer.nccl for offer in offers})}"
    first: dict[str, int] = {}
    for rank, offer in enumerate(offers):
        other = first.setdefault(offer.gpu, rank)
        if other != rank and not (offer.nccl >= SHARED_GPU_NCCL and environment.get(SHARED_GPU_VARIABLE) == "1"):
            return f"ranks {other} and {rank} share a GPU"
    return ""


def _against_cuda_mpi(offers: Sequence[RankCapabilities]) -> str:
    without = [rank for rank, offer in enumerate(offers) if not offer.cuda_mpi]
    return f"the MPI of rank {without[0]} does not take the GPU's memory" if without else ""


def for_device(transport: Transport, device: ArrayDevice) -> Transport:
    """Return a transport for arrays of ``device``: the given one if arrays are on the host or the job has one rank. Every rank
    calls it; the same transport gives the same answer. Raises ValueError as `choose_transfers`, on every rank."""
    if device.waits or transport.size == 1 or transport.device is not None:
        return transport
    found: Transport | None = getattr(transport, "_of_device", None)
    if found is None:
        found = _make(transport, device)
        transport._of_device = found  # type: ignore[attr-defined]
    return found


def _make(transport: Transport, device: Any) -> Transport:
    from taskflow.runtime.transport.nccl import NCCLTransport
    from taskflow.runtime.transport.staged import StagedTransport

    offers = transport.gather(RankCapabilities(device.identity, device.nccl_version, mpi_takes_gpu_memory()))
    choice: TransferChoice | str = ""
    if offers is not None:
        try:
            choice = choose_transfers(offers, os.environ)
        except ValueError as error:  # the other ranks are waiting: they must end too
            choice = str(error)
    choice = transport.broadcast(choice)
    if isinstance(choice, str):
        raise ValueError(choice)
    if choice.way == NCCL:
        return NCCLTransport(transport, device, choice)
    return StagedTransport(transport, device, choice, direct=choice.way == CUDA_MPI)


def mpi_takes_gpu_memory() -> bool:
    """Return the answer of MPIX_Query_cuda_support, which Open MPI and MPICH have; False without an answer."""
    try:
        from mpi4py import MPI

        query = ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support
    except (ImportError, OSError, AttributeError):
        return False
    query.restype = ctypes.c_int
    return bool(query() == 1)
