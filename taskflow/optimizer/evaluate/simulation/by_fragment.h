// Algorithm 1 over a step that is not put together: the tasks around synchronisation, and each layer's fragment, which joins
// in when the first of its slots is filled. The seconds are those of the flat task graph, bit for bit.
#pragma once

#include <functional>

#include "evaluate/lowering/sync_fragment.h"
#include "evaluate/simulation/recorded_run.h"

namespace taskflow {

class Apart {
public:
    struct Layer {
        std::shared_ptr<Fragment> fragment;  // none: not made yet, or the layer has no gradients
        uint32_t first_slot, slots;
        bool trained;
    };
    // Seconds of the step; infinity as soon as it is certain to pass `limit`. ``around``: see Lowering::run_around, of whose
    // tasks ``before`` come before synchronisation. ``make(layer)`` makes a fragment that was not kept. ``follows``: take over
    // from the step that was kept last, of which ``kept_around`` are the tasks around, what only moves in time.
    double run(const Tasks& around, uint32_t before, std::vector<Layer>& layers, const Routes& routes, double limit,
               const Lowering& lowering, const Tasks& kept_around, bool follows, const std::function<void(int)>& make) {
        routes_ = &routes, make_ = &make;
        stop_ = limit * SLACK, limited_ = limit < std::numeric_limits<double>::infinity();
        follows_ = false;
        take(around, before, layers);
        if (limited_) {  // before anything else, since every second proposal of a search may end here
            for (const Resource& r : resources_)
                if (r.left > stop_) return std::numeric_limits<double>::infinity();
            if (path_pays() && longest() > stop_) return ++path_found_, std::numeric_limits<double>::infinity();
        }
        // If not from the start, fragments join in at once, and their tasks have no place in what is kept.
        follows_ = follows && from_start_ && resources_.size() <= MOST_RESOURCES && following_pays() &&
                   (!kept_.empty() || (asked_++ && write_down(kept_around)));
        forget_layers();
        if (!follows_) return link(), begin(), simulate<PLAIN>();
        prepare(lowering, kept_around);
        const double seconds = simulate<FOLLOWS>();
        turns += position_, leapt += leapt_;
        saved_ += (double(leapt_) / std::max(position_, 1u) - saved_) * 0.05;
        return seconds;
    }

    // The last run, whole, is what the next ones may take over from; or, after `forget`, nothing is.
    void keep();
    void forget() { kept_.clear(), loads_.clear(), accepted_ = false, asked_ = 0; }

    // Of the step that was kept last.
    size_t kept_waiting() const { return kept_.empty() ? 0 : kept_.waiting.size(); }
    size_t kept_turns() const { return kept_.empty() ? 0 : kept_.turns.size(); }

    // For tests: follow at every proposal, with a mark after so many turns (0: where that pays).
    uint32_t marks_every = 0;
    uint64_t turns = 0, leapt = 0;  // of all runs so far that followed another: how much was taken, and how much of it in leaps

private:
    static constexpr double SLACK = 1 + 1e-9;  // sums of remaining work are rounded differently from the times
    static constexpr uint32_t NOWHERE = ~0u;
    // A follower's number that says: a slot.
    static constexpr uint32_t SLOT = 1u << 31;

    // To compare, to find out what a task waits for and to write down what happens takes as long as half of the events of a step
    // (docs/benchmarks.md). Where less is leapt over, it is left for a while, and for longer each time: where a change moves what
    // comes after it by different times, as on links that are always busy.
    static constexpr double PAYS = 0.5, HOPE = 0.6;
    static constexpr uint32_t SHORT = 100, LONG = 3200;  // proposals
    static constexpr size_t MOST_RESOURCES = 2048;       // of which each mark has an entry: on larger machines they take gigabytes
    double saved_ = HOPE;                                // which share of the last simulations was leapt over
    uint32_t pausing_ = 0, pause_ = SHORT, followed_ = 0;
    bool following_pays() {
        if (marks_every) return true;
        if (pausing_) return --pausing_, false;
        if (saved_ >= PAYS) {
            if (++followed_ > SHORT) pause_ = SHORT;
            return true;
        }
        pausing_ = pause_, pause_ = std::min(2 * pause_, LONG), saved_ = HOPE, followed_ = 0;
        return false;
    }

    void take(const Tasks& around, uint32_t before, std::vector<Layer>& layers) {
        around_ = &around, layers_ = &layers;
        n_ = uint32_t(around.size()), before_ = before;
        room_ = (~0u - n_) / (3 * uint32_t(layers.size()) + 1);
        from_start_ = std::none_of(layers.begin(), layers.end(), [this](const Layer& layer) { return at_once(layer); });
        load();
    }

