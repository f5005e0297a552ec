"""The compiled kernels: checks of the arguments, then the loops of native/dispatch/row.h without the GIL: LSTM cells, embedding, parts
of arrays, sums, random numbers, update rules. Softmax and losses are in _losses.pyx, matrix products in _products.pyx, normalisation and activations
in _pointwise.pyx, images in _images.pyx.

Arguments are numpy arrays of one dtype, float32 or float64, with contiguous rows (strides over rows are free); others
raise TypeError or ValueError. taskflow/kernels/definitions/ documents every kernel.
The definition is kernels/definitions/rows.py; tests/kernels/test_kernels_agree.py holds them equal.
"""

import numpy as np

cimport numpy as cnp
from taskflow.kernels.native._arguments cimport Rows, flat, integers, real_type, rows2, rows3, two, usable
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

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


# ---- parts of arrays ------------------------------------------------------------------------------------------------

cdef inline bint part_of(cnp.ndarray x, cnp.ndarray out, Parts* parts, int* some):
    """Whether the loops take these arrays, of one shape and type; ``some``: whether they have any elements."""
    cdef int dims = cnp.PyArray_NDIM(x), kind = cnp.PyArray_TYPE(x)
    if dims != cnp.PyArray_NDIM(out) or dims > PART_DIMS or not usable(x, kind, False) or not usable(out, kind, True):
        return False
    cdef cnp.npy_intp* size = cnp.PyArray_DIMS(x)
    cdef int i
    for i in range(dims):
        if size[i] != cnp.PyArray_DIM(out, i):
            return False
    some[0] = join_parts(
        parts, dims, <Size*>size, <Size*>cnp.PyArray_STRIDES(x), <Size*>cnp.PyArray_STRIDES(out), cnp.PyArray_ITEMSIZE(x))
    return True


def copy_part(cnp.ndarray x not None, cnp.ndarray out not None):
    """Whether it could: out = x, arrays of one shape and type, floats or integers of 4 or 8 bytes."""
    cdef Parts parts
    cdef int some
    cdef Size item = cnp.PyArray_ITEMSIZE(x)
    if not (item == 4 or item == 8) or not (cnp.PyArray_ISFLOAT(x) or cnp.PyArray_ISINTEGER(x)):
        return False
    if not part_of(x, out, &parts, &some):
        return False
    cdef void* a = cnp.PyArray_DATA(x)
    cdef void* b = cnp.PyArray_DATA(out)
    if some:
        with nogil:
            copy_elements(&parts, item, a, b)
    return True


def add_part(cnp.ndarray x not None, cnp.ndarray out not None):
    """Whether it could: out += x, arrays of one shape, float32 or float64."""
    cdef Parts parts
    cdef int some, kind = cnp.PyArray_TYPE(x)
    if not (kind == cnp.NPY_FLOAT32 or kind == cnp.NPY_FLOAT64) or not part_of(x, out, &parts, &some):
        return False
    cdef void* a = cnp.PyArray_DATA(x)
    cdef void* b = cnp.PyArray_DATA(out)
    if some:
        with nogil:
            add_elements(&parts, kind == cnp.NPY_FLOAT32, a, b)
    return True


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

cdef enum:
    MOST_DIMS = 64

cdef struct Place:
    Py_ssize_t run  # how many consecutive positions of the whole array each run of the box's elements has
    int dims  # those that are counted: the last of them are in the runs
    uint64_t first, step[MOST_DIMS]  # position of the box's first element; how far apart neighbours are
    Py_ssize_t extent[MOST_DIMS], at[MOST_DIMS]


cdef int place_of(str kernel, tuple shape, tuple lo, tuple box, Place* place) except -1:
    """Where the box at ``lo`` of an array of ``shape`` lies: runs are of trailing dimensions that it holds whole, with the one
    before them."""
    cdef int d, dims = len(box)
    cdef uint64_t weight = 1
    if not len(shape) == len(lo) == dims or dims > MOST_DIMS or any(a < 0 or a + e > s for a, e, s in zip(lo, box, shape)):
        raise ValueError(f"{kernel}: out {box} at lo={lo} must lie inside an array of shape {shape}")
    place.run, place.dims, place.first = 1, 0, 0
    cdef bint whole = True
    for d in range(dims - 1, -1, -1):
        place.step[d], place.extent[d], place.at[d] = weight, box[d], 0
        place.first += weight * <uint64_t>lo[d]
        weight *= <uint64_t>shape[d]
        if whole:
            place.run *= place.extent[d]
            place.dims = d
            whole = box[d] == shape[d]
    return 0


cdef uint64_t next_run(Place* place, uint64_t position) noexcept nogil:
    """The position of the run's first element that comes after the one that begins at ``position``."""
    cdef int d
    for d in range(place.dims - 1, -1, -1):
        position += place.step[d]
        place.at[d] += 1
        if place.at[d] < place.extent[d]:
            break
        position -= place.step[d] * <uint64_t>place.extent[d]
        place.at[d] = 0
    return position


def random(bint normal, key, uint32_t stream, tuple shape, tuple lo, cnp.ndarray out not None):
    """Numbers of the box at ``lo`` of an array of ``shape``; uniform in [0, 1) or standard normal."""
    cdef int kind = real_type("random", out)
    cdef uint32_t key0 = key[0], key1 = key[1]
    cdef Py_ssize_t size = cnp.PyArray_SIZE(out), item = cnp.PyArray_ITEMSIZE(out), first
    cdef char* to = <char*>flat("random", "out", out, kind, size, True)
    cdef Place place
    place_of("random", shape, lo, np.shape(out), &place)
    cdef uint64_t position = place.first
    cdef bint single = kind == cnp.NPY_FLOAT32
    with nogil:
        first = 0
        while first < size:
            any_random_row(single, key0, key1, stream, position, place.run, normal, <void*>(to + first * item))
            first += place.run
            position = next_run(&place, position)


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
    cdef Place place
    place_of("dropout", shape, lo, np.shape(out), &place)
    cdef uint64_t position = place.first
    cdef bint single = kind == cnp.NPY_FLOAT32
    cdef double scale = 1 / (1 - p)
    with nogil:
        first = 0
        while first < size:
            any_dropout_row(
                single, key0, key1, stream, position, place.run, p, scale, <void*>(source + first * item),
                <void*>(to + first * item), stays + first)
            first += place.run
            position = next_run(&place, position)


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
