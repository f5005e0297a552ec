# distutils: language = c++
"""The compiled twin of lower + simulate, for timelines. taskflow/optimizer/evaluate/compiled.py fills it and asks it.

The definition is optimizer/evaluate/evaluator.py; tests/optimizer/evaluate/test_core_equal.py holds them equal."""

import numpy as np

from cpython.ref cimport PyObject
from libc.math cimport NAN, isnan
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr
from libcpp.vector cimport vector


cdef extern from "evaluate/lowering/lower.h" namespace "taskflow" nogil:
    cdef struct Config:
        pass

    cdef cppclass Times:
        vector[double] ready, start, end, busy, starts
        vector[uint32_t] order, place
        double makespan

    cdef cppclass Tasks:
        vector[uint8_t] kind
        vector[int32_t] processor, source, node, resource
        vector[int64_t] flops, nbytes
        vector[double] cost
        vector[uint32_t] after_offset, after, join_offset, join_after
        size_t size()

cdef extern from "evaluate/lowering/sync_table.h" namespace "taskflow" nogil:
    ctypedef void (*TableCallback)(void*, int, int, const uint8_t*, int64_t, int) noexcept

    cdef cppclass SyncTables:
        int add(const vector[vector[int]]& rows, const vector[vector[vector[int]]]& waits, const vector[vector[int]]& stages,
                const vector[int]& sums) except +
        void answer(int64_t low, int64_t high, int root, int pattern) except +
        void forget()

cdef extern from "evaluate/step.h" namespace "taskflow" nogil:
    ctypedef double (*CostCallback)(void*, int, int, int, int, int64_t, int64_t, int) noexcept
    ctypedef void (*RouteCallback)(void*, int, int) noexcept
    ctypedef void (*GroupCallback)(void*, const int32_t*, int) noexcept

    cdef cppclass Step:
        Step() except +
        Tasks& tasks()
        Times& times()
        void machine(int processors, const vector[int]& classes, cbool rates, cbool by_runs, const vector[double]& flops,
                     const vector[double]& nbytes, const vector[double]& overhead, CostCallback cost,
                     RouteCallback route, GroupCallback group, cbool (*go_on)(void*) noexcept, TableCallback table,
                     void* asker) except +
        void repeat(int times)
        void rule(cbool trains, int64_t state4, int64_t state8, int64_t flops, cbool clips)
        void add_node(const vector[int]& input_nodes, const vector[int]& input_outputs, const vector[int]& parameters,
                      const vector[int]& itemsizes, const vector[int]& needs, const vector[int]& seeds, cbool state,
                      cbool active, cbool keeps_inputs, cbool keeps_weights, cbool keeps_outputs)
        void add_parameter(int layer, int whole, int itemsize, cbool trained, int dtype)
        void finish_model()
        void add_loss(int node, int output, int list)
        void add_carry(int node, int output, int becomes_node, int becomes_output)
        void add_route(int source, int target, const vector[int]& resources, double latency, double bandwidth, int cls)
        void add_group(const vector[int32_t]& members, const vector[int]& resources, cbool together)
        int add_region(const vector[int]& lo, const vector[int]& hi) except +
        int add_list(const vector[int]& regions)
        int add_cut(int pieces, cbool local, const vector[int]& inputs, const vector[int]& weights, const vector[int]& outputs,
                    const vector[int]& like, const vector[int64_t]& flops, const vector[int64_t]& backward,
                    const vector[vector[int64_t]]& nbytes) except +
        void begin()
        void change(int node, int cut, const vector[int]& processors) except +
        void change_sync(int layer, int way, cbool rotates)
        SyncTables& sync_tables()
        void change_sums(cbool collective)
        double evaluate(double limit) except +
        void accept()
        int algorithm
        void ask_every(double seconds)
        void complete() except +
        size_t size()

cdef double ask_cost(void* asker, int kind, int cut, int piece, int where, int64_t flops, int64_t nbytes,
                     int node) noexcept with gil:
    cdef Core core = <Core>asker
    cdef double seconds
    if core.failed:  # the proposal has failed: what else it needs, which may take long to measure, is not asked
        return NAN
    try:
        seconds = core.cost(kind, cut, piece, where, flops, nbytes, node)
        if isnan(seconds):
            raise ValueError("costs: a task's seconds must be a number, got NaN")
        return seconds
    except BaseException as error:
        core.fail(error)
        return NAN


cdef void ask_route(void* asker, int source, int target) noexcept with gil:
    cdef Core core = <Core>asker
    try:
        links, latency, bandwidth, cls = core.route(source, target)
    except BaseException as error:
        core.fail(error)
        links, latency, bandwidth, cls = (), 0.0, 1.0, 0
    core.step.get().add_route(source, target, links, latency, bandwidth, cls)


