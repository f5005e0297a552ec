// tasks/lower.py for timelines: the same tasks in the same order, with costs and predecessors but without buffers.
//
// Predecessors that lie before another predecessor anyway may be left out: they change no time.
#pragma once

#include "core_layers.h"
#include "core_simulate.h"

namespace taskflow {

typedef double (*CostCallback)(void*, int kind, int cut, int piece, int where, int64_t flops, int64_t nbytes, int node);
typedef void (*RouteCallback)(void*, int source, int target);

struct Model {  // what does not change from strategy to strategy
    int processors = 0;
    std::vector<NodeInfo> nodes;
    std::vector<ParameterInfo> parameters;
    std::vector<LayerInfo> layers;
    std::vector<std::pair<int, int>> losses;
    std::vector<int> loss_lists;  // list of the loss's whole Rect
    std::vector<std::pair<std::pair<int, int>, std::pair<int, int>>> carries;
    bool trains = false, clips = false;
    int rule_buffers = 0;
    int64_t rule_flops = 0;  // an element
    Geometry geometry;

    // Costs: either the machine's rates, or asked for and kept.
    bool rates = false;
    std::vector<double> flops_per_second, bytes_per_second, overhead;
    std::vector<int> processor_class;
    Routes routes;
    std::vector<int32_t> route_of;  // source * processors + target -> route, or -1
    std::vector<double> route_latency, route_bandwidth;
    std::vector<int> route_class;
    CostCallback ask_cost = nullptr;
    RouteCallback ask_route = nullptr;
    void* asker = nullptr;

    int route(int source, int target) {
        int32_t& known = route_of[size_t(source) * processors + target];
        if (known < 0) ask_route(asker, source, target);
        return known;
    }
    double seconds(int kind, int processor, int64_t flops, int64_t nbytes, int cut = -1, int piece = -1, int node = -1) {
        if (rates)
            return overhead[processor] +
                   std::max(double(flops) / flops_per_second[processor], double(nbytes) / bytes_per_second[processor]);
        return kept(kind, cut, piece, processor_class[processor], processor, flops, nbytes, node);
    }
    double copy_seconds(int route, int source, int target, int64_t nbytes) {
        if (rates) return route_latency[route] + double(nbytes) / route_bandwidth[route];
        // Most copies have the size of the one before.
        Recent& recent = recent_[route_class[route]];
        if (recent.nbytes != nbytes)
            recent = {nbytes, kept(COPY, source, target, route_class[route], target, 0, nbytes, -1)};
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
    struct Recent { int64_t nbytes = -1; double seconds = 0; };
    struct Cost { Key key; double seconds; bool used; };
    std::vector<Recent> recent_;  // by class of route
    std::vector<Cost> costs_ = std::vector<Cost>(1 << 12);
    size_t costs_used_ = 0;

    Cost& find(std::vector<Cost>& table, const Key& key) {
        size_t at = Hash()(key) & (table.size() - 1);
        while (table[at].used && !(table[at].key == key)) at = (at + 1) & (table.size() - 1);
        return table[at];
    }
    double kept(int kind, int cut, int piece, int where, int processor, int64_t flops, int64_t nbytes, int node) {
        // Of a copy, cut and piece are source and target: asked with them, kept without.
        Key key{flops, nbytes, kind, kind == COPY ? -1 : cut, kind == COPY ? -1 : piece, where};
        Cost* found = &find(costs_, key);
        if (found->used) return found->seconds;
        if (++costs_used_ * 2 > costs_.size()) {
            std::vector<Cost> larger(costs_.size() * 2);
            for (const Cost& cost : costs_)
                if (cost.used) find(larger, cost.key) = cost;
            costs_.swap(larger);
            found = &find(costs_, key);
        }
        const double seconds = ask_cost(asker, kind, cut, piece, processor, flops, nbytes, node);
        *found = {key, seconds, true};
        return seconds;
    }
    friend class Step;
};

struct Plans {  // a strategy, taken apart
    std::vector<const Config*> configs;
    std::vector<const LayerPlan*> layers;
    std::vector<Sync> syncs;
};

class Lowering {
public:
    explicit Lowering(Model& model) : m(model), g(model.geometry) {}

    // ``described``: also fill the columns that are only for people. False, and only forward and backward tasks, if these
    // are certain to pass the limit by themselves: synchronisation is most of the work at many devices.
    bool run(const Plans& plans, Tasks& out, bool described, double limit) {
        p = &plans, t = &out, described_ = described;
        out.clear();
        reset();
        compute();
        if (m.trains) {
            if (limit < std::numeric_limits<double>::infinity() && longest_path() > limit * (1 + 1e-9)) return false;
            synchronise();
        }
        carry();
        return true;
    }
    // The same without the layers' synchronisation; in its place the slots that `fragment` waits for, as joins. Returns how
    // many tasks come before synchronisation; those of carried state come after it.
    uint32_t run_around(const Plans& plans, Tasks& out) {
        p = &plans, t = &out, described_ = false;
        out.clear();
        reset();
        compute();
        if (m.trains) collect(), fill_slots();
        const uint32_t before = uint32_t(out.size());
        carry();
        return before;
    }
    void fragment(int layer, Tasks& out, uint32_t part_end[3]);
    // Which holders of a layer's bundles have a gradient: together with plan and way of synchronisation, all that a
    // layer's fragment depends on.
    void flat(int layer, std::vector<uint8_t>& out) const {
        auto first = has_flat_.begin() + member_base_[layer];
        out.assign(first, first + p->layers[layer]->members);
    }

private:
    static constexpr int32_t NONE = -1;

