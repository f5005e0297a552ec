"""The compiled random numbers and dropout: checks of the arguments, then the loops of native/loops/random.h without the
GIL.

Arguments are contiguous numpy arrays of one dtype, float32 or float64; others raise TypeError or ValueError.
The definition is kernels/definitions/random.py; tests/kernels/test_kernels_random.py holds them equal.
"""

import numpy as np

cimport numpy as cnp
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from taskflow.kernels.native._arguments cimport flat, real_type

from taskflow.kernels.definitions.random import RandomKernels

cnp.import_array()

ctypedef Py_ssize_t Size

# ``single``: the arrays hold float32, else float64.
cdef extern from * nogil:
    """
    #define LOOPS "native/loops/random.h"
    #include "native/loops/types.h"
    """
    void any_random_row(
        bint single, uint32_t key0, uint32_t key1, uint32_t stream, uint64_t position, Size n, bint normal, void* out)
    void any_dropout_row(
        bint single, uint32_t key0, uint32_t key1, uint32_t stream, uint64_t position, Size n, double p, double scale,
        void* x, void* out, uint8_t* mask)
    void any_dropout_backward(bint single, Size n, double scale, uint8_t* mask, void* dy, void* out, bint add)


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


cdef int fill(str kernel, bint normal, key, uint32_t stream, tuple shape, tuple lo, cnp.ndarray out) except -1:
    """Numbers of the box at ``lo`` of an array of ``shape``; uniform in [0, 1) or standard normal."""
    cdef int kind = real_type(kernel, out)
    cdef uint32_t key0 = key[0], key1 = key[1]
    cdef Py_ssize_t size = cnp.PyArray_SIZE(out), item = cnp.PyArray_ITEMSIZE(out), first
    cdef char* to = <char*>flat(kernel, "out", out, kind, size, True)
    cdef Place place
    place_of(kernel, shape, lo, np.shape(out), &place)
    cdef uint64_t position = place.first
    cdef bint single = kind == cnp.NPY_FLOAT32
    with nogil:
        first = 0
        while first < size:
            any_random_row(single, key0, key1, stream, position, place.run, normal, <void*>(to + first * item))
            first += place.run
            position = next_run(&place, position)
    return 0


class NativeRandom(RandomKernels):
    """Compiled random numbers, and dropout by them."""

    __slots__ = ()

    def uniform(self, key, uint32_t stream, shape, lo, cnp.ndarray out not None):
        fill("uniform", False, key, stream, tuple(shape), tuple(lo), out)

    def normal(self, key, uint32_t stream, shape, lo, cnp.ndarray out not None):
        fill("normal", True, key, stream, tuple(shape), tuple(lo), out)

    def dropout(
        self, key, uint32_t stream, shape, lo, double p, cnp.ndarray x not None, cnp.ndarray out not None,
        cnp.ndarray mask not None
    ):
        cdef int kind = real_type("dropout", x)
        cdef uint32_t key0 = key[0], key1 = key[1]
        cdef Py_ssize_t size = cnp.PyArray_SIZE(x), item = cnp.PyArray_ITEMSIZE(x), first
        cdef char* source = <char*>flat("dropout", "x", x, kind, size, False)
        cdef char* to = <char*>flat("dropout", "out", out, kind, size, True)
        cdef uint8_t* stays = <uint8_t*>flat("dropout", "mask", mask, cnp.NPY_BOOL, size, True)
        cdef Place place
        place_of("dropout", tuple(shape), tuple(lo), np.shape(out), &place)
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
        self, cnp.ndarray mask not None, double p, cnp.ndarray dy not None, cnp.ndarray out not None,
        bint accumulate=False
    ):
        cdef int kind = real_type("dropout_backward", dy)
        cdef Py_ssize_t size = cnp.PyArray_SIZE(dy)
        cdef uint8_t* stays = <uint8_t*>flat("dropout_backward", "mask", mask, cnp.NPY_BOOL, size, False)
        cdef void* a = flat("dropout_backward", "dy", dy, kind, size, False)
        cdef void* b = flat("dropout_backward", "out", out, kind, size, True)
        with nogil:
            any_dropout_backward(kind == cnp.NPY_FLOAT32, size, 1 / (1 - p), stays, a, b, accumulate)
