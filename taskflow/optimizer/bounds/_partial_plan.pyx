# distutils: language = c++
"""The compiled lower bound of partial plans (bounds/partial_plan.h). taskflow/optimizer/bounds/partial_plan.py fills it and asks it.

There is no twin: a bound is right if no completion is faster; tests/optimizer/bounds/test_relaxed_step.py holds it."""

import numpy as np

from libcpp cimport bool as cbool
from libcpp.pair cimport pair
from libcpp.vector cimport vector


cdef extern from "bounds/partial_plan.h" namespace "taskflow::relax" nogil:
    cdef struct Touch:
        int slot, piece, size, region
        cbool view, whole, same

    cdef cppclass Cut:
        int pieces
        vector[double] forward, backward
        vector[vector[int]] slot, owner, size

    cdef cppclass Config:
        int cut
        vector[int] processors
        vector[vector[double]] together

    cdef cppclass Edge:
        int source "from"
        int output, to
        cbool gradient, always, all
        vector[vector[Touch]] touches

    cdef cppclass Op:
        cbool tasks, active
        int turn, layer
        vector[Cut] cuts
        vector[Config] configs
        vector[int] inward "in"
        vector[int] out
        vector[cbool] seed, known

    cdef cppclass Tables:
        int processors
        cbool serial
        vector[double] copy, move, sum, fill
        vector[Op] ops
        vector[Edge] edges

    cdef cppclass SyncTask:
        int processor
        double cost
        vector[int] after
        vector[pair[int, int]] waits

    cdef cppclass Layer:
        vector[int] users
        double work, last

    cdef cppclass Bound:
        Tables t
        vector[Layer] layers
        int reason
        void prepare() except +
        int add_sync(vector[SyncTask] tasks) except +
        void use_sync(int layer, int sync)
        void fix(int n, int config) except +
        void free(int n) except +
        double seconds(double limit) except +
        vector[vector[double]] times(int n)


cdef class Relax:
    """Operators are added producers first, edges after them; then `prepare`. After that `fix` and `free` decide about
    operators, and `seconds` is a lower bound on every completion. ``syncs(ops, chosen)``: the synchronisation of each layer
    that has become known with these operators, as (layer, number)s."""

    cdef Bound bound
    cdef object syncs
    cdef readonly dict chosen
    cdef list used

    def __init__(self, int processors, cbool serial, syncs):
        self.bound.t.processors, self.bound.t.serial = processors, serial
        self.syncs, self.chosen, self.used = syncs, {}, []

    def add_op(self, cbool tasks, cbool active, int turn, int layer, list seed, list known):
        cdef Op op
        op.tasks, op.active, op.turn, op.layer = tasks, active, turn, layer
        op.seed, op.known = seed, known
        self.bound.t.ops.push_back(op)
        return self.bound.t.ops.size() - 1

    def add_cut(self, int op, int pieces, list forward, list backward, list slot, list owner, list size):
        cdef Cut cut
        cut.pieces, cut.forward, cut.backward = pieces, forward, backward
        cut.slot, cut.owner, cut.size = slot, owner, size
        self.bound.t.ops[op].cuts.push_back(cut)

    def add_config(self, int op, int cut, processors, list together):
        """``together``: for each output and slot the least seconds of the all-reduce that may sum it, -inf where none may; empty: none
        may anywhere."""
        cdef Config config
        config.cut, config.processors, config.together = cut, processors, together
        self.bound.t.ops[op].configs.push_back(config)

    def add_edge(self, int source, int output, int to, cbool gradient, cbool always, cbool all_, list touches):
        """``touches``: for each cut of the source and each of the target, rows (slot, piece, size, region, view, whole, same)."""
        cdef Edge edge
        cdef Touch touch
        cdef vector[Touch] rows
        edge.source, edge.output, edge.to = source, output, to
        edge.gradient, edge.always, edge.all = gradient, always, all_
        for table in touches:
            rows.clear()
            for row in table:
                touch.slot, touch.piece, touch.size, touch.region, touch.view, touch.whole, touch.same = row
                rows.push_back(touch)
            edge.touches.push_back(rows)
        self.bound.t.edges.push_back(edge)
        return self.bound.t.edges.size() - 1

    def link(self, int op, list inward, list out):
        """The edges of an operator; ``out`` in the order of the readers in the program."""
        self.bound.t.ops[op].inward, self.bound.t.ops[op].out = inward, out

    def add_size(self, list copy, list move, list sum_, list fill):
        cdef double value
        for value in copy:
            self.bound.t.copy.push_back(value)
        for value in move:
            self.bound.t.move.push_back(value)
        for value in sum_:
            self.bound.t.sum.push_back(value)
        for value in fill:
            self.bound.t.fill.push_back(value)

    def add_layer(self, list users, double work, double last):
        cdef Layer layer
        layer.users, layer.work, layer.last = users, work, last
        self.bound.layers.push_back(layer)

    def add_sync(self, list tasks):
        """``tasks``: rows (processor or -1, seconds, earlier rows that it waits for, (operator, piece)s)."""
        cdef vector[SyncTask] rows
        cdef SyncTask row
        for processor, cost, after, waits in tasks:
            row.processor, row.cost, row.after, row.waits = processor, cost, after, waits
            rows.push_back(row)
        return self.bound.add_sync(rows)

    def prepare(self):
        self.bound.prepare()

    def fix(self, ops, choices):
        """Give each of ``ops`` one of its configurations."""
        for op, config in zip(ops, choices):
            self.bound.fix(op, config)
            self.chosen[op] = config
        cdef list known = self.syncs(ops, self.chosen)
        for layer, number in known:
            self.bound.use_sync(layer, number)
        self.used.append(known)

    def free(self, ops):
        """Take back the last `fix`."""
        for layer, _ in self.used.pop():
            self.bound.use_sync(layer, -1)
        for op in ops:
            del self.chosen[op]
            self.bound.free(op)

    def use_sync(self, int layer, int number):
        """Another synchronisation for a layer; -1: not known."""
        self.bound.use_sync(layer, number)

    def seconds(self, double limit):
        """(least seconds of any completion, which argument says so: 0 path, 1 processor, 2 all processors). Once it is
        certain to reach ``limit``, any such number."""
        value = self.bound.seconds(limit)
        return value, self.bound.reason

    def times(self, int op):
        """Of a fixed operator's pieces, after `seconds`: heads and tails of forward, heads and tails of backward."""
        return self.bound.times(op)

    def children(self, ops, list choices, double limit):
        """`seconds` and arguments if ``ops`` are fixed to each of ``choices``."""
        cdef int i
        values, reasons = np.empty(len(choices)), np.empty(len(choices), np.int8)
        for i, choice in enumerate(choices):
            self.fix(ops, choice)
            values[i] = self.bound.seconds(limit)
            reasons[i] = self.bound.reason
            self.free(ops)
        return values, reasons
