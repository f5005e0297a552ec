// What a simulation leaves behind, so that the next one need not begin at the start of the step: up to the first moment at
// which a task that a proposal adds could begin, or one that it removes did, both take the same tasks at the same times.
#pragma once

#include "core_simulate.h"

namespace taskflow {

struct Resource {
    double free, left;  // when it is free; seconds of work that have not begun
    double total;       // and of all work
};

struct Past {
    static constexpr uint32_t NEVER = ~0u;
    struct Task {  // positions count how often anything was taken from the queue
        double ready = 0, end = 0;
        uint32_t taken = NEVER, finished = NEVER;
    };
    struct Turn {  // what was taken, in order
        double time;          // its end; of a copy that was queued again, when it started
        uint32_t task, stop;  // where that copy goes on, else 0
    };
    struct Way {  // a copy that was queued again for the next link of its route
        uint32_t position, task, stop;
        double start;
    };
    struct Mark {  // a moment to begin at: before `position`, and after all that was taken until `time`
        uint32_t position, ways;
        double time;
    };
    std::vector<Task> tasks;
    std::vector<Way> ways;
    std::vector<Mark> marks;
    std::vector<Resource> resources;  // of each mark in turn
    size_t stride = 0;                // resources of a mark
    std::vector<uint32_t> firsts;     // each block's first task, and the number of tasks

    void clear() { tasks.clear(), ways.clear(), marks.clear(), resources.clear(), firsts.clear(); }

    // The last mark all of which comes before `time`, or null.
    const Mark* before(double time) const {
        const Mark* found = nullptr;
        for (const Mark& mark : marks)
            if (mark.time < time) found = &mark;
        return found;
    }

    // Before which moment a step made of `now` is certain to go like this one. ``old_place[i]``: the number here of the
    // task i there, NEVER for those of blocks that differ. ``same``: by block, whether it is in both.
    double differs(const Tasks& now, const std::vector<uint32_t>& old_place, const std::vector<uint8_t>& same) const {
        double first = std::numeric_limits<double>::infinity();
        for (size_t b = 0; b < same.size(); ++b) {
            if (same[b]) continue;
            for (uint32_t i = firsts[b]; i < firsts[b + 1]; ++i)
                if (tasks[i].taken != NEVER) first = std::min(first, tasks[i].ready);
        }
        for (uint32_t i = 0; i < now.size(); ++i) {
            if (old_place[i] != NEVER) continue;
            double ready = 0;
            for (uint32_t k = now.after_offset[i]; k < now.after_offset[i + 1] && ready < first; ++k) {
                const uint32_t old = old_place[now.after[k]];
                // What waits for something new, or for what came later than is known, comes later itself.
                if (old == NEVER || tasks[old].finished == NEVER) ready = first;
                else ready = std::max(ready, tasks[old].end);
            }
            first = std::min(first, ready);
        }
        return first;
    }
};

}  // namespace taskflow