    void compute() {
        const uint32_t nodes = uint32_t(m.nodes.size());
        for (uint32_t n = 0; n < nodes; ++n) {
            block(n);
            forward(int(n));
        }
        block(nodes);
        for (size_t i = 0; i < m.losses.size(); ++i)
            read(m.losses[i], m.loss_lists[i], 0, 0);
        if (m.trains) {
            for (int n = int(nodes) - 1; n >= 0; --n) {
                block(2 * nodes - uint32_t(n));
                if (m.nodes[n].active) backward(n);
            }
        }
    }
    void carry() {
        block(CARRY);
        for (auto& [carried, becomes] : m.carries) carry(carried, becomes);
    }

    struct Instance {
        uint32_t after, count;    // the tasks that fill it: deps_[after ...]
        int32_t state_slot;       // of a view of kept state: where its readers are listed; else NONE
        int32_t gradient;         // of a tensor: place among its gradients; of a weight: see WeightUse
    };
    struct WeightUse {
        uint32_t after, count;
        int32_t alias;            // table index of the cell that it is; NONE: gathered cells
        int32_t layer, gradient;  // last task that wrote its gradient; NONE: no gradient yet
        bool has_gradient;
        int32_t cover;
        int32_t processor;
    };
    struct Reader {  // a gradient that a reader of a tensor puts
        int32_t processor, region, last;
        const Edge* edge;
        int32_t piece;
    };
    struct Chunk {
        int layer, bundle, first_cell, last_cell, shift;
        int64_t low, high;
        int32_t final;            // task that completed the sum at the root; NONE: the cells' writers did
        uint32_t arrivals;        // EVERY: places of the other members' arrived sums in arrivals_
    };

    Model& m;
    Geometry& g;
    const Plans* p = nullptr;
    Tasks* t = nullptr;
    bool described_ = false;

    std::vector<double> path_;
    double longest_path() {  // of the tasks so far, which have no joins yet
        double longest = 0;
        path_.resize(t->size());
        for (size_t task = 0; task < t->size(); ++task) {
            double ready = 0;
            for (uint32_t k = t->after_offset[task]; k < t->after_offset[task + 1]; ++k)
                ready = std::max(ready, path_[t->after[k]]);
            path_[task] = ready + t->cost[task];
            longest = std::max(longest, path_[task]);
        }
        return longest;
    }

    bool slots_ = false;  // whether synchronisation waits for slots or for the tasks themselves
    int slot_base_ = 0;
    std::vector<uint32_t> slot_mark_;
    std::vector<uint32_t> mark_;
    uint32_t stamp_ = 0;
    std::vector<int32_t> deps_;
    std::vector<Instance> instances_;
    std::vector<WeightUse> uses_;
    std::vector<int32_t> forward_of_;           // (node, piece) -> task
    std::vector<std::vector<const std::vector<int32_t>*>> covers_;  // node, parameter -> piece -> cover
    std::vector<std::vector<const Edge*>> edges_;  // node, input -> how it overlaps its producer
    std::vector<int32_t> member_offset_;        // bundle -> members of the layer's bundles before it
    std::vector<int32_t> norms_, scales_;       // by processor
    std::vector<int> piece_base_, out_base_, in_base_, weight_base_, tensor_base_;
    std::vector<int32_t> out_writer_;          // (node, output, piece) -> last task that wrote this piece's value
    std::vector<int32_t> input_instance_, weight_use_;
    std::vector<std::vector<Reader>> readers_;  // by tensor
    std::vector<std::vector<int32_t>> state_readers_;
    std::vector<int32_t> state_base_;           // tensor -> first slot in state_readers_, or NONE
    std::vector<int32_t> layer_base_, member_base_, bundle_base_;
    std::vector<int32_t> weight_head_, weight_next_, weight_task_, weight_join_;
    std::vector<int32_t> cell_writer_;
    std::vector<size_t> use_base_;
    std::vector<int32_t> use_of_;               // (layer, cover, processor) -> place in uses_
    std::vector<uint8_t> has_flat_;
    std::vector<int32_t> gradient_order_;       // weight uses in the order in which they got gradients
    std::vector<Chunk> chunks_;
    std::vector<int32_t> arrivals_;

    // ---- a hash table that is emptied by counting up -------------------------------------------------------------
    struct Entry { uint64_t key; uint32_t stamp; int32_t value; };
    std::vector<Entry> table_ = std::vector<Entry>(1 << 12);
    uint32_t table_stamp_ = 0, table_used_ = 0;

    size_t place(uint64_t key) const {
        // Tensor and processor are in the upper bits, which a product alone would not bring down.
        return ((key ^ (key >> 29)) * 0x9E3779B97F4A7C15ull >> 36) & (table_.size() - 1);
    }
    int32_t& lookup(uint64_t key, bool& fresh) {
        if (table_used_ * 2 > table_.size()) grow();
        size_t at = place(key);
        for (;; at = (at + 1) & (table_.size() - 1)) {
            Entry& e = table_[at];
            if (e.stamp != table_stamp_) {
                e = {key, table_stamp_, NONE};
                ++table_used_;
                fresh = true;
                return e.value;
            }
            if (e.key == key) { fresh = false; return e.value; }
        }
    }
    void grow() {
        std::vector<Entry> old(table_.size() * 2);
        old.swap(table_);
        for (const Entry& e : old) {
            if (e.stamp != table_stamp_) continue;
            size_t at = place(e.key);
            while (table_[at].stamp == table_stamp_) at = (at + 1) & (table_.size() - 1);
            table_[at] = e;
        }
    }

