"""The compiled normalisation of channels: checks of the arguments, then the loops of native/loops/channels.h without the
GIL.

Arguments are contiguous numpy arrays of one dtype, float32 or float64; others raise TypeError or ValueError.
The definition is kernels/definitions/channels.py; tests/kernels/test_kernels_images.py holds them equal.
"""

import numpy as np

cimport numpy as cnp
from taskflow.kernels.native._arguments cimport flat, real_type

from taskflow.kernels.definitions.channels import ChannelKernels

cnp.import_array()

ctypedef Py_ssize_t Size

# ``single``: the arrays hold float32, else float64.
cdef extern from * nogil:
    """
    #define LOOPS "native/loops/channels.h"
    #include "native/loops/types.h"
    """
    void any_channel_sums(bint single, Size n, Size c, Size p, void* x, double* out)
    void any_channel_moments(bint single, Size n, Size c, Size p, void* x, double* out)
    void any_channel_products(bint single, Size n, Size c, Size p, void* x, void* dy, double* out)
    void any_channel_affine(bint single, Size n, Size c, Size p, void* x, void* scale, void* offset, void* out, bint add)
    void any_channel_scales(
        bint single, Size c, double* sums, double count, double eps, void* weight, void* bias, void* out)
    void any_channel_changes(
        bint single, Size c, double* sums, double count, double eps, void* weight, double* products, double* out)
    void any_channel_running(
        bint single, Size groups, Size c, double* moments, double count, double momentum, double correction, void* mean,
        void* variance, void* new_mean, void* new_variance)


cdef int three(str kernel, str name, cnp.ndarray array) except -1:
    if cnp.PyArray_NDIM(array) != 3:
        raise ValueError(f"{kernel}: {name} must have 3 dimensions (N, C, P), got {(<object>array).shape}")
    return 0


cdef int add_channels(cnp.ndarray x, cnp.ndarray out) except -1:
    """Adds to out (C) float64 the sum of every channel of x (N, C, P)."""
    cdef int kind = real_type("channel_sums", x)
    three("channel_sums", "x", x)
    cdef Size n = cnp.PyArray_DIM(x, 0), c = cnp.PyArray_DIM(x, 1), p = cnp.PyArray_DIM(x, 2)
    cdef void* a = flat("channel_sums", "x", x, kind, n * c * p, False)
    cdef double* b = <double*>flat("channel_sums", "out", out, cnp.NPY_FLOAT64, c, True)
    with nogil:
        any_channel_sums(kind == cnp.NPY_FLOAT32, n, c, p, a, b)
    return 0


