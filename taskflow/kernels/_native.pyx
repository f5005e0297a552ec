"""The compiled kernels: checks of the arguments, then the loops of native_loops.h without the GIL; normalisation and
activations are in _pointwise.pyx, images in _images.pyx.

Arguments are numpy arrays of one dtype, float32 or float64, with contiguous rows (strides over rows are free); others
raise TypeError or ValueError. taskflow/kernels/kernel_set.py documents every kernel.
"""

import numpy as np

cimport numpy as cnp
from taskflow.kernels._arguments cimport Rows, flat, integers, real_type, rows2, rows3, two, usable
from libc.limits cimport INT_MAX
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t

cnp.import_array()

# ---- elementwise functions: the building blocks, on their own for tests ---------------------------------------------

def elementwise(str function, cnp.ndarray x not None, cnp.ndarray out not None):
    """out = exp, sigmoid or tanh of x: contiguous arrays of one size."""
    cdef int kind = real_type(function, x)
    cdef bint single = kind == cnp.NPY_FLOAT32
    cdef Py_ssize_t n = cnp.PyArray_SIZE(x)
    cdef void* a = flat(function, "x", x, kind, n, False)
    cdef void* b = flat(function, "out", out, kind, n, True)
    if function == "exp":
        any_exp(single, a, b, n)
    elif function == "sigmoid":
        any_sigmoid(single, a, b, n)
    elif function == "tanh":
        any_tanh(single, a, b, n)
    else:
        raise ValueError(f"elementwise: function must be exp, sigmoid or tanh, got {function!r}")


# ---- LSTM -----------------------------------------------------------------------------------------------------------

def lstm_cell(cnp.ndarray gates not None, cnp.ndarray c_prev not None, cnp.ndarray c not None, cnp.ndarray h not None):
    cdef int kind = real_type("lstm_cell", gates)
    cdef Rows g, p, now, hidden
    two("lstm_cell", "c", c)
    cdef Py_ssize_t n = cnp.PyArray_DIM(c, 0), width = cnp.PyArray_DIM(c, 1)
    rows3("lstm_cell", "gates", gates, kind, n, width, True, &g)
    rows2("lstm_cell", "c_prev", c_prev, kind, n, width, False, &p)
    rows2("lstm_cell", "c", c, kind, n, width, True, &now)
    rows2("lstm_cell", "h", h, kind, n, width, True, &hidden)
    with nogil:
        any_lstm_cell(
            kind == cnp.NPY_FLOAT32, n, width, g.data, g.stride, p.data, p.stride, now.data, now.stride,
            hidden.data, hidden.stride)


def lstm_cell_backward(
    cnp.ndarray gates not None, cnp.ndarray c_prev not None, cnp.ndarray c not None, cnp.ndarray dh not None,
    cnp.ndarray dc not None, cnp.ndarray dgates not None
):
    cdef int kind = real_type("lstm_cell_backward", gates)
    cdef Rows g, p, now, dhidden, dcell, d
    two("lstm_cell_backward", "c", c)
    cdef Py_ssize_t n = cnp.PyArray_DIM(c, 0), width = cnp.PyArray_DIM(c, 1)
    rows3("lstm_cell_backward", "gates", gates, kind, n, width, False, &g)
    rows2("lstm_cell_backward", "c_prev", c_prev, kind, n, width, False, &p)
    rows2("lstm_cell_backward", "c", c, kind, n, width, False, &now)
    rows2("lstm_cell_backward", "dh", dh, kind, n, width, False, &dhidden)
    rows2("lstm_cell_backward", "dc", dc, kind, n, width, True, &dcell)
    rows3("lstm_cell_backward", "dgates", dgates, kind, n, width, True, &d)
    with nogil:
        any_lstm_cell_backward(
            kind == cnp.NPY_FLOAT32, n, width, g.data, g.stride, p.data, p.stride, now.data, now.stride,
            dhidden.data, dhidden.stride, dcell.data, dcell.stride, d.data, d.stride)


# ---- softmax and cross-entropy --------------------------------------------------------------------------------------

def softmax(cnp.ndarray x not None, cnp.ndarray out not None, ends=None):
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


def softmax_backward(cnp.ndarray y not None, cnp.ndarray dy not None, cnp.ndarray out not None, bint accumulate):
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


cdef int targets_inside(str kernel, int64_t* target, Py_ssize_t n, int64_t ignore, Py_ssize_t width) except -1:
    cdef Py_ssize_t row
    for row in range(n):
        if target[row] != ignore and not 0 <= target[row] < width:
            raise IndexError(
                f"{kernel}: a target must lie in [0, {width}) or be ignore={ignore}, got {target[row]} in row {row}")
    return 0