    // Blocks are numbered in program order, and a block that two strategies share has one number.
    enum : uint32_t { COLLECT = 1u << 24, REDUCE = 2u << 24, CLIPPING = 3u << 24, SEND = 4u << 24, UPDATES = 5u << 24,
                      CARRY = 6u << 24 };
    void block(uint32_t number) {
        if (t->blocks.empty() || t->blocks.back().first != number) t->blocks.push_back({number, uint32_t(t->size())});
    }

    // ---- tasks ---------------------------------------------------------------------------------------------------
    void begin() {
        ++stamp_;
        if (mark_.size() <= t->size()) mark_.resize(2 * t->size() + 1024, 0);
    }
    void wait(int32_t task) {
        if (task < 0 || mark_[task] == stamp_) return;
        mark_[task] = stamp_;
        t->after.push_back(uint32_t(task));
    }
    void wait_slot(uint32_t slot) {
        if (slot_mark_[slot] == stamp_) return;
        slot_mark_[slot] = stamp_;
        t->after.push_back(slot | JOIN);
    }
    void wait_join(int32_t join) {
        if (join >= 0) t->after.push_back(uint32_t(join) | JOIN);
    }
    int32_t end(int kind, int processor, int64_t flops, int64_t nbytes, double cost, int node) {
        t->add(processor, cost);
        if (described_) t->describe(kind, processor, processor, flops, nbytes, node);
        return int32_t(t->size()) - 1;
    }
    int32_t end(int kind, int processor, int64_t flops, int64_t nbytes) {
        return end(kind, processor, flops, nbytes, m.seconds(kind, processor, flops, nbytes), NONE);
    }
    int32_t end_copy(int source, int target, int64_t nbytes) {
        int route = m.route(source, target);
        t->add(-1 - route, m.copy_seconds(route, source, target, nbytes));
        if (described_) t->describe(COPY, target, source, 0, nbytes, NONE);
        return int32_t(t->size()) - 1;
    }
    // A copy between processors, or a move within one.
    int32_t end_transfer(int source, int target, int64_t nbytes) {
        return source == target ? end(MOVE, target, 0, 2 * nbytes) : end_copy(source, target, nbytes);
    }

    // ---- copies in rounds (Emitter.transfers) --------------------------------------------------------------------------
    struct Copy {
        int32_t writer, giver, taker;  // writer: the task to wait for, or NONE
        int64_t nbytes;
        int32_t state;                 // where readers of kept state are listed; else NONE
        uint32_t at;                   // for whom: a place in deps_, in a table of arrivals, ...
    };
    std::vector<Copy> copies_;
    std::vector<uint32_t> by_taker_, by_distance_, sorted_end_;
    std::vector<int32_t> turn_;  // of a taker within a round: its place when sorted by its number's bits in reverse order

    // Calls emit(copy) for all copies in order of the distance between taker and giver and then of turns, and forgets them.
    template <class Emit> void in_rounds(std::vector<Copy>& copies, Emit emit) {
        const uint32_t n = uint32_t(copies.size());
        if (n == 1) emit(copies[0]);
        if (n > 1) {
            by_taker_.resize(n), by_distance_.resize(n);
            for (uint32_t k = 0; k < n; ++k) by_distance_[k] = k;
            sort(by_distance_, by_taker_, [&](uint32_t k) { return turn_[copies[k].taker]; });
            sort(by_taker_, by_distance_, [&](uint32_t k) {
                const Copy& c = copies[k];
                if ((m.processors & (m.processors - 1)) == 0) return c.giver ^ c.taker;
                return c.giver >= c.taker ? c.giver - c.taker : c.giver - c.taker + m.processors;
            });
            for (uint32_t k = 0; k < n; ++k) emit(copies[by_distance_[k]]);
        }
        copies.clear();
    }
    template <class Key> void sort(const std::vector<uint32_t>& from, std::vector<uint32_t>& to, Key key) {
        sorted_end_.assign(m.processors + 1, 0);
        for (uint32_t k : from) ++sorted_end_[key(k) + 1];
        for (int i = 0; i < m.processors; ++i) sorted_end_[i + 1] += sorted_end_[i];
        for (uint32_t k : from) to[sorted_end_[key(k)]++] = k;
    }
    void take_turns() {
        int bits = 0, place = 0;
        while (1 << bits < m.processors) ++bits;
        turn_.resize(m.processors);
        for (int key = 0; key < 1 << bits; ++key) {
            int number = 0;
            for (int i = 0; i < bits; ++i) number |= (key >> i & 1) << (bits - 1 - i);
            if (number < m.processors) turn_[number] = place++;
        }
    }
    // Fills the instances that `want` has made since the last time.
    void bring() {
        in_rounds(copies_, [&](const Copy& c) {
            begin();
            wait(c.writer);
            const int32_t task = end_transfer(c.giver, c.taker, c.nbytes);
            if (c.state >= 0) state_readers_[c.state].push_back(task);
            deps_[c.at] = task;
        });
    }

