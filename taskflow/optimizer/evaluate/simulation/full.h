// Flat task graphs and Algorithm 1 over them.
// The definition is tasks/simulate.py; tests/optimizer/evaluate/test_core_equal.py holds them equal.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "evaluate/checkpoint.h"

namespace taskflow {

// Simulated time is in multiples of this many seconds, and costs are rounded up to it (twin of taskflow/tasks/simulate.py): so
// sums of fewer than 8,192 seconds are exact, in any order.
inline double on_grid(double seconds) { return seconds < 8192 ? std::ceil(seconds * 0x1p40) * 0x1p-40 : seconds; }

enum Kind : uint8_t { FORWARD, BACKWARD, COPY, MOVE, SUM, FILL, NORM, CLIP, UPDATE, COLLECTIVE };

// Bit of a predecessor's number that says: a join. A join is no task: it stands for all tasks that it waits for, takes no
// time and occupies nothing, so that m tasks that each wait for the same n need m + n edges and not m n.
constexpr uint32_t JOIN = 1u << 31;

struct Tasks {  // in program order
    std::vector<double> cost;
    std::vector<int32_t> resource;                  // the processor; of a copy or collective -1 - its route
    std::vector<uint32_t> after_offset, after;      // predecessors by task
    std::vector<uint32_t> waiter;                   // by predecessor in `after`: whose it is; only where blocks are put together
    std::vector<uint32_t> join_offset, join_after;  // and by join
    std::vector<uint32_t> join_at;                  // how many tasks there were when the join was made
    std::vector<std::pair<uint32_t, uint32_t>> blocks;  // (what it is for, its first task), in order
    std::vector<double> work;  // seconds by processor, then by route; only where blocks are put together
    uint32_t age = 0;          // for how many proposals its work has been carried on
    // Filled on request:
    std::vector<uint8_t> kind;
    std::vector<int32_t> processor, source, node;
    std::vector<int64_t> flops, nbytes;

    size_t size() const { return cost.size(); }
    size_t joins() const { return join_offset.empty() ? 0 : join_offset.size() - 1; }
    void clear() {
        cost.clear(), resource.clear(), after_offset.assign(1, 0), after.clear(), waiter.clear();
        join_offset.assign(1, 0), join_after.clear(), join_at.clear(), blocks.clear(), work.clear();
        kind.clear(), processor.clear(), source.clear(), node.clear(), flops.clear(), nbytes.clear();
    }
    void add(int32_t occupies, double seconds) {
        cost.push_back(seconds), resource.push_back(occupies), after_offset.push_back(uint32_t(after.size()));
    }
    void describe(int k, int target, int from, int64_t operations, int64_t bytes, int of) {
        kind.push_back(uint8_t(k)), processor.push_back(target), source.push_back(from), node.push_back(of);
        flops.push_back(operations), nbytes.push_back(bytes);
    }
};

struct Routes {
    std::vector<int32_t> offset{0}, resources;  // by route; resources are counted on after the processors
    int total_resources = 0;
    std::vector<uint8_t> together;  // by route: whether a task reaches all of it when it is ready, and not one after another
    // All that a task occupies, in order, from `stop(resource)` on; ~ the last one. With TOGETHER: it reaches the next one at the
    // same time.
    static constexpr int32_t TOGETHER = 1 << 30;
    std::vector<int32_t> stops;

    void begin(int processors) {
        total_resources = processors;
        for (int k = 0; k < processors; ++k) stops.push_back(~k);
    }
    int add(const std::vector<int>& occupied, bool at_once) {
        for (int k : occupied) {
            resources.push_back(k), stops.push_back(at_once ? k | TOGETHER : k);
            total_resources = std::max(total_resources, k + 1);
        }
        if (!occupied.empty()) stops.back() = ~stops.back();
        offset.push_back(int32_t(resources.size())), together.push_back(at_once);
        return int(offset.size()) - 2;
    }
    // Of a task's resource as in `Tasks`; ``processors``: how many.
    uint32_t stop(int32_t resource, uint32_t processors) const {
        return resource >= 0 ? uint32_t(resource) : processors + uint32_t(offset[-1 - resource]);
    }
    uint32_t processors() const { return uint32_t(stops.size() - resources.size()); }
};

// The smallest (time, number) first; times are not negative, so their bits order as they do.
class Queue {
public:
    typedef unsigned __int128 Key;
    void clear() { size_ = open_ = 0; }
    bool empty() const { return size_ == open_; }
    size_t size() const { return size_ - open_; }
    static Key key(double time, uint32_t number) {
        uint64_t bits;
        std::memcpy(&bits, &time, 8);
        return (Key(bits) << 32) | number;
    }
    static double time(Key key) {
        const uint64_t bits = uint64_t(key >> 32);
        double time;
        std::memcpy(&time, &bits, 8);
        return time;
    }
    static Key long_key(double time, uint64_t number) {
        uint64_t bits;
        std::memcpy(&bits, &time, 8);
        return (Key(bits) << 64) | number;
    }
    static double long_time(Key key) {
        const uint64_t bits = uint64_t(key >> 64);
        double time;
        std::memcpy(&time, &bits, 8);
        return time;
    }
    void push(Key key) {
        Key* heap = heap_.data();
        if (open_) {
            open_ = 0;
            return settle(key);
        }
        if (size_ == heap_.size()) grow(), heap = heap_.data();
        size_t at = size_++;
        while (at) {
            const size_t up = (at - 1) >> 2;
            if (heap[up] <= key) break;
            heap[at] = heap[up];
            at = up;
        }
        heap[at] = key;
    }
    // The place of what is taken stays open for what is pushed next: most tasks and copies make something else ready.
    Key pop() {
        if (open_) settle(heap_[--size_]);
        open_ = 1;
        return heap_[0];
    }

private:
    size_t size_ = 0, open_ = 0;  // open: whether there is nothing in the first place, which counts all the same
    std::vector<Key> heap_ = std::vector<Key>(1 << 8);

