// Algorithm 1 over a step that is not put together: the tasks around synchronisation, and each layer's fragment, which joins
// in when the first of its slots is filled. The seconds are those of the flat task graph, bit for bit.
#pragma once

#include <functional>

#include "core_fragment.h"
#include "core_past.h"

namespace taskflow {

class Apart {
public:
    struct Layer {
        std::shared_ptr<Fragment> fragment;  // none: not made yet, or the layer has no gradients
        uint32_t first_slot, slots;
        bool trained;
    };
    // Seconds of the step; infinity as soon as it is certain to pass `limit`. ``around``: see Lowering::run_around, of whose
    // tasks ``before`` come before synchronisation. ``make(layer)`` makes a fragment that was not kept. ``same``: which of
    // the blocks around are those of the step that was kept last. ``restarts``: begin where the kept step is still the same
    // rather than at the start.
    double run(const Tasks& around, uint32_t before, std::vector<Layer>& layers, const Routes& routes, double limit,
               const std::vector<uint8_t>& same, bool restarts, const std::function<void(int)>& make) {
        around_ = &around, layers_ = &layers, routes_ = &routes, make_ = &make;
        n_ = uint32_t(around.size()), before_ = before;
        room_ = (~0u - n_) / (3 * uint32_t(layers.size()) + 1);
        stop_ = limit * SLACK, limited_ = limit < std::numeric_limits<double>::infinity();
        mark_ = nullptr;
        load();
        if (limited_) {  // before anything else, since every second proposal of a search may end here
            for (const Resource& r : resources_)
                if (r.left > stop_) return std::numeric_limits<double>::infinity();
            if (path_pays() && longest() > stop_) return ++path_found_, std::numeric_limits<double>::infinity();
        }
        from_start_ = true;
        for (const Layer& layer : layers) from_start_ = from_start_ && !at_once(layer);
        // If not from the start, fragments join in at once, and their tasks have no place in what is kept.
        logs_ = restarts && from_start_ && restarting_pays();
        mark_ = logs_ ? find_start(same) : nullptr;
        if (logs_ && !kept_.marks.empty()) {
            const double share = mark_ ? double(mark_->position) / kept_.marks.back().position : 0;
            saved_ += (share - saved_) * 0.05;
        }
        link();
        return simulate();
    }

    // The last run, whole, is where the next ones may begin; or, after `forget`, nothing is.
    void keep();
    void forget() { kept_.clear(); }

private:
    static constexpr double SLACK = 1 + 1e-9;  // sums of remaining work are rounded differently from the times
    static constexpr uint32_t NOWHERE = ~0u;
    // A follower's number that says: a slot.
    static constexpr uint32_t SLOT = 1u << 31;

    // Writing down where to begin costs about as much as a quarter of the events of a step. Where less is saved, nothing is
    // written for a while: where most proposals are accepted and change the step early, as in deep networks.
    static constexpr double PAYS = 0.25;
    static constexpr uint32_t PAUSE = 100;  // proposals
    double saved_ = 0.5;                    // which share of the last simulations was not gone through again
    uint32_t pausing_ = 0;
    bool restarting_pays() {
        if (pausing_) return --pausing_, false;
        if (saved_ < PAYS) return pausing_ = PAUSE, saved_ = 0.5, false;
        return true;
    }

    const Tasks* around_ = nullptr;
    std::vector<Layer>* layers_ = nullptr;
    const Routes* routes_ = nullptr;
    const std::function<void(int)>* make_ = nullptr;
    uint32_t n_ = 0, before_ = 0;
    double stop_ = 0;
    bool limited_ = false;
    bool from_start_ = false;  // whether every slot is filled by something, so that no fragment joins in at once
    struct Slot { double ready; uint32_t waits, layer; };
    std::vector<Event> events_;  // of the tasks around, and then of the fragments that have joined in
    std::vector<Slot> slots_;
    std::vector<uint32_t> next_;             // followers of both
    std::vector<uint32_t> base_, next_base_;  // by layer: where those of its fragment begin
    std::vector<Resource> resources_;
    std::vector<double> tail_;
    Queue queue_;