    // ---- set-up --------------------------------------------------------------------------------------------------
    void reset() {
        const size_t nodes = m.nodes.size();
        if (turn_.empty()) take_turns();
        if (stamp_ > 1u << 31) std::fill(mark_.begin(), mark_.end(), 0), std::fill(slot_mark_.begin(), slot_mark_.end(), 0), stamp_ = 0;
        ++table_stamp_, table_used_ = 0;
        deps_.clear(), instances_.clear(), uses_.clear(), gradient_order_.clear(), chunks_.clear(), arrivals_.clear();
        piece_base_.resize(nodes), out_base_.resize(nodes), in_base_.resize(nodes), weight_base_.resize(nodes), tensor_base_.resize(nodes + 1);
        int pieces_before = 0, outs = 0, ins = 0, weights = 0, tensors = 0, slots = 0;
        state_base_.clear();
        for (size_t n = 0; n < nodes; ++n) {
            const NodeInfo& node = m.nodes[n];
            int pieces = p->configs[n]->cut->pieces;
            piece_base_[n] = pieces_before, pieces_before += pieces;
            out_base_[n] = outs, in_base_[n] = ins, weight_base_[n] = weights, tensor_base_[n] = tensors;
            outs += pieces * int(node.itemsizes.size());
            ins += pieces * int(node.inputs.size());
            weights += pieces * int(node.parameters.size());
            tensors += int(node.itemsizes.size());
            for (size_t o = 0; o < node.itemsizes.size(); ++o) {
                state_base_.push_back(node.state ? slots : NONE);
                if (node.state) slots += int(p->configs[n]->cut->outputs[o].rect.size());
            }
        }
        tensor_base_[nodes] = tensors;
        forward_of_.assign(pieces_before, NONE);
        out_writer_.assign(outs, NONE), input_instance_.assign(ins, NONE), weight_use_.assign(weights, NONE);
        readers_.resize(tensors);
        for (auto& r : readers_) r.clear();
        if (int(state_readers_.size()) < slots) state_readers_.resize(slots);
        for (auto& r : state_readers_) r.clear();
        int indices = 0, members = 0, bundles = 0;
        size_t covers = 0;
        use_base_.clear();
        for (const LayerPlan* plan : p->layers) use_base_.push_back(covers * m.processors), covers += plan->covers.size();
        use_of_.assign(covers * m.processors, NONE);
        layer_base_.clear(), member_base_.clear(), bundle_base_.clear(), member_offset_.clear();
        for (const LayerPlan* plan : p->layers) {
            layer_base_.push_back(indices), member_base_.push_back(members), bundle_base_.push_back(bundles);
            int before = 0;
            for (const BundlePlan& b : plan->bundles) member_offset_.push_back(before), before += int(b.group.size());
            indices += plan->indices, members += plan->members, bundles += int(plan->bundles.size());
        }
        weight_head_.assign(indices, NONE), weight_join_.assign(indices, NONE), cell_writer_.assign(indices, NONE);
        weight_next_.clear(), weight_task_.clear();
        covers_.resize(nodes), edges_.resize(nodes);
        for (size_t n = 0; n < nodes; ++n) covers_[n].resize(m.nodes[n].parameters.size());
        for (size_t i = 0; i < m.layers.size(); ++i)
            for (size_t u = 0; u < m.layers[i].uses.size(); ++u) {
                auto [n, k] = m.layers[i].uses[u];
                covers_[n][k] = &p->layers[i]->cover[u];
            }
        has_flat_.assign(members, 0);
    }

    // ---- reading tensors -----------------------------------------------------------------------------------------
    int tensor(std::pair<int, int> of) const { return tensor_base_[of.first] + of.second; }

    // The instance of list[piece] of a tensor on a processor; NONE for an empty Rect.
    int32_t read(std::pair<int, int> of, int list, int piece, int processor) {
        const int32_t number = want(of, list, piece, processor, g.edge(*p->configs[of.first]->cut, of.second, list));
        bring();
        return number;
    }
    // The same, but `bring` emits what fills the instance, together with what else is wanted by then.
    // ``alone``: no other task on this processor reads the tensor, so there is no instance yet and none to remember.
    int32_t want(std::pair<int, int> of, int list, int piece, int processor, const Edge& edge, bool alone = false) {
        const int32_t region = g.lists[list][piece];
        if (g.regions[region].empty) return NONE;
        const int32_t number = int32_t(instances_.size());
        if (!alone) {
            bool fresh;
            uint64_t key = (uint64_t(tensor(of)) << 44) | (uint64_t(processor) << 32) | uint32_t(region);
            int32_t& found = lookup(key, fresh);
            if (!fresh) return found;
            found = number;
        }
        const Config& producer = *p->configs[of.first];
        const Output& output = producer.cut->outputs[of.second];
        const Overlap *first = &edge.overlaps[edge.offset[piece]], *last = &edge.overlaps[edge.offset[piece + 1]];
        const int32_t* writer = &out_writer_[out_base_[of.first] + of.second * producer.cut->pieces];
        const int32_t state = state_base_[tensor(of)];
        Instance made{uint32_t(deps_.size()), 0, NONE, NONE};
        if (last - first == 1 && first->view && producer.processors[output.first_piece[first->slot]] == processor) {
            if (state >= 0) made.state_slot = state + first->slot;
            deps_.push_back(writer[output.first_piece[first->slot]]);
        } else {
            const int itemsize = m.nodes[of.first].itemsizes[of.second];
            for (const Overlap* o = first; o != last; ++o) {
                const int owner = output.first_piece[o->slot];
                copies_.push_back({writer[owner], producer.processors[owner], processor, o->volume * itemsize,
                                   state >= 0 ? state + int32_t(o->slot) : NONE, uint32_t(deps_.size())});
                deps_.push_back(NONE);
            }
        }
        made.count = uint32_t(deps_.size()) - made.after;
        instances_.push_back(made);
        return number;
    }
    void wait_instance(int32_t number) {
        if (number < 0) return;
        const Instance& i = instances_[number];
        for (uint32_t k = i.after; k < i.after + i.count; ++k) wait(deps_[k]);
    }
    void read_by(int32_t number, int32_t task) {
        if (number >= 0 && instances_[number].state_slot >= 0)
            state_readers_[instances_[number].state_slot].push_back(task);
    }

