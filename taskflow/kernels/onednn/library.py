"""Library loader of oneDNN: the wheel onednn-cpu-gomp or the system's own; loaded at run time, once.

The wheel's record of its files says where the library is, wherever pip puts it; else the system's loader finds it by name.
Nothing is loaded before `load` is called.
"""

from __future__ import annotations

import ctypes
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from taskflow.kernels.build import REBUILD

WHEEL = "onednn-cpu-gomp"
LIBRARY = "libdnnl.so.3"
_OPENMP, _SEQUENTIAL = 2, 1  # values of dnnl_version_t.cpu_runtime

_loaded: Any = None  # the module, or why there is none


class _Version(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int), ("hash", ctypes.c_char_p),
        ("cpu_runtime", ctypes.c_uint), ("gpu_runtime", ctypes.c_uint),
    )


def load() -> Any:
    """Return taskflow.kernels.onednn._onednn, bound to the library's functions. Raises ImportError with one sentence that says
    what is missing and which command installs it."""
    global _loaded
    if _loaded is None:
        try:
            _loaded = _load()
        except ImportError as error:
            _loaded = str(error)
    if isinstance(_loaded, str):
        raise ImportError(_loaded)
    return _loaded


def _load() -> Any:
    try:
        _onednn: Any = import_module("taskflow.kernels.onednn._onednn")
    except ImportError as error:
        raise ImportError(f"oneDNN's kernels are not compiled ({error}); {REBUILD}") from error
    library = _open()
    try:
        names = _onednn.names()
        addresses = [_address(library, name) for name in names]
        version = library.dnnl_version
        version.restype = ctypes.POINTER(_Version)
        found = version().contents
    except AttributeError as error:
        raise ImportError(f"the oneDNN library lacks a function ({error}); pip install --upgrade {WHEEL}") from error
    if found.major != 3 or found.cpu_runtime not in (_OPENMP, _SEQUENTIAL):
        raise ImportError(
            f"oneDNN must be version 3 with OpenMP threads, but {LIBRARY} is {found.major}.{found.minor} with runtime "
            f"{found.cpu_runtime}; pip install {WHEEL}"
        )
    # A search in the library also searches what it is linked to: its own OpenMP runtime, whatever else is loaded.
    threads = _address(library, "omp_set_num_threads") if found.cpu_runtime == _OPENMP else 0
    _onednn.take(addresses, threads)
    _onednn.version = f"{found.major}.{found.minor}.{found.patch}"
    _onednn.most_threads = int(library.omp_get_max_threads()) if threads else 1
    return _onednn


def _open() -> ctypes.CDLL:
    reason = f"{LIBRARY} is not installed"
    for path in (_wheel_file(), LIBRARY):
        if path is None:
            continue
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            reason = str(error)
    raise ImportError(f"oneDNN cannot be loaded ({reason}); pip install {WHEEL}")


def _wheel_file() -> str | None:
    """The library of the wheel."""
    try:
        files = distribution(WHEEL).files or ()
    except PackageNotFoundError:
        return None
    for file in files:
        if file.name == LIBRARY:
            return str(file.locate())
    return None


def _address(library: ctypes.CDLL, name: str) -> int:
    return int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)
