// The synchronisation of one layer, kept from proposal to proposal as long as nothing that it depends on changes: the
// layer's plan, how it is synchronised, and which holders have a gradient. At many devices it is most of a step's tasks.
// There is no twin: the definition lowers each proposal from nothing; tests/optimizer/evaluate/test_core_apart.py holds it.
#pragma once

#include "evaluate/lowering/lower.h"

namespace taskflow {

struct Event {  // what simulation needs of a task, in half a cache line
    double ready, cost;
    uint32_t waits;
    uint32_t stop;   // which of `Routes::stops` it comes to next
    uint32_t first;  // of its followers
    uint32_t order;  // its place in program order
};

struct Fragment {
    std::shared_ptr<const LayerPlan> plan;
    Sync sync;
    std::vector<uint8_t> flat;
    uint32_t part_end[3] = {0, 0, 0};  // sums, sending, updates: in program order each follows that of all other layers
    std::vector<Event> events;         // of its tasks, and one that ends the followers
    std::vector<uint32_t> next;        // followers: numbers of its own tasks
    std::vector<uint32_t> after_offset, after;  // predecessors by task: its own tasks, and with JOIN slots
    std::vector<uint32_t> slot_first;  // of the followers of each slot
    std::vector<double> tail, slot_tail;  // the longest path from the end of a task (from a slot) to the end of the step
    std::vector<double> load;          // seconds by resource

    uint32_t size() const { return part_end[2]; }
    // But for `flat`.
    bool made_for(const std::shared_ptr<const LayerPlan>& p, const Sync& s) const {
        return plan == p && sync.way == s.way;
    }
};

inline std::shared_ptr<Fragment> make_fragment(Lowering& lowering, int layer, Tasks& spare, const Routes& routes,
                                               std::shared_ptr<const LayerPlan> plan, const Sync& sync,
                                               const std::vector<uint8_t>& flat) {
    auto made = std::make_shared<Fragment>();
    Fragment& f = *made;
    lowering.fragment(layer, spare, f.part_end);
    f.plan = std::move(plan), f.sync = sync, f.flat = flat;
    const uint32_t n = uint32_t(spare.size()), slots = 2 * uint32_t(f.plan->indices), all = n + slots;
    std::vector<uint32_t> first(all + 2, 0);
    auto place = [n](uint32_t a) { return a & JOIN ? n + (a & ~JOIN) : a; };
    for (uint32_t a : spare.after) ++first[place(a) + 2];
    for (uint32_t i = 2; i < all + 2; ++i) first[i] += first[i - 1];
    f.next.resize(spare.after.size());
    for (uint32_t t = 0; t < n; ++t)
        for (uint32_t k = spare.after_offset[t]; k < spare.after_offset[t + 1]; ++k)
            f.next[first[place(spare.after[k]) + 1]++] = t;
    f.events.resize(n + 1);
    const uint32_t processors = routes.processors();
    f.after_offset = spare.after_offset, f.after = spare.after;
    f.load.assign(routes.total_resources, 0.0);
    for (uint32_t t = 0; t < n; ++t) {
        const int32_t r = spare.resource[t];
        f.events[t] = {0.0, spare.cost[t], spare.after_offset[t + 1] - spare.after_offset[t],
                       routes.stop(r, processors), first[t], t};
        if (r >= 0) f.load[r] += spare.cost[t];
        else for (int32_t k = routes.offset[-1 - r]; k < routes.offset[-r]; ++k) f.load[routes.resources[k]] += spare.cost[t];
    }
    f.events[n] = {0.0, 0.0, 0, 0, first[n], n};
    f.slot_first.assign(first.begin() + n, first.begin() + all + 1);
    f.tail.assign(n, 0.0), f.slot_tail.assign(slots, 0.0);
    for (uint32_t t = n; t-- > 0;) {
        const double path = spare.cost[t] + f.tail[t];
        for (uint32_t k = spare.after_offset[t]; k < spare.after_offset[t + 1]; ++k) {
            const uint32_t a = spare.after[k];
            double& tail = a & JOIN ? f.slot_tail[a & ~JOIN] : f.tail[a];
            if (tail < path) tail = path;
        }
    }
    return made;
}

}  // namespace taskflow
