"""The compiled matrix products: checks of the arguments, then the loops of native/loops/products.h without the GIL.

They are loops for few rows, and else the call of a BLAS.
The definition is kernels/definitions/products.py; tests/kernels/test_kernels_matmul.py holds them equal.
"""

import numpy as np

cimport numpy as cnp
from libc.limits cimport INT_MAX
from libc.stdint cimport uintptr_t
from taskflow.kernels.native._arguments cimport usable

from taskflow.kernels.definitions.products import ProductKernels
from taskflow.kernels.native.scratch import scratch

cnp.import_array()

ctypedef Py_ssize_t Size

# ``single``: the arrays hold float32, else float64. Leading dimensions in elements.
# skinny: out (m, n) = a (m, k) b, b stored (n, k) for nt and (k, n) for nn.
cdef extern from * nogil:
    """
    #define LOOPS "native/loops/products.h"
    #include "native/loops/types.h"
    """
    int instruction_level()
    void any_skinny_nt(
        bint single, Size m, Size n, Size k, void* a, Size lda, void* b, Size ldb, void* out, Size ldo, bint add)
    void any_skinny_nn(
        bint single, Size m, Size n, Size k, void* a, Size lda, void* b, Size ldb, void* out, Size ldo, bint add)
    void any_gemm(
        bint single, void* address, bint wide, bint transpose_a, bint transpose_b, Size m, Size n, Size k,
        void* a, Size lda, void* b, Size ldb, void* out, Size ldo, bint add)

cdef void* sgemm_address = NULL
cdef void* dgemm_address = NULL
cdef bint wide_integers = False
# Up to this many rows of a, the loops that read b where it lies beat a BLAS that packs it: float32, one thread, b of
# 1024 x 1024, AVX-512 against OpenBLAS 0.3.31: 2-7 times at 2 to 8 rows, 1.3-2 at 16, none from 24 on.
cdef Py_ssize_t few_rows = 16 if instruction_level() == 3 else 8 if instruction_level() == 2 else 0


def use_blas(sgemm, dgemm, bint wide):
    """Take cblas_sgemm and cblas_dgemm at these addresses; ``wide``: their integers have 64 bits."""
    global sgemm_address, dgemm_address, wide_integers
    sgemm_address, dgemm_address, wide_integers = <void*><uintptr_t>sgemm, <void*><uintptr_t>dgemm, wide


cdef struct Matrix:
    char* data
    Py_ssize_t leading  # elements from row to row (of the transpose if ``transposed``)
    bint transposed


cdef bint matrix(cnp.ndarray array, int kind, bint write, Matrix* out):
    """The last two dimensions as BLAS wants them; False if their strides do not allow it."""
    if cnp.PyArray_NDIM(array) < 2 or not usable(array, kind, write):
        return False
    cdef int last = cnp.PyArray_NDIM(array) - 1
    cdef Py_ssize_t item = cnp.PyArray_ITEMSIZE(array)
    cdef Py_ssize_t r = cnp.PyArray_DIM(array, last - 1), c = cnp.PyArray_DIM(array, last)
    cdef Py_ssize_t sr = cnp.PyArray_STRIDE(array, last - 1), sc = cnp.PyArray_STRIDE(array, last)
    out.data = <char*>cnp.PyArray_DATA(array)
    if (c == 1 or sc == item) and (r == 1 or (sr >= c * item and sr % item == 0)):
        out.leading, out.transposed = (c if r == 1 else sr // item), False
        return True
    if (r == 1 or sr == item) and (c == 1 or (sc >= r * item and sc % item == 0)):
        out.leading, out.transposed = (r if c == 1 else sc // item), True
        return not write
    return False


cdef bint multiplied(cnp.ndarray a, cnp.ndarray b, cnp.ndarray out, bint accumulate):
    """out (..., M, N) = or += a (..., M, K) @ b (..., K, N). Returns False, with nothing done, where it cannot: other
    strides or dtypes, broadcast or empty dimensions, more rows than the skinny loops take and no BLAS."""
    cdef Matrix x, y, z
    cdef int kind = cnp.PyArray_TYPE(out), dims = cnp.PyArray_NDIM(out), d
    if kind != cnp.NPY_FLOAT32 and kind != cnp.NPY_FLOAT64:
        return False
    if not (matrix(a, kind, False, &x) and matrix(b, kind, False, &y) and matrix(out, kind, True, &z)):
        return False
    if cnp.PyArray_NDIM(a) != dims or cnp.PyArray_NDIM(b) != dims:
        return False
    cdef Py_ssize_t m = cnp.PyArray_DIM(a, dims - 2), k = cnp.PyArray_DIM(a, dims - 1), n = cnp.PyArray_DIM(b, dims - 1)
    if cnp.PyArray_DIM(b, dims - 2) != k or cnp.PyArray_DIM(out, dims - 2) != m or cnp.PyArray_DIM(out, dims - 1) != n:
        return False
    cdef Py_ssize_t count = 1, number, rest, at
    for d in range(dims - 2):
        if cnp.PyArray_DIM(a, d) != cnp.PyArray_DIM(out, d) or cnp.PyArray_DIM(b, d) != cnp.PyArray_DIM(out, d):
            return False
        count *= cnp.PyArray_DIM(out, d)
    if m == 0 or k == 0 or n == 0:
        return False
    cdef bint single = kind == cnp.NPY_FLOAT32
    # Where b is transposed and sums are short, the loops spend their time adding up vectors.
    cdef bint skinny = m <= few_rows and not x.transposed and (not y.transposed or k >= 256 or m <= 8)
    cdef void* address = sgemm_address if single else dgemm_address
    if not skinny and address == NULL:
        return False
    if not skinny and not wide_integers and max(m, n, k, x.leading, y.leading, z.leading) > INT_MAX:
        return False
    cdef char* pa
    cdef char* pb
    cdef char* po
    with nogil:
        for number in range(count):
            pa, pb, po, rest = x.data, y.data, z.data, number
            for d in range(dims - 3, -1, -1):
                at = rest % cnp.PyArray_DIM(out, d)
                rest //= cnp.PyArray_DIM(out, d)
                pa += at * cnp.PyArray_STRIDE(a, d)
                pb += at * cnp.PyArray_STRIDE(b, d)
                po += at * cnp.PyArray_STRIDE(out, d)
            if not skinny:
                any_gemm(single, address, wide_integers, x.transposed, y.transposed, m, n, k, <void*>pa,
                         x.leading, <void*>pb, y.leading, <void*>po, z.leading, accumulate)
            elif y.transposed:
                any_skinny_nt(
                    single, m, n, k, <void*>pa, x.leading, <void*>pb, y.leading, <void*>po, z.leading, accumulate)
            else:
                any_skinny_nn(
                    single, m, n, k, <void*>pa, x.leading, <void*>pb, y.leading, <void*>po, z.leading, accumulate)
    return True


class NativeProducts(ProductKernels):
    """Compiled products, with numpy's where neither the loops nor the BLAS can read the arrays as they lie."""

    __slots__ = ()

    def matmul(self, cnp.ndarray a not None, cnp.ndarray b not None, cnp.ndarray out not None, bint accumulate=False):
        if multiplied(a, b, out, accumulate):
            return
        if accumulate:
            product = scratch((<object>out).shape, (<object>out).dtype, "product")
            np.matmul(a, b, out=product)
            np.add(out, product, out=out)
        else:
            np.matmul(a, b, out=out)
