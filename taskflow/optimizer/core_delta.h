// Algorithm 2 of the paper: start from the times of an earlier task graph and propagate what changes.
//
// The times that Algorithm 1 gives are the only ones with ready = the last predecessor's end, start = the later of ready and
// the end of the task before it on everything it occupies, and the tasks of every resource in order of (ready, number);
// this holds if all costs are positive. So it does not matter where propagation starts from: when nothing changes any
// more, the times are those of Algorithm 1, bit for bit.
#pragma once

#include <algorithm>

#include "core_simulate.h"

namespace taskflow {

class Delta {
public:
    // Seconds of the step `now`, whose times are near those of `before`; infinity if certain to pass `limit`.
    double run(const Tasks& before, const Times& old, const Tasks& now, const Routes& routes, Simulation& full,
               Times& times, double limit) {
        const uint32_t n = uint32_t(now.size());
        for (double cost : now.cost)
            if (!(cost > 0)) return full.run(now, routes, times, limit);
        if (!full.prepare(now, routes, times, limit)) return std::numeric_limits<double>::infinity();
        full.followers(now);
        now_ = &now, routes_ = &routes, times_ = &times, full_ = &full;
        guess(before, old);
        occupy();
        queue_.clear();
        queued_.assign(n, 0), moved_.assign(n, 0);
        for (uint32_t t = 0; t < n; ++t) check(t);
        left_ = 4ll * n + 1000;
        while (!queue_.empty()) {
            uint32_t t = uint32_t(queue_.pop());
            if (!queued_[t]) continue;
            queued_[t] = 0;
            if (left_-- < 0) return full.run(now, routes, times, limit);
            update(t);
        }
        double makespan = 0;
        for (uint32_t t = 0; t < n; ++t)
            if (times.end[t] > makespan) makespan = times.end[t];
        reorder();
        return times.makespan = makespan;
    }

private:
    static constexpr uint32_t NOBODY = ~0u;
    const Tasks* now_ = nullptr;
    const Routes* routes_ = nullptr;
    Times* times_ = nullptr;
    Simulation* full_ = nullptr;
    Queue queue_;
    int64_t left_ = 0;  // steps after which Algorithm 1 takes over, as it is then certainly faster
    std::vector<uint32_t> map_, fresh_, merged_;
    std::vector<uint32_t> place_, previous_, next_, last_;  // of each task, its first entry in the resources' lists
    std::vector<uint8_t> queued_, moved_;
    std::vector<double> join_end_;

    bool earlier(uint32_t a, uint32_t b) const {
        const double x = times_->ready[a], y = times_->ready[b];
        return x != y ? x < y : a < b;
    }
    double ends(uint32_t a) const { return a & JOIN ? join_end_[a & ~JOIN] : times_->end[a]; }
    double latest(uint32_t t) const {
        double ready = 0;
        for (uint32_t k = now_->after_offset[t]; k < now_->after_offset[t + 1]; ++k)
            ready = std::max(ready, ends(now_->after[k]));
        return ready;
    }
    double latest_join(uint32_t j) const {
        double ready = 0;
        for (uint32_t k = now_->join_offset[j]; k < now_->join_offset[j + 1]; ++k)
            ready = std::max(ready, times_->end[now_->join_after[k]]);
        return ready;
    }

    // Times to start from: the old ones of the task at the same place of the same block, if there is one.
    void guess(const Tasks& before, const Times& old) {
        const uint32_t n = uint32_t(now_->size());
        map_.assign(before.size(), NOBODY);
        auto& ready = times_->ready;
        ready.assign(n, -1.0);
        for (size_t a = 0, b = 0; a < before.blocks.size() && b < now_->blocks.size();) {
            if (before.blocks[a].first != now_->blocks[b].first) {
                before.blocks[a].first < now_->blocks[b].first ? ++a : ++b;
                continue;
            }
            auto size = [](const Tasks& tasks, size_t k) {
                uint32_t end = k + 1 < tasks.blocks.size() ? tasks.blocks[k + 1].second : uint32_t(tasks.size());
                return end - tasks.blocks[k].second;
            };
            const uint32_t from = before.blocks[a].second, to = now_->blocks[b].second;
            for (uint32_t i = 0, both = std::min(size(before, a), size(*now_, b)); i < both; ++i) {
                map_[from + i] = to + i;
                ready[to + i] = old.ready[from + i];
                times_->start[to + i] = old.start[from + i], times_->end[to + i] = old.end[from + i];
            }
            ++a, ++b;
        }
        join_end_.assign(now_->joins(), 0.0);
        fresh_.clear();
        size_t join = 0;
        for (uint32_t t = 0; t < n; ++t) {
            for (; join < now_->joins() && now_->join_at[join] <= t; ++join) join_end_[join] = latest_join(uint32_t(join));
            if (ready[t] >= 0) continue;
            ready[t] = times_->start[t] = latest(t);
            times_->end[t] = ready[t] + now_->cost[t];
            fresh_.push_back(t);
        }
        merged_.clear();
        for (uint32_t o : old.order)
            if (map_[o] != NOBODY) merged_.push_back(map_[o]);
        merge();
    }
    // merged_ and fresh_ become times_->order, by (ready, number).
    void merge() {
        auto before = [&](uint32_t a, uint32_t b) { return earlier(a, b); };
        std::sort(fresh_.begin(), fresh_.end(), before);
        times_->order.resize(merged_.size() + fresh_.size());
        std::merge(merged_.begin(), merged_.end(), fresh_.begin(), fresh_.end(), times_->order.begin(), before);
    }
    void reorder() {
        merged_.clear(), fresh_.clear();
        for (uint32_t t : times_->order) (moved_[t] ? fresh_ : merged_).push_back(t);
        merge();
    }