    template <class F> void each_resource(int32_t r, F f) const {
        if (r >= 0) return f(r);
        for (int32_t k = routes_->offset[-1 - r], last = routes_->offset[-r]; k < last; ++k) f(routes_->resources[k]);
    }

    // The seconds of work by resource.
    void load() {
        const std::vector<double>& work = around_->work;
        const int32_t processors = int32_t(routes_->processors());
        resources_.assign(routes_->total_resources, {0.0, 0.0, 0.0});
        for (int32_t k = 0; k < int32_t(work.size()); ++k) {
            const double seconds = work[k];
            if (seconds != 0)
                each_resource(k < processors ? k : processors - 1 - k, [&](int32_t r) { resources_[r].left += seconds; });
        }
        for (Resource& r : resources_) r.total = r.left;
        for (const Layer& layer : *layers_)
            if (layer.fragment) add_load(*layer.fragment);
    }
    std::vector<uint32_t> first_;
    // Events of the tasks around, followers of what is still to be done, and what the rest waits for.
    void link() {
        const Tasks& t = *around_;
        const uint32_t slots = uint32_t(t.joins());
        base_.assign(layers_->size(), NOWHERE), next_base_.assign(layers_->size(), 0);
        slots_.resize(slots);
        for (uint32_t k = 0; k < layers_->size(); ++k)
            for (uint32_t s = 0; s < (*layers_)[k].slots; ++s) slots_[(*layers_)[k].first_slot + s] = {0.0, 0, k};
        first_.assign(n_ + 2, 0), events_.resize(n_ + 1);
        uint32_t* first = first_.data();
        const bool begun = mark_ != nullptr;
        if (begun) {
            for (size_t k = 0; k < t.after.size(); ++k) first[t.after[k] + 2] += waits(t.waiter[k], t.after[k]);
        } else {
            for (uint32_t a : t.after) ++first[a + 2];
        }
        for (uint32_t s = 0; s < slots; ++s) {
            Slot& slot = slots_[s];
            for (uint32_t k = t.join_offset[s]; k < t.join_offset[s + 1]; ++k) {
                const uint32_t a = t.join_after[k];
                if (begun && done_[a] >= 0) slot.ready = std::max(slot.ready, done_[a]);
                else ++first[a + 2], ++slot.waits;
            }
        }
        for (uint32_t i = 2; i < n_ + 2; ++i) first[i] += first[i - 1];
        next_.resize(first[n_ + 1]);
        uint32_t* next = next_.data();
        if (begun) {
            for (size_t k = 0; k < t.after.size(); ++k)
                if (waits(t.waiter[k], t.after[k])) next[first[t.after[k] + 1]++] = t.waiter[k];
        } else {
            for (size_t k = 0; k < t.after.size(); ++k) next[first[t.after[k] + 1]++] = t.waiter[k];
        }
        for (uint32_t s = 0; s < slots; ++s)
            for (uint32_t k = t.join_offset[s]; k < t.join_offset[s + 1]; ++k)
                if (!begun || done_[t.join_after[k]] < 0) next[first[t.join_after[k] + 1]++] = s | SLOT;
        const uint32_t processors = routes_->processors();
        for (uint32_t i = 0; i < n_; ++i)
            events_[i] = {0.0, t.cost[i], t.after_offset[i + 1] - t.after_offset[i], routes_->stop(t.resource[i], processors),
                          first[i], order(i)};
        events_[n_] = {0.0, 0.0, 0, 0, first[n_], 0};
        if (begun)
            for (size_t k = 0; k < t.after.size(); ++k) {
                Event& event = events_[t.waiter[k]];
                const double done = done_[t.after[k]];
                if (done >= 0) event.ready = std::max(event.ready, done), --event.waits;
            }
    }
    // Of a task and one before it, whether it has still to be waited for where a simulation does not begin at the start.
    bool waits(uint32_t task, uint32_t before) const { return done_[task] < 0 && done_[before] < 0; }

