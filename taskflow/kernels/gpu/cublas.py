"""Cublas: the two products of cuBLAS that we call, bound by ctypes.

CuPy binds them too, but refuses to call cuBLAS while a stream is being captured. It also leaves the workspace to the library,
which then allocates one for every captured graph. So we have a handle of our own, with its own workspace on one stream.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from taskflow.kernels.gpu.gemm import ColumnMajor

LIBRARIES = ("libcublas.so.13", "libcublas.so.12")
"""The names by which the dynamic linker knows it once CuPy's own binding, which knows where wheels keep it, has loaded it."""
WORKSPACE_BYTES = 32 << 20  # what cuBLAS's documentation recommends for Hopper

# cudaDataType_t, cublasComputeType_t and cublasGemmAlgo_t, from library_types.h and cublas_api.h
REAL_32, REAL_64, BFLOAT_16 = 0, 1, 14
COMPUTE_64 = 70
COMPUTE_32 = {"fp32": 68, "tf32": 77, "bf16": 75}
"""By precision: CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_32F_FAST_16BF."""
DEFAULT_ALGORITHM = -1

_int, _long, _pointer = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_OPERANDS = [_pointer, _int, _int, _int, _int, _int]  # handle, transa, transb, m, n, k
SIGNATURES: dict[str, list[Any]] = {
    "cublasCreate_v2": [ctypes.POINTER(_pointer)],
    "cublasDestroy_v2": [_pointer],
    "cublasGetVersion_v2": [_pointer, ctypes.POINTER(_int)],
    "cublasSetStream_v2": [_pointer, _pointer],
    "cublasSetWorkspace_v2": [_pointer, _pointer, ctypes.c_size_t],
    "cublasGemmEx": [
        *_OPERANDS, _pointer, _pointer, _int, _int, _pointer, _int, _int, _pointer, _pointer, _int, _int, _int, _int,
    ],
    "cublasGemmStridedBatchedEx": [
        *_OPERANDS, _pointer, _pointer, _int, _int, _long, _pointer, _int, _int, _long, _pointer, _pointer, _int, _int, _long,
        _int, _int, _int,
    ],
}
"""The parameters of every function, as cublas_api.h declares them; each returns a cublasStatus_t, an int."""


class CublasError(RuntimeError):
    """Error code that cuBLAS returned."""


class Cublas:
    """Handle on one stream of the current GPU. ``workspace``: address and size in bytes of memory that only this handle uses.

    Raises OSError if no library is found, CublasError if cuBLAS returns an error.
    """

    __slots__ = ("_batched", "_handle", "_library", "_numbers", "_single", "version")

    def __init__(self, stream: int, workspace: tuple[int, int], precision: str, library: Any = None) -> None:
        self._library: Any = opened() if library is None else library
        for name, parameters in SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = parameters, _int
        self._handle = _pointer()
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, stream)  # first: it gives up the working memory set before
        self._call("cublasSetWorkspace_v2", self._handle, *workspace)
        found = _int()
        self._call("cublasGetVersion_v2", self._handle, ctypes.byref(found))
        self.version = int(found.value)
        self._single, self._batched = self._library.cublasGemmEx, self._library.cublasGemmStridedBatchedEx
        # By type of the arrays: cuBLAS's name of it, how it computes, and zero and one where it can read them.
        self._numbers: dict[np.dtype[Any], tuple[int, int, int, int, Any]] = {}
        for dtype, kind, compute in ((np.float32, REAL_32, COMPUTE_32[precision]), (np.float64, REAL_64, COMPUTE_64)):
            numbers = np.array([0, 1], dtype)
            zero = numbers.ctypes.data
            self._numbers[numbers.dtype] = kind, compute, zero, zero + numbers.itemsize, numbers

    def gemm(
        self, call: ColumnMajor, dtype: np.dtype[Any], first: int, second: int, out: int, accumulate: bool, narrow: bool = False
    ) -> None:
        """Multiply the matrices at two addresses on the GPU into a third, whose type is ``dtype``. Both scalars are read before
        this returns. ``narrow``: the operands are bfloat16; result and sums are float32."""
        result, compute, zero, one, _ = self._numbers[dtype]
        kind = result
        if narrow:
            kind, compute = BFLOAT_16, COMPUTE_32["fp32"]
        beta = one if accumulate else zero
        c = call
        if c.count == 1:
            status = self._single(
                self._handle, c.transpose_first, c.transpose_second, c.m, c.n, c.k, one, first, kind, c.first_pitch, second,
                kind, c.second_pitch, beta, out, result, c.out_pitch, compute, DEFAULT_ALGORITHM,
            )
        else:
            status = self._batched(
                self._handle, c.transpose_first, c.transpose_second, c.m, c.n, c.k, one, first, kind, c.first_pitch,
                c.first_step, second, kind, c.second_pitch, c.second_step, beta, out, result, c.out_pitch, c.out_step, c.count,
                compute, DEFAULT_ALGORITHM,
            )
        if status:
            raise CublasError(f"cuBLAS: status {status} for {call} of {dtype}")

    def close(self) -> None:
        """Release the handle; safe to call twice."""
        if self._handle:
            self._library.cublasDestroy_v2(self._handle)
            self._handle = _pointer()

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CublasError(f"cuBLAS: {name} gave status {status}; is another program holding the GPU's memory?")


def opened() -> Any:
    """Return the library. Raises OSError, with the command that installs it, if it is not found."""
    with suppress(ImportError):
        import cupy_backends.cuda.libs.cublas  # noqa: F401  (loads it)
    found = [str(one) for folder in sys.path for one in sorted(Path(folder).glob("nvidia/*/lib/libcublas.so.1[23]"))]
    for name in (*LIBRARIES, *found):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError(f"cuBLAS is not found ({' or '.join(LIBRARIES)}): pip install nvidia-cublas, or CUDA 13's toolkit")
