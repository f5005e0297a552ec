// Algorithm 2 of the paper: start from the times of an earlier task graph and propagate what changes.
//
// The times that Algorithm 1 gives are the only ones with ready = the last predecessor's end, arrival at the first thing that a
// task occupies = ready and at the next one = its start on the one before (or ready, if it reaches them together), start = the
// later of arrival and the end of the stay before it there, and the stays on every resource in order of (arrival, number); this
// holds if all costs are positive. So it does not matter where propagation starts from: when nothing changes any more, the times are those of
// Algorithm 1, bit for bit.
// The definition is tasks/simulate.py; tests/optimizer/evaluate/test_core_delta.py holds them equal.
#pragma once

#include <algorithm>

#include "evaluate/simulation/full.h"

namespace taskflow {

class Delta {
public:
    // Seconds of the step `now`, whose times are near those of `before`; infinity if certain to pass `limit`.
    double run(const Tasks& before, const Times& old, const Tasks& now, const Routes& routes, Simulation& full,
               Times& times, double limit, Checkpoint& checkpoint) {
        const uint32_t n = uint32_t(now.size());
        for (double cost : now.cost)
            if (!(cost > 0)) return full.run(now, routes, times, limit, checkpoint);
        if (!full.prepare(now, routes, times, limit)) return std::numeric_limits<double>::infinity();
        full.followers(now);
        now_ = &now, routes_ = &routes, times_ = &times, full_ = &full;
        guess(before, old);
        occupy();
        queue_.clear();
        queued_.assign(n, 0), moved_.assign(n, 0);
        for (uint32_t t = 0; t < n; ++t) check(t);
        left_ = 4ll * int64_t(task_.size()) + 1000;
        while (!queue_.empty()) {
            uint32_t t = uint32_t(queue_.pop());
            if (!queued_[t]) continue;
            queued_[t] = 0;
            if (left_-- < 0) return full.run(now, routes, times, limit, checkpoint);
            checkpoint();
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
    // A stay of a task on something is an entry in that resource's list; times_->place says where a task's entries are.
    std::vector<uint32_t> previous_, next_, task_;
    std::vector<double> arrival_;  // at the resource
    std::vector<uint32_t> first_, order_;
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
        arrival_.assign(times_->starts.size(), -1.0);
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
                const uint32_t first = times_->place[to + i], was = old.place[from + i], hops = stays(to + i);
                // Another route may lead there now.
                if (hops != (from + i + 1 < old.place.size() ? old.place[from + i + 1] : uint32_t(old.starts.size())) - was) continue;
                for (uint32_t k = 1; k < hops; ++k) arrival_[first + k] = old.starts[was + k - 1];
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
        for (uint32_t t = 0; t < n; ++t)
            for (uint32_t k = 0, e = times_->place[t]; k < stays(t); ++k, ++e)
                if (!k || arrival_[e] < 0 || together(t)) arrival_[e] = ready[t];
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

    uint32_t stays(uint32_t t) const {
        const int32_t r = now_->resource[t];
        return r >= 0 ? 1 : uint32_t(routes_->offset[-r] - routes_->offset[-1 - r]);
    }
    bool together(uint32_t t) const {
        const int32_t r = now_->resource[t];
        return r < 0 && routes_->together[-1 - r];
    }
    // Lists of stays in the order of arrival, and what starts follow from it.
    void occupy() {
        const uint32_t n = uint32_t(now_->size()), entries = uint32_t(times_->starts.size());
        task_.resize(entries);
        first_.assign(routes_->total_resources + 1, 0);
        auto each = [&](auto f) {
            for (uint32_t t = 0; t < n; ++t) {
                const int32_t r = now_->resource[t];
                const uint32_t e = times_->place[t];
                if (r >= 0) f(uint32_t(r), e, t);
                else for (uint32_t k = 0; k < stays(t); ++k) f(uint32_t(routes_->resources[routes_->offset[-1 - r] + k]), e + k, t);
            }
        };
        each([&](uint32_t r, uint32_t e, uint32_t t) { task_[e] = t, ++first_[r + 1]; });
        for (int r = 0; r < routes_->total_resources; ++r) first_[r + 1] += first_[r];
        order_.resize(entries);
        each([&](uint32_t r, uint32_t e, uint32_t) { order_[first_[r]++] = e; });
        previous_.assign(entries, NOBODY), next_.assign(entries, NOBODY);
        for (uint32_t r = 0, from = 0; r < uint32_t(routes_->total_resources); from = first_[r++]) {
            std::sort(order_.begin() + from, order_.begin() + first_[r], [&](uint32_t a, uint32_t b) { return sooner(a, b); });
            double free = 0;
            for (uint32_t k = from; k < first_[r]; ++k) {
                const uint32_t e = order_[k];
                times_->starts[e] = std::max(arrival_[e], free);
                free = times_->starts[e] + now_->cost[task_[e]];
                if (k == from) continue;
                previous_[e] = order_[k - 1], next_[order_[k - 1]] = e;
            }
        }
    }
    bool sooner(uint32_t e, uint32_t other) const {
        const double x = arrival_[e], y = arrival_[other];
        return x != y ? x < y : task_[e] < task_[other];
    }
    double begins(uint32_t e) const {
        if (previous_[e] == NOBODY) return arrival_[e];
        return std::max(arrival_[e], times_->starts[previous_[e]] + now_->cost[task_[previous_[e]]]);
    }
    void enqueue(uint32_t t) {
        if (t == NOBODY || queued_[t]) return;
        queued_[t] = 1;
        queue_.push(Queue::key(std::min(times_->ready[t], latest(t)), t));
    }
    void check(uint32_t t) {
        const double ready = times_->ready[t];
        const bool at_once = together(t);
        double at = ready;
        bool right = latest(t) == at;
        for (uint32_t e = times_->place[t], last = e + stays(t); e < last && right; ++e) {
            right = arrival_[e] == (at_once ? ready : at) && begins(e) == times_->starts[e];
            at = std::max(at, times_->starts[e]);
        }
        if (!right || at != times_->start[t] || at + now_->cost[t] != times_->end[t]) enqueue(t);
    }
    // UPDATETASK of the paper, and what follows from it.
    void update(uint32_t t) {
        const double ready = latest(t);
        if (ready != times_->ready[t]) times_->ready[t] = ready, moved_[t] = 1;
        const bool at_once = together(t);
        double at = ready;
        for (uint32_t e = times_->place[t], last = e + stays(t); e < last; ++e) {
            const double arrives = at_once ? ready : at;
            if (arrival_[e] != arrives) arrival_[e] = arrives, move(e);
            const double begin = begins(e);
            at = std::max(at, begin);
            if (begin == times_->starts[e]) continue;
            times_->starts[e] = begin;
            enqueue_at(next_[e]);
        }
        const double end = at + now_->cost[t];
        times_->start[t] = at;
        if (end == times_->end[t]) return;
        times_->end[t] = end;
        const uint32_t n = uint32_t(now_->size());
        full_->each_follower(t, [&](uint32_t f) {
            if (f < n) { enqueue(f); return; }
            const double value = latest_join(f - n);
            if (value == join_end_[f - n]) return;
            join_end_[f - n] = value;
            full_->each_follower(f, [&](uint32_t g) { enqueue(g); });
        });
    }
    void enqueue_at(uint32_t e) {
        if (e != NOBODY) enqueue(task_[e]);
    }
    // Puts a stay whose arrival changed where it belongs among those of its resource.
    void move(uint32_t e) {
        const bool back = previous_[e] != NOBODY && sooner(e, previous_[e]);
        const bool on = next_[e] != NOBODY && sooner(next_[e], e);
        if (!back && !on) return;
        uint32_t before = previous_[e], after = next_[e];
        enqueue_at(after);
        if (before != NOBODY) next_[before] = after;
        if (after != NOBODY) previous_[after] = before;
        if (back) {
            while (before != NOBODY && sooner(e, before)) after = before, before = previous_[before], --left_;
        } else {
            while (after != NOBODY && sooner(after, e)) before = after, after = next_[after], --left_;
        }
        previous_[e] = before, next_[e] = after;
        if (before != NOBODY) next_[before] = e;
        if (after != NOBODY) previous_[after] = e;
        enqueue_at(after);
    }
};

}  // namespace taskflow