    void add_load(const Fragment& f) {
        for (size_t r = 0; r < f.load.size(); ++r) resources_[r].left += f.load[r], resources_[r].total += f.load[r];
    }

    // Whether to look at the longest path before simulating: it rejects next to nothing in a walk that accepts nearly
    // everything, and costs as much as a tenth of it. The decision is the same either way.
    uint32_t path_asked_ = 0, path_found_ = 0, path_passed_ = 0;
    bool path_pays() {
        if (path_found_ * 16 < path_asked_ && ++path_passed_ % 16) return false;
        if (++path_asked_ == 512) path_asked_ /= 2, path_found_ /= 2;
        return true;
    }

    // The longest path of costs from each task's end to the end of the step, as far as it is known.
    double longest() {
        const Tasks& t = *around_;
        tail_.assign(n_, 0.0);
        double longest = 0;
        for (const Layer& layer : *layers_) {
            if (!layer.fragment) continue;
            for (uint32_t s = 0; s < layer.slots; ++s) {
                const double path = layer.fragment->slot_tail[s];
                for (uint32_t k = t.join_offset[layer.first_slot + s]; k < t.join_offset[layer.first_slot + s + 1]; ++k)
                    if (tail_[t.join_after[k]] < path) tail_[t.join_after[k]] = path;
            }
        }
        for (uint32_t i = n_; i-- > 0;) {
            const double path = t.cost[i] + tail_[i];
            if (path > longest) longest = path;
            for (uint32_t k = t.after_offset[i]; k < t.after_offset[i + 1]; ++k)
                if (tail_[t.after[k]] < path) tail_[t.after[k]] = path;
        }
        return longest;
    }

    // A task's place in program order: tasks before synchronisation; sums, sending and updates of all layers in turn;
    // carried state. Fragments are not all made, so each part of each has room for as many as there may be.
    uint32_t room_ = 0;
    uint32_t order(uint32_t task) const {
        return task < before_ ? task : task + 3 * uint32_t(layers_->size()) * room_;
    }
    uint32_t order(uint32_t layer, uint32_t part) const {
        return before_ + (part * uint32_t(layers_->size()) + layer) * room_;
    }
    void queue(uint32_t task, const Event& event) { queue(task, event, event.ready); }
    void queue(uint32_t task, const Event& event, double time) {
        queue_.push(Queue::long_key(time, uint64_t(event.order) << 32 | task));
    }

