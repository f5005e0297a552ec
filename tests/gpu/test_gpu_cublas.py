"""cuBLAS as we bind it: against its own header where that is installed, and against a library that does what the header says."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from host_device import COMPILER, compiles

from taskflow.kernels.gpu import cublas
from taskflow.kernels.gpu.gemm import column_major, plan

LIKE_CUBLAS = """
#include <cstddef>
struct State {
    int calls, stream_at, workspace_at;
    void *stream, *workspace;
    size_t bytes;
    int single, batched, compute, algorithm;
};
static State state;
extern "C" State *seen() { return &state; }
extern "C" int cublasCreate_v2(void **handle) { *handle = &state; return 0; }
extern "C" int cublasDestroy_v2(void *) { state = State(); return 0; }
extern "C" int cublasGetVersion_v2(void *, int *version) { *version = 131000; return 0; }
extern "C" int cublasSetStream_v2(void *, void *stream) { state.stream = stream; state.stream_at = ++state.calls; return 0; }
extern "C" int cublasSetWorkspace_v2(void *, void *memory, size_t bytes) {
    state.workspace = memory;
    state.bytes = bytes;
    state.workspace_at = ++state.calls;
    return 0;
}
template <class T> static void multiply(
    int ta, int tb, int m, int n, int k, const T *alpha, const T *a, int lda, const T *b, int ldb, const T *beta, T *c, int ldc
) {
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++) {
            double sum = 0;
            for (int l = 0; l < k; l++)
                sum += (double)a[ta ? l + (long)i * lda : i + (long)l * lda] * b[tb ? j + (long)l * ldb : l + (long)j * ldb];
            T before = *beta ? *beta * c[i + (long)j * ldc] : 0;
            c[i + (long)j * ldc] = (T)(*alpha * sum + before);
        }
}
extern "C" int cublasGemmStridedBatchedEx(
    void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda, long long sa,
    const void *b, int bt, int ldb, long long sb, const void *beta, void *c, int ct, int ldc, long long sc, int count, int compute,
    int algorithm
) {
    if (handle != &state || at != bt || bt != ct || (at != 0 && at != 1)) return 7;
    if (lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m || lda < 1 || ldb < 1) return 7;
    state.batched++;
    state.compute = compute;
    state.algorithm = algorithm;
    for (int i = 0; i < count; i++)
        if (at == 0)
            multiply(ta, tb, m, n, k, (const float *)alpha, (const float *)a + i * sa, lda, (const float *)b + i * sb, ldb,
                     (const float *)beta, (float *)c + i * sc, ldc);
        else
            multiply(ta, tb, m, n, k, (const double *)alpha, (const double *)a + i * sa, lda, (const double *)b + i * sb, ldb,
                     (const double *)beta, (double *)c + i * sc, ldc);
    return 0;
}
extern "C" int cublasGemmEx(
    void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda, const void *b, int bt,
    int ldb, const void *beta, void *c, int ct, int ldc, int compute, int algorithm
) {
    state.single++;
    state.batched--;
    return cublasGemmStridedBatchedEx(
        handle, ta, tb, m, n, k, alpha, a, at, lda, 0, b, bt, ldb, 0, beta, c, ct, ldc, 0, 1, compute, algorithm);
}
"""


class State(ctypes.Structure):
    _fields_ = [
        ("calls", ctypes.c_int), ("stream_at", ctypes.c_int), ("workspace_at", ctypes.c_int), ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("single", ctypes.c_int), ("batched", ctypes.c_int),
        ("compute", ctypes.c_int), ("algorithm", ctypes.c_int),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if not compiles():
        pytest.skip("no C++20 compiler: a library like cuBLAS cannot be built")
    folder = tmp_path_factory.mktemp("cublas")
    (folder / "like.cpp").write_text(LIKE_CUBLAS)
    subprocess.run([str(COMPILER), "-O1", "-shared", "-fPIC", "-o", "like.so", "like.cpp"], cwd=folder, check=True)
    found = ctypes.CDLL(str(folder / "like.so"))
    found.seen.restype = ctypes.POINTER(State)
    return found


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def laid(random: Random, dtype: Any, *shape: int) -> np.ndarray:
    """An array that a call can read: its rows or its columns are runs, perhaps with room between them."""
    *stack, rows, columns = shape
    room = random.randrange(3)
    whole = np.random.default_rng(random.randrange(1000)).normal(size=(*stack, columns, rows + room)).astype(dtype)
    if random.random() < 0.5:
        return whole[..., :rows].swapaxes(-1, -2)
    return np.ascontiguousarray(whole.swapaxes(-1, -2))[..., :rows, :] if room else np.ascontiguousarray(whole.swapaxes(-1, -2))


@pytest.mark.parametrize(("precision", "dtype"), list(product(("fp32", "tf32", "bf16"), ("float32", "float64"))))
def test_products_of_rows(precision: str, dtype: str, library: Any) -> None:
    workspace = np.zeros(64, np.uint8)
    bound = cublas.Cublas(77, (address(workspace), 64), precision, library)
    state = library.seen().contents
    assert (state.stream, state.workspace, state.bytes) == (77, address(workspace), 64)
    assert 0 < state.stream_at < state.workspace_at, "setting a stream gives up the working memory"
    assert bound.version == 131000
    random = Random(precision + dtype)
    for _ in range(40):
        stack = random.choice(((), (), (1,), (3,), (2, 2)))
        rows, columns, inner = (random.randint(1, 6) for _ in range(3))
        a, b = laid(random, dtype, *stack, rows, inner), laid(random, dtype, *stack, inner, columns)
        out = np.random.default_rng(0).normal(size=(*stack, rows, columns)).astype(dtype)
        accumulate = random.random() < 0.5
        expected = a @ b + (out if accumulate else 0)
        lies = [x for array in (a, b, out) for x in (array.shape, tuple(s // array.itemsize for s in array.strides))]
        known = plan(*lies)
        if known is None:
            continue
        before = state.single, state.batched
        bound.gemm(column_major(known), out.dtype, address(b), address(a), address(out), accumulate)
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
        assert (state.single - before[0], state.batched - before[1]) == ((1, 0) if np.prod(stack) == 1 else (0, 1))
        assert state.compute == (cublas.COMPUTE_64 if dtype == "float64" else cublas.COMPUTE_32[precision])
        assert state.algorithm == -1
    bound.close()
    bound.close()


def test_what_it_refuses_is_an_error(library: Any) -> None:
    workspace = np.zeros(64, np.uint8)
    bound = cublas.Cublas(1, (address(workspace), 64), "fp32", library)
    known = plan((2, 2), (2, 1), (2, 2), (2, 1), (2, 2), (2, 1))
    assert known is not None
    x = np.zeros((2, 2), np.float32)
    bound._handle = ctypes.c_void_p(5)
    with pytest.raises(cublas.CublasError, match="status 7 for ColumnMajor"):
        bound.gemm(column_major(known), x.dtype, address(x), address(x), address(x), False)


# ---- the real one ----------------------------------------------------------------------------------------------------
def header() -> str:
    """The text of cublas_api.h."""
    for folder in sys.path:
        for found in sorted(Path(folder).glob("nvidia/*/include/cublas_api.h")):
            return found.read_text(encoding="utf-8")
    pytest.skip("cuBLAS's header is not installed: pip install nvidia-cublas")


def test_signatures_are_the_headers() -> None:
    text = re.sub(r"/\*.*?\*/", "", header(), flags=re.S)
    for name, ours in cublas.SIGNATURES.items():
        found = re.search(rf"cublasStatus_t CUBLASWINAPI {name}\((.*?)\)", text, re.S)
        assert found is not None, name
        kinds = [kind(one) for one in found[1].split(",")]
        assert [said(one) for one in ours] == kinds, name


def kind(parameter: str) -> str:
    """What crosses: a pointer, an int (enumerations too), a long long, or a size."""
    if "*" in parameter or re.search(r"cublasHandle_t|cudaStream_t", parameter):
        return "pointer"
    return "long" if "long long" in parameter else "size" if "size_t" in parameter else "int"


def said(parameter: Any) -> str:
    named = {ctypes.c_int: "int", ctypes.c_longlong: "long", ctypes.c_size_t: "size"}
    return named.get(parameter, "pointer")


def test_constants_are_the_headers() -> None:
    text = header()
    names = {"fp32": "CUBLAS_COMPUTE_32F", "tf32": "CUBLAS_COMPUTE_32F_FAST_TF32", "bf16": "CUBLAS_COMPUTE_32F_FAST_16BF"}
    for precision, name in names.items():
        assert re.search(rf"{name} = {cublas.COMPUTE_32[precision]},", text)
    assert re.search(rf"CUBLAS_COMPUTE_64F = {cublas.COMPUTE_64},", text)
    assert re.search(r"CUBLAS_OP_N = 0,", text) and re.search(r"CUBLAS_OP_T = 1,", text)
    assert re.search(rf"CUBLAS_GEMM_DEFAULT = {cublas.DEFAULT_ALGORITHM},", text)