cdef void ask_group(void* asker, const int32_t* members, int count) noexcept with gil:
    cdef Core core = <Core>asker
    cdef vector[int32_t] group
    group.assign(members, members + count)
    try:
        resources, together = core.group(tuple(group))
    except BaseException as error:
        core.fail(error)
        resources, together = (0,), False
    core.step.get().add_group(group, resources, together)


cdef cbool ask_to_go_on(void* asker) noexcept with gil:
    cdef Core core = <Core>asker
    if core.failed:
        return False
    try:
        core.checkpoint()
        return True
    except BaseException as error:
        core.fail(error)
        return False


cdef void ask_table(void* asker, int way, int holders, const uint8_t* giving, int64_t size, int itemsize) noexcept with gil:
    cdef Core core = <Core>asker
    if core.failed:
        return
    try:
        gives = (True,) * holders if giving == NULL else tuple([bool(giving[i]) for i in range(holders)])
        for low, high, root, pattern in core.table(way, gives, size, itemsize):
            core.step.get().sync_tables().answer(low, high, root, pattern)
    except BaseException as error:
        core.fail(error)


cdef class Core:
    """One graph on one machine. All numbers are those of taskflow/optimizer/evaluate/compiled.py's tables."""

    cdef unique_ptr[Step] step
    cdef object cost, route, group, checkpoint, table, error
    cdef cbool failed
    cdef int most
    cdef vector[int] places

    def __cinit__(self):
        self.step.reset(new Step())

    def machine(self, int processors, list classes, bint rates, bint by_runs, list flops, list nbytes, list overhead, cost,
                route, group, checkpoint, table):
        """``cost(kind, cut, piece, processor, flops, nbytes, node)`` gives seconds (of a copy, ``cut`` and ``piece`` are the sender
        and the receiver and ``flops`` its runs, read << 32 | written; of a collective ``cut`` is its halves, of other tasks within
        a processor their runs, which are all 1 without ``by_runs``); ``route(source, target)`` gives
        (resources, latency seconds, bytes a second, class), ``group(processors)`` the resources of a collective, and whether it reaches them together. The
        processors of the nth group that is asked for are n where its cost is asked for. ``checkpoint()`` is called every 20 ms of an
        evaluation, which ends with what it raises. ``table(way, giving, size, itemsize)`` gives (low, high, root, number of the
        pattern) of each chunk of a bundle, as `SyncTable` has them."""
        self.cost, self.route, self.group, self.checkpoint, self.table = cost, route, group, checkpoint, table
        self.most = processors
        self.step.get().machine(processors, classes, rates, by_runs, flops, nbytes, overhead, ask_cost, ask_route,
                                ask_group, ask_to_go_on, ask_table, <void*>self)

    def repeat(self, int times):
        """Collectives that keep weights equal are among the processors of so many repetitions, those of the others counted on
        after the first one's."""
        self.step.get().repeat(times)

    def rule(self, bint trains, int64_t state4, int64_t state8, int64_t flops, bint clips):
        self.step.get().rule(trains, state4, state8, flops, clips)

    def add_node(self, list input_nodes, list input_outputs, list parameters, list itemsizes, list needs, list seeds,
                 bint state, bint active, bint keeps_inputs, bint keeps_weights, bint keeps_outputs):
        self.step.get().add_node(input_nodes, input_outputs, parameters, itemsizes, needs, seeds, state, active,
                                 keeps_inputs, keeps_weights, keeps_outputs)

    def add_parameter(self, int layer, int whole, int itemsize, bint trained, int dtype):
        self.step.get().add_parameter(layer, whole, itemsize, trained, dtype)

    def add_loss(self, int node, int output, int whole):
        self.step.get().add_loss(node, output, whole)

    def add_carry(self, int node, int output, int becomes_node, int becomes_output):
        self.step.get().add_carry(node, output, becomes_node, becomes_output)

    def finish_model(self):
        self.step.get().finish_model()

    def add_region(self, lo, hi):
        return self.step.get().add_region(lo, hi)

    def add_list(self, regions):
        return self.step.get().add_list(regions)

    def add_cut(self, int pieces, bint local, list inputs, list weights, list outputs, list like, list flops, list backward,
                list nbytes):
        """``local``: each piece computes the same as others, for what reads it on its own processor (`Piece.local`). ``like``: by piece, the first one that costs the same. ``nbytes``: of inputs, weights, outputs and saved arrays, each by piece."""
        return self.step.get().add_cut(pieces, local, inputs, weights, outputs, like, flops, backward, nbytes)

    def begin(self):
        """Start a proposal from the current configurations. What went wrong with one that was given up before it was evaluated (a
        checkpoint may raise between two of its changes) does not concern this one."""
        self.error, self.failed = None, False
        self.step.get().begin()

    def change(self, int node, int cut, processors):
        """ValueError if there are not as many processors as pieces, or one does not exist."""
        cdef int place
        self.places.clear()
        for place in processors:
            if not 0 <= place < self.most:
                raise ValueError(f"change: processor {place} does not exist; there are 0 to {self.most - 1}")
            self.places.push_back(place)
        self.step.get().change(node, cut, self.places)

    def change_sync(self, int layer, int way, bint rotates):
        """``way``: as `table` is asked for it. ``rotates``: whether the first root differs from bundle to bundle."""
        self.step.get().change_sync(layer, way, rotates)

    def add_sync_pattern(self, rows, waits, stages, sums):
        """The number of a pattern. ``rows``: (step, place, source, parts, share or -1, sums); ``waits``: of each row (after,
        gradients, readers); ``stages``: (phase, order, first, last); ``sums``: rows or -1."""
        return self.step.get().sync_tables().add(rows, waits, stages, sums)

    def forget_sync_tables(self):
        """Patterns are counted from 0 again."""
        self.step.get().sync_tables().forget()

    def change_sums(self, bint collective):
        """How partial values are summed: by an all-reduce where every processor that has a part reads the sum, or by owners."""
        self.step.get().change_sums(collective)

    def evaluate(self, double limit):
        """Seconds of the proposal, or infinity. Other Python threads go on meanwhile: searches may share a process."""
        cdef double seconds
        with nogil:
            seconds = self.step.get().evaluate(limit)
        self._check()
        return seconds

    def use(self, int algorithm):
        """How proposals are simulated: 0 from the start (the paper's Algorithm 1), 1 from the current strategy's times (Algorithm 2)."""
        self.step.get().algorithm = algorithm

    def ask_every(self, double seconds):
        """For tests: how often ``checkpoint`` is called, 0: at each of the places where it may be."""
        self.step.get().ask_every(seconds)

    def accept(self):
        self.step.get().accept()

    def __len__(self):
        return self.step.get().size()

    cdef fail(self, error):
        self.error, self.failed = self.error or error, True

    cdef int _check(self) except -1:
        if self.error is not None:
            error, self.error, self.failed = self.error, None, False
            raise error
        return 0

    def tasks(self):
        """The current strategy's tasks as arrays: kind, processor, source, node, flops, nbytes, cost."""
        self.step.get().complete()
        cdef Tasks* t = &self.step.get().tasks()
        return {
            "kind": np.array(t.kind, np.uint8), "processor": np.array(t.processor, np.int32),
            "source": np.array(t.source, np.int32), "node": np.array(t.node, np.int32),
            "flops": np.array(t.flops, np.int64), "nbytes": np.array(t.nbytes, np.int64),
            "cost": np.array(t.cost, np.float64),
            "after_offset": np.array(t.after_offset, np.int64), "after": np.array(t.after, np.int64),
            "join_offset": np.array(t.join_offset, np.int64), "join_after": np.array(t.join_after, np.int64),
        }

    def totals(self, list travels, int processors):
        """(seconds of the tasks on each processor that are no messages, bytes of messages, busy seconds by resource) of the
        current strategy. ``travels``: by kind, whether it is a message. Makes no array of tasks, of which there may be millions."""
        self.step.get().complete()
        cdef Tasks* t = &self.step.get().tasks()
        cdef vector[uint8_t] message = travels
        cdef vector[double] seconds
        cdef int64_t nbytes = 0
        cdef size_t i
        seconds.assign(processors, 0.0)
        with nogil:
            for i in range(t.size()):
                if message[t.kind[i]]:
                    nbytes += t.nbytes[i]
                else:
                    seconds[t.processor[i]] += t.cost[i]
        return np.array(seconds), nbytes, np.array(self.step.get().times().busy)

    def times(self):
        """(ready, start, end, order, busy seconds by resource, starts on everything occupied, where each task's begin
        there) of the current strategy."""
        self.step.get().complete()
        cdef Times* times = &self.step.get().times()
        n = self.step.get().size()
        return (np.array(times.ready)[:n], np.array(times.start)[:n], np.array(times.end)[:n],
                np.array(times.order, np.int64), np.array(times.busy), np.array(times.starts),
                np.array(times.place, np.int64)[:n])