class NativeChannels(ChannelKernels):
    """Compiled normalisation of channels."""

    __slots__ = ()

    def channel_sums(self, cnp.ndarray x not None, out not None, bint accumulate=False):
        sums = np.zeros((<object>x).shape[1])
        add_channels(x, sums)
        if accumulate:
            out += sums
        else:
            out[...] = sums

    def channel_moments(self, cnp.ndarray x not None, cnp.ndarray out not None):
        cdef int kind = real_type("channel_moments", x)
        three("channel_moments", "x", x)
        cdef Size n = cnp.PyArray_DIM(x, 0), c = cnp.PyArray_DIM(x, 1), p = cnp.PyArray_DIM(x, 2)
        cdef void* a = flat("channel_moments", "x", x, kind, n * c * p, False)
        cdef double* b = <double*>flat("channel_moments", "out", out, cnp.NPY_FLOAT64, 2 * c, True)
        with nogil:
            any_channel_moments(kind == cnp.NPY_FLOAT32, n, c, p, a, b)

    def channel_products(self, cnp.ndarray x not None, cnp.ndarray dy not None, cnp.ndarray out not None):
        cdef int kind = real_type("channel_products", x)
        three("channel_products", "x", x)
        cdef Size n = cnp.PyArray_DIM(x, 0), c = cnp.PyArray_DIM(x, 1), p = cnp.PyArray_DIM(x, 2)
        cdef void* a = flat("channel_products", "x", x, kind, n * c * p, False)
        cdef void* g = flat("channel_products", "dy", dy, kind, n * c * p, False)
        cdef double* b = <double*>flat("channel_products", "out", out, cnp.NPY_FLOAT64, 2 * c, True)
        with nogil:
            any_channel_products(kind == cnp.NPY_FLOAT32, n, c, p, a, g, b)

    def channel_affine(
        self, cnp.ndarray x not None, cnp.ndarray scale not None, cnp.ndarray offset not None,
        cnp.ndarray out not None, bint accumulate=False
    ):
        cdef int kind = real_type("channel_affine", x)
        three("channel_affine", "x", x)
        cdef Size n = cnp.PyArray_DIM(x, 0), c = cnp.PyArray_DIM(x, 1), p = cnp.PyArray_DIM(x, 2)
        cdef void* a = flat("channel_affine", "x", x, kind, n * c * p, False)
        cdef void* s = flat("channel_affine", "scale", scale, kind, c, False)
        cdef void* o = flat("channel_affine", "offset", offset, kind, c, False)
        cdef void* b = flat("channel_affine", "out", out, kind, n * c * p, True)
        with nogil:
            any_channel_affine(kind == cnp.NPY_FLOAT32, n, c, p, a, s, o, b, accumulate)

    def channel_scales(
        self, cnp.ndarray sums not None, double count, double eps, cnp.ndarray weight not None,
        cnp.ndarray bias not None, cnp.ndarray out not None
    ):
        cdef int kind = real_type("channel_scales", weight)
        cdef Size c = cnp.PyArray_SIZE(weight)
        cdef double* s = <double*>flat("channel_scales", "sums", sums, cnp.NPY_FLOAT64, 2 * c, False)
        cdef void* w = flat("channel_scales", "weight", weight, kind, c, False)
        cdef void* a = flat("channel_scales", "bias", bias, kind, c, False)
        cdef void* b = flat("channel_scales", "out", out, kind, 2 * c, True)
        with nogil:
            any_channel_scales(kind == cnp.NPY_FLOAT32, c, s, count, eps, w, a, b)

    def channel_changes(
        self, cnp.ndarray sums not None, double count, double eps, cnp.ndarray weight not None,
        cnp.ndarray products not None, cnp.ndarray out not None
    ):
        cdef int kind = real_type("channel_changes", weight)
        cdef Size c = cnp.PyArray_SIZE(weight)
        cdef double* s = <double*>flat("channel_changes", "sums", sums, cnp.NPY_FLOAT64, 2 * c, False)
        cdef void* w = flat("channel_changes", "weight", weight, kind, c, False)
        cdef double* a = <double*>flat("channel_changes", "products", products, cnp.NPY_FLOAT64, 2 * c, False)
        cdef double* b = <double*>flat("channel_changes", "out", out, cnp.NPY_FLOAT64, 5 * c, True)
        with nogil:
            any_channel_changes(kind == cnp.NPY_FLOAT32, c, s, count, eps, w, a, b)

    def channel_running(
        self, cnp.ndarray moments not None, double count, double momentum, double correction,
        cnp.ndarray mean not None, cnp.ndarray variance not None, cnp.ndarray new_mean not None,
        cnp.ndarray new_variance not None
    ):
        cdef int kind = real_type("channel_running", mean)
        three("channel_running", "moments", moments)
        cdef Size g = cnp.PyArray_DIM(moments, 0), c = cnp.PyArray_SIZE(mean)
        cdef double* s = <double*>flat("channel_running", "moments", moments, cnp.NPY_FLOAT64, 2 * g * c, False)
        cdef void* m = flat("channel_running", "mean", mean, kind, c, False)
        cdef void* v = flat("channel_running", "variance", variance, kind, c, False)
        cdef void* a = flat("channel_running", "new_mean", new_mean, kind, c, True)
        cdef void* b = flat("channel_running", "new_variance", new_variance, kind, c, True)
        with nogil:
            any_channel_running(kind == cnp.NPY_FLOAT32, g, c, s, count, momentum, correction, m, v, a, b)
