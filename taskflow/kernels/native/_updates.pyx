"""The compiled update rules: checks of the arguments, then the loops of native/loops/updates.h without the GIL.

Arguments are contiguous numpy arrays of one dtype, float32 or float64; others raise TypeError or ValueError.
The definition is kernels/definitions/updates.py; tests/kernels/test_kernels_updates.py holds them equal.
"""

cimport numpy as cnp
from taskflow.kernels.native._arguments cimport flat, real_type

from taskflow.kernels.definitions.updates import UpdateKernels

cnp.import_array()

ctypedef Py_ssize_t Size

# ``single``: the arrays hold float32, else float64.
cdef extern from * nogil:
    """
    #define LOOPS "native/loops/updates.h"
    #include "native/loops/types.h"
    """
    double any_sum_of_squares(bint single, Size n, void* x)
    void any_sgd(
        bint single, Size n, void* w, void* g, void* velocity, double lr, double momentum, double kept, double decay,
        double scale, int mode, bint nesterov)
    void any_adam(
        bint single, Size n, void* w, void* g, void* m, void* v, double size, double rest1, double beta2, double rest2,
        double root, double eps, double decay, double scale, int mode)


class NativeUpdates(UpdateKernels):
    """Compiled steps of update rules."""

    __slots__ = ()

    def sgd(
        self, cnp.ndarray w not None, cnp.ndarray g not None, velocity, double lr, double momentum, double dampening,
        double weight_decay, bint nesterov, double scale, bint first
    ):
        cdef int kind = real_type("sgd", w)
        cdef Py_ssize_t n = cnp.PyArray_SIZE(w)
        cdef void* a = flat("sgd", "w", w, kind, n, True)
        cdef void* b = flat("sgd", "g", g, kind, n, False)
        cdef void* c = NULL
        if velocity is not None:
            c = flat("sgd", "velocity", velocity, kind, n, True)
        cdef int mode = 0 if velocity is None else 1 if first else 2
        with nogil:
            any_sgd(
                kind == cnp.NPY_FLOAT32, n, a, b, c, lr, momentum, 1 - dampening, weight_decay, scale, mode, nesterov)

    def adam(
        self, cnp.ndarray w not None, cnp.ndarray g not None, cnp.ndarray m not None, cnp.ndarray v not None,
        double lr, double beta1, double beta2, double eps, double weight_decay, bint decoupled, double scale, int step
    ):
        cdef int kind = real_type("adam", w)
        cdef Py_ssize_t n = cnp.PyArray_SIZE(w)
        cdef void* weights = flat("adam", "w", w, kind, n, True)
        cdef void* gradient = flat("adam", "g", g, kind, n, False)
        cdef void* mean = flat("adam", "m", m, kind, n, True)
        cdef void* square = flat("adam", "v", v, kind, n, True)
        if step < 1:
            raise ValueError(f"adam: step counts from 1, got {step}")
        cdef int mode = 0 if weight_decay == 0 else 2 if decoupled else 1
        cdef double decay = 1 - lr * weight_decay if mode == 2 else weight_decay
        cdef double size = lr / (1 - beta1**step), root = (1 - beta2**step) ** 0.5
        with nogil:
            any_adam(
                kind == cnp.NPY_FLOAT32, n, weights, gradient, mean, square, size, 1 - beta1, beta2, 1 - beta2, root, eps,
                decay, scale, mode)

    def sum_of_squares(self, cnp.ndarray x not None):
        cdef int kind = real_type("sum_of_squares", x)
        cdef Py_ssize_t n = cnp.PyArray_SIZE(x)
        cdef void* data = flat("sum_of_squares", "x", x, kind, n, False)
        cdef double total
        with nogil:
            total = any_sum_of_squares(kind == cnp.NPY_FLOAT32, n, data)
        return total