    const Tasks* around_ = nullptr;
    std::vector<Layer>* layers_ = nullptr;
    const Routes* routes_ = nullptr;
    const std::function<void(int)>* make_ = nullptr;
    uint32_t n_ = 0, before_ = 0;
    double stop_ = 0;
    bool limited_ = false;
    bool from_start_ = false;  // whether every slot is filled by something, so that no fragment joins in at once
    struct Slot { double ready; uint32_t waits, layer, window; bool done; };  // window, done: see `refresh_slot`
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
        for (size_t r = 0; r < loads_.size(); ++r) resources_[r].left += loads_[r];
        each_new_load([this](const Fragment& f, double sign) {
            for (size_t r = 0; r < f.load.size(); ++r) resources_[r].left += sign * f.load[r];
        });
        for (Resource& r : resources_) r.total = r.left;
    }
    // The layers of which fragments differ from those whose seconds are in loads_: f(of one that is no longer, -1), f(new one, 1).
    template <class F> void each_new_load(F f) const {
        for (size_t k = 0; k < layers_->size(); ++k) {
            const Fragment *now = (*layers_)[k].fragment.get(), *was = accepted_ ? accepted_layers_[k].fragment.get() : nullptr;
            if (now == was) continue;
            if (was) f(*was, -1.0);
            if (now) f(*now, 1.0);
        }
    }
    // The step accepted last, and the seconds of its layers by resource: counted from nothing now and then, since differences of
    // long times lose digits.
    void keep_layers() {
        if (!(++loads_age_ % 256)) loads_.clear(), accepted_ = false;
        loads_.resize(routes_->total_resources, 0.0);
        each_new_load([this](const Fragment& f, double sign) {
            for (size_t r = 0; r < f.load.size(); ++r) loads_[r] += sign * f.load[r];
        });
        accepted_layers_.resize(layers_->size());
        for (size_t k = 0; k < accepted_layers_.size(); ++k) {
            Layer &to = accepted_layers_[k], &from = (*layers_)[k];
            if (to.fragment != from.fragment) to.fragment = from.fragment;
            to.first_slot = from.first_slot, to.slots = from.slots, to.trained = from.trained;
        }
        accepted_ = true, accepted_before_ = before_;
    }
    bool accepted_ = false;
    uint32_t accepted_before_ = 0, loads_age_ = 0;
    std::vector<Layer> accepted_layers_;
    std::vector<double> loads_;
    std::vector<uint32_t> first_;
    // No layer has joined in.
    void forget_layers() {
        base_.assign(layers_->size(), NOWHERE), next_base_.assign(layers_->size(), 0);
        slots_.resize(around_->joins());
        for (uint32_t k = 0; k < layers_->size(); ++k)
            for (uint32_t s = 0; s < (*layers_)[k].slots; ++s) slots_[(*layers_)[k].first_slot + s] = {0.0, 0, k, 0, false};
        events_.resize(n_ + 1), next_.clear();
        stride_ = 0;
    }
    // Events and followers of the tasks around, which come first in next_, and what the slots wait for.
    void link() {
        const Tasks& t = *around_;
        const uint32_t slots = uint32_t(t.joins());
        first_.assign(n_ + 2, 0);
        uint32_t* first = first_.data();
        for (uint32_t a : t.after) ++first[a + 2];
        for (uint32_t a : t.join_after) ++first[a + 2];
        for (uint32_t i = 2; i < n_ + 2; ++i) first[i] += first[i - 1];
        next_.resize(first[n_ + 1]);
        uint32_t* next = next_.data();
        for (size_t k = 0; k < t.after.size(); ++k) next[first[t.after[k] + 1]++] = t.waiter[k];
        for (uint32_t s = 0; s < slots; ++s)
            for (uint32_t k = t.join_offset[s]; k < t.join_offset[s + 1]; ++k) next[first[t.join_after[k] + 1]++] = s | SLOT;
        for (uint32_t s = 0; s < slots_.size(); ++s) slots_[s].waits = t.join_offset[s + 1] - t.join_offset[s];
        const uint32_t processors = routes_->processors();
        for (uint32_t i = 0; i < n_; ++i)
            events_[i] = {0.0, t.cost[i], t.after_offset[i + 1] - t.after_offset[i], routes_->stop(t.resource[i], processors),
                          first_[i], order(i)};
        events_[n_] = {0.0, 0.0, 0, 0, first_[n_], 0};
    }

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

