"""The compiled copies and sums of parts of arrays: checks of the arguments, then the loops of native/loops/parts.h without
the GIL.

Arrays that the loops do not take are numpy's.
The definition is kernels/definitions/parts.py; tests/kernels/test_kernels_parts.py holds them equal.
"""

cimport numpy as cnp
from taskflow.kernels.native._arguments cimport usable

from taskflow.kernels.definitions.parts import PartKernels

cnp.import_array()

ctypedef Py_ssize_t Size

cdef extern from "native/loops/parts.h" nogil:
    enum: PART_DIMS
    ctypedef struct Parts:
        pass
    int join_parts(Parts* parts, int dims, Size* size, Size* x, Size* out, Size item)
    void copy_elements "copy_part"(Parts* parts, Size item, void* x, void* out)
    void add_elements "add_part"(Parts* parts, bint single, void* x, void* out)


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


cpdef bint copy_part(cnp.ndarray x, cnp.ndarray out):
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


cpdef bint add_part(cnp.ndarray x, cnp.ndarray out):
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


class NativeParts(PartKernels):
    """Compiled copies and sums of parts of arrays."""

    __slots__ = ()

    def copy(self, cnp.ndarray x not None, cnp.ndarray out not None):
        if not copy_part(x, out):
            super().copy(x, out)

    def add(self, cnp.ndarray x not None, cnp.ndarray out not None):
        if not add_part(x, out):
            super().add(x, out)