    // ---- reading weights -----------------------------------------------------------------------------------------
    const LayerPlan& plan_of(int layer) const { return *p->layers[layer]; }

    int cell_index(int layer, BundleCell at, int processor) const {
        const BundlePlan& b = plan_of(layer).bundles[at.bundle];
        return layer_base_[layer] + b.index(b.place(processor), at.cell);
    }
    void weight_read(int index, int32_t task) {
        weight_next_.push_back(weight_head_[index]);
        weight_head_[index] = int32_t(weight_task_.size());
        weight_task_.push_back(task);
    }
    int32_t use_weight(int parameter, int32_t cover, int processor) {
        const int layer = m.parameters[parameter].layer;
        int32_t& found = use_of_[use_base_[layer] + size_t(cover) * m.processors + processor];
        if (found >= 0) return found;
        const int32_t number = found = int32_t(uses_.size());
        const auto& cells = plan_of(layer).covers[cover];
        WeightUse use{uint32_t(deps_.size()), 0, NONE, layer, NONE, false, cover, processor};
        if (cells.size() == 1) use.alias = cell_index(layer, cells[0], processor);
        else
            for (BundleCell at : cells) {
                int64_t volume = plan_of(layer).bundles[at.bundle].cells[at.cell].volume;
                begin();
                int32_t task = end(MOVE, processor, 0, 2 * volume * m.parameters[parameter].itemsize);
                weight_read(cell_index(layer, at, processor), task);
                deps_.push_back(task);
            }
        use.count = uint32_t(deps_.size()) - use.after;
        uses_.push_back(use);
        return number;
    }
    void wait_use(int32_t number) {
        if (number < 0) return;
        const WeightUse& u = uses_[number];
        for (uint32_t k = u.after; k < u.after + u.count; ++k) wait(deps_[k]);
    }
    void weight_read_by(int32_t use, int32_t task) {
        if (use >= 0 && uses_[use].alias >= 0) weight_read(uses_[use].alias, task);
    }

    // ---- forward -------------------------------------------------------------------------------------------------
    void forward(int n) {
        const NodeInfo& node = m.nodes[n];
        const Config& config = *p->configs[n];
        const Cut& cut = *config.cut;
        if (node.state) return;
        const size_t ins = node.inputs.size(), params = node.parameters.size(), outs = node.itemsizes.size();
        auto& edges = edges_[n];
        edges.clear();
        for (size_t i = 0; i < ins; ++i) {
            auto of = node.inputs[i];
            edges.push_back(&g.edge(*p->configs[of.first]->cut, of.second, cut.inputs[i]));
        }
        for (int piece = 0; piece < cut.pieces; ++piece) {
            const int processor = config.processors[piece];
            int32_t* instance = &input_instance_[in_base_[n]] + piece * ins;
            for (size_t i = 0; i < ins; ++i)
                instance[i] = want(node.inputs[i], cut.inputs[i], piece, processor, *edges[i],
                                   config.apart && node.sole[i]);
        }
        bring();
        for (int piece = 0; piece < cut.pieces; ++piece) {
            const int processor = config.processors[piece];
            const int32_t* instance = &input_instance_[in_base_[n]] + piece * ins;
            int32_t* use = &weight_use_[weight_base_[n]] + piece * params;
            for (size_t k = 0; k < params; ++k) {
                int32_t region = g.lists[cut.weights[k]][piece];
                if (!g.regions[region].empty)
                    use[k] = use_weight(node.parameters[k], cover_of(n, int(k), piece), processor);
            }
            begin();
            for (size_t i = 0; i < ins; ++i) wait_instance(instance[i]);
            for (size_t k = 0; k < params; ++k) wait_use(use[k]);
            int64_t nbytes = cut.input_bytes[piece] + cut.weight_bytes[piece] + cut.output_bytes[piece] +
                             cut.saved_bytes[piece];
            double cost = m.seconds(FORWARD, processor, cut.flops[piece], nbytes, cut.id, piece, n);
            int32_t task = end(FORWARD, processor, cut.flops[piece], nbytes, cost, n);
            forward_of_[piece_base_[n] + piece] = task;
            for (size_t o = 0; o < outs; ++o) out_writer_[out_base_[n] + o * cut.pieces + piece] = task;
            for (size_t i = 0; i < ins; ++i) read_by(instance[i], task);
            for (size_t k = 0; k < params; ++k) weight_read_by(use[k], task);
        }
        for (size_t o = 0; o < outs; ++o)
            if (cut.outputs[o].partial) sum_partial(n, int(o));
    }
    int cover_of(int n, int k, int piece) const {
        return (*covers_[n][k])[piece];
    }
    // tasks/reduce.py: reduce_all with Travel.OWNER, after the sums within each processor.
    void sum_partial(int n, int o) {
        const Config& config = *p->configs[n];
        const Output& output = config.cut->outputs[o];
        int32_t* writer = &out_writer_[out_base_[n] + o * config.cut->pieces];
        std::vector<int32_t> kept, arrived;
        std::vector<std::pair<int32_t, std::vector<int32_t>>> more;
        std::vector<std::pair<size_t, uint32_t>> sums;  // slot, end of its places in arrived
        for (size_t s = 0; s < output.rect.size(); ++s) {
            if (output.pieces[s].size() < 2) continue;
            const int64_t volume = g.regions[output.rect[s]].volume, nbytes = volume * m.nodes[n].itemsizes[o];
            kept.clear(), more.clear();
            for (int32_t piece : output.pieces[s]) {
                const int processor = config.processors[piece];
                auto same = std::find_if(kept.begin(), kept.end(),
                                         [&](int32_t k) { return config.processors[k] == processor; });
                if (same == kept.end()) { kept.push_back(piece); continue; }
                auto group = std::find_if(more.begin(), more.end(), [&](auto& e) { return e.first == *same; });
                if (group == more.end()) more.push_back({*same, {piece}});
                else group->second.push_back(piece);
            }
            for (auto& [target, extra] : more) {
                begin();
                for (int32_t piece : extra) wait(writer[piece]);
                wait(writer[target]);
                writer[target] = end(SUM, config.processors[target], volume * int64_t(extra.size()),
                                     nbytes * int64_t(extra.size() + 2));
            }
            if (kept.size() < 2) continue;
            for (size_t k = 1; k < kept.size(); ++k) {
                copies_.push_back({writer[kept[k]], config.processors[kept[k]], config.processors[kept[0]], nbytes, NONE,
                                   uint32_t(arrived.size())});
                arrived.push_back(NONE);
            }
            sums.push_back({s, uint32_t(arrived.size())});
        }
        in_rounds(copies_, [&](const Copy& c) {
            begin();
            wait(c.writer);
            arrived[c.at] = end_copy(c.giver, c.taker, c.nbytes);
        });
        uint32_t k = 0;
        for (auto [s, last] : sums) {
            const int64_t volume = g.regions[output.rect[s]].volume, nbytes = volume * m.nodes[n].itemsizes[o];
            const int64_t count = last - k;
            const int32_t owner = output.pieces[s][0];
            begin();
            for (; k < last; ++k) wait(arrived[k]);
            wait(writer[owner]);
            writer[owner] = end(SUM, config.processors[owner], volume * count, nbytes * (count + 2));
        }
    }

