"""The compiled places. The definition is tasks/places.py; tests/tasks/test_memory.py holds them equal."""

import numpy as np

from libc.stdint cimport int64_t
from libc.string cimport memmove

cdef struct Placed:
    int64_t low, high, first, last


def places(sizes, first, last, int64_t most):
    cdef const int64_t[::1] size = np.asarray(sizes, np.int64), begin = np.asarray(first, np.int64), end = np.asarray(last, np.int64)
    cdef Py_ssize_t count = len(sizes), i, j, at
    cdef int64_t[::1] found = np.empty(count, np.int64)
    cdef int64_t[:, ::1] memory = np.empty((count + 1, 4), np.int64)
    cdef Placed* placed = <Placed*>&memory[0, 0]
    cdef int64_t place
    cdef bint fits = True
    with nogil:
        for i in range(count):
            place = 0
            for j in range(i):
                if placed[j].first <= end[i] and placed[j].last >= begin[i]:
                    if placed[j].low - place >= size[i]:
                        break
                    if placed[j].high > place:
                        place = placed[j].high
            if place + size[i] >= most:
                fits = False
                break
            at = i
            while at > 0 and placed[at - 1].low > place:
                at -= 1
            memmove(placed + at + 1, placed + at, (i - at) * sizeof(Placed))
            placed[at] = Placed(place, place + size[i], begin[i], end[i])
            found[i] = place
    return np.asarray(found).tolist() if fits else None
