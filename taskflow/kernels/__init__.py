"""Arrays in, arrays out: the arithmetic under the operators. Imports nothing of taskflow's other rooms."""

import os

from taskflow.kernels.kernel_set import KernelSet, Key
from taskflow.kernels.reference import NumpyKernels

_missing: ImportError | None = None
try:
    from taskflow.kernels import _images, _native, _pointwise  # noqa: F401
    from taskflow.kernels._native import busy
except ImportError as error:  # built without a C compiler: every kernel has a numpy twin
    from taskflow.kernels.reference import busy

    _missing = error

__all__ = ["KernelSet", "Key", "NumpyKernels", "busy", "default_kernels", "native_built"]


def native_built() -> bool:
    """Whether the compiled kernels are there."""
    return _missing is None


def default_kernels() -> KernelSet:
    """The fastest kernel set that works on this machine's CPU. TASKFLOW_KERNELS=numpy or native chooses one.

    Raises RuntimeError if the compiled kernels are asked for but missing, ValueError for any other name.
    """
    choice = os.environ.get("TASKFLOW_KERNELS", "")
    if choice not in ("", "numpy", "native"):
        raise ValueError(f"TASKFLOW_KERNELS must be numpy or native, got {choice!r}")
    if choice == "native" and _missing is not None:
        raise RuntimeError(
            f"TASKFLOW_KERNELS=native, but the compiled kernels cannot be imported ({_missing}); install a C compiler "
            "and reinstall taskflow, or unset TASKFLOW_KERNELS"
        ) from _missing
    if choice == "numpy" or _missing is not None:
        return NumpyKernels()
    from taskflow.kernels.native import NativeKernels

    return NativeKernels()
