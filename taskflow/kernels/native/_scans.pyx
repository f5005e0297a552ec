"""The compiled scans: checks of the arguments, then the loops of native/loops/scans.h without the GIL.

Arguments are contiguous numpy arrays of one dtype, float32 or float64; others raise TypeError or ValueError.
The definition is kernels/definitions/scans.py; tests/kernels/test_kernels_scans.py holds them equal.
"""

cimport numpy as cnp
from taskflow.kernels.native._arguments cimport flat, real_type

from taskflow.kernels.definitions.scans import ScanKernels
from taskflow.kernels.native.scratch import scratch

cnp.import_array()

ctypedef Py_ssize_t Size

# ``single``: the arrays hold float32, else float64.
cdef extern from * nogil:
    """
    #define LOOPS "native/loops/scans.h"
    #include "native/loops/types.h"
    """
    int SCAN_BLOCK
    void any_selective_scan(
        bint single, Size samples, Size steps, Size channels, Size states, void* x, void* dt, void* a, void* b, void* c,
        void* y, void* scratch)
    void any_selective_scan_backward(
        bint single, Size samples, Size steps, Size channels, Size states, void* x, void* dt, void* a, void* b, void* c,
        void* dy, void* dx, void* ddt, void* da, void* db, void* dc, void* scratch)
    int LINEAR_BLOCK
    void any_linear_attention(
        bint single, Size samples, Size steps, Size heads, Size groups, Size each, Size first, Size width, Size value, Size rates,
        void* q, void* k, void* v, void* g, void* beta, void* y, void* scratch)
    void any_linear_attention_backward(
        bint single, Size samples, Size steps, Size heads, Size groups, Size each, Size first, Size width, Size value, Size rates,
        void* q, void* k, void* v, void* g, void* beta, void* dy, void* dq, void* dk, void* dv, void* dg, void* dbeta, void* scratch)


cdef struct Sizes:
    int kind
    Py_ssize_t samples, steps, channels, states


cdef Sizes sizes_of(str kernel, cnp.ndarray x, cnp.ndarray a) except *:
    cdef Sizes found
    found.kind = real_type(kernel, x)
    if cnp.PyArray_NDIM(x) != 3 or cnp.PyArray_NDIM(a) != 2:
        raise ValueError(f"{kernel}: x must have 3 dimensions and a 2, got {(<object>x).shape} and {(<object>a).shape}")
    found.samples, found.steps, found.channels = (<object>x).shape
    found.states = cnp.PyArray_DIM(a, 1)
    return found


cdef struct Heads:
    int kind
    Py_ssize_t samples, steps, heads, groups, width, value, rates, each, first