    // ---- backward ------------------------------------------------------------------------------------------------
    std::vector<std::pair<Box, int32_t>> writers_;
    std::vector<int64_t> bases_;
    std::vector<std::pair<int64_t, uint32_t>> sent_;  // (slot, processor) packed -> place in shared_
    std::vector<int32_t> shared_;                    // copies of owners' gradients
    std::vector<uint32_t> copied_;  // (piece, output) -> place in shared_, or NOWHERE
    std::vector<int32_t> has_;
    struct Gradient { int32_t filled; bool passed; };  // an owner's: the task that filled it, or NONE; or its reader's as it is
    struct Arrival { int32_t task; bool first; };      // of a reader's part: copy or NONE; whether it is written, not added
    std::vector<Gradient> slot_gradients_;
    std::vector<Arrival> part_arrivals_;
    static constexpr uint32_t NOWHERE = ~0u;
    std::vector<std::pair<int, int32_t>> members_;
    std::vector<int32_t> sums_;  // copies of gradients on their way to roots
    struct Part { const Reader* reader; const Overlap* overlap; };
    std::vector<std::vector<Part>> parts_;
    std::vector<std::vector<int32_t>> slot_after_;  // output slots of the node at hand -> tasks that complete the gradient

    // Fills slot_after_[base ...]; false if nobody put anything.
    bool gather(int n, int o, size_t base) {
        const NodeInfo& node = m.nodes[n];
        const auto& readers = readers_[tensor({n, o})];
        if (!node.needs_gradient[o] || (readers.empty() && !node.seed[o])) return false;
        const Config& config = *p->configs[n];
        const Output& output = config.cut->outputs[o];
        const size_t slots = output.rect.size();
        if (parts_.size() < slots) parts_.resize(slots);
        for (size_t s = 0; s < slots; ++s) parts_[s].clear();
        for (const Reader& r : readers)
            for (uint32_t k = r.edge->offset[r.piece]; k < r.edge->offset[r.piece + 1]; ++k)
                parts_[r.edge->overlaps[k].slot].push_back({&r, &r.edge->overlaps[k]});
        if (slot_after_.size() < base + slots) slot_after_.resize(base + slots);
        slot_gradients_.clear(), part_arrivals_.clear();
        for (size_t s = 0; s < slots; ++s)
            slot_gradients_.push_back(expect(parts_[s], g.regions[output.rect[s]], output.rect[s],
                                             config.processors[output.first_piece[s]], node.seed[o], node.itemsizes[o]));
        in_rounds(copies_, [&](const Copy& c) {
            begin();
            wait(c.writer);
            part_arrivals_[c.at].task = end_transfer(c.giver, c.taker, c.nbytes);
        });
        const Arrival* arrival = part_arrivals_.data();
        for (size_t s = 0; s < slots; ++s) {
            slot_after_[base + s].clear();
            complete(parts_[s], slot_gradients_[s], g.regions[output.rect[s]],
                     config.processors[output.first_piece[s]], node.itemsizes[o], arrival, slot_after_[base + s]);
            arrival += parts_[s].size();
        }
        return true;
    }
    // An owner's gradient is filled if it must be, and the copies to it are noted.
    Gradient expect(const std::vector<Part>& parts, const Region& rect, int32_t id, int owner, bool seed, int itemsize) {
        const size_t base = part_arrivals_.size();
        part_arrivals_.resize(base + parts.size(), {NONE, false});
        if (!seed && parts.size() == 1 && parts[0].reader->processor == owner && parts[0].reader->region == id)
            return {NONE, true};
        const int n = rect.ndim;
        Gradient made{NONE, false};
        if (seed || !simple(parts, rect)) {
            begin();
            made.filled = end(FILL, owner, 0, rect.volume * itemsize);
        }
        bool covered = made.filled >= 0;  // one part has all of rect
        for (size_t k = 0; k < parts.size(); ++k) {
            const Part& part = parts[k];
            Arrival& arrival = part_arrivals_[base + k];
            arrival.first = !covered;
            for (size_t before = 0; before < k && arrival.first; ++before)
                if (parts[before].overlap->shared.overlaps(part.overlap->shared, n)) arrival.first = false;
            const int giver = part.reader->processor;
            if (arrival.first || giver != owner)
                copies_.push_back({part.reader->last, giver, owner, part.overlap->volume * itemsize, NONE, uint32_t(base + k)});
            if (part.overlap->volume == rect.volume) covered = true;
        }
        return made;
    }
    // What has arrived is added in the order of the readers; ``after``: the tasks that complete the gradient.
    void complete(const std::vector<Part>& parts, const Gradient& made, const Region& rect, int owner, int itemsize,
                  const Arrival* arrival, std::vector<int32_t>& after) {
        if (made.passed) {
            after.push_back(parts[0].reader->last);
            return;
        }
        auto& writers = writers_;
        writers.clear();
        const int n = rect.ndim;
        if (made.filled >= 0) writers.push_back({rect.box, made.filled});
        for (const Part& part : parts) {
            const Box& shared = part.overlap->shared;
            const Arrival& arrived = *arrival++;
            if (arrived.first) {
                writers.push_back({shared, arrived.task});
            } else {
                begin();
                wait(arrived.task >= 0 ? arrived.task : part.reader->last);
                size_t left = 0;
                for (size_t k = 0; k < writers.size(); ++k) {
                    if (writers[k].first.overlaps(shared, n)) {
                        wait(writers[k].second);
                        if (shared.contains(writers[k].first, n)) continue;
                    }
                    writers[left++] = writers[k];
                }
                writers.resize(left);
                writers.push_back({shared, end(SUM, owner, part.overlap->volume, 3 * part.overlap->volume * itemsize)});
            }
        }
        for (auto& [_, task] : writers) after.push_back(task);
    }
    // True if the parts cover the Rect and none overlaps an earlier one without lying in it.
    static bool simple(const std::vector<Part>& parts, const Region& rect) {
        const int n = rect.ndim;
        if (parts.empty()) return rect.empty;
        bool whole = true;
        for (const Part& part : parts) whole &= part.overlap->volume == rect.volume;
        if (whole) return true;
        int64_t total = 0;
        bool disjoint = true;
        for (size_t i = 0; i < parts.size(); ++i) {
            const Box& later = parts[i].overlap->shared;
            total += parts[i].overlap->volume;
            for (size_t k = 0; k < i; ++k) {
                const Box& earlier = parts[k].overlap->shared;
                if (!later.overlaps(earlier, n)) continue;
                disjoint = false;
                if (!earlier.contains(later, n)) return false;
            }
        }
        if (disjoint) return total == rect.volume;
        std::vector<const Box*> boxes;
        for (const Part& part : parts) boxes.push_back(&part.overlap->shared);
        return covers(boxes, rect.box, n);
    }

