# distutils: language = c++
"""The compiled twin of arrays.py: Algorithm 1 over a step that is given as arrays."""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint32_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector


cdef extern from "evaluate/simulation/full.h" namespace "taskflow" nogil:
    cdef cppclass Tasks:
        vector[double] cost
        vector[int32_t] resource
        vector[uint32_t] after_offset, after
        void clear()

    cdef cppclass Routes:
        void begin(int processors)
        int add(const vector[int]& occupied, cbool together)

    cdef cppclass Times:
        vector[double] starts, end, busy
        vector[uint32_t] place

    cdef cppclass Checkpoint:
        cbool (*ask)(void*) noexcept
        void* asker

    cdef cppclass Simulation:
        double run(const Tasks& tasks, const Routes& routes, Times& times, double limit, Checkpoint& checkpoint) except +


cdef class _Asker:
    cdef object checkpoint, error


cdef cbool _go_on(void* asker) noexcept with gil:
    cdef _Asker of = <_Asker>asker
    try:
        of.checkpoint()
        return True
    except BaseException as error:
        of.error = error
        return False


def simulate_arrays(int processors, list occupied, list together, const double[::1] seconds, const int64_t[::1] place,
                    const int64_t[::1] after_offset, const int64_t[::1] after, checkpoint):
    """As `arrays.simulate_arrays`."""
    cdef Tasks tasks
    cdef Routes routes
    cdef Times times
    cdef Simulation simulation
    cdef Checkpoint check
    cdef _Asker asker = _Asker()
    cdef Py_ssize_t n = seconds.shape[0], edges = after.shape[0], i
    cdef vector[int] stops
    cdef vector[int32_t] resource
    cdef double inf = float("inf")
    if not all(occupied):
        raise ValueError("simulate_arrays: every task must occupy something")
    asker.checkpoint = checkpoint
    check.ask, check.asker = _go_on, <void*>asker
    routes.begin(processors)
    for one, at_once in zip(occupied, together):
        if len(one) == 1 and one[0] < processors:
            resource.push_back(one[0])
        else:
            stops = one
            resource.push_back(-1 - routes.add(stops, at_once))
    tasks.clear()
    tasks.after_offset.resize(n + 1)
    tasks.cost.resize(n)
    tasks.resource.resize(n)
    tasks.after.resize(edges)
    try:
        with nogil:
            for i in range(n):
                tasks.cost[i] = seconds[i]
                tasks.resource[i] = resource[place[i]]
                tasks.after_offset[i] = after_offset[i]
            tasks.after_offset[n] = after_offset[n]
            for i in range(edges):
                tasks.after[i] = after[i]
            simulation.run(tasks, routes, times, inf, check)
    except Exception:
        if asker.error is not None:
            raise asker.error from None
        raise
    cdef double[::1] starts = np.empty(times.starts.size()), end = np.empty(n), busy = np.empty(times.busy.size())
    cdef int64_t[::1] offset = np.empty(n + 1, np.int64)
    for i in range(<Py_ssize_t>times.starts.size()):
        starts[i] = times.starts[i]
    for i in range(n):
        offset[i], end[i] = times.place[i], times.end[i]
    offset[n] = times.starts.size()
    for i in range(<Py_ssize_t>times.busy.size()):
        busy[i] = times.busy[i]
    return np.asarray(starts), np.asarray(offset), np.asarray(end), np.asarray(busy)