    // Queues what is ready at the start of the step.
    void begin() {
        queue_.clear();
        for (uint32_t i = 0; i < n_; ++i)
            if (!events_[i].waits) queue(i, events_[i]);
        for (uint32_t k = 0; k < layers_->size() && !from_start_; ++k)
            if (at_once((*layers_)[k])) join_in(k);
    }
    // Everything; writing down what happens; and taking over what only moves in time.
    enum Mode { PLAIN, LOGS, FOLLOWS };
    template <Mode MODE> double simulate() {
        const int32_t* stops = routes_->stops.data();
        while (!queue_.empty()) {
            const Queue::Key key = queue_.pop();
            const uint32_t task = uint32_t(key);
            Event& event = events_[task];
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
            // All links but the last one were taken at once.
            const double first_end = MODE != PLAIN && stop - event.stop > 1 ? at + cost : end;
            if (where >= 0) {  // others come in between
                event.stop = stop;
                queue_.push(Queue::long_key(start, uint64_t(key)));
                if (MODE != PLAIN && took<MODE>(task, at, first_end, end, stop)) break;
                continue;
            }
            if (MODE == FOLLOWS && task < n_) {
                follow_around(task, end);
                stops = routes_->stops.data();
            } else {
                const uint32_t first = event.first, last = (&event)[1].first;
                if (first != last) {
                    follow<MODE>(first, last, end);
                    stops = routes_->stops.data();  // a layer that joined in may have brought new routes
                }
            }
            if (MODE != PLAIN && took<MODE>(task, at, first_end, end, 0)) break;
        }
        if (MODE != PLAIN) {
            if (rest_ >= 0) most_ = rest_;
            return most_ > stop_ ? std::numeric_limits<double>::infinity() : most_;
        }
        // On everything in turn the last one ends last; copies end last on the last of their links.
        double makespan = 0;
        for (const Resource& resource : resources_) makespan = std::max(makespan, resource.free);
        return makespan;
    }
    template <Mode MODE> [[gnu::noinline]] void fill(uint32_t s, double end) {
        if (MODE == FOLLOWS && slots_[s].window != window_) refresh_slot(s);
        Slot& slot = slots_[s];
        if (slot.ready < end) slot.ready = end;
        if (--slot.waits) return;
        filled<MODE>(s);
        slots_[s].done = true;
    }
    template <Mode MODE> void filled(uint32_t s) {
        const uint32_t k = slots_[s].layer;
        if (!(*layers_)[k].trained) return;
        if (base_[k] == NOWHERE) join_in(k);
        follow_slot<MODE>(k, s, slots_[s].ready);
    }
    template <Mode MODE> void follow_slot(uint32_t k, uint32_t s, double end) {
        const uint32_t* first = (*layers_)[k].fragment->slot_first.data() + (s - (*layers_)[k].first_slot);
        follow<MODE>(next_base_[k] + first[0], next_base_[k] + first[1], end);
    }
    template <Mode MODE> void follow(uint32_t first, uint32_t last, double end) {
        for (uint32_t k = first; k < last; ++k) {
            const uint32_t f = next_[k];
            if (f & SLOT) { fill<MODE>(f & ~SLOT, end); continue; }
            // Messages of a chunk follow one another, and hundreds of chunks take turns: more than the cache foresees.
            __builtin_prefetch(&events_[f] + 3);
            tell<MODE>(f, end);
        }
    }
    template <Mode MODE> void tell(uint32_t f, double end) {
        if (MODE == FOLLOWS && seen_[f] != window_) refresh(f);
        Event& event = events_[f];
        event.ready = event.ready < end ? end : event.ready;
        if (--event.waits) return;
        if (MODE == FOLLOWS) strangers_ += strange_[f];
        queue(f, event);
    }
    // A slot that nothing fills is filled from the start; so are tasks that wait for no slot.
    bool at_once(const Layer& layer) const {
        if (!layer.trained) return false;
        for (uint32_t s = 0; s < layer.slots; ++s)
            if (unfilled(layer.first_slot + s)) return true;
        return false;
    }
    bool unfilled(uint32_t slot) const { return around_->join_offset[slot] == around_->join_offset[slot + 1]; }
    // ``again``: its first tasks have been queued in what was leapt over.
    [[gnu::noinline]] void join_in(uint32_t k, bool again = false) {
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
        if (stride_) joined(k);
        next_.insert(next_.end(), f.next.begin(), f.next.end());
        for (size_t i = next; i < next_.size(); ++i) next_[i] += base;
        Event* event = &events_[base];
        for (uint32_t part = 0, i = 0; part < 3; ++part)
            for (const uint32_t from = order(k, part); i < f.part_end[part]; ++i, ++event) {
                event->order += from, event->first += next;
                if (event->waits || again) continue;
                if (follows_) strangers_ += strange_[base + i];
                queue(base + i, *event);
            }
        event->first += next;
        for (uint32_t s = 0; s < layer.slots && !from_start_; ++s)
            if (unfilled(layer.first_slot + s)) follow_slot<PLAIN>(k, layer.first_slot + s, 0.0);
    }

