"""The compiled softmax and losses: checks of the arguments, then the loops of native/loops/losses.h without the GIL.

Arguments are numpy arrays of one dtype, float32 or float64, with contiguous rows (strides over rows are free); others
raise TypeError or ValueError.
The definition is kernels/definitions/losses.py; tests/kernels/test_kernels_agree.py holds them equal.
"""

cimport numpy as cnp
from libc.stdint cimport int64_t
from taskflow.kernels.native._arguments cimport Rows, integers, real_type, rows2, two

from taskflow.kernels.definitions.losses import LossKernels

cnp.import_array()

ctypedef Py_ssize_t Size

# ``single``: the arrays hold float32, else float64. Strides: bytes from row to row.
# classes, blocks, first: how all classes are divided, and the first block that is here. Pairs: of double.
cdef extern from * nogil:
    """
    #define LOOPS "native/loops/losses.h"
    #include "native/loops/types.h"
    """
    void any_softmax(
        bint single, Size rows, Size width, void* x, Size x_stride, int64_t* ends, void* out, Size out_stride)
    void any_softmax_backward(
        bint single, Size rows, Size width, void* y, Size y_stride, void* dy, Size dy_stride,
        void* out, Size out_stride, bint add)
    double any_cross_entropy(
        bint single, Size rows, Size width, void* logits, Size logits_stride, int64_t* target, int64_t ignore,
        double smoothing, void* probabilities, Size probabilities_stride)
    void any_cross_entropy_backward(
        bint single, Size rows, Size width, void* probabilities, Size probabilities_stride, int64_t* target,
        int64_t ignore, double smoothing, double scale, void* out, Size out_stride, bint add)
    void any_class_blocks(
        bint single, Size rows, Size here, Size classes, Size blocks, Size first, void* logits, Size logits_stride,
        int64_t* target, int64_t ignore, double smoothing, void* probabilities, Size probabilities_stride,
        void* pairs, Size pairs_stride)
    void any_class_blocks_backward(
        bint single, Size rows, Size here, Size classes, Size blocks, Size first, void* probabilities,
        Size probabilities_stride, int64_t* target, int64_t ignore, double smoothing, void* pairs, Size pairs_stride,
        void* out, Size out_stride, bint add)
    double any_cross_entropy_of_blocks(
        bint single, Size rows, Size blocks, void* pairs, Size pairs_stride, int64_t* target, int64_t ignore,
        void* shares, Size shares_stride)
    void any_cross_entropy_of_blocks_backward(
        bint single, Size rows, Size blocks, void* shares, Size shares_stride, int64_t* target, int64_t ignore,
        double scale, void* out, Size out_stride, bint add)


cdef int targets_inside(str kernel, int64_t* target, Py_ssize_t n, int64_t ignore, Py_ssize_t width) except -1:
    cdef Py_ssize_t row
    for row in range(n):
        if target[row] != ignore and not 0 <= target[row] < width:
            raise IndexError(
                f"{kernel}: a target must lie in [0, {width}) or be ignore={ignore}, got {target[row]} in row {row}")
    return 0


cdef Py_ssize_t blocks_here(str kernel, tuple split, Py_ssize_t width, Py_ssize_t pairs) except -1:
    """How many blocks the pairs are of; ValueError unless the columns are just these blocks' classes."""
    cdef Py_ssize_t classes = split[0], blocks = split[1], first = split[2], here = pairs // 2
    if (
        pairs % 2 or not 1 <= blocks <= classes or first < 0 or first + here > blocks
        or width != (first + here) * classes // blocks - first * classes // blocks
    ):
        raise ValueError(
            f"{kernel}: {width} columns and {pairs} / 2 pairs are no blocks of (classes, blocks, first) = {split}")
    return here


