// tasks/lower/lower.py for timelines: the same tasks in the same order, with costs and predecessors but without buffers.
//
// Predecessors that lie before another predecessor anyway may be left out: they change no time.
// The definition is tasks/lower/lower.py; tests/optimizer/evaluate/test_core_equal.py holds them equal.
#pragma once

#include "evaluate/lowering/blocks.h"

namespace taskflow {

class Lowering {
public:
    Lowering(Model& model, bool described) : m(model), g(model.geometry), described_(described) {}

    // Lowers `plans`. ``before``: those that were lowered and accepted last, or null if none were.
    // False, and only forward and backward tasks, if these are certain to pass the limit by themselves: synchronisation is
    // most of the work at many devices.
    bool run(const Plans& plans, const Plans* before, Tasks& out, double limit) {
        update(plans, before);
        out.clear();
        put_together(out);
        if (m.trains) {
            if (limit < std::numeric_limits<double>::infinity() && longest_path(out) > limit * (1 + 1e-9)) return false;
            open(rest_, tail_names());
            synchronise();
            append(out, rest_, tail_block(), COLLECT);
        }
        append_carried(out);
        return true;
    }
    // The same without the layers' synchronisation; in its place the slots that `fragment` waits for, as joins. Returns how
    // many tasks come before synchronisation; those of carried state come after it.
    // ``kept``: what it gave for what was accepted last, from which most is copied; null if that is not at hand.
    uint32_t run_around(const Plans& plans, const Plans* before, Tasks& out, const Tasks* kept) {
        update(plans, before);
        out.clear();
        if (kept && compares_) put_together(out, *kept);
        else put_together(out);
        if (m.trains)
            for (const auto& layer : layers_) append_slots(out, layer.now());
        const uint32_t count = uint32_t(out.size());
        append_carried(out);
        count_work(out, compares_ ? kept : nullptr);
        return count;
    }
    bool renewed(int layer) const { return layer_dirty_[layer]; }
    // What was lowered last is what the next changes start from.
    void accept() {
        for (Turn* turn : turned_) turn->current = turn->proposed;
        turned_.clear();
    }
    void fragment(int layer, Tasks& out, uint32_t part_end[3]);
    // Which holders of a layer's bundles have a gradient: together with plan and way of synchronisation, all that a
    // layer's fragment depends on.
    const std::vector<uint8_t>& flat(int layer) const { return layers_[layer].now().flat; }

private:
    struct Reader {  // a gradient that a reader of a tensor puts
        int32_t processor, region, last;
        const Edge* edge;
        int32_t piece;
    };
    struct Chunk {
        int64_t low, high;
        int first_cell, last_cell, shift;  // shift: which member is the root
        uint32_t done;                     // where its rows' tasks begin in done_
        std::shared_ptr<const ChunkPattern> pattern;
    };
    struct Synced {  // a bundle, and its chunks
        int layer;
        uint32_t first, last;
        const BundlePlan* plan;
        Chunk whole;  // all of it, with the first chunk's rows
    };

    Model& m;
    Geometry& g;
    const bool described_;  // whether tasks also have the columns that are only for people
    const Plans* p = nullptr;
    Tasks* t = nullptr;     // the block at hand
    uint32_t base_ = 0;     // the name of its first task

    std::vector<Sides<Forward>> forward_;    // by node; then the losses and carried state
    std::vector<Sides<Backward>> backward_;
    std::vector<Sides<Tasks>> collects_;     // by node: what adds its gathered weights' gradients up
    std::vector<Sides<Collected>> layers_;
    Tasks rest_;                             // synchronisation, when it is not kept apart

    // ---- blocks, in program order ----------------------------------------------------------------------------------
    int nodes() const { return int(m.nodes.size()); }
    uint32_t copies_block(int n) const { return 2 * uint32_t(n); }
    uint32_t work_block(int n) const { return copies_block(n) + 1; }
    uint32_t loss_block() const { return copies_block(nodes()); }
    uint32_t sums_block(int n) const { return loss_block() + 1 + 2 * uint32_t(nodes() - 1 - n); }
    uint32_t backward_block(int n) const { return sums_block(n) + 1; }
    uint32_t collect_block(int n) const { return 4 * uint32_t(nodes()) + 1 + uint32_t(nodes() - 1 - n); }
    uint32_t fill_block(int layer) const { return 5 * uint32_t(nodes()) + 1 + uint32_t(layer); }
    uint32_t tail_block() const { return fill_block(int(m.layers.size())); }
    uint32_t carry_block() const { return tail_block() + 1; }
    // All of synchronisation is one block, of millions of tasks at many devices: its names are those that no block has.
    uint32_t tail_names() const { return carry_block() + 1; }
    // What blocks are called in a flat task graph: parts of synchronisation have names of their own.
    enum : uint32_t { COLLECT = 1u << 24, REDUCE = 2u << 24, CLIPPING = 3u << 24, SEND = 4u << 24, UPDATES = 5u << 24,
                      CARRY = 6u << 24 };
    int shift_ = 0;  // a task's name is block << shift_ | place