    [[gnu::noinline]] void grow() { heap_.resize(2 * heap_.size()); }
    // From the first place to where it belongs. With branches, which are foreseen often enough to go on before the keys are there:
    // without them it waits for each in turn.
    void settle(Key key) {
        Key* heap = heap_.data();
        const size_t n = size_;
        size_t at = 0;
        for (size_t child; (child = 4 * at + 1) < n;) {
            size_t least = child, end = std::min(child + 4, n);
            Key value = heap[child];
            for (size_t c = child + 1; c < end; ++c)
                if (heap[c] < value) value = heap[c], least = c;
            if (key <= value) break;
            heap[at] = value;
            at = least;
        }
        heap[at] = key;
    }
};

struct Times {
    std::vector<double> ready, start, end;
    std::vector<uint32_t> order;
    std::vector<double> busy;  // by resource
    std::vector<double> starts;       // of task t on each thing that it occupies: starts[place[t]] ...
    std::vector<uint32_t> place;
    double makespan = 0;
};

class Simulation {
public:
    // Seconds of the step; infinity as soon as it is certain to pass `limit`.
    double run(const Tasks& tasks, const Routes& routes, Times& times, double limit, Checkpoint& checkpoint) {
        const size_t n = tasks.size();
        if (!prepare(tasks, routes, times, limit)) return std::numeric_limits<double>::infinity();
        followers(tasks);
        events(tasks);
        times.ready.resize(n);
        times.order.resize(n);
        size_t taken = 0;
        free_.assign(routes.total_resources, 0.0);
        left_ = times.busy;
        const bool limited = limit < std::numeric_limits<double>::infinity();
        const double stop = limit * SLACK;
        queue_.clear();
        for (size_t t = 0; t < n; ++t)
            if (events_[t].waits == 0) queue_.push(Queue::key(0.0, uint32_t(t)));
        double makespan = 0;
        while (!queue_.empty()) {
            checkpoint();
            const Queue::Key key = queue_.pop();
            const uint32_t t = uint32_t(key);
            Event& event = events_[t];
            const double cost = event.cost;
            double start = event.ready, end;
            const int32_t r = event.resource;
            if (r >= 0) {
                if (free_[r] > start) start = free_[r];
                end = start + cost;
                free_[r] = end;
                if (end + (left_[r] -= cost) > stop) return std::numeric_limits<double>::infinity();
                times.starts[times.place[t]] = start;
                times.order[taken++] = t;
            } else {
                // A copy goes on to the next link when it starts on one, and a collective at once; `waits`, no longer needed, says
                // how far it is.
                const uint32_t from = uint32_t(routes.offset[-1 - r]), hops = uint32_t(routes.offset[-r]) - from;
                if (!event.waits) times.order[taken++] = t;
                const bool together = routes.together[-1 - r];
                const double at = start = Queue::time(key);
                do {
                    const int32_t link = routes.resources[from + event.waits];
                    const double begin = free_[link] > at ? free_[link] : at;
                    free_[link] = begin + cost;
                    if (begin + cost + (left_[link] -= cost) > stop) return std::numeric_limits<double>::infinity();
                    times.starts[times.place[t] + event.waits] = begin;
                    if (begin > start) start = begin;
                } while (++event.waits < hops && (together || start == at));
                end = start + cost;
                if (event.waits < hops) {  // others come in between
                    if (limited && end + tail_[t] > stop) return std::numeric_limits<double>::infinity();
                    queue_.push(Queue::key(start, t));
                    continue;
                }
            }
            if (limited && end + tail_[t] > stop) return std::numeric_limits<double>::infinity();
            times.ready[t] = event.ready, times.start[t] = start, times.end[t] = end;
            if (end > makespan) makespan = end;
            finish(t, end, uint32_t(n));
        }
        times.makespan = makespan;
        return makespan;
    }