cdef Heads heads_of(
    str kernel, cnp.ndarray q, cnp.ndarray v, cnp.ndarray g, Py_ssize_t each, Py_ssize_t first
) except *:
    cdef Heads found
    found.kind = real_type(kernel, v)
    if cnp.PyArray_NDIM(q) != 4 or cnp.PyArray_NDIM(v) != 4 or cnp.PyArray_NDIM(g) not in (3, 4):
        raise ValueError(
            f"{kernel}: q and v must have 4 dimensions and g 3 or 4, got {(<object>q).shape}, {(<object>v).shape} and "
            f"{(<object>g).shape}")
    found.samples, found.steps, found.heads, found.value = (<object>v).shape
    found.groups, found.width = cnp.PyArray_DIM(q, 2), cnp.PyArray_DIM(q, 3)
    found.rates = 1 if cnp.PyArray_NDIM(g) == 3 else found.width
    found.each, found.first = each, first
    if each < 1 or first < 0 or (found.heads and (first + found.heads - 1) // each >= found.groups):
        raise ValueError(f"{kernel}: {found.heads} heads from number {first} on, {each} a group, need more than {found.groups} groups")
    return found


class NativeScans(ScanKernels):
    """Compiled recurrences over the steps of a sequence."""

    __slots__ = ()

    def selective_scan(
        self, cnp.ndarray x not None, cnp.ndarray dt not None, cnp.ndarray a not None, cnp.ndarray b not None,
        cnp.ndarray c not None, cnp.ndarray out not None
    ):
        cdef str kernel = "selective_scan"
        cdef Sizes of = sizes_of(kernel, x, a)
        cdef Py_ssize_t whole = of.samples * of.steps * of.channels, read = of.samples * of.steps * of.states
        cdef void* given_x = flat(kernel, "x", x, of.kind, whole, False)
        cdef void* given_dt = flat(kernel, "dt", dt, of.kind, whole, False)
        cdef void* given_a = flat(kernel, "a", a, of.kind, of.channels * of.states, False)
        cdef void* given_b = flat(kernel, "b", b, of.kind, read, False)
        cdef void* given_c = flat(kernel, "c", c, of.kind, read, False)
        cdef void* to = flat(kernel, "out", out, of.kind, whole, True)
        cdef cnp.ndarray room = scratch((2, of.states, SCAN_BLOCK), (<object>x).dtype, "scan")
        cdef void* at = cnp.PyArray_DATA(room)
        with nogil:
            any_selective_scan(
                of.kind == cnp.NPY_FLOAT32, of.samples, of.steps, of.channels, of.states, given_x, given_dt, given_a, given_b,
                given_c, to, at)

    def selective_scan_backward(
        self, cnp.ndarray x not None, cnp.ndarray dt not None, cnp.ndarray a not None, cnp.ndarray b not None,
        cnp.ndarray c not None, cnp.ndarray dy not None, cnp.ndarray dx not None, cnp.ndarray ddt not None,
        cnp.ndarray da not None, cnp.ndarray db not None, cnp.ndarray dc not None
    ):
        cdef str kernel = "selective_scan_backward"
        cdef Sizes of = sizes_of(kernel, x, a)
        cdef Py_ssize_t whole = of.samples * of.steps * of.channels, read = of.samples * of.steps * of.states
        cdef void* given_x = flat(kernel, "x", x, of.kind, whole, False)
        cdef void* given_dt = flat(kernel, "dt", dt, of.kind, whole, False)
        cdef void* given_a = flat(kernel, "a", a, of.kind, of.channels * of.states, False)
        cdef void* given_b = flat(kernel, "b", b, of.kind, read, False)
        cdef void* given_c = flat(kernel, "c", c, of.kind, read, False)
        cdef void* given_dy = flat(kernel, "dy", dy, of.kind, whole, False)
        cdef void* to_x = flat(kernel, "dx", dx, of.kind, whole, True)
        cdef void* to_dt = flat(kernel, "ddt", ddt, of.kind, whole, True)
        cdef void* to_a = flat(kernel, "da", da, of.kind, of.channels * of.states, True)
        cdef void* to_b = flat(kernel, "db", db, of.kind, read, True)
        cdef void* to_c = flat(kernel, "dc", dc, of.kind, read, True)
        cdef cnp.ndarray room = scratch((of.steps + 4, of.states, SCAN_BLOCK), (<object>x).dtype, "scan")
        cdef void* at = cnp.PyArray_DATA(room)
        with nogil:
            any_selective_scan_backward(
                of.kind == cnp.NPY_FLOAT32, of.samples, of.steps, of.channels, of.states, given_x, given_dt, given_a, given_b,
                given_c, given_dy, to_x, to_dt, to_a, to_b, to_c, at)

    def linear_attention(
        self, cnp.ndarray q not None, cnp.ndarray k not None, cnp.ndarray v not None, cnp.ndarray g not None, cnp.ndarray beta,
        Py_ssize_t each, Py_ssize_t first, cnp.ndarray out not None
    ):
        cdef str kernel = "linear_attention"
        cdef Heads of = heads_of(kernel, q, v, g, each, first)
        cdef Py_ssize_t rows = of.samples * of.steps, shared = rows * of.groups * of.width, whole = rows * of.heads * of.value
        cdef void* given_q = flat(kernel, "q", q, of.kind, shared, False)
        cdef void* given_k = flat(kernel, "k", k, of.kind, shared, False)
        cdef void* given_v = flat(kernel, "v", v, of.kind, whole, False)
        cdef void* given_g = flat(kernel, "g", g, of.kind, rows * of.heads * of.rates, False)
        cdef void* given_beta = NULL
        if beta is not None:
            given_beta = flat(kernel, "beta", beta, of.kind, rows * of.heads, False)
        cdef void* to = flat(kernel, "out", out, of.kind, whole, True)
        cdef cnp.ndarray room = scratch((of.width + 1, of.value), (<object>v).dtype, "scan")
        cdef void* at = cnp.PyArray_DATA(room)
        with nogil:
            any_linear_attention(
                of.kind == cnp.NPY_FLOAT32, of.samples, of.steps, of.heads, of.groups, of.each, of.first, of.width, of.value,
                of.rates, given_q, given_k, given_v, given_g, given_beta, to, at)

    def linear_attention_backward(
        self, cnp.ndarray q not None, cnp.ndarray k not None, cnp.ndarray v not None, cnp.ndarray g not None, cnp.ndarray beta,
        Py_ssize_t each, Py_ssize_t first, cnp.ndarray dy not None, cnp.ndarray dq not None, cnp.ndarray dk not None,
        cnp.ndarray dv not None, cnp.ndarray dg not None, cnp.ndarray dbeta
    ):
        cdef str kernel = "linear_attention_backward"
        cdef Heads of = heads_of(kernel, q, v, g, each, first)
        cdef Py_ssize_t rows = of.samples * of.steps, shared = rows * of.groups * of.width, whole = rows * of.heads * of.value
        cdef void* given_q = flat(kernel, "q", q, of.kind, shared, False)
        cdef void* given_k = flat(kernel, "k", k, of.kind, shared, False)
        cdef void* given_v = flat(kernel, "v", v, of.kind, whole, False)
        cdef void* given_g = flat(kernel, "g", g, of.kind, rows * of.heads * of.rates, False)
        cdef void* given_dy = flat(kernel, "dy", dy, of.kind, whole, False)
        cdef void* to_q = flat(kernel, "dq", dq, of.kind, shared, True)
        cdef void* to_k = flat(kernel, "dk", dk, of.kind, shared, True)
        cdef void* to_v = flat(kernel, "dv", dv, of.kind, whole, True)
        cdef void* to_g = flat(kernel, "dg", dg, of.kind, rows * of.heads * of.rates, True)
        cdef void* given_beta = NULL
        cdef void* to_beta = NULL
        if beta is not None:
            given_beta = flat(kernel, "beta", beta, of.kind, rows * of.heads, False)
            to_beta = flat(kernel, "dbeta", dbeta, of.kind, rows * of.heads, True)
        cdef Py_ssize_t blocks = (of.steps + LINEAR_BLOCK - 1) // LINEAR_BLOCK
        cdef cnp.ndarray room = scratch(
            ((blocks + LINEAR_BLOCK + 2) * of.width + 4, of.value), (<object>v).dtype, "scan")
        cdef void* at = cnp.PyArray_DATA(room)
        with nogil:
            any_linear_attention_backward(
                of.kind == cnp.NPY_FLOAT32, of.samples, of.steps, of.heads, of.groups, of.each, of.first, of.width, of.value,
                of.rates, given_q, given_k, given_v, given_g, given_beta, given_dy, to_q, to_k, to_v, to_g, to_beta, at)