def cross_entropy(
    cnp.ndarray logits not None, target, int64_t ignore, cnp.ndarray probabilities not None, double smoothing
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
    cnp.ndarray probabilities not None, target, int64_t ignore, double scale, cnp.ndarray out not None, bint accumulate,
    double smoothing
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


def class_blocks(
    cnp.ndarray logits not None, target, int64_t ignore, tuple split, cnp.ndarray probabilities not None,
    cnp.ndarray out not None, double smoothing
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
    cnp.ndarray probabilities not None, target, int64_t ignore, tuple split, cnp.ndarray dy not None,
    cnp.ndarray out not None, bint accumulate, double smoothing
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


def cross_entropy_of_blocks(cnp.ndarray y not None, target, int64_t ignore, cnp.ndarray shares not None):
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
    cnp.ndarray shares not None, target, int64_t ignore, double scale, cnp.ndarray out not None, bint accumulate
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


# ---- embedding ------------------------------------------------------------------------------------------------------

def embedding(cnp.ndarray table not None, index, int64_t first, cnp.ndarray out not None):
    cdef int kind = real_type("embedding", table)
    cdef Rows a, b
    two("embedding", "table", table)
    two("embedding", "out", out)
    cdef Py_ssize_t size = cnp.PyArray_DIM(table, 0), width = cnp.PyArray_DIM(table, 1), n = cnp.PyArray_DIM(out, 0)
    rows2("embedding", "table", table, kind, size, width, False, &a)
    rows2("embedding", "out", out, kind, n, width, True, &b)
    cdef cnp.ndarray chosen = integers("embedding", "index", index, n)
    cdef int64_t* i = <int64_t*>cnp.PyArray_DATA(chosen)
    with nogil:
        any_embedding(kind == cnp.NPY_FLOAT32, n, width, a.data, a.stride, size, i, first, b.data, b.stride)


def embedding_backward(index, int64_t first, cnp.ndarray dy not None, cnp.ndarray out not None, bint accumulate):
    cdef int kind = real_type("embedding_backward", dy)
    cdef Rows a, b
    two("embedding_backward", "dy", dy)
    two("embedding_backward", "out", out)
    cdef Py_ssize_t size = cnp.PyArray_DIM(out, 0), width = cnp.PyArray_DIM(dy, 1), n = cnp.PyArray_DIM(dy, 0)
    rows2("embedding_backward", "dy", dy, kind, n, width, False, &a)
    rows2("embedding_backward", "out", out, kind, size, width, True, &b)
    cdef cnp.ndarray chosen = integers("embedding_backward", "index", index, n)
    cdef int64_t* i = <int64_t*>cnp.PyArray_DATA(chosen)
    with nogil:
        any_embedding_backward(
            kind == cnp.NPY_FLOAT32, n, width, i, first, a.data, a.stride, b.data, b.stride, size, accumulate)


# ---- sums -----------------------------------------------------------------------------------------------------------

def sum_rows(cnp.ndarray x not None, cnp.ndarray out not None, bint accumulate):
    cdef int kind = real_type("sum_rows", x)
    cdef Rows a
    two("sum_rows", "x", x)
    cdef Py_ssize_t n = cnp.PyArray_DIM(x, 0), width = cnp.PyArray_DIM(x, 1)
    rows2("sum_rows", "x", x, kind, n, width, False, &a)
    cdef void* to = flat("sum_rows", "out", out, kind, width, True)
    with nogil:
        any_sum_rows(kind == cnp.NPY_FLOAT32, n, width, a.data, a.stride, to, accumulate)


def sum_of_squares(cnp.ndarray x not None):
    cdef int kind = real_type("sum_of_squares", x)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(x)
    cdef void* data = flat("sum_of_squares", "x", x, kind, n, False)
    cdef double total
    with nogil:
        total = any_sum_of_squares(kind == cnp.NPY_FLOAT32, n, data)
    return total


# ---- random numbers -------------------------------------------------------------------------------------------------

cdef Py_ssize_t run_length(str kernel, tuple shape, tuple lo, tuple box) except -1:
    """How many consecutive positions of the whole array each run of the box's elements has: trailing dimensions that the
    box holds whole, with the one before them."""
    cdef Py_ssize_t run = 1, d = len(box)
    if not len(shape) == len(lo) == d or any(a < 0 or a + e > s for a, e, s in zip(lo, box, shape)):
        raise ValueError(f"{kernel}: out {box} at lo={lo} must lie inside an array of shape {shape}")
    while d > 0:
        d -= 1
        run *= <Py_ssize_t>box[d]
        if box[d] != shape[d]:
            break
    return run


cdef uint64_t position_of(Py_ssize_t first, tuple shape, tuple lo, tuple box):
    """The position in the whole array of the box's element number ``first``."""
    cdef uint64_t position = 0, weight = 1
    cdef Py_ssize_t d
    for d in range(len(box) - 1, -1, -1):
        position += weight * <uint64_t>(<Py_ssize_t>lo[d] + first % <Py_ssize_t>box[d])
        first //= <Py_ssize_t>box[d]
        weight *= <uint64_t>shape[d]
    return position


def random(bint normal, key, uint32_t stream, tuple shape, tuple lo, cnp.ndarray out not None):
    """Numbers of the box at ``lo`` of an array of ``shape``; uniform in [0, 1) or standard normal."""
    cdef int kind = real_type("random", out)
    cdef uint32_t key0 = key[0], key1 = key[1]
    cdef Py_ssize_t size = cnp.PyArray_SIZE(out), item = cnp.PyArray_ITEMSIZE(out), first
    cdef char* to = <char*>flat("random", "out", out, kind, size, True)
    cdef tuple box = np.shape(out)
    cdef Py_ssize_t run = run_length("random", shape, lo, box)
    cdef uint64_t position
    for first in range(0, size, max(run, 1)):
        position = position_of(first, shape, lo, box)
        with nogil:
            any_random_row(
                kind == cnp.NPY_FLOAT32, key0, key1, stream, position, run, normal, <void*>(to + first * item))


def dropout(
    key, uint32_t stream, tuple shape, tuple lo, double p, cnp.ndarray x not None, cnp.ndarray out not None,
    cnp.ndarray mask not None
):
    cdef int kind = real_type("dropout", x)
    cdef uint32_t key0 = key[0], key1 = key[1]
    cdef Py_ssize_t size = cnp.PyArray_SIZE(x), item = cnp.PyArray_ITEMSIZE(x), first
    cdef char* source = <char*>flat("dropout", "x", x, kind, size, False)
    cdef char* to = <char*>flat("dropout", "out", out, kind, size, True)
    cdef uint8_t* stays = <uint8_t*>flat("dropout", "mask", mask, cnp.NPY_BOOL, size, True)
    cdef tuple box = np.shape(out)
    cdef Py_ssize_t run = run_length("dropout", shape, lo, box)
    cdef uint64_t position
    for first in range(0, size, max(run, 1)):
        position = position_of(first, shape, lo, box)
        with nogil:
            any_dropout_row(
                kind == cnp.NPY_FLOAT32, key0, key1, stream, position, run, p, 1 / (1 - p),
                <void*>(source + first * item), <void*>(to + first * item), stays + first)


def dropout_backward(
    cnp.ndarray mask not None, double p, cnp.ndarray dy not None, cnp.ndarray out not None, bint accumulate
):
    cdef int kind = real_type("dropout_backward", dy)
    cdef Py_ssize_t size = cnp.PyArray_SIZE(dy)
    cdef uint8_t* stays = <uint8_t*>flat("dropout_backward", "mask", mask, cnp.NPY_BOOL, size, False)
    cdef void* a = flat("dropout_backward", "dy", dy, kind, size, False)
    cdef void* b = flat("dropout_backward", "out", out, kind, size, True)
    with nogil:
        any_dropout_backward(kind == cnp.NPY_FLOAT32, size, 1 / (1 - p), stays, a, b, accumulate)


# ---- update rules ---------------------------------------------------------------------------------------------------

def sgd(
    cnp.ndarray w not None, cnp.ndarray g not None, velocity, double lr, double momentum, double dampening,
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
    cnp.ndarray w not None, cnp.ndarray g not None, cnp.ndarray m not None, cnp.ndarray v not None, double lr,
    double beta1, double beta2, double eps, double weight_decay, bint decoupled, double scale, int step
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


# ---- matrix products ------------------------------------------------------------------------------------------------

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


def matmul(cnp.ndarray a not None, cnp.ndarray b not None, cnp.ndarray out not None, bint accumulate):
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


# ---- Task Bench -----------------------------------------------------------------------------------------------------

def busy(Py_ssize_t iterations):
    """64 multiply-adds (128 flops) an iteration."""
    cdef double total
    with nogil:
        total = busy_loop(iterations)
    return total


def level():
    """3: AVX-512, 2: AVX2 and FMA, 1: the compiler's baseline."""
    return instruction_level()