    // Busy seconds and longest paths; false if some resource has more work, or some path more seconds, than the limit
    // allows.
    bool prepare(const Tasks& tasks, const Routes& routes, Times& times, double limit) {
        const size_t n = tasks.size();
        times.start.resize(n), times.end.resize(n), times.place.resize(n);
        uint32_t places = 0;
        for (size_t t = 0; t < n; ++t) {
            const int32_t r = tasks.resource[t];
            times.place[t] = places;
            places += r >= 0 ? 1 : uint32_t(routes.offset[-r] - routes.offset[-1 - r]);
        }
        times.starts.resize(places);
        times.busy.assign(routes.total_resources, 0.0);
        for (size_t t = 0; t < n; ++t) {
            int32_t r = tasks.resource[t];
            if (r >= 0) { times.busy[r] += tasks.cost[t]; continue; }
            for (int32_t k = routes.offset[-1 - r]; k < routes.offset[-r]; ++k)
                times.busy[routes.resources[k]] += tasks.cost[t];
        }
        for (double work : times.busy)
            if (work > limit * SLACK) return false;
        return limit == std::numeric_limits<double>::infinity() || tails(tasks) <= limit * SLACK;
    }
    template <class F> void each_follower(uint32_t t, F f) const {
        for (uint32_t k = offset_[t]; k < offset_[t + 1]; ++k) f(next_[k]);
    }

private:
    // Sums of remaining work are rounded differently from the times themselves: leave room for that.
    static constexpr double SLACK = 1 + 1e-9;
    Queue queue_;
    struct Event {  // what the loop needs of a task or join, in one cache line
        double ready, cost;
        uint32_t waits;
        int32_t resource;
        uint32_t first;  // of its followers in next_
    };
    std::vector<Event> events_;
    std::vector<uint32_t> offset_, next_;
    std::vector<double> free_, left_, tail_;

    void finish(uint32_t t, double end, uint32_t n) {
        for (uint32_t k = events_[t].first, last = events_[t + 1].first; k < last; ++k) {
            const uint32_t f = next_[k];
            Event& event = events_[f];
            if (event.ready < end) event.ready = end;
            if (--event.waits == 0) {
                if (f < n) queue_.push(Queue::key(event.ready, f));
                else finish(f, event.ready, n);
            }
        }
    }
    void events(const Tasks& tasks) {
        const uint32_t n = uint32_t(tasks.size()), all = n + uint32_t(tasks.joins());
        events_.resize(all + 1);
        for (uint32_t t = 0; t < n; ++t)
            events_[t] = {0.0, tasks.cost[t], tasks.after_offset[t + 1] - tasks.after_offset[t], tasks.resource[t], offset_[t]};
        for (uint32_t j = 0; j < all - n; ++j)
            events_[n + j] = {0.0, 0.0, tasks.join_offset[j + 1] - tasks.join_offset[j], 0, offset_[n + j]};
        events_[all] = {0.0, 0.0, 0, 0, offset_[all]};
    }

    // The longest path of costs from each task's end to the end of the step: no task can end later than the limit less
    // that. Waiting for processors and links comes on top.
    double tails(const Tasks& tasks) {
        double longest = 0;
        const uint32_t n = uint32_t(tasks.size());
        tail_.assign(n + tasks.joins(), 0.0);
        int64_t join = int64_t(tasks.joins()) - 1;
        auto give = [&](uint32_t a, double path) {
            double& tail = tail_[a & JOIN ? n + (a & ~JOIN) : a];
            if (tail < path) tail = path;
        };
        for (uint32_t t = n; t-- > 0;) {
            for (; join >= 0 && tasks.join_at[join] > t; --join)
                for (uint32_t k = tasks.join_offset[join]; k < tasks.join_offset[join + 1]; ++k)
                    give(tasks.join_after[k], tail_[n + join]);
            const double path = tasks.cost[t] + tail_[t];
            if (path > longest) longest = path;
            for (uint32_t k = tasks.after_offset[t]; k < tasks.after_offset[t + 1]; ++k) give(tasks.after[k], path);
        }
        return longest;
    }

public:
    void followers(const Tasks& tasks) {
        const uint32_t n = uint32_t(tasks.size()), all = n + uint32_t(tasks.joins());
        offset_.assign(all + 2, 0);
        next_.resize(tasks.after.size() + tasks.join_after.size());
        auto place = [n](uint32_t a) { return a & JOIN ? n + (a & ~JOIN) : a; };
        for (uint32_t a : tasks.after) ++offset_[place(a) + 2];
        for (uint32_t a : tasks.join_after) ++offset_[place(a) + 2];
        for (uint32_t i = 2; i < all + 2; ++i) offset_[i] += offset_[i - 1];
        for (uint32_t t = 0; t < n; ++t) {
            for (uint32_t k = tasks.after_offset[t]; k < tasks.after_offset[t + 1]; ++k)
                next_[offset_[place(tasks.after[k]) + 1]++] = t;
        }
        for (uint32_t j = 0; j < all - n; ++j) {
            for (uint32_t k = tasks.join_offset[j]; k < tasks.join_offset[j + 1]; ++k)
                next_[offset_[place(tasks.join_after[k]) + 1]++] = n + j;
        }
    }
};

}  // namespace taskflow
