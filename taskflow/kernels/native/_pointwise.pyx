"""The compiled layer normalisation and activations: checks of the arguments, then the loops of native/loops/pointwise.h
without the GIL.

Arguments are contiguous numpy arrays of one dtype, float32 or float64; others raise TypeError or ValueError.
The definition is kernels/definitions/pointwise.py; tests/kernels/test_kernels_pointwise.py holds them equal.
"""

cimport numpy as cnp
from taskflow.kernels.native._arguments cimport flat, real_type, two

from taskflow.kernels.definitions.pointwise import PointwiseKernels

cnp.import_array()

ctypedef Py_ssize_t Size

# ``single``: the arrays hold float32, else float64.
cdef extern from * nogil:
    """
    #define LOOPS "native/loops/pointwise.h"
    #include "native/loops/types.h"
    """
    void any_exp(bint single, Size n, void* x, void* out)
    void any_layer_norm(
        bint single, Size rows, Size width, void* x, void* weight, void* bias, double eps, void* out, void* statistics)
    void any_layer_norm_backward(
        bint single, Size rows, Size width, void* x, void* weight, void* statistics, void* dy, void* out, void* sums,
        bint add)
    void any_relu(bint single, Size n, void* x, void* out)
    void any_relu_backward(bint single, Size n, void* y, void* dy, void* out, bint add)
    void any_sigmoid(bint single, Size n, void* x, void* out)
    void any_sigmoid_backward(bint single, Size n, void* y, void* dy, void* out, bint add)
    void any_tanh(bint single, Size n, void* x, void* out)
    void any_tanh_backward(bint single, Size n, void* y, void* dy, void* out, bint add)
    void any_gelu(bint single, Size n, void* x, bint approximate, void* out)
    void any_gelu_backward(bint single, Size n, void* x, bint approximate, void* dy, void* out, bint add)


cdef int unknown(str kernel, str function) except -1:
    raise ValueError(f"{kernel}: function must be relu, sigmoid or tanh, got {function!r}")


