"""Transports: messages and collectives between ranks, within a process, by MPI, or by NCCL."""

from taskflow.runtime.transport.base import Channel, Transport
from taskflow.runtime.transport.local import LocalTransport
from taskflow.runtime.transport.mpi import MPITransport
from taskflow.runtime.transport.mpi_job import load_mpi
from taskflow.runtime.transport.select import for_device

__all__ = ["Channel", "LocalTransport", "MPITransport", "Transport", "for_device", "load_mpi"]