    void open(Tasks& block, uint32_t number) { t = &block, block.clear(), base_ = number << shift_; }
    void name(uint32_t label) {
        if (t->blocks.empty() || t->blocks.back().first != label) t->blocks.push_back({label, uint32_t(t->size())});
    }

    // ---- tasks -----------------------------------------------------------------------------------------------------
    std::vector<std::vector<uint32_t>> mark_;  // block, place -> stamp of the task that last waited for it
    std::vector<uint32_t> slot_mark_;
    uint32_t stamp_ = 0;

    void begin() { ++stamp_; }
    void wait(int32_t task) {
        if (task < 0) return;
        auto& marks = mark_[uint32_t(task) >> shift_];
        const uint32_t place = uint32_t(task) & ((1u << shift_) - 1);
        if (marks.size() <= place) marks.resize(2 * size_t(place) + 16, 0);
        if (marks[place] == stamp_) return;
        marks[place] = stamp_;
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
    int32_t added() const {
        m.checkpoint();
        const uint32_t place = uint32_t(t->size()) - 1;
        const uint32_t names = t == &rest_ || slots_ ? (1u << 31) - base_ : 1u << shift_;  // fragments have their own
        if (place >= names) throw std::length_error("lowering: a block has more tasks than names");
        return int32_t(base_ + place);
    }
    int32_t end(int kind, int processor, int64_t flops, int64_t nbytes, double cost, int node) {
        t->add(processor, cost);
        if (described_) t->describe(kind, processor, processor, flops, nbytes, node);
        return added();
    }
    int32_t end(int kind, int processor, int64_t flops, int64_t nbytes, int32_t runs = 1) {
        return end(kind, processor, flops, nbytes, m.memory_seconds(kind, processor, flops, nbytes, runs), NONE);
    }
    int32_t end_copy(int source, int target, int64_t nbytes, Runs runs = {}) {
        int route = m.route(source, target);
        t->add(-1 - route, m.copy_seconds(route, source, target, nbytes, runs));
        if (described_) t->describe(COPY, target, source, 0, nbytes, NONE);
        return added();
    }
    int32_t end_collective(const std::vector<int32_t>& members, int64_t flops, int64_t nbytes, int halves = 2) {
        const Model::Group group = m.group(members);
        t->add(-1 - group.route, m.collective_seconds(group, flops, nbytes, halves));
        if (described_) t->describe(COLLECTIVE, members[0], group.number, flops, nbytes, NONE);
        return added();
    }
    // Among the processors of a slot whose partial values, or whose readers' gradients, are summed.
    int32_t end_all_reduce(const Forward& f, const SummedSlot& s, int64_t volume, int itemsize) {
        group_.clear();
        for (uint32_t i = s.first; i < s.last; ++i) group_.push_back(f.summed_at[i].first);
        const int64_t others = int64_t(group_.size()) - 1;
        return end_collective(group_, others * volume, 2 * others * volume * itemsize);
    }
    std::vector<int32_t> group_;
    // A copy between processors, or a move within one.
    int32_t end_transfer(int source, int target, int64_t nbytes, Runs runs) {
        if (source != target) return end_copy(source, target, nbytes, runs);
        return end(MOVE, target, 0, 2 * nbytes, std::max(runs.read, runs.written));
    }

    // ---- copies in rounds (Emitter.transfers) ------------------------------------------------------------------------
    struct Copy {
        int32_t writer, giver, taker;  // writer: the task to wait for, or NONE
        int64_t nbytes;
        int32_t state, tensor;         // the slot of kept state that it reads, and whose; else NONE
        uint32_t at;                   // for whom: a place in deps, in a table of arrivals, ...
        Runs runs = {};
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

    // ---- what has changed, and all of it lowered anew (evaluate/lowering/changes.h) ------------------------------------------------
    typedef std::pair<int, int> Of;  // (node, output)
    std::vector<int> tensor_base_;
    std::vector<std::vector<Of>> inputs_;          // by node, losses and carried state: what they read
    std::vector<std::vector<int>> readers_of_;     // by tensor: its readers' numbers among those, once for each input
    std::vector<std::vector<int>> layers_of_;      // by node
    std::vector<uint8_t> changed_, moved_, forward_dirty_, backward_dirty_, layer_dirty_;
    std::vector<uint8_t> shared_reads_, gradient_reads_, gathering_, gradient_weights_;  // by tensor; by layer
    std::vector<uint8_t> recalls_forward_, recalls_backward_;  // by node, losses and carried state, if not lowered anew
    std::vector<uint8_t> borrows_;              // whether it ever used an instance of another one
    std::vector<int> fresh_, of_several_layers_;  // whose configuration changed; who has weights of several layers
    bool restart_ = false;  // some operator's backward pass came or went: all must be lowered anew

    int tensor(Of of) const { return tensor_base_[of.first] + of.second; }
    bool sole(Of of) const { return readers_of_[tensor(of)].size() == 1; }
    void set_up();
    void update(const Plans& plans, const Plans* before);
    void mark(const Plans* before);
    void mark_forward(const Plans* before);
    void find_fresh(const Plans* before);
    void mark_backward();
    void mark_carried(const Plans* before);
    void walk();
    void put_together(Tasks& out);
    void put_together(Tasks& out, const Tasks& kept);
    void find_blocks(const Tasks& kept);
    uint32_t run_end(uint32_t first) const;
    void copy(Tasks& out, const Tasks& kept, uint32_t first, uint32_t end);
    const Tasks& block(uint32_t number, bool before) const;
    std::vector<std::vector<int32_t>> carry_reads_;  // by slot of a state: the tasks that read it
    std::vector<Turn*> turned_;           // all that was lowered anew for the proposal
    std::vector<uint8_t> anew_;           // by block: whether it was
    std::vector<uint32_t> new_place_;     // of the tasks of what was accepted last
    bool moved_places_ = false;           // whether any is not where it was
    static constexpr uint32_t MOST_AGE = 256;  // proposals since work was counted from nothing
    void add_work(Tasks& out, const Tasks& block, double sign) const;
    void count_work(Tasks& out, const Tasks* kept) const;
    void append(Tasks& out, const Tasks& block, uint32_t number, uint32_t label);
    bool compares_ = false;  // whether there is anything to be the same as
    void append_carried(Tasks& out) {
        append(out, forward_[nodes() + 1].now().copies, carry_block(), CARRY);
    }
    void append_slots(Tasks& out, const Collected& layer);
    std::vector<uint32_t> flat_base_;  // block -> its first task's place in the flat task graph
    uint32_t flat_place(uint32_t task) const {
        const uint32_t first = tail_names() << shift_;
        if (task >= first) return flat_base_[tail_block()] + (task - first);
        return flat_base_[task >> shift_] + (task & ((1u << shift_) - 1));
    }
    std::vector<double> path_;
    double longest_path(const Tasks& tasks);

    // ---- forward (evaluate/lowering/forward.h) ------------------------------------------------------------------------------------
    Known instances_, uses_;  // of tensors whose readers share; of layers whose readers gather
    int64_t packed(Ref r) const { return int64_t(r.node) << 32 | uint32_t(r.at); }
    Ref unpacked(int64_t r) const { return {int32_t(r >> 32), int32_t(uint32_t(r))}; }
    uint64_t read_key(int tensor, int processor, int32_t region) const {
        return uint64_t(tensor) << 44 | uint64_t(processor) << 32 | uint32_t(region);
    }
    void lower_forward(int n);
    void recall_forward(int n);
    void bring(Forward& f);
    Ref want(int reader, Forward& f, Of of, int list, int piece, int processor, const Edge& edge, bool alone);
    Ref use_weight(int n, Forward& f, int k, int piece, int processor);
    void lend(Forward& f, int reader, Ref from);
    void wait_filled(Ref r);
    void read_state(std::vector<StateRead>& reads, Of of, Ref r, int32_t task) const;
    const Instance& instance(Ref r) const { return forward_[r.node].now().instances[r.at]; }
    int32_t cover_of(int n, int k, int piece) const {
        return covers_[n][k] ? (*covers_[n][k])[piece] : NONE;
    }
    std::vector<std::vector<const std::vector<int32_t>*>> covers_;  // node, parameter -> piece -> cover
    void add_locally(int n, int o, size_t slot, int32_t* writer);
    void find_summed(int n, Forward& f, int o);
    void sum_partial(int n, Forward& f, int o);
    std::vector<int32_t> kept_;        // of a slot's pieces, the first of each processor
    std::vector<std::pair<int32_t, std::vector<int32_t>>> more_;  // and the others of those that have several
    std::vector<uint8_t> reads_there_;  // by place in `Forward::summed_at`
    void losses();
    void carry();
    void carry(Of carried, Of becomes, Forward& f);
    void carry_as_before(size_t k, Forward& f);
    std::vector<uint8_t> carry_dirty_;  // by carry: whether it is lowered anew
    bool carries_share_ = false;        // whether several may copy the same instance

    // ---- backward (evaluate/lowering/output_gradients.h, evaluate/lowering/backward.h) -------------------------------------------------------------------
    Known puts_, gradients_;                    // (tensor, processor, Rect) -> place in readers_; weight -> task
    std::vector<std::vector<Reader>> readers_;  // by tensor
    std::vector<std::pair<Box, int32_t>> writers_;
    std::vector<int64_t> bases_;
    std::vector<std::pair<int64_t, uint32_t>> sent_;  // (slot, processor) packed -> place in shared_
    std::vector<int32_t> shared_;                     // copies of owners' gradients
    std::vector<uint32_t> copied_;                    // (piece, output) -> place in shared_, or NOWHERE
    struct Gradient { int32_t filled; bool passed; };  // an owner's: the task that filled it, or NONE; or its reader's as it is
    struct Arrival { int32_t task; bool first; };      // of a reader's part: copy or NONE; whether it is written, not added
    std::vector<Gradient> slot_gradients_;
    std::vector<Arrival> part_arrivals_;
    static constexpr uint32_t NOWHERE = ~0u;
    struct Part { const Reader* reader; const Overlap* overlap; };
    std::vector<std::vector<Part>> parts_;
    std::vector<std::vector<int32_t>> slot_after_;  // output slots of the node at hand -> tasks that complete the gradient
    std::vector<uint8_t> slot_everywhere_;          // and whether all that wrote the slot then have it

    bool is_trained(int n, int k) const { return m.parameters[m.nodes[n].parameters[k]].trained; }
    bool wants_gradient(Of of) const { return m.nodes[of.first].needs_gradient[of.second]; }
    void lower_backward(int n);
    void recall_backward(int n);
    size_t gradients(const Cut& cut, int o) const;
    bool gather(int n, int o, size_t base);
    bool put_everywhere(const Forward& f, const SummedSlot& s, const std::vector<Part>& parts, int32_t id) const;
    Gradient expect(const std::vector<Part>& parts, const Region& rect, int32_t id, int owner, bool seed, int itemsize);
    void complete(const std::vector<Part>& parts, const Gradient& made, const Region& rect, int owner, int itemsize,
                  const Arrival* arrival, std::vector<int32_t>& after);
    static bool simple(const std::vector<Part>& parts, const Region& rect);
    void share(int n, int o, size_t base);
    void backward_piece(int n, int piece, Backward& made);
    Reader& put(int n, const Forward& f, int i, int piece, bool& fresh);
    int64_t& weight_gradient(int n, int k, int piece, bool& fresh);

    // ---- synchronisation (evaluate/lowering/weight_gradients.h, evaluate/lowering/sync_walk.h) ------------------------------------
    std::vector<Chunk> chunks_;
    std::vector<Synced> synced_;
    std::vector<int32_t> done_, norms_, scales_;  // tasks by chunk and row; norms and scales by processor
    SyncKey sync_key_;
    std::vector<std::vector<int32_t>> weight_join_;  // layer, cell of a holder -> join of its weight's readers
    std::vector<std::pair<int32_t, int32_t>> reads_;
    bool slots_ = false;  // whether synchronisation waits for slots or for the tasks themselves

    const LayerPlan& plan_of(int layer) const { return *p->layers[layer]; }
    int layer_of(int n, int k) const { return m.parameters[m.nodes[n].parameters[k]].layer; }
    int cell_index(int layer, BundleCell at, int processor) const {
        const BundlePlan& b = plan_of(layer).bundles[at.bundle];
        return b.index(b.place(processor), at.cell);
    }
    int member(int layer, int bundle, int place) const { return plan_of(layer).member_base[bundle] + place; }
    bool gives(int layer, int bundle, int place) const {
        return layers_[layer].now().flat[member(layer, bundle, place)];
    }
    int member_of(const Synced& b, const Chunk& c, int place) const {
        const int member = place + c.shift, holders = int(b.plan->group.size());
        return member < holders ? member : member - holders;
    }
    int processor(const Synced& b, const Chunk& c, int place) const { return b.plan->group[member_of(b, c, place)]; }
    void collect();
    void collect_direct(int n);
    void collect_gathered(int n);
    void fill_up(int layer);
    void list_readers(int layer);
    void synchronise();
    void begin_synchronisation();
    void divide(int layer);
    void walk(const Synced& bundle, int phase);
    void emit(const Synced& bundle, const Chunk& chunk, const Chunk& range, uint32_t row);
    void clip();
    void wait_gradient(const Synced& bundle, const Chunk& range, int member);
    void wait_sum(const Synced& bundle, const Chunk& chunk, int member);
    void wait_weight_readers(const Synced& bundle, const Chunk& range, int member);
};

}  // namespace taskflow

#include "evaluate/lowering/changes.h"
#include "evaluate/lowering/forward.h"
#include "evaluate/lowering/output_gradients.h"
#include "evaluate/lowering/backward.h"
#include "evaluate/lowering/weight_gradients.h"
#include "evaluate/lowering/sync_walk.h"
