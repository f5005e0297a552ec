// What a simulation leaves behind, so that the next one takes over the stretches of it that only move in time.
#pragma once

#include <memory>

#include "evaluate/lowering/sync_fragment.h"

namespace taskflow {

struct Resource {
    double free, left;  // when it is free; seconds of work that have not begun
    double total;       // and of all work
};

// Positions count how often anything was taken from the queue. Tasks are numbered as they were then: those around
// synchronisation, and then the fragments in the order in which they joined in.
struct Past {
    static constexpr uint32_t NEVER = ~0u;
    // Sums of simulated times up to here are exact (evaluate/simulation/full.h), so that what moves keeps its distances to the bit.
    static constexpr double EXACT = 4096;
    struct Turn {  // what was taken, in order
        double end, first;    // when it ends there; and on the first link of those that it took at once
        uint32_t task, stop;  // of a copy that was queued again: where it goes on; else 0
    };
    struct Place { uint32_t taken, finished; };  // the positions of a task's first and last turn
    struct Waiting { double time; uint32_t task, stop; };  // an entry of the queue
    struct Used { double free, done; };                    // a resource: when it is free, seconds of work that have begun
    struct Mark {  // a moment to go on at: after the turns before `position`
        uint32_t position, finals, waiting;  // turns that ended their task; where its entries of the queue begin
        double time, most;                   // at which the last of these turns was taken; the latest end of them all
    };
    std::vector<Turn> turns;
    std::vector<Place> places;  // by task
    std::vector<Mark> marks;    // and one at the end
    std::vector<Waiting> waiting;
    std::vector<Used> used;  // of each mark in turn
    size_t stride = 0;       // resources of a mark
    std::vector<uint32_t> firsts;                        // each block's first task, and the number of tasks around
    std::vector<uint32_t> base;                          // by layer: its fragment's first task
    std::vector<std::pair<uint32_t, uint32_t>> joined;   // (first task, layer), in order
    // Of the tasks around: the first of what follows each, in `followers`: tasks around or slots, and the next of these. Only
    // few of them are asked for, so lists that are quickly made.
    std::vector<uint32_t> follower_first;
    std::vector<std::pair<uint32_t, uint32_t>> followers;
    std::vector<uint32_t> layer_of_slot;

    void clear() {
        marks.clear(), waiting.clear(), used.clear(), firsts.clear(), base.clear(), joined.clear();
    }
    bool empty() const { return marks.empty(); }
    double makespan() const { return marks.back().most; }
    // The first mark at or after a position.
    uint32_t mark_from(uint32_t position) const {
        return uint32_t(std::partition_point(marks.begin(), marks.end(), [&](const Mark& m) { return m.position < position; }) -
                        marks.begin());
    }
};

}  // namespace taskflow
