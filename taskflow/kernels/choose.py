"""Choice of a kernel set: the fastest that works here, one by name, or a device's."""

import os
from importlib import import_module

from taskflow.kernels.build import REBUILD
from taskflow.kernels.kernel_set import KernelSet, NumpyKernels

_missing: ImportError | None = None
try:
    import_module("taskflow.kernels.native.kernels")  # with the compiled module of each group
    from taskflow.kernels.native._busy import busy as busy
except ImportError as error:  # built without a C compiler: every kernel has a numpy twin
    from taskflow.kernels.definitions import busy as busy

    _missing = error

CHOICES = ("onednn", "native", "numpy")  # from the fastest to the most portable


def native_built() -> bool:
    """True if the compiled kernels are there."""
    return _missing is None


def onednn_missing() -> str | None:
    """Return None if oneDNN's kernels can be used, else a sentence that says what is missing and which command installs it."""
    try:
        _make("onednn")
    except RuntimeError as error:
        return str(error)
    return None


def default_kernels(threads: int | None = None) -> KernelSet:
    """Return the fastest kernel set that works on this machine's CPU: oneDNN's, else the compiled loops', else numpy's. The
    environment variable TASKFLOW_KERNELS (onednn, native or numpy) chooses one. ``threads``: how many its larger kernels use,
    except numpy's BLAS (default: OpenMP's).

    Raises RuntimeError if the chosen set is not available, ValueError for any other name.
    """
    choice = os.environ.get("TASKFLOW_KERNELS", "")
    if choice not in ("", *CHOICES):
        raise ValueError(f"TASKFLOW_KERNELS must be {', '.join(CHOICES[:-1])} or {CHOICES[-1]}, got {choice!r}")
    if choice:
        try:
            return _make(choice, threads)
        except RuntimeError as error:
            raise RuntimeError(f"TASKFLOW_KERNELS={choice}, but {error}; or unset TASKFLOW_KERNELS") from error
    for name in CHOICES[:-1]:
        try:
            return _make(name, threads)
        except RuntimeError:
            continue
    return NumpyKernels()


def kernels_on(device: str, threads: int | None = None) -> KernelSet:
    """Return the kernels of a device: "cpu" (`default_kernels` with ``threads``) or "gpu" (`taskflow.kernels.gpu.gpu_kernels`).

    Raises DeviceMissing, with a sentence that says what is missing, if they are not available; ValueError for any other name.
    """
    if device == "cpu":
        return default_kernels(threads)
    if device == "gpu":
        from taskflow.kernels.gpu import gpu_kernels

        return gpu_kernels()
    raise ValueError(f"device must be cpu or gpu, got {device!r}")


def _make(name: str, threads: int | None = None) -> KernelSet:
    """RuntimeError if it is not there."""
    if name == "numpy":
        return NumpyKernels()
    if _missing is not None:
        raise RuntimeError(f"the compiled kernels cannot be imported ({_missing}); {REBUILD}") from _missing
    if name == "native":
        from taskflow.kernels.native.kernels import NativeKernels

        return NativeKernels()
    from taskflow.kernels.onednn.kernels import OneDNNKernels

    try:
        return OneDNNKernels(threads)
    except ImportError as error:
        raise RuntimeError(str(error)) from error
