// What lowering keeps of each operator and layer from proposal to proposal, so that only what changed is lowered anew.
//
// Tasks lie in blocks: an operator's forward copies, its forward tasks, what sums its gradient, its backward tasks, what
// collects its weights' gradients. A task's name is its block's number, which follows program order, and its place
// within: it holds as long as the block is not lowered anew, whatever happens to the others.
// There is no twin: the definition keeps nothing between proposals; tests/optimizer/algorithms/test_core_walks.py holds it.
#pragma once

#include "evaluate/lowering/model.h"

namespace taskflow {

struct Plans {  // a strategy, taken apart
    std::vector<std::shared_ptr<const Config>> configs;
    std::vector<std::shared_ptr<const LayerPlan>> layers;
    std::vector<Sync> syncs;
    bool collective_sums = false;  // how partial values are summed: by an all-reduce where it may be, or by an owner
};

constexpr int32_t NONE = -1;

struct Ref {  // an instance, or gathered weights, that some operator's forward pass has made
    int32_t node = NONE, at = NONE;
    bool none() const { return at < 0; }
};

struct Instance {
    uint32_t after, count;  // the tasks that fill it: its node's deps[after ...]
    int32_t state_slot;     // of a view of kept state: which of its slots; else NONE
};

struct StateRead {  // a task that reads what a state holds from the step before
    int32_t tensor, slot, task;
};

struct Move {  // a task that brings one cell of a weight to where several are gathered
    int32_t piece, parameter, cell, task;  // parameter: place among the node's; cell: place among those of the cover
};

// A slot whose partial values an all-reduce sums: of which output, and where its processors begin and end in `summed_at`.
struct SummedSlot {
    int32_t output, slot;
    uint32_t first, last;
};

struct Forward {  // of one operator; also of the losses and of carried state, which only read
    Tasks copies, work;
    std::vector<const Edge*> edges;          // by input: how it overlaps its producer
    std::vector<Instance> instances;
    std::vector<int32_t> deps;
    std::vector<Ref> input, gathered;        // by (piece, input) and (piece, parameter); none: nothing to wait for
    std::vector<int32_t> first, writer;      // by piece; by (output, piece): the last task that wrote its value
    std::vector<int32_t> lenders;            // operators whose instances or gathered weights this one uses too
    std::vector<StateRead> state_reads;
    std::vector<Move> moves;
    std::vector<uint32_t> carry_end;         // of carried state: by carry, where its tasks end
    std::vector<SummedSlot> summed;          // in the order of outputs and slots
    std::vector<std::pair<int32_t, int32_t>> summed_at;  // processors in rising order, each with the piece that has the sum

    const SummedSlot* find_summed(int output, int slot) const {
        auto at = std::lower_bound(summed.begin(), summed.end(), std::make_pair(output, slot),
                                   [](const SummedSlot& s, std::pair<int, int> key) {
                                       return s.output != key.first ? s.output < key.first : s.slot < key.second;
                                   });
        return at != summed.end() && at->output == output && at->slot == slot ? &*at : nullptr;
    }
    // The piece on a processor that has the sum of a slot; NONE if none has it there.
    int32_t summed_on(const SummedSlot& s, int processor) const {
        auto last = summed_at.begin() + s.last;
        auto at = std::lower_bound(summed_at.begin() + s.first, last, std::make_pair(int32_t(processor), NONE));
        return at != last && at->first == processor ? at->second : NONE;
    }
    // The piece that a processor reads a slot from: its own if it has the sum itself, else the owner.
    int32_t nearest(int output, int slot, int32_t owner, int processor) const {
        const SummedSlot* s = summed.empty() ? nullptr : find_summed(output, slot);
        const int32_t own = s ? summed_on(*s, processor) : NONE;
        return own < 0 ? owner : own;
    }

    void clear() {
        copies.clear(), work.clear(), edges.clear(), instances.clear(), deps.clear(), input.clear(), gathered.clear();
        first.clear(), writer.clear(), lenders.clear(), state_reads.clear(), moves.clear();
        carry_end.clear(), summed.clear(), summed_at.clear();
    }
};

struct Backward {
    bool ran = false;
    Tasks sums, work;
    std::vector<int32_t> task;               // by piece
    std::vector<StateRead> state_reads;

    void clear() { ran = false, sums.clear(), work.clear(), task.clear(), state_reads.clear(); }
};

struct Collected {  // what synchronisation of a layer waits for
    Tasks fills;
    std::vector<int32_t> writer;             // by cell of a holder: the last task that wrote its gradient, or NONE
    std::vector<uint32_t> slot_offset, slot_after;  // by cell in turn: that task; the tasks that read its weights
    std::vector<uint8_t> flat;               // by holder: whether it has a gradient

    const uint32_t* readers(int index) const { return slot_after.data() + slot_offset[2 * index + 1]; }
    uint32_t reader_count(int index) const { return slot_offset[2 * index + 2] - slot_offset[2 * index + 1]; }
};

struct Turn {  // which of two sides is current, and which the proposal's
    uint8_t current = 0, proposed = 0;
};

// What it would be next to what it is: a proposal writes the other one, accepting it turns the sides.
template <class T> struct Sides : Turn {
    T side[2];

    T& now() { return side[proposed]; }
    const T& now() const { return side[proposed]; }
    const T& before() const { return side[current]; }
    // ``turned``: remembers all that a proposal has written, so that accepting it need not look at the rest.
    T& renew(std::vector<Turn*>& turned) {
        proposed = !current;
        turned.push_back(this);
        return side[proposed];
    }
};

// A hash table that is emptied by counting up.
class Known {
public:
    void clear() { ++stamp_, used_ = 0; }
    int64_t& lookup(uint64_t key, bool& fresh) {
        if (used_ * 2 > table_.size()) grow();
        size_t at = place(key);
        for (;; at = (at + 1) & (table_.size() - 1)) {
            Entry& e = table_[at];
            if (e.stamp != stamp_) {
                e = {key, stamp_, NONE};
                ++used_;
                fresh = true;
                return e.value;
            }
            if (e.key == key) { fresh = false; return e.value; }
        }
    }

private:
    struct Entry { uint64_t key; uint64_t stamp; int64_t value; };
    std::vector<Entry> table_ = std::vector<Entry>(1 << 12);
    uint64_t stamp_ = 1, used_ = 0;

    size_t place(uint64_t key) const {
        // Tensor and processor are in the upper bits, which a product alone would not bring down.
        return ((key ^ (key >> 29)) * 0x9E3779B97F4A7C15ull >> 36) & (table_.size() - 1);
    }
    void grow() {
        std::vector<Entry> old(table_.size() * 2);
        old.swap(table_);
        for (const Entry& e : old) {
            if (e.stamp != stamp_) continue;
            size_t at = place(e.key);
            while (table_[at].stamp == stamp_) at = (at + 1) & (table_.size() - 1);
            table_[at] = e;
        }
    }
};

}  // namespace taskflow
