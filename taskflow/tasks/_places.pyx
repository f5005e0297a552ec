# distutils: language = c++
"""The compiled places. The definition is tasks/places.py; tests/tasks/test_memory.py holds them equal."""

import numpy as np

from cython.operator cimport dereference
from libc.stdint cimport int64_t
from libc.string cimport memmove
from libcpp.map cimport map as cmap
from libcpp.pair cimport pair
from libcpp.queue cimport priority_queue
from libcpp.set cimport set as cset

ctypedef pair[int64_t, int64_t] Two

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


cdef class _Holes:
    cdef cset[Two] by_size  # (size, offset)
    cdef cmap[int64_t, int64_t] starts, ends  # offset -> size; end -> offset

    cdef void free(self, int64_t offset, int64_t size) noexcept nogil:
        cdef cmap[int64_t, int64_t].iterator found = self.ends.find(offset)
        cdef int64_t before
        if found != self.ends.end():
            before = dereference(found).second
            size += self.remove(before)
            offset = before
        if self.starts.find(offset + size) != self.starts.end():
            size += self.remove(offset + size)
        self.starts[offset] = size
        self.ends[offset + size] = offset
        self.by_size.insert(Two(size, offset))

    cdef int64_t take(self, int64_t size) noexcept nogil:
        cdef cset[Two].iterator at = self.by_size.lower_bound(Two(size, -1))
        cdef int64_t found, offset
        if at == self.by_size.end():
            return -1
        found, offset = dereference(at).first, dereference(at).second
        self.remove(offset)
        if found > size:
            self.free(offset + size, found - size)
        return offset

    cdef int64_t take_ending_at(self, int64_t end) noexcept nogil:
        cdef cmap[int64_t, int64_t].iterator found = self.ends.find(end)
        cdef int64_t offset
        if found == self.ends.end():
            return -1
        offset = dereference(found).second
        self.remove(offset)
        return offset

    cdef int64_t remove(self, int64_t offset) noexcept nogil:
        cdef int64_t size = self.starts[offset]
        self.starts.erase(offset)
        self.ends.erase(offset + size)
        self.by_size.erase(Two(size, offset))
        return size


def places_by_time(sizes, first, last):
    cdef const int64_t[::1] size = np.ascontiguousarray(sizes, np.int64)
    cdef const int64_t[::1] begin = np.ascontiguousarray(first, np.int64), end = np.ascontiguousarray(last, np.int64)
    cdef Py_ssize_t count = len(size), i
    cdef int64_t[::1] found = np.empty(count, np.int64)
    cdef _Holes holes = _Holes()
    cdef priority_queue[Two] ends  # (-last, number): what ends first is on top
    cdef int64_t top = 0, live = 0, most = 0, place, tail
    with nogil:
        for i in range(count):
            while not ends.empty() and -ends.top().first < begin[i]:
                place = -ends.top().second
                ends.pop()
                live -= size[place]
                holes.free(found[place], size[place])
            place = holes.take(size[i])
            if place < 0:
                tail = holes.take_ending_at(top)
                place = top if tail < 0 else tail
                top = place + size[i]
            found[i] = place
            ends.push(Two(-end[i], -i))
            live += size[i]
            most = max(most, live)
    return np.asarray(found).tolist(), top, most