    // The owners' gradients go to the other processors that computed partial values of the same Rects.
    void share(int n, int o, size_t base) {
        const Config& config = *p->configs[n];
        const Output& output = config.cut->outputs[o];
        const size_t outs = m.nodes[n].itemsizes.size();
        auto& sent = sent_;
        sent.clear();
        for (int piece = 0; piece < config.cut->pieces; ++piece) {
            const int processor = config.processors[piece];
            const int32_t slot = output.slot[piece];
            const int owner = config.processors[output.first_piece[slot]];
            if (owner == processor) continue;
            uint32_t& place = copied_[size_t(piece) * outs + o];
            const int64_t key = int64_t(slot) << 16 | processor;
            auto found = std::find_if(sent.begin(), sent.end(), [&](auto& e) { return e.first == key; });
            if (found != sent.end()) { place = found->second; continue; }
            place = uint32_t(shared_.size());
            shared_.push_back(slot);
            sent.push_back({key, place});
            copies_.push_back({NONE, owner, processor, g.regions[output.rect[slot]].volume * m.nodes[n].itemsizes[o], NONE, place});
        }
        in_rounds(copies_, [&](const Copy& c) {
            begin();
            for (int32_t task : slot_after_[base + shared_[c.at]]) wait(task);
            shared_[c.at] = end_copy(c.giver, c.taker, c.nbytes);
        });
    }

