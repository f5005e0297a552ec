"""The compiled pooling: checks of the arguments, then the loops of native/loops/pooling.h without the GIL.

Arguments are contiguous numpy arrays of one dtype, float32 or float64; others raise TypeError or ValueError.
The definition is kernels/definitions/pooling.py; tests/kernels/test_kernels_images.py holds them equal.
"""

cimport numpy as cnp
from taskflow.kernels.native._arguments cimport flat, real_type, refuse
from taskflow.kernels.native._windows cimport Size, Windows, windows

from taskflow.kernels.definitions.pooling import PoolingKernels

cnp.import_array()

# ``single``: the arrays hold float32, else float64.
cdef extern from * nogil:
    """
    #define LOOPS "native/loops/pooling.h"
    #include "native/loops/types.h"
    """
    void any_max_pool(bint single, Windows* w, void* x, void* out, void* index, int bytes)
    void any_max_pool_backward(bint single, Windows* w, void* dy, void* index, int bytes, void* out, bint add)
    void any_sum_pool(bint single, Windows* w, void* x, void* scale, void* out)
    void any_sum_pool_backward(bint single, Windows* w, void* dy, void* scale, void* out, bint add)


cdef int pooled(str kernel, Windows* w, cnp.ndarray image, cnp.ndarray out, tuple element, tuple stride, tuple padding,
                tuple dilation) except -1:
    """The geometry of windows ``out`` (N, C, Ho, Wo) over ``image`` (N, C, H, W)."""
    cdef tuple a = (<object>image).shape, b = (<object>out).shape
    if len(a) != 4 or len(b) != 4 or a[:2] != b[:2]:
        raise ValueError(f"{kernel}: needs images (N, C, H, W) and windows (N, C, Ho, Wo), got {a} and {b}")
    return windows(kernel, w, a[0] * a[1], a[2:], b[2:], element, stride, padding, dilation)


cdef void* which(str kernel, cnp.ndarray index, Size size, Size elements) except? NULL:
    """The array of unsigned integers that number the elements of a window."""
    cdef int kind = cnp.PyArray_TYPE(index)
    if kind != cnp.NPY_UINT8 and kind != cnp.NPY_UINT16 and kind != cnp.NPY_UINT32:
        raise TypeError(f"{kernel}: index must be uint8, uint16 or uint32, got {(<object>index).dtype}")
    if elements > <Size>1 << 8 * cnp.PyArray_ITEMSIZE(index):
        raise TypeError(f"{kernel}: {(<object>index).dtype} cannot number the {elements} elements of a window")
    return flat(kernel, "index", index, kind, size, False)


class NativePooling(PoolingKernels):
    """Compiled pooling."""

    __slots__ = ()

    def max_pool2d(
        self, cnp.ndarray x not None, tuple kernel, tuple stride, tuple padding, cnp.ndarray out not None,
        cnp.ndarray index not None, tuple dilation=(1, 1)
    ):
        cdef int kind = real_type("max_pool2d", x)
        cdef Windows w
        pooled("max_pool2d", &w, x, out, kernel, stride, padding, dilation)
        cdef Size size = cnp.PyArray_SIZE(out)
        cdef void* a = flat("max_pool2d", "x", x, kind, cnp.PyArray_SIZE(x), False)
        cdef void* b = flat("max_pool2d", "out", out, kind, size, True)
        cdef void* i = which("max_pool2d", index, size, w.kernel[0] * w.kernel[1])
        cdef int nbytes = cnp.PyArray_ITEMSIZE(index)
        if not cnp.PyArray_ISWRITEABLE(index):
            refuse("max_pool2d", "index", (<object>out).shape, cnp.PyArray_TYPE(index), index)
        with nogil:
            any_max_pool(kind == cnp.NPY_FLOAT32, &w, a, b, i, nbytes)

    def max_pool2d_backward(
        self, cnp.ndarray dy not None, cnp.ndarray index not None, tuple kernel, tuple stride, tuple padding,
        cnp.ndarray out not None, bint accumulate=False, tuple dilation=(1, 1)
    ):
        cdef int kind = real_type("max_pool2d_backward", dy)
        cdef Windows w
        pooled("max_pool2d_backward", &w, out, dy, kernel, stride, padding, dilation)
        cdef Size size = cnp.PyArray_SIZE(dy)
        cdef void* a = flat("max_pool2d_backward", "dy", dy, kind, size, False)
        cdef void* i = which("max_pool2d_backward", index, size, 1)
        cdef void* b = flat("max_pool2d_backward", "out", out, kind, cnp.PyArray_SIZE(out), True)
        cdef int nbytes = cnp.PyArray_ITEMSIZE(index)
        with nogil:
            any_max_pool_backward(kind == cnp.NPY_FLOAT32, &w, a, i, nbytes, b, accumulate)

    def sum_pool2d(
        self, cnp.ndarray x not None, tuple kernel, tuple stride, tuple padding, cnp.ndarray scale not None,
        cnp.ndarray out not None
    ):
        cdef int kind = real_type("sum_pool2d", x)
        cdef Windows w
        pooled("sum_pool2d", &w, x, out, kernel, stride, padding, (1, 1))
        cdef void* a = flat("sum_pool2d", "x", x, kind, cnp.PyArray_SIZE(x), False)
        cdef void* s = flat("sum_pool2d", "scale", scale, kind, w.out[0] * w.out[1], False)
        cdef void* b = flat("sum_pool2d", "out", out, kind, cnp.PyArray_SIZE(out), True)
        with nogil:
            any_sum_pool(kind == cnp.NPY_FLOAT32, &w, a, s, b)

    def sum_pool2d_backward(
        self, cnp.ndarray dy not None, tuple kernel, tuple stride, tuple padding, cnp.ndarray scale not None,
        cnp.ndarray out not None, bint accumulate=False
    ):
        cdef int kind = real_type("sum_pool2d_backward", dy)
        cdef Windows w
        pooled("sum_pool2d_backward", &w, out, dy, kernel, stride, padding, (1, 1))
        cdef void* a = flat("sum_pool2d_backward", "dy", dy, kind, cnp.PyArray_SIZE(dy), False)
        cdef void* s = flat("sum_pool2d_backward", "scale", scale, kind, w.out[0] * w.out[1], False)
        cdef void* b = flat("sum_pool2d_backward", "out", out, kind, cnp.PyArray_SIZE(out), True)
        with nogil:
            any_sum_pool_backward(kind == cnp.NPY_FLOAT32, &w, a, s, b, accumulate)