    double simulate() {
        begin();
        if (mark_ && !logs_) {  // something of a layer could begin before the mark: nothing is certain about that
            mark_ = nullptr, logs_ = true;
            load();
            link();
            begin();
        }
        const int32_t* stops = routes_->stops.data();
        while (!queue_.empty()) {
            const Queue::Key key = queue_.pop();
            Event& event = events_[uint32_t(key)];
            const double cost = event.cost, at = Queue::long_time(key);
            double start = at, end;
            uint32_t stop = event.stop;
            int32_t where;
            do {  // a copy goes on to the next link of its route at once if it starts at once
                where = stops[stop++];
                Resource& resource = resources_[where ^ (where >> 31)];
                start = resource.free > start ? resource.free : start;
                end = resource.free = start + cost;
                if (end + (resource.left -= cost) > stop_) return std::numeric_limits<double>::infinity();
            } while (where >= 0 && start == at);
            if (where >= 0) {  // others come in between
                event.stop = stop;
                queue_.push(Queue::long_key(start, uint64_t(key)));
                if (logs_) log(key, start, stop);
                continue;
            }
            if (logs_) log(key, end, 0);
            const uint32_t first = event.first, last = (&event)[1].first;
            if (first != last) {
                follow(first, last, end);
                stops = routes_->stops.data();  // a layer that joined in may have brought new routes
            }
        }
        // On everything in turn the last one ends last; copies end last on the last of their links.
        double makespan = 0;
        for (const Resource& resource : resources_) makespan = std::max(makespan, resource.free);
        return makespan;
    }
    [[gnu::noinline]] void fill(uint32_t s, double end) {
        Slot& slot = slots_[s];
        if (slot.ready < end) slot.ready = end;
        if (!--slot.waits) filled(s);
    }
    void filled(uint32_t s) {
        const uint32_t k = slots_[s].layer;
        if (!(*layers_)[k].trained) return;
        if (base_[k] == NOWHERE) join_in(k);
        follow_slot(k, s, slots_[s].ready);
    }
    void follow_slot(uint32_t k, uint32_t s, double end) {
        const uint32_t* first = (*layers_)[k].fragment->slot_first.data() + (s - (*layers_)[k].first_slot);
        follow(next_base_[k] + first[0], next_base_[k] + first[1], end);
    }
    void follow(uint32_t first, uint32_t last, double end) {
        for (uint32_t k = first; k < last; ++k) {
            const uint32_t f = next_[k];
            if (f & SLOT) { fill(f & ~SLOT, end); continue; }
            Event& event = events_[f];
            // Messages of a chunk follow one another, and hundreds of chunks take turns: more than the cache foresees.
            __builtin_prefetch(&event + 3);
            event.ready = event.ready < end ? end : event.ready;
            if (--event.waits) continue;
            logs_ &= f <= n_;
            queue(f, event);
        }
    }
    // A slot that nothing fills is filled from the start; so are tasks that wait for no slot.
    bool at_once(const Layer& layer) const {
        if (!layer.trained) return false;
        for (uint32_t s = 0; s < layer.slots; ++s)
            if (unfilled(layer.first_slot + s)) return true;
        return false;
    }
    bool unfilled(uint32_t slot) const { return around_->join_offset[slot] == around_->join_offset[slot + 1]; }
    [[gnu::noinline]] void join_in(uint32_t k) {
        Layer& layer = (*layers_)[k];
        if (!layer.fragment) {
            (*make_)(int(k));
            resources_.resize(routes_->total_resources, {0.0, 0.0, 0.0});
            add_load(*layer.fragment);
        }
        const Fragment& f = *layer.fragment;
        if (f.size() > room_) throw std::length_error("simulation: a layer has more tasks than there is room for");
        const uint32_t base = base_[k] = uint32_t(events_.size()), next = next_base_[k] = uint32_t(next_.size());
        events_.insert(events_.end(), f.events.begin(), f.events.end());
        next_.insert(next_.end(), f.next.begin(), f.next.end());
        for (size_t i = next; i < next_.size(); ++i) next_[i] += base;
        Event* event = &events_[base];
        for (uint32_t part = 0, i = 0; part < 3; ++part)
            for (const uint32_t from = order(k, part); i < f.part_end[part]; ++i, ++event) {
                event->order += from, event->first += next;
                if (!event->waits) logs_ = false, queue(base + i, *event);
            }
        event->first += next;
        for (uint32_t s = 0; s < layer.slots && !from_start_; ++s)
            if (unfilled(layer.first_slot + s)) follow_slot(k, layer.first_slot + s, 0.0);
    }

    // ---- beginning where a kept run is the same (core_restart.h) ---------------------------------------------------
    Past kept_, now_;
    bool logs_ = false;              // as long as only tasks around have run
    const Past::Mark* mark_ = nullptr;  // of the kept run, where this one begins; null: at the start of the step
    uint32_t position_ = 0, between_ = 1;  // how much has been taken; how much between two marks
    uint32_t again_ = 0;             // how many copies have been queued again
    std::vector<Past::Turn> turns_;  // since the mark
    void look_back();
    std::vector<double> done_;       // by task: when it ended if that is before the mark, else -1
    std::vector<uint32_t> old_place_, transit_;
    const Past::Mark* find_start(const std::vector<uint8_t>& same);
    void begin();
    void log(Queue::Key key, double time, uint32_t stop);
};

}  // namespace taskflow

#include "core_restart.h"
