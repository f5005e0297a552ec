// tasks/lower/synchronise.py for timelines: walks the tables of how bundles are synchronised, and clips.
// The definition is tasks/lower/gradient_sync.py and tasks/lower/synchronise.py; tests/optimizer/evaluate/test_core_sync_table.py
// holds them equal.
#pragma once

#include "evaluate/lowering/lower.h"

namespace taskflow {

constexpr int64_t DOUBLE_BYTES = 8;

inline void Lowering::synchronise() {
    begin_synchronisation();
    weight_join_.resize(m.layers.size());
    for (size_t k = 0; k < m.layers.size(); ++k) weight_join_[k].assign(plan_of(int(k)).indices, NONE);
    for (int layer = 0; layer < int(m.layers.size()); ++layer) divide(layer);
    for (const Synced& b : synced_) name(REDUCE + b.layer), walk(b, SUMS);
    name(CLIPPING);
    if (m.clips) clip();
    for (const Synced& b : synced_) name(SEND + b.layer), walk(b, SENDS);
    for (const Synced& b : synced_)
        if (b.whole.pattern->has(UPDATES_EVERYWHERE)) name(UPDATES + b.layer), walk(b, UPDATES_EVERYWHERE);
}

// The synchronisation of one layer without clipping, as a fragment that knows nothing of the tasks around it: they stand
// behind its slots. After `run` with the same plans.
inline void Lowering::fragment(int layer, Tasks& out, uint32_t part_end[3]) {
    open(out, 0);
    slots_ = true;
    slot_mark_.resize(std::max(slot_mark_.size(), 2 * size_t(p->layers[layer]->indices)), 0);
    begin_synchronisation();
    divide(layer);
    for (int phase : {SUMS, SENDS, UPDATES_EVERYWHERE}) {
        for (const Synced& b : synced_) walk(b, phase);
        part_end[phase] = uint32_t(out.size());
    }
    slots_ = false;
}

inline void Lowering::begin_synchronisation() {
    chunks_.clear(), synced_.clear(), done_.clear();
    scales_.assign(m.processors, NONE);
}

// The chunks of a layer's bundles that have a gradient.
inline void Lowering::divide(int layer) {
    const Sync& sync = p->syncs[layer];
    for (int k = 0; k < int(plan_of(layer).bundles.size()); ++k) {
        const BundlePlan& b = plan_of(layer).bundles[k];
        const int holders = int(b.group.size()), first_root = sync.rotates ? (layer + k) % holders : 0;
        int count = 0;
        for (int place = 0; place < holders; ++place) count += gives(layer, k, place);
        if (!count) continue;
        sync_key_.way = sync.way, sync_key_.holders = holders, sync_key_.itemsize = b.gradient_bytes(), sync_key_.size = b.size;
        sync_key_.giving.clear();
        for (int i = 0; i < holders && count < holders; ++i)
            sync_key_.giving.push_back(gives(layer, k, (first_root + i) % holders));
        const std::vector<SyncChunk>& table = m.sync_tables.find(sync_key_);
        if (table.empty()) continue;
        const uint32_t first = uint32_t(chunks_.size());
        int cell = 0;
        for (const SyncChunk& of : table) {
            while (b.cells[cell].offset + b.cells[cell].volume <= of.low) ++cell;
            Chunk c{of.low, of.high, cell, cell, (of.root + first_root) % holders, uint32_t(done_.size()), of.pattern};
            while (c.last_cell < int(b.cells.size()) && b.cells[c.last_cell].offset < of.high) ++c.last_cell;
            // Rows of collectives, which are emitted once, are the first chunk's.
            if (chunks_.size() > first && of.pattern->stages[0].order == ONCE) c.done = chunks_[first].done;
            else done_.resize(done_.size() + of.pattern->rows.size(), NONE);
            chunks_.push_back(std::move(c));
        }
        Chunk whole = chunks_[first];
        whole.low = 0, whole.high = b.size, whole.first_cell = 0, whole.last_cell = int(b.cells.size());
        synced_.push_back({layer, first, uint32_t(chunks_.size()), &b, std::move(whole)});
    }
}

// Emits a phase of a bundle's synchronisation.
inline void Lowering::walk(const Synced& b, int phase) {
    const std::vector<RowStage>& stages = b.whole.pattern->stages;
    for (size_t s = 0; s < stages.size(); ++s) {
        if (stages[s].phase != phase) continue;
        if (stages[s].order == ONCE) {
            // In the order of processors: where the first place is not the first of the group, rows are one a place.
            const uint32_t first = stages[s].first, n = stages[s].last - first;
            for (uint32_t k = 0; k < n; ++k) {
                const uint32_t row = first + (k + n - uint32_t(b.whole.shift)) % n;
                const int32_t share = b.whole.pattern->rows[row].share;
                emit(b, b.whole, share < 0 ? b.whole : chunks_[b.first + share], row);
            }
            continue;
        }
        for (uint32_t k = b.first; k < b.last; ++k) {
            const Chunk& c = chunks_[k];
            const RowStage& own = c.pattern->stages[s];
            for (uint32_t row = own.first; row < own.last; ++row) {
                if (own.order == EACH) { emit(b, c, c, row); continue; }
                const SyncRow& copy = c.pattern->rows[row];
                copies_.push_back({int32_t(k), processor(b, c, copy.source), processor(b, c, copy.place), 0, int32_t(row), NONE, 0});
            }
        }
        if (stages[s].order == ROUNDS)
            in_rounds(copies_, [&](const Copy& copy) {  // of a chunk (its writer), a row (its state)
                emit(b, chunks_[copy.writer], chunks_[copy.writer], uint32_t(copy.state));
            });
    }
}

// Emits a row that counts places and rows as ``c`` does, about a range of the bundle.
inline void Lowering::emit(const Synced& b, const Chunk& c, const Chunk& range, uint32_t number) {
    const ChunkPattern& pattern = *c.pattern;
    const SyncRow &row = pattern.rows[number], &next = pattern.rows[number + 1];
    begin();
    for (uint32_t k = row.after; k < next.after; ++k) wait(done_[c.done + pattern.after[k]]);
    for (uint32_t k = row.gradients; k < next.gradients; ++k) wait_gradient(b, range, member_of(b, c, pattern.gradients[k]));
    for (uint32_t k = row.readers; k < next.readers; ++k) wait_weight_readers(b, range, member_of(b, c, pattern.readers[k]));
    if (row.sums)
        for (uint32_t k = b.first; k < b.last; ++k) wait_sum(b, chunks_[k], member_of(b, c, row.place));
    const std::vector<int32_t>& group = b.plan->group;
    const int64_t volume = range.high - range.low, others = int64_t(group.size()) * m.repeats - 1;
    const int64_t nbytes = volume * b.plan->gradient_bytes(), weights = volume * b.plan->itemsize;
    const int at = processor(b, c, row.place);
    int32_t& task = done_[c.done + number];
    switch (row.step) {
    case FILL_GRADIENT: task = end(FILL, at, 0, nbytes); break;
    case ADD_ARRIVED: task = end(SUM, at, volume * row.parts, nbytes * (row.parts + 2)); break;
    case UPDATE_WEIGHTS:
        wait(scales_[at]);
        task = end(UPDATE, at, m.rule_flops * volume,
                   3 * nbytes + 2 * volume * m.rule_state[b.plan->gradient_bytes() > 4] + (weights < nbytes ? weights : 0) +
                       (scales_[at] >= 0 ? DOUBLE_BYTES : 0));
        break;
    case ALL_REDUCE: task = end_collective(m.everywhere(group), others * volume, 2 * others * nbytes, 2); break;
    case REDUCE_SCATTER: task = end_collective(m.everywhere(group), others * volume, others * nbytes, 1); break;
    case ALL_GATHER: task = end_collective(m.everywhere(group), 0, others * weights, 1); break;
    case SEND_WEIGHTS: task = end_copy(processor(b, c, row.source), at, weights); break;
    default: task = end_copy(processor(b, c, row.source), at, nbytes);
    }
}

// Waits for what wrote a member's own gradient of a range.
inline void Lowering::wait_gradient(const Synced& b, const Chunk& range, int member) {
    for (int cell = range.first_cell; cell < range.last_cell; ++cell) {
        const int index = b.plan->index(member, cell);
        if (slots_) wait_slot(2 * uint32_t(index));
        else wait(layers_[b.layer].now().writer[index]);
    }
}

// Waits for what completes the sum of a chunk at a member.
inline void Lowering::wait_sum(const Synced& b, const Chunk& c, int member) {
    const int holders = int(b.plan->group.size());
    const int32_t row = c.pattern->sums[member >= c.shift ? member - c.shift : member - c.shift + holders];
    if (row < 0) wait_gradient(b, c, member);
    else wait(done_[c.done + row]);
}

// New weights may not be written while this step's tasks still read the old ones.
inline void Lowering::wait_weight_readers(const Synced& b, const Chunk& range, int member) {
    for (int cell = range.first_cell; cell < range.last_cell; ++cell) {
        const int index = b.plan->index(member, cell);
        if (slots_) { wait_slot(2 * uint32_t(index) + 1); continue; }
        const Collected& made = layers_[b.layer].now();
        const uint32_t count = made.reader_count(index), *readers = made.readers(index);
        if (!count) continue;
        if (count == 1) { wait(int32_t(*readers)); continue; }
        int32_t& join = weight_join_[b.layer][index];
        if (join < 0) {
            join = int32_t(t->joins());
            t->join_after.insert(t->join_after.end(), readers, readers + count);
            t->join_offset.push_back(uint32_t(t->join_after.size())), t->join_at.push_back(uint32_t(t->size()));
        }
        wait_join(join);
    }
}

inline void Lowering::clip() {
    norms_.assign(m.processors, NONE);
    for (const Synced& b : synced_)
        for (uint32_t k = b.first; k < b.last; ++k) {
            const Chunk& c = chunks_[k];
            const int root = processor(b, c, 0);
            const int64_t volume = c.high - c.low;
            begin();
            wait_sum(b, c, c.shift);
            wait(norms_[root]);
            norms_[root] = end(NORM, root, 2 * volume, volume * b.plan->gradient_bytes() + (norms_[root] >= 0 ? 2 : 1) * DOUBLE_BYTES);
        }
    int first = 0;
    while (first < m.processors && norms_[first] < 0) ++first;
    if (first == m.processors) return;
    std::vector<int32_t> arrived{norms_[first]};
    for (int processor = first + 1; processor < m.processors; ++processor) {
        if (norms_[processor] < 0) continue;
        begin();
        wait(norms_[processor]);
        arrived.push_back(end_copy(processor, first, DOUBLE_BYTES));
    }
    begin();
    for (int32_t task : arrived) wait(task);
    const int32_t factor = end(CLIP, first, int64_t(arrived.size()), DOUBLE_BYTES * int64_t(arrived.size() + 1));
    std::vector<uint8_t> updates(m.processors, 0);
    for (const Synced& b : synced_) {
        if (b.whole.pattern->has(UPDATES_EVERYWHERE))
            for (int32_t processor : b.plan->group) updates[processor] = 1;
        else
            for (uint32_t k = b.first; k < b.last; ++k) updates[processor(b, chunks_[k], 0)] = 1;
    }
    scales_[first] = factor;
    for (int processor = 0; processor < m.processors; ++processor)
        if (updates[processor] && processor != first) {
            begin();
            wait(factor);
            scales_[processor] = end_copy(first, processor, DOUBLE_BYTES);
        }
}

}  // namespace taskflow
