"""numpy's own BLAS: its cblas_sgemm and cblas_dgemm, for compiled code to call.

Looking up a symbol in numpy's extension module also searches the libraries that it is linked to, so neither a path nor a second
BLAS is needed. Some builds of numpy hide their BLAS (macOS's Accelerate, Windows); callers then use `numpy.matmul`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

# Symbol names of numpy's wheels, of OpenBLAS with 64-bit integers, and of any other BLAS; True: integers have 64 bits.
_SPELLINGS = (
    ("scipy_cblas_{}gemm64_", True), ("cblas_{}gemm64_", True), ("scipy_cblas_{}gemm", False), ("cblas_{}gemm", False),
)


@dataclass(frozen=True, slots=True)
class Blas:
    """Addresses of cblas_sgemm and cblas_dgemm; ``wide``: their integers have 64 bits."""

    sgemm: int
    dgemm: int
    wide: bool


def find_blas() -> Blas | None:
    """Return numpy's BLAS, or None if its symbols are hidden or it computes a wrong product."""
    core = "numpy._core" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else "numpy.core"
    try:
        library = ctypes.CDLL(import_module(f"{core}._multiarray_umath").__file__)
    except (ImportError, OSError):
        return None
    for spelling, wide in _SPELLINGS:
        try:
            sgemm, dgemm = (library[spelling.format(letter)] for letter in "sd")
        except AttributeError:
            continue
        if not (_right(sgemm, wide, np.float32) and _right(dgemm, wide, np.float64)):
            return None
        return Blas(_address(sgemm), _address(dgemm), wide)
    return None


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _right(function: Any, wide: bool, dtype: type[np.floating]) -> bool:
    """True if it correctly adds a small product with one transposed factor to its output."""
    size = ctypes.c_int64 if wide else ctypes.c_int
    real = ctypes.c_float if dtype is np.float32 else ctypes.c_double
    a, b = np.arange(6, dtype=dtype).reshape(2, 3), np.arange(12, dtype=dtype).reshape(4, 3)
    out = np.ones((2, 4), dtype)
    pa, pb, po = (ctypes.c_void_p(array.ctypes.data) for array in (a, b, out))
    function(
        101, 111, 112, size(2), size(4), size(3), real(1), pa, size(3), pb, size(3), real(1), po, size(4)
    )  # row major, plain, transposed
    return bool(np.array_equal(out, a @ b.T + 1))
