"""Arrays in, arrays out: the arithmetic under the operators. Imports nothing of taskflow's other rooms."""

from taskflow.kernels.kernel_set import Key, KernelSet
from taskflow.kernels.reference import NumpyKernels

__all__ = ["Key", "KernelSet", "NumpyKernels", "default_kernels"]


def default_kernels() -> KernelSet:
    """The fastest kernel set that works on this machine's CPU."""
    return NumpyKernels()