    template <class F> void each_resource(uint32_t t, F f) const {
        const int32_t r = now_->resource[t];
        if (r >= 0) { f(uint32_t(r), place_[t]); return; }
        uint32_t entry = place_[t];
        for (int32_t k = routes_->offset[-1 - r]; k < routes_->offset[-r]; ++k) f(uint32_t(routes_->resources[k]), entry++);
    }
    // A task's entry in the list of one resource.
    uint32_t entry(uint32_t t, uint32_t resource) const {
        uint32_t found = NOBODY;
        each_resource(t, [&](uint32_t r, uint32_t e) { if (r == resource) found = e; });
        return found;
    }
    void occupy() {
        const uint32_t n = uint32_t(now_->size());
        place_.resize(n);
        uint32_t entries = 0;
        for (uint32_t t = 0; t < n; ++t) {
            place_[t] = entries;
            const int32_t r = now_->resource[t];
            entries += r >= 0 ? 1 : uint32_t(routes_->offset[-r] - routes_->offset[-1 - r]);
        }
        previous_.assign(entries, NOBODY), next_.assign(entries, NOBODY);
        last_.assign(routes_->total_resources, NOBODY);
        for (uint32_t t : times_->order)
            each_resource(t, [&](uint32_t r, uint32_t e) {
                previous_[e] = last_[r];
                if (last_[r] != NOBODY) next_[entry(last_[r], r)] = t;
                last_[r] = t;
            });
    }
    double begins(uint32_t t) const {
        double start = times_->ready[t];
        each_resource(t, [&](uint32_t, uint32_t e) {
            if (previous_[e] != NOBODY) start = std::max(start, times_->end[previous_[e]]);
        });
        return start;
    }
    void enqueue(uint32_t t) {
        if (t == NOBODY || queued_[t]) return;
        queued_[t] = 1;
        queue_.push(Queue::key(std::min(times_->ready[t], latest(t)), t));
    }
    void check(uint32_t t) {
        if (latest(t) != times_->ready[t] || begins(t) != times_->start[t] ||
            times_->start[t] + now_->cost[t] != times_->end[t])
            enqueue(t);
    }
    // UPDATETASK of the paper, and what follows from it.
    void update(uint32_t t) {
        const double ready = latest(t);
        if (ready != times_->ready[t]) {
            times_->ready[t] = ready;
            moved_[t] = 1;
            each_resource(t, [&](uint32_t r, uint32_t e) { move(t, r, e); });
        }
        const double start = begins(t), end = start + now_->cost[t];
        times_->start[t] = start;
        if (end == times_->end[t]) return;
        times_->end[t] = end;
        each_resource(t, [&](uint32_t, uint32_t e) { enqueue(next_[e]); });
        const uint32_t n = uint32_t(now_->size());
        full_->each_follower(t, [&](uint32_t f) {
            if (f < n) { enqueue(f); return; }
            const double value = latest_join(f - n);
            if (value == join_end_[f - n]) return;
            join_end_[f - n] = value;
            full_->each_follower(f, [&](uint32_t g) { enqueue(g); });
        });
    }
    // Puts a task whose ready time changed where it belongs among those of a resource.
    void move(uint32_t t, uint32_t r, uint32_t e) {
        const bool back = previous_[e] != NOBODY && earlier(t, previous_[e]);
        const bool on = next_[e] != NOBODY && earlier(next_[e], t);
        if (!back && !on) return;
        uint32_t before = previous_[e], after = next_[e];
        enqueue(after);
        if (before != NOBODY) next_[entry(before, r)] = after;
        if (after != NOBODY) previous_[entry(after, r)] = before;
        if (back) {
            while (before != NOBODY && earlier(t, before)) after = before, before = previous_[entry(before, r)], --left_;
        } else {
            while (after != NOBODY && earlier(after, t)) before = after, after = next_[entry(after, r)], --left_;
        }
        previous_[e] = before, next_[e] = after;
        if (before != NOBODY) next_[entry(before, r)] = t;
        if (after != NOBODY) previous_[entry(after, r)] = t;
        enqueue(after);
    }
};

}  // namespace taskflow
