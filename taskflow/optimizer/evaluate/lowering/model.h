// What does not change from strategy to strategy: the graph, the machine, costs, and the geometry of all cuts seen so far.
// The definition is optimizer/evaluate/evaluator.py; tests/optimizer/evaluate/test_core_equal.py holds them equal.
#pragma once

#include <cmath>
#include <map>

#include "evaluate/checkpoint.h"
#include "evaluate/lowering/parameter_layout.h"
#include "evaluate/lowering/sync_table.h"
#include "evaluate/simulation/full.h"

namespace taskflow {

typedef double (*CostCallback)(void*, int kind, int cut, int piece, int where, int64_t flops, int64_t nbytes, int node);
typedef void (*RouteCallback)(void*, int source, int target);
typedef void (*GroupCallback)(void*, const int32_t* members, int count);

struct Model {  // what does not change from strategy to strategy
    int processors = 0;
    int repeats = 1;  // how often the plan is carried out, by as many processors each time, whose copies of weights are kept equal
    std::vector<NodeInfo> nodes;
    std::vector<ParameterInfo> parameters;
    std::vector<LayerInfo> layers;
    std::vector<std::pair<int, int>> losses;
    std::vector<int> loss_lists;  // list of the loss's whole Rect
    std::vector<std::pair<std::pair<int, int>, std::pair<int, int>>> carries;
    bool trains = false, clips = false;
    int64_t rule_state[2] = {0, 0};  // bytes that the rule keeps for a weight that is updated in float32, in float64
    int64_t rule_flops = 0;  // an element
    Geometry geometry;
    SyncTables sync_tables;

    // Costs: either the machine's rates, or asked for and kept.
    bool rates = false, by_runs = false;
    std::vector<double> flops_per_second, bytes_per_second, overhead;
    std::vector<int> processor_class;
    Routes routes;
    std::vector<int32_t> route_of;  // source * processors + target -> route, or -1
    std::vector<double> route_latency, route_bandwidth;
    std::vector<int> route_class;
    CostCallback ask_cost = nullptr;
    RouteCallback ask_route = nullptr;
    GroupCallback ask_group = nullptr;
    struct Group { int route, number; };  // what a collective's ring occupies; and how Python calls the set of processors
    std::map<std::vector<int32_t>, Group> groups;
    void* asker = nullptr;
    Checkpoint checkpoint;

    int route(int source, int target) {
        int32_t& known = route_of[size_t(source) * processors + target];
        if (known < 0) ask_route(asker, source, target);
        return known;
    }
    double seconds(int kind, int processor, int64_t flops, int64_t nbytes, int cut = -1, int piece = -1, int node = -1) {
        if (rates)
            return on_grid(overhead[processor] +
                           std::max(double(flops) / flops_per_second[processor], double(nbytes) / bytes_per_second[processor]));
        return kept(kind, cut, piece, processor_class[processor], processor, flops, nbytes, node);
    }
    // Of a task that is no operator's, in so many stretches of memory: asked for, and kept, in the place of a cut.
    double memory_seconds(int kind, int processor, int64_t flops, int64_t nbytes, int32_t runs) {
        return seconds(kind, processor, flops, nbytes, by_runs ? runs : 1);
    }
    // All processors that hold what these hold: their images in all repetitions are counted on after them.
    const std::vector<int32_t>& everywhere(const std::vector<int32_t>& holders) {
        if (repeats == 1) return holders;
        everywhere_.clear();
        for (int32_t first = 0; first < repeats * processors; first += processors)
            for (int32_t holder : holders) everywhere_.push_back(first + holder);
        return everywhere_;
    }
    Group group(const std::vector<int32_t>& members) {
        auto known = groups.find(members);
        if (known == groups.end()) {
            ask_group(asker, members.data(), int(members.size()));
            known = groups.find(members);
        }
        return known->second;
    }
    // Halves: 2 of an all-reduce, 1 of a reduce-scatter or an all-gather, which may have as many bytes and flops.
    double collective_seconds(Group of, int64_t flops, int64_t nbytes, int halves) {
        return kept(COLLECTIVE, halves, -1, of.route, of.number, flops, nbytes, -1);
    }
    double copy_seconds(int route, int source, int target, int64_t nbytes, Runs runs) {
        if (rates) return on_grid(route_latency[route] + double(nbytes) / route_bandwidth[route]);
        // A copy has no flops: in their place it is asked for, and kept, by its runs.
        const int64_t both = by_runs ? int64_t(runs.read) << 32 | runs.written : int64_t(1) << 32 | 1;
        // Most copies are like the one before.
        Recent& recent = recent_[route_class[route]];
        if (recent.nbytes != nbytes || recent.runs != both) {
            const double seconds = kept(COPY, source, target, route_class[route], target, both, nbytes, -1);
            if (unanswered_) return seconds;
            recent = {nbytes, both, seconds};
        }
        return recent.seconds;
    }

private:
    struct Key {
        int64_t flops, nbytes;
        int32_t kind, cut, piece, where;
        bool operator==(const Key& o) const {
            return flops == o.flops && nbytes == o.nbytes && kind == o.kind && cut == o.cut && piece == o.piece &&
                   where == o.where;
        }
    };
    struct Hash {
        size_t operator()(const Key& k) const {
            uint64_t h = uint64_t(k.flops) * 0x9E3779B97F4A7C15ull ^ uint64_t(k.nbytes) * 0xC2B2AE3D27D4EB4Full;
            h ^= (uint64_t(uint32_t(k.kind)) << 58) ^ (uint64_t(uint32_t(k.cut)) << 36) ^
                 (uint64_t(uint32_t(k.piece)) << 16) ^ uint64_t(uint32_t(k.where));
            h *= 0xFF51AFD7ED558CCDull;
            return size_t(h ^ (h >> 29));
        }
    };
    struct Recent { int64_t nbytes = -1, runs = 0; double seconds = 0; };
    struct Cost { Key key; double seconds; bool used; };
    std::vector<Recent> recent_;  // by class of route
    std::vector<int32_t> everywhere_;
    std::vector<Cost> costs_ = std::vector<Cost>(1 << 12);
    size_t costs_used_ = 0;
    bool unanswered_ = false;  // whether the last question to Python has no answer

    Cost& find(std::vector<Cost>& table, const Key& key) {
        size_t at = Hash()(key) & (table.size() - 1);
        while (table[at].used && !(table[at].key == key)) at = (at + 1) & (table.size() - 1);
        return table[at];
    }
    double kept(int kind, int cut, int piece, int where, int processor, int64_t flops, int64_t nbytes, int node) {
        // Of a copy, cut and piece are source and target: asked with them, kept without.
        Key key{flops, nbytes, kind, kind == COPY ? -1 : cut, kind == COPY ? -1 : piece, where};
        Cost* found = &find(costs_, key);
        unanswered_ = false;
        if (found->used) return found->seconds;
        // Asking may raise (Ctrl-C while a task is being measured): then the proposal fails, and nothing is kept of it.
        const double seconds = on_grid(ask_cost(asker, kind, cut, piece, processor, flops, nbytes, node));
        unanswered_ = std::isnan(seconds);
        if (unanswered_) return 0.0;
        if (++costs_used_ * 2 > costs_.size()) {
            std::vector<Cost> larger(costs_.size() * 2);
            for (const Cost& cost : costs_)
                if (cost.used) find(larger, cost.key) = cost;
            costs_.swap(larger);
            found = &find(costs_, key);
        }
        *found = {key, seconds, true};
        return seconds;
    }
    friend class Step;
};

}  // namespace taskflow
