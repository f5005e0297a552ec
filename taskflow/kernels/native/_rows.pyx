"""The compiled kernels on rows: checks of the arguments, then the loops of native/loops/rows.h without the GIL.

Arguments are numpy arrays of one dtype, float32 or float64, with contiguous rows (strides over rows are free); others
raise TypeError or ValueError.
The definition is kernels/definitions/rows.py; tests/kernels/test_kernels_agree.py holds them equal.
"""

cimport numpy as cnp
from libc.stdint cimport int64_t
from taskflow.kernels.native._arguments cimport Rows, flat, integers, real_type, rows2, rows3, two

from taskflow.kernels.definitions.rows import RowKernels

cnp.import_array()

ctypedef Py_ssize_t Size

# ``single``: the arrays hold float32, else float64. Strides: bytes from row to row.
cdef extern from * nogil:
    """
    #define LOOPS "native/loops/rows.h"
    #include "native/loops/types.h"
    """
    void any_lstm_cell(
        bint single, Size rows, Size width, void* gates, Size gates_stride, void* c_prev, Size c_prev_stride,
        void* c, Size c_stride, void* h, Size h_stride)
    void any_lstm_cell_backward(
        bint single, Size rows, Size width, void* gates, Size gates_stride, void* c_prev, Size c_prev_stride,
        void* c, Size c_stride, void* dh, Size dh_stride, void* dc, Size dc_stride, void* dgates, Size dgates_stride)
    void any_embedding(
        bint single, Size rows, Size width, void* table, Size table_stride, Size size, int64_t* index, int64_t first,
        void* out, Size out_stride)
    void any_embedding_backward(
        bint single, Size rows, Size width, int64_t* index, int64_t first, void* dy, Size dy_stride,
        void* out, Size out_stride, Size size, bint add)
    void any_sum_rows(bint single, Size rows, Size width, void* x, Size x_stride, void* out, bint add)


class NativeRows(RowKernels):
    """Compiled sums over rows, cells of an LSTM, embedding."""

    __slots__ = ()

    def sum_rows(self, cnp.ndarray x not None, cnp.ndarray out not None, bint accumulate=False):
        cdef int kind = real_type("sum_rows", x)
        cdef Rows a
        two("sum_rows", "x", x)
        cdef Py_ssize_t n = cnp.PyArray_DIM(x, 0), width = cnp.PyArray_DIM(x, 1)
        rows2("sum_rows", "x", x, kind, n, width, False, &a)
        cdef void* to = flat("sum_rows", "out", out, kind, width, True)
        with nogil:
            any_sum_rows(kind == cnp.NPY_FLOAT32, n, width, a.data, a.stride, to, accumulate)

    def lstm_cell(
        self, cnp.ndarray gates not None, cnp.ndarray c_prev not None, cnp.ndarray c not None, cnp.ndarray h not None
    ):
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
        self, cnp.ndarray gates not None, cnp.ndarray c_prev not None, cnp.ndarray c not None, cnp.ndarray dh not None,
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

    def embedding(self, cnp.ndarray table not None, index, int64_t first, cnp.ndarray out not None):
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

    def embedding_backward(
        self, index, int64_t first, cnp.ndarray dy not None, cnp.ndarray out not None, bint accumulate=False
    ):
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
