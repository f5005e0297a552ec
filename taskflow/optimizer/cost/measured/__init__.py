"""Measured costs: task times measured on this machine, and kept on disk.

Measurements reproduce the conditions of a step: the state of caches, other processes on the machine, and noise.
"""

from taskflow.optimizer.cost.measured.bench import measure, memory_action, piece_action
from taskflow.optimizer.cost.measured.blas_threads import blas_threads, openblas
from taskflow.optimizer.cost.measured.cache_state import between
from taskflow.optimizer.cost.measured.contention import ContendingProcesses
from taskflow.optimizer.cost.measured.guard import NotMeasured, before_measuring, nothing_new
from taskflow.optimizer.cost.measured.identity import identity, processor_name
from taskflow.optimizer.cost.measured.model import SECONDS, MeasuredCosts, kernels_for
from taskflow.optimizer.cost.measured.noise import SpeedProbe