    // ---- taking over from the kept run what only moves in time (evaluate/simulation/fast_forward.h) -----------------------------------------
    // This run is parts in turn: of turns_, simulated, or of those of the kept run, all `later`.
    struct Part { uint32_t from, end; double later; uint32_t finals; bool kept; uint32_t changed; };
    Past kept_, fresh_;
    bool follows_ = false;  // whether this run takes over from the kept one
    uint32_t asked_ = 0;    // how often there was nothing to take over from: the second time the accepted step is written down
    std::vector<Past::Turn> turns_;
    std::vector<Past::Mark> marks_;
    std::vector<Past::Waiting> waiting_;
    std::vector<Past::Used> used_;     // of each mark in turn
    size_t stride_ = 0;                // resources of a mark; 0: this run is not written down
    std::vector<Part> parts_;
    std::vector<Past::Used> changed_;  // of each leap in turn, by resource: when it was free, seconds of work more than had begun there
    uint32_t marked_ = 0;              // where the last mark was made, or a leap ended
    uint32_t told_ = 0;                // of turns_, those that are in parts_
    uint32_t position_ = 0, leapt_ = 0, finals_ = 0, between_ = 1;
    double most_ = 0, rest_ = -1;      // the latest end so far; that of the step, once it is known
    // What is common with the kept run:
    std::vector<uint32_t> old_place_, new_place_;  // a task's number there; and the other way round
    std::vector<uint8_t> strange_;                 // by task: whether it is not common, or waits for one that is not
    std::vector<uint8_t> common_;                  // by layer: whether its fragment is
    std::vector<uint32_t> strangers_all_;          // the tasks around that are strange
    std::vector<uint32_t> more_;                   // by task around: the first of its followers in others_, of those that are strange
    std::vector<std::pair<uint32_t, uint32_t>> others_;  // (follower or slot, the next of these)
    std::vector<uint32_t> differing_;              // blocks
    std::vector<uint32_t> diverging_, lost_;       // positions there: not to be leapt over; where a task ended that is not here
    // How far the kept run's state is known to be this one's:
    uint32_t synced_ = 0, window_ = 0;  // what ended there before this position has ended here; how many leaps there were
    std::vector<double> ended_;         // by task: when it ended, if that was simulated; else -1
    std::vector<uint32_t> seen_;        // by task: for which window its event is right
    std::vector<std::pair<uint32_t, uint32_t>> joined_;  // (first task, layer), in order
    uint32_t strangers_ = 0;            // that wait in the queue
    uint32_t ended_common_ = 0;         // how many common tasks have ended
    uint32_t highest_ = 0;              // and, of those that were simulated since the last leap, the latest of their ends' positions there
    bool any_ = false, anchored_ = false;
    uint32_t expected_ = 0, next_mark_ = 0;  // the position there of the turn that should come next; the mark after it, once known
    uint32_t anchor_ = 0;                    // and of the first of those that were the same
    double shift_ = 0;                       // by how much later than there
    double anchor_most_ = 0, anchor_old_ = 0;  // the latest ends, here and there, before turns were the same
    bool write_down(const Tasks& kept_around);
    void begin_log();
    void prepare(const Lowering& lowering, const Tasks& kept_around);
    void compare(const Lowering& lowering, const Tasks& kept_around);
    void look_around(const Lowering& lowering, uint32_t block);
    void follow_around(uint32_t task, double end);
    void arrange(uint32_t task);
    double most_before(uint32_t position) const;
    bool alike(uint32_t layer, const Tasks& kept_around) const;
    uint32_t lost_before(uint32_t position) const;
    bool on_its_way(uint32_t at);
    bool leap(uint32_t from, double later);
    void go_on_at(uint32_t to, const Part& part);
    void joined(uint32_t layer);
    uint32_t here(uint32_t old);
    uint32_t layer_at(const std::vector<std::pair<uint32_t, uint32_t>>& joined, uint32_t task) const;
    bool has_ended(uint32_t task, double& end) const;
    void refresh(uint32_t task);
    void refresh_slot(uint32_t slot);
    void make_mark(double time);
    template <Mode MODE> bool took(uint32_t task, double at, double first_end, double end, uint32_t stop);
    void keep_run();
    void keep_followers();
    void keep_turn(uint32_t position, const Past::Turn& turn);
    void keep_own(const Part& part, uint32_t at, uint32_t& own);
    void keep_over(const Part& part, uint32_t at);
};

}  // namespace taskflow

#include "evaluate/simulation/fast_forward.h"