class NativePointwise(PointwiseKernels):
    """Compiled layer normalisation and activations."""

    __slots__ = ()

    def layer_norm(
        self, cnp.ndarray x not None, cnp.ndarray weight not None, cnp.ndarray bias not None, double eps,
        cnp.ndarray out not None, cnp.ndarray statistics not None
    ):
        cdef int kind = real_type("layer_norm", x)
        two("layer_norm", "x", x)
        cdef Size n = cnp.PyArray_DIM(x, 0), width = cnp.PyArray_DIM(x, 1)
        cdef void* a = flat("layer_norm", "x", x, kind, n * width, False)
        cdef void* w = flat("layer_norm", "weight", weight, kind, width, False)
        cdef void* b = flat("layer_norm", "bias", bias, kind, width, False)
        cdef void* y = flat("layer_norm", "out", out, kind, n * width, True)
        cdef void* s = flat("layer_norm", "statistics", statistics, kind, 2 * n, True)
        with nogil:
            any_layer_norm(kind == cnp.NPY_FLOAT32, n, width, a, w, b, eps, y, s)

    def layer_norm_backward(
        self, cnp.ndarray x not None, cnp.ndarray weight not None, cnp.ndarray statistics not None,
        cnp.ndarray dy not None, out, sums, bint accumulate=False
    ):
        cdef int kind = real_type("layer_norm_backward", x)
        two("layer_norm_backward", "x", x)
        cdef Size n = cnp.PyArray_DIM(x, 0), width = cnp.PyArray_DIM(x, 1)
        cdef void* a = flat("layer_norm_backward", "x", x, kind, n * width, False)
        cdef void* w = flat("layer_norm_backward", "weight", weight, kind, width, False)
        cdef void* s = flat("layer_norm_backward", "statistics", statistics, kind, 2 * n, False)
        cdef void* g = flat("layer_norm_backward", "dy", dy, kind, n * width, False)
        cdef void* d = NULL if out is None else flat("layer_norm_backward", "out", out, kind, n * width, True)
        cdef void* t = NULL if sums is None else flat("layer_norm_backward", "sums", sums, kind, 2 * width, True)
        with nogil:
            any_layer_norm_backward(kind == cnp.NPY_FLOAT32, n, width, a, w, s, g, d, t, accumulate)

    def activate(self, str function not None, cnp.ndarray x not None, cnp.ndarray out not None):
        cdef int kind = real_type("activate", x)
        cdef bint single = kind == cnp.NPY_FLOAT32
        cdef Size n = cnp.PyArray_SIZE(x)
        cdef void* a = flat("activate", "x", x, kind, n, False)
        cdef void* b = flat("activate", "out", out, kind, n, True)
        if function == "relu":
            with nogil:
                any_relu(single, n, a, b)
        elif function == "sigmoid":
            with nogil:
                any_sigmoid(single, n, a, b)
        elif function == "tanh":
            with nogil:
                any_tanh(single, n, a, b)
        else:
            unknown("activate", function)

    def activate_backward(
        self, str function not None, cnp.ndarray y not None, cnp.ndarray dy not None, cnp.ndarray out not None,
        bint accumulate=False
    ):
        cdef int kind = real_type("activate_backward", y)
        cdef bint single = kind == cnp.NPY_FLOAT32
        cdef Size n = cnp.PyArray_SIZE(y)
        cdef void* a = flat("activate_backward", "y", y, kind, n, False)
        cdef void* g = flat("activate_backward", "dy", dy, kind, n, False)
        cdef void* b = flat("activate_backward", "out", out, kind, n, True)
        if function == "relu":
            with nogil:
                any_relu_backward(single, n, a, g, b, accumulate)
        elif function == "sigmoid":
            with nogil:
                any_sigmoid_backward(single, n, a, g, b, accumulate)
        elif function == "tanh":
            with nogil:
                any_tanh_backward(single, n, a, g, b, accumulate)
        else:
            unknown("activate_backward", function)

    def gelu(self, cnp.ndarray x not None, bint approximate, cnp.ndarray out not None):
        cdef int kind = real_type("gelu", x)
        cdef Size n = cnp.PyArray_SIZE(x)
        cdef void* a = flat("gelu", "x", x, kind, n, False)
        cdef void* b = flat("gelu", "out", out, kind, n, True)
        with nogil:
            any_gelu(kind == cnp.NPY_FLOAT32, n, a, approximate, b)

    def gelu_backward(
        self, cnp.ndarray x not None, bint approximate, cnp.ndarray dy not None, cnp.ndarray out not None,
        bint accumulate=False
    ):
        cdef int kind = real_type("gelu_backward", x)
        cdef Size n = cnp.PyArray_SIZE(x)
        cdef void* a = flat("gelu_backward", "x", x, kind, n, False)
        cdef void* g = flat("gelu_backward", "dy", dy, kind, n, False)
        cdef void* b = flat("gelu_backward", "out", out, kind, n, True)
        with nogil:
            any_gelu_backward(kind == cnp.NPY_FLOAT32, n, a, approximate, g, b, accumulate)


def elementwise(str function, cnp.ndarray x not None, cnp.ndarray out not None):
    """out = exp, sigmoid or tanh of x, contiguous arrays of one size: the loops' building blocks, on their own for tests."""
    cdef int kind = real_type(function, x)
    cdef bint single = kind == cnp.NPY_FLOAT32
    cdef Py_ssize_t n = cnp.PyArray_SIZE(x)
    cdef void* a = flat(function, "x", x, kind, n, False)
    cdef void* b = flat(function, "out", out, kind, n, True)
    if function == "exp":
        any_exp(single, n, a, b)
    elif function == "sigmoid":
        any_sigmoid(single, n, a, b)
    elif function == "tanh":
        any_tanh(single, n, a, b)
    else:
        raise ValueError(f"elementwise: function must be exp, sigmoid or tanh, got {function!r}")