    void backward(int n) {
        const NodeInfo& node = m.nodes[n];
        const Config& config = *p->configs[n];
        const Cut& cut = *config.cut;
        const size_t outs = node.itemsizes.size(), ins = node.inputs.size(), params = node.parameters.size();
        auto& base = bases_;
        base.assign(outs, -1);
        size_t slots = 0;
        bool any = false;
        for (size_t o = 0; o < outs; ++o) {
            if (!gather(n, int(o), slots)) continue;
            any = true;
            base[o] = int64_t(slots);
            slots += cut.outputs[o].rect.size();
        }
        if (!any) return;
        copied_.assign(size_t(cut.pieces) * outs, NOWHERE);
        shared_.clear();
        for (size_t o = 0; o < outs; ++o)
            if (base[o] >= 0 && cut.outputs[o].partial) share(n, int(o), size_t(base[o]));
        for (int piece = 0; piece < cut.pieces; ++piece) {
            const int processor = config.processors[piece];
            const uint32_t* copied = &copied_[size_t(piece) * outs];
            begin();
            const int32_t* instance = &input_instance_[in_base_[n]] + piece * ins;
            const int32_t* use = &weight_use_[weight_base_[n]] + piece * params;
            int64_t nbytes = cut.saved_bytes[piece];
            if (node.keeps_inputs) {
                for (size_t i = 0; i < ins; ++i) wait_instance(instance[i]);
                nbytes += cut.input_bytes[piece];
            }
            if (node.keeps_weights) {
                for (size_t k = 0; k < params; ++k) wait_use(use[k]);
                nbytes += cut.weight_bytes[piece];
            }
            if (node.keeps_outputs) {
                for (size_t o = 0; o < outs; ++o)
                    if (!g.regions[cut.outputs[o].rect[cut.outputs[o].slot[piece]]].empty)
                        wait(out_writer_[out_base_[n] + o * cut.pieces + piece]);
                nbytes += cut.output_bytes[piece];
            }
            if (cut.saved_bytes[piece] > 0) wait(forward_of_[piece_base_[n] + piece]);
            for (size_t o = 0; o < outs; ++o) {
                if (base[o] < 0) continue;
                const int32_t slot = cut.outputs[o].slot[piece];
                if (copied[o] != NOWHERE) wait(shared_[copied[o]]);
                else
                    for (int32_t task : slot_after_[base[o] + slot]) wait(task);
                nbytes += g.regions[cut.outputs[o].rect[slot]].volume * node.itemsizes[o];
            }
            for (size_t i = 0; i < ins; ++i) 
                nbytes += input_target(n, cut, int(i), piece, instance[i], processor);
            for (size_t k = 0; k < params; ++k) nbytes += weight_target(node, cut, int(k), piece, use[k]);
            double cost = m.seconds(BACKWARD, processor, cut.backward_flops[piece], nbytes, cut.id, piece, n);
            int32_t task = end(BACKWARD, processor, cut.backward_flops[piece], nbytes, cost, n);
            for (size_t i = 0; i < ins; ++i) {
                if (instance[i] < 0) continue;
                if (instances_[instance[i]].gradient >= 0 && wants_gradient(node.inputs[i]))
                    readers_[tensor(node.inputs[i])][instances_[instance[i]].gradient].last = task;
                if (node.keeps_inputs) read_by(instance[i], task);
            }
            for (size_t k = 0; k < params; ++k) {
                if (use[k] < 0) continue;
                uses_[use[k]].gradient = task;
                if (uses_[use[k]].alias >= 0) cell_writer_[uses_[use[k]].alias] = task;
                if (node.keeps_weights) weight_read_by(use[k], task);
            }
        }
    }
    bool wants_gradient(std::pair<int, int> of) const { return m.nodes[of.first].needs_gradient[of.second]; }

    // Bytes that backward reads and writes of the gradient of an input.
    int64_t input_target(int n, const Cut& cut, int i, int piece, int32_t instance, int processor) {
        const NodeInfo& node = m.nodes[n];
        if (instance < 0 || !wants_gradient(node.inputs[i])) return 0;
        const auto of = node.inputs[i];
        const int32_t region = g.lists[cut.inputs[i]][piece];
        const int64_t nbytes = g.regions[region].volume * m.nodes[of.first].itemsizes[of.second];
        auto& readers = readers_[tensor(of)];
        int32_t& place = instances_[instance].gradient;
        if (place >= 0) {
            wait(readers[place].last);
            return 2 * nbytes;
        }
        place = int32_t(readers.size());
        readers.push_back({processor, region, NONE, edges_[n][i], piece});
        return nbytes;
    }
    int64_t weight_target(const NodeInfo& node, const Cut& cut, int k, int piece, int32_t number) {
        if (number < 0) return 0;
        WeightUse& use = uses_[number];
        const int64_t nbytes =
            g.regions[g.lists[cut.weights[k]][piece]].volume * m.parameters[node.parameters[k]].itemsize;
        if (use.has_gradient) {
            wait(use.gradient);
            return 2 * nbytes;
        }
        use.has_gradient = true;
        if (use.alias >= 0) {
            BundleCell at = plan_of(use.layer).covers[use.cover][0];
            const BundlePlan& b = plan_of(use.layer).bundles[at.bundle];
            has_flat_[member(use.layer, at.bundle, b.place(use.processor))] = 1;
        } else gradient_order_.push_back(number);
        return nbytes;
    }

    // ---- synchronisation (core_synchronise.h) ----------------------------------------------------------------------
    int member(int layer, int bundle, int place) const { return member_base_[layer] + member_offset_[bundle_base_[layer] + bundle] + place; }
    const BundlePlan& bundle(const Chunk& c) const { return plan_of(c.layer).bundles[c.bundle]; }
    int order(const Chunk& c, int k) const { return int((c.shift + k) % int(bundle(c).group.size())); }
    void synchronise();
    void collect();
    void cut_into_chunks(int layer);
    void send(size_t first, size_t last);
    void updates();
    void fill_slots();
    size_t bundle_end(size_t first) const;
    void reduce(size_t first, size_t last);
    void reduce_along(Chunk& chunk);
    void send_from_owners(size_t first, size_t last, bool gradients);
    void send_weights(const Chunk& chunk);
    void clip();
    void update(Chunk& chunk);
    template <class Send> void broadcast(const Chunk& chunk, Send send);
    void send_gradients(Chunk& chunk);
    void update_everywhere(size_t first, size_t last);
    void carry(std::pair<int, int> carried, std::pair<int, int> becomes);
    void wait_gradient(const Chunk& chunk, int place);
    void wait_final(const Chunk& chunk);
    void wait_weight_readers(int layer, int bundle, int place, int first, int last);
    int64_t update_bytes(int64_t volume, int itemsize, int processor) const;
};

}  // namespace taskflow

#include "core_synchronise.h"
