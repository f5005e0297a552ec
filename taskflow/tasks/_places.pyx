# distutils: language = c++
"""The compiled places. The definition is tasks/places.py; tests/tasks/test_memory.py holds them equal."""

import numpy as np

from libc.stdint cimport int64_t
from libc.string cimport memmove
from libcpp.vector cimport vector

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
    return np.asarray(found) if fits else None


cdef struct Two:
    int64_t key, other


cdef class _Sorted:
    """Pairs of numbers, ascending, in one piece of memory: there are at most some thousands of holes."""
    cdef vector[Two] all

    cdef Py_ssize_t find(self, int64_t key, int64_t other) noexcept nogil:
        cdef Py_ssize_t low = 0, high = self.all.size(), middle
        while low < high:
            middle = (low + high) >> 1
            if self.all[middle].key < key or (self.all[middle].key == key and self.all[middle].other < other):
                low = middle + 1
            else:
                high = middle
        return low

    cdef void add(self, int64_t key, int64_t other) noexcept nogil:
        self.all.insert(self.all.begin() + self.find(key, other), Two(key, other))


cdef class _Holes:
    cdef _Sorted by_size  # (size, offset)
    cdef _Sorted places  # (offset, size)

    def __cinit__(self):
        self.by_size, self.places = _Sorted(), _Sorted()

    cdef void free(self, int64_t offset, int64_t size) noexcept nogil:
        cdef Py_ssize_t at = self.places.find(offset, 0)
        cdef Two* before = &self.places.all[at - 1] if at > 0 else NULL
        if at < <Py_ssize_t>self.places.all.size() and self.places.all[at].key == offset + size:
            size += self.remove(at)
        if before != NULL and before.key + before.other == offset:
            offset = before.key
            size += self.remove(at - 1)
        self.places.add(offset, size)
        self.by_size.add(size, offset)

    cdef int64_t take(self, int64_t size) noexcept nogil:
        cdef Py_ssize_t at = self.by_size.find(size, -1)
        cdef Two found
        if at == <Py_ssize_t>self.by_size.all.size():
            return -1
        found = self.by_size.all[at]
        self.by_size.all.erase(self.by_size.all.begin() + at)
        at = self.places.find(found.other, 0)
        if found.key == size:
            self.places.all.erase(self.places.all.begin() + at)
        else:
            self.places.all[at] = Two(found.other + size, found.key - size)
            self.by_size.add(found.key - size, found.other + size)
        return found.other

    cdef int64_t take_ending_at(self, int64_t end) noexcept nogil:
        cdef Py_ssize_t at = self.places.find(end, 0) - 1
        cdef int64_t offset
        if at < 0 or self.places.all[at].key + self.places.all[at].other != end:
            return -1
        offset = self.places.all[at].key
        self.remove(at)
        return offset

    cdef int64_t remove(self, Py_ssize_t at) noexcept nogil:
        """Remove a hole by its number among places; its size."""
        cdef Two one = self.places.all[at]
        self.places.all.erase(self.places.all.begin() + at)
        self.by_size.all.erase(self.by_size.all.begin() + self.by_size.find(one.other, one.key))
        return one.other


def places_by_time(sizes, first, last):
    cdef const int64_t[::1] size = np.ascontiguousarray(sizes, np.int64)
    cdef const int64_t[::1] begin = np.ascontiguousarray(first, np.int64), end = np.ascontiguousarray(last, np.int64)
    cdef Py_ssize_t count = len(size), i
    cdef int64_t[::1] found = np.empty(count, np.int64)
    cdef _Holes holes = _Holes()
    # In the order in which they end. None ends before it begins, so those that end before another begins have been placed.
    cdef const int64_t[::1] ends = np.argsort(end, kind="stable")
    cdef int64_t top = 0, live = 0, most = 0, place, tail
    cdef Py_ssize_t over = 0
    with nogil:
        for i in range(count):
            while over < i and end[ends[over]] < begin[i]:
                place = ends[over]
                over += 1
                live -= size[place]
                holes.free(found[place], size[place])
            place = holes.take(size[i])
            if place < 0:
                tail = holes.take_ending_at(top)
                place = top if tail < 0 else tail
                top = place + size[i]
            found[i] = place
            live += size[i]
            most = max(most, live)
    return np.asarray(found), top, most