class NativeLosses(LossKernels):
    """Compiled softmax and losses."""

    __slots__ = ()

    def softmax(self, cnp.ndarray x not None, cnp.ndarray out not None, ends=None):
        cdef int kind = real_type("softmax", x)
        cdef Rows a, b
        two("softmax", "x", x)
        two("softmax", "out", out)
        cdef Py_ssize_t n = cnp.PyArray_DIM(x, 0), seen = cnp.PyArray_DIM(x, 1), width = cnp.PyArray_DIM(out, 1), row
        rows2("softmax", "x", x, kind, n, seen, False, &a)
        rows2("softmax", "out", out, kind, n, seen if ends is None else width, True, &b)
        cdef int64_t* e = NULL
        cdef cnp.ndarray given
        if ends is not None:
            given = integers("softmax", "ends", ends, n)
            e = <int64_t*>cnp.PyArray_DATA(given)
            for row in range(n):
                if not 0 <= e[row] <= min(seen, width):
                    raise ValueError(
                        f"softmax: ends must lie in [0, {min(seen, width)}], the columns of x, got {e[row]} in row {row}")
        with nogil:
            any_softmax(kind == cnp.NPY_FLOAT32, n, width, a.data, a.stride, e, b.data, b.stride)

    def softmax_backward(
        self, cnp.ndarray y not None, cnp.ndarray dy not None, cnp.ndarray out not None, bint accumulate=False
    ):
        cdef int kind = real_type("softmax_backward", y)
        cdef Rows a, b, c
        two("softmax_backward", "y", y)
        cdef Py_ssize_t n = cnp.PyArray_DIM(y, 0), width = cnp.PyArray_DIM(y, 1)
        rows2("softmax_backward", "y", y, kind, n, width, False, &a)
        rows2("softmax_backward", "dy", dy, kind, n, width, False, &b)
        rows2("softmax_backward", "out", out, kind, n, width, True, &c)
        with nogil:
            any_softmax_backward(
                kind == cnp.NPY_FLOAT32, n, width, a.data, a.stride, b.data, b.stride, c.data, c.stride, accumulate)

    def cross_entropy(
        self, cnp.ndarray logits not None, target, int64_t ignore, cnp.ndarray probabilities not None,
        double smoothing=0.0
    ):
        cdef int kind = real_type("cross_entropy", logits)
        cdef Rows a, b
        cdef double loss
        two("cross_entropy", "logits", logits)
        cdef Py_ssize_t n = cnp.PyArray_DIM(logits, 0), width = cnp.PyArray_DIM(logits, 1)
        rows2("cross_entropy", "logits", logits, kind, n, width, False, &a)
        rows2("cross_entropy", "probabilities", probabilities, kind, n, width, True, &b)
        cdef cnp.ndarray wanted = integers("cross_entropy", "target", target, n)
        cdef int64_t* t = <int64_t*>cnp.PyArray_DATA(wanted)
        targets_inside("cross_entropy", t, n, ignore, width)
        with nogil:
            loss = any_cross_entropy(
                kind == cnp.NPY_FLOAT32, n, width, a.data, a.stride, t, ignore, smoothing, b.data, b.stride)
        return loss

    def cross_entropy_backward(
        self, cnp.ndarray probabilities not None, target, int64_t ignore, double scale, cnp.ndarray out not None,
        bint accumulate=False, double smoothing=0.0
    ):
        cdef int kind = real_type("cross_entropy_backward", probabilities)
        cdef Rows a, b
        two("cross_entropy_backward", "probabilities", probabilities)
        cdef Py_ssize_t n = cnp.PyArray_DIM(probabilities, 0), width = cnp.PyArray_DIM(probabilities, 1)
        rows2("cross_entropy_backward", "probabilities", probabilities, kind, n, width, False, &a)
        rows2("cross_entropy_backward", "out", out, kind, n, width, True, &b)
        cdef cnp.ndarray wanted = integers("cross_entropy_backward", "target", target, n)
        cdef int64_t* t = <int64_t*>cnp.PyArray_DATA(wanted)
        targets_inside("cross_entropy_backward", t, n, ignore, width)
        with nogil:
            any_cross_entropy_backward(
                kind == cnp.NPY_FLOAT32, n, width, a.data, a.stride, t, ignore, smoothing, scale, b.data, b.stride, accumulate)

    def class_blocks(
        self, cnp.ndarray logits not None, target, int64_t ignore, tuple split, cnp.ndarray probabilities not None,
        cnp.ndarray out not None, double smoothing=0.0
    ):
        cdef int kind = real_type("class_blocks", logits)
        cdef Rows a, b, c
        two("class_blocks", "logits", logits)
        two("class_blocks", "out", out)
        cdef Py_ssize_t n = cnp.PyArray_DIM(logits, 0), width = cnp.PyArray_DIM(logits, 1), pairs = cnp.PyArray_DIM(out, 1)
        cdef Py_ssize_t here = blocks_here("class_blocks", split, width, pairs)
        cdef Py_ssize_t classes = split[0], blocks = split[1], first = split[2]
        rows2("class_blocks", "logits", logits, kind, n, width, False, &a)
        rows2("class_blocks", "probabilities", probabilities, kind, n, width, True, &b)
        rows2("class_blocks", "out", out, cnp.NPY_FLOAT64, n, pairs, True, &c)
        cdef cnp.ndarray wanted = integers("class_blocks", "target", target, n)
        cdef int64_t* t = <int64_t*>cnp.PyArray_DATA(wanted)
        targets_inside("class_blocks", t, n, ignore, classes)
        with nogil:
            any_class_blocks(
                kind == cnp.NPY_FLOAT32, n, here, classes, blocks, first, a.data, a.stride, t, ignore, smoothing,
                b.data, b.stride, c.data, c.stride)

    def class_blocks_backward(
        self, cnp.ndarray probabilities not None, target, int64_t ignore, tuple split, cnp.ndarray dy not None,
        cnp.ndarray out not None, bint accumulate=False, double smoothing=0.0
    ):
        cdef int kind = real_type("class_blocks_backward", probabilities)
        cdef Rows a, b, c
        two("class_blocks_backward", "probabilities", probabilities)
        two("class_blocks_backward", "dy", dy)
        cdef Py_ssize_t n = cnp.PyArray_DIM(probabilities, 0), width = cnp.PyArray_DIM(probabilities, 1)
        cdef Py_ssize_t pairs = cnp.PyArray_DIM(dy, 1), here = blocks_here("class_blocks_backward", split, width, pairs)
        cdef Py_ssize_t classes = split[0], blocks = split[1], first = split[2]
        rows2("class_blocks_backward", "probabilities", probabilities, kind, n, width, False, &a)
        rows2("class_blocks_backward", "dy", dy, cnp.NPY_FLOAT64, n, pairs, False, &b)
        rows2("class_blocks_backward", "out", out, kind, n, width, True, &c)
        cdef cnp.ndarray wanted = integers("class_blocks_backward", "target", target, n)
        cdef int64_t* t = <int64_t*>cnp.PyArray_DATA(wanted)
        targets_inside("class_blocks_backward", t, n, ignore, classes)
        with nogil:
            any_class_blocks_backward(
                kind == cnp.NPY_FLOAT32, n, here, classes, blocks, first, a.data, a.stride, t, ignore, smoothing,
                b.data, b.stride, c.data, c.stride, accumulate)

    def cross_entropy_of_blocks(self, cnp.ndarray y not None, target, int64_t ignore, cnp.ndarray shares not None):
        cdef int kind = real_type("cross_entropy_of_blocks", y)
        cdef Rows a, b
        cdef double loss
        two("cross_entropy_of_blocks", "shares", shares)
        cdef Py_ssize_t n = cnp.PyArray_DIM(shares, 0), blocks = cnp.PyArray_DIM(shares, 1)
        rows2("cross_entropy_of_blocks", "y", y, kind, n, 2 * blocks, False, &a)
        rows2("cross_entropy_of_blocks", "shares", shares, kind, n, blocks, True, &b)
        cdef cnp.ndarray wanted = integers("cross_entropy_of_blocks", "target", target, n)
        cdef int64_t* t = <int64_t*>cnp.PyArray_DATA(wanted)
        with nogil:
            loss = any_cross_entropy_of_blocks(
                kind == cnp.NPY_FLOAT32, n, blocks, a.data, a.stride, t, ignore, b.data, b.stride)
        return loss

    def cross_entropy_of_blocks_backward(
        self, cnp.ndarray shares not None, target, int64_t ignore, double scale, cnp.ndarray out not None,
        bint accumulate=False
    ):
        cdef int kind = real_type("cross_entropy_of_blocks_backward", shares)
        cdef Rows a, b
        two("cross_entropy_of_blocks_backward", "shares", shares)
        cdef Py_ssize_t n = cnp.PyArray_DIM(shares, 0), blocks = cnp.PyArray_DIM(shares, 1)
        rows2("cross_entropy_of_blocks_backward", "shares", shares, kind, n, blocks, False, &a)
        rows2("cross_entropy_of_blocks_backward", "out", out, kind, n, 2 * blocks, True, &b)
        cdef cnp.ndarray wanted = integers("cross_entropy_of_blocks_backward", "target", target, n)
        cdef int64_t* t = <int64_t*>cnp.PyArray_DATA(wanted)
        with nogil:
            any_cross_entropy_of_blocks_backward(
                kind == cnp.NPY_FLOAT32, n, blocks, a.data, a.stride, t, ignore, scale, b.data, b.stride, accumulate)
