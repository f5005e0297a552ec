// tasks/synchronise.py for timelines: gradient sums, clipping, updates, the sending of new weights, and carried state.
#pragma once

#include "core_lower.h"

namespace taskflow {

constexpr int64_t SMALLEST_CHUNK_BYTES = 1 << 20;
constexpr int64_t DOUBLE_BYTES = 8;

inline void Lowering::synchronise() {
    block(COLLECT);
    collect();
    for (int layer = 0; layer < int(m.layers.size()); ++layer) cut_into_chunks(layer);
    for (size_t first = 0, last; first < chunks_.size(); first = last) {
        block(REDUCE + chunks_[first].layer);
        reduce(first, last = bundle_end(first));
    }
    block(CLIPPING);
    scales_.assign(m.processors, NONE);
    if (m.clips) clip();
    for (size_t first = 0, last; first < chunks_.size(); first = last) {
        block(SEND + chunks_[first].layer);
        send(first, last = bundle_end(first));
    }
    updates();
}

// The end of the chunks of one bundle.
inline size_t Lowering::bundle_end(size_t first) const {
    size_t last = first + 1;
    while (last < chunks_.size() && chunks_[last].layer == chunks_[first].layer &&
           chunks_[last].bundle == chunks_[first].bundle)
        ++last;
    return last;
}

inline void Lowering::send(size_t first, size_t last) {
    const bool everywhere = p->syncs[chunks_[first].layer].place == EVERY;
    if (!everywhere)
        for (size_t k = first; k < last; ++k) update(chunks_[k]);
    if (p->syncs[chunks_[first].layer].travel == OWNER_TRAVEL) return send_from_owners(first, last, everywhere);
    for (size_t k = first; k < last; ++k) {
        if (everywhere) send_gradients(chunks_[k]);
        else send_weights(chunks_[k]);
    }
}

inline void Lowering::updates() {
    for (size_t first = 0, last; first < chunks_.size(); first = last) {
        const Chunk& chunk = chunks_[first];
        last = bundle_end(first);
        if (p->syncs[chunk.layer].place != EVERY) continue;
        block(UPDATES + chunk.layer);
        update_everywhere(first, last);
    }
}

// The synchronisation of one layer without clipping, as a fragment that knows nothing of the tasks around it: they stand
// behind its slots. After `run` with the same plans.
inline void Lowering::fragment(int layer, Tasks& out, uint32_t part_end[3]) {
    t = &out, slots_ = true, described_ = false;
    out.clear(), chunks_.clear(), arrivals_.clear();
    slot_base_ = layer_base_[layer];
    slot_mark_.resize(std::max(slot_mark_.size(), 2 * size_t(p->layers[layer]->indices)), 0);
    scales_.assign(m.processors, NONE);
    cut_into_chunks(layer);
    for (size_t k = 0; k < chunks_.size(); k = bundle_end(k)) reduce(k, bundle_end(k));
    part_end[0] = uint32_t(out.size());
    for (size_t k = 0; k < chunks_.size(); k = bundle_end(k)) send(k, bundle_end(k));
    part_end[1] = uint32_t(out.size());
    updates();
    part_end[2] = uint32_t(out.size());
    slots_ = false;
}

// What stands behind the slots, as joins: of every member and cell of every layer the tasks that wrote its gradient, then
// those that read its weights.
inline void Lowering::fill_slots() {
    for (size_t index = 0; index < cell_writer_.size(); ++index) {
        if (cell_writer_[index] >= 0) t->join_after.push_back(uint32_t(cell_writer_[index]));
        t->join_offset.push_back(uint32_t(t->join_after.size()));
        for (int32_t k = weight_head_[index]; k >= 0; k = weight_next_[k]) t->join_after.push_back(uint32_t(weight_task_[k]));
        t->join_offset.push_back(uint32_t(t->join_after.size()));
    }
}

// Gradients accumulated over several cells go into the flat buffers; what nothing reached becomes zero.
inline void Lowering::collect() {
    for (int32_t number : gradient_order_) {
        const WeightUse& use = uses_[number];
        for (BundleCell at : plan_of(use.layer).covers[use.cover]) {
            const BundlePlan& b = plan_of(use.layer).bundles[at.bundle];
            int32_t& writer = cell_writer_[cell_index(use.layer, at, use.processor)];
            begin();
            wait(use.gradient);
            wait(writer);
            const int64_t nbytes = b.cells[at.cell].volume * b.itemsize;
            writer = end(MOVE, use.processor, 0, (writer >= 0 ? 3 : 2) * nbytes);
            has_flat_[member(use.layer, at.bundle, b.place(use.processor))] = 1;
        }
    }
    for (int layer = 0; layer < int(m.layers.size()); ++layer)
        for (int k = 0; k < int(plan_of(layer).bundles.size()); ++k) {
            const BundlePlan& b = plan_of(layer).bundles[k];
            for (int place = 0; place < int(b.group.size()); ++place) {
                if (!has_flat_[member(layer, k, place)]) continue;
                for (int cell = 0; cell < int(b.cells.size()); ++cell) {
                    int32_t& writer = cell_writer_[layer_base_[layer] + b.index(place, cell)];
                    if (writer >= 0) continue;
                    begin();
                    writer = end(FILL, b.group[place], 0, b.cells[cell].volume * b.itemsize);
                }
            }
        }
}

inline void Lowering::cut_into_chunks(int layer) {
    const Sync& sync = p->syncs[layer];
    const bool many = sync.place == SPREAD || (sync.place == EVERY && sync.travel == RING);
    for (int k = 0; k < int(plan_of(layer).bundles.size()); ++k) {
        const BundlePlan& b = plan_of(layer).bundles[k];
        const int holders = int(b.group.size());
        bool any = false;
        for (int place = 0; place < holders && !any; ++place) any = has_flat_[member(layer, k, place)];
        if (!any) continue;
        const int64_t wanted =
            sync.chunks ? sync.chunks : std::max<int64_t>(1, b.size * b.itemsize / SMALLEST_CHUNK_BYTES);
        const int64_t count = many ? std::min({int64_t(holders), wanted, b.size}) : 1;
        const int64_t whole = b.size / count, extra = b.size % count;
        int cell = 0;
        for (int64_t i = 0; i < count; ++i) {
            Chunk c{};
            c.layer = layer, c.bundle = k, c.final = NONE;
            c.low = i * whole + std::min(i, extra), c.high = (i + 1) * whole + std::min(i + 1, extra);
            while (b.cells[cell].offset + b.cells[cell].volume <= c.low) ++cell;
            c.first_cell = c.last_cell = cell;
            while (c.last_cell < int(b.cells.size()) && b.cells[c.last_cell].offset < c.high) ++c.last_cell;
            c.shift = int((layer + k + i * holders / count) % holders);
            chunks_.push_back(c);
        }
    }
}

// Waits for what wrote a member's own gradient of a chunk.
inline void Lowering::wait_gradient(const Chunk& c, int place) {
    const BundlePlan& b = bundle(c);
    for (int cell = c.first_cell; cell < c.last_cell; ++cell) {
        const int index = layer_base_[c.layer] + b.index(place, cell);
        if (slots_) wait_slot(2 * (index - slot_base_));
        else wait(cell_writer_[index]);
    }
}

inline void Lowering::wait_final(const Chunk& c) {
    if (c.final >= 0) wait(c.final);
    else wait_gradient(c, order(c, 0));
}

// Sums the gradients of a bundle's chunks at their roots.
inline void Lowering::reduce(size_t first, size_t last) {
    const BundlePlan& b = bundle(chunks_[first]);
    const int holders = int(b.group.size()), layer = chunks_[first].layer;
    for (size_t k = first; k < last; ++k) {  // a root without a gradient of its own starts from zero
        Chunk& c = chunks_[k];
        if (has_flat_[member(layer, c.bundle, order(c, 0))]) continue;
        begin();
        c.final = end(FILL, b.group[order(c, 0)], 0, (c.high - c.low) * b.itemsize);
    }
    if (p->syncs[layer].travel != OWNER_TRAVEL) {
        for (size_t k = first; k < last; ++k) reduce_along(chunks_[k]);
        return;
    }
    sums_.clear();
    for (size_t k = first; k < last; ++k) {
        const Chunk& c = chunks_[k];
        for (int i = 1; i < holders; ++i) {
            if (!has_flat_[member(layer, c.bundle, order(c, i))]) continue;
            copies_.push_back({int32_t(k), b.group[order(c, i)], b.group[order(c, 0)], (c.high - c.low) * b.itemsize,
                               order(c, i), uint32_t(sums_.size())});
            sums_.push_back(NONE);
        }
    }
    in_rounds(copies_, [&](const Copy& c) {  // of a chunk (its writer) from a place (its state)
        begin();
        wait_gradient(chunks_[c.writer], c.state);
        sums_[c.at] = end_copy(c.giver, c.taker, c.nbytes);
    });
    const int32_t* arrived = sums_.data();
    for (size_t k = first; k < last; ++k) {
        Chunk& c = chunks_[k];
        int count = 0;
        for (int i = 1; i < holders; ++i) count += has_flat_[member(layer, c.bundle, order(c, i))];
        if (!count) continue;
        const int64_t volume = c.high - c.low;
        begin();
        for (int i = 0; i < count; ++i) wait(*arrived++);
        wait_final(c);
        c.final = end(SUM, b.group[order(c, 0)], volume * count, volume * b.itemsize * (count + 2));
    }
}

inline void Lowering::reduce_along(Chunk& c) {
    const BundlePlan& b = bundle(c);
    const int holders = int(b.group.size());
    const int64_t volume = c.high - c.low, nbytes = volume * b.itemsize;
    auto& parts = members_;  // (place in the group, task that wrote it or NONE)
    parts.clear();
    for (int k = 0; k < holders; ++k) {
        const int place = order(c, k);
        if (k == 0 || has_flat_[member(c.layer, c.bundle, place)]) parts.push_back({place, k ? NONE : c.final});
    }
    auto arrive = [&](const std::pair<int, int32_t>& part) {
        if (part.second >= 0) wait(part.second);
        else wait_gradient(c, part.first);
    };
    auto send = [&](int from, int to) {
        begin();
        arrive(parts[from]);
        return end_copy(b.group[parts[from].first], b.group[parts[to].first], nbytes);
    };
    auto add = [&](int from, int to) {
        int32_t copy = send(from, to);
        begin();
        wait(copy);
        arrive(parts[to]);
        parts[to].second = end(SUM, b.group[parts[to].first], volume, 3 * nbytes);
    };
    const int n = int(parts.size()), travel = p->syncs[c.layer].travel;
    if (travel == TREE) {
        for (int step = 1; step < n; step *= 2)
            for (int i = 0; i < n - step; i += 2 * step) add(i + step, i);
    } else {
        for (int i = n - 1; i > 0; --i) add(i, i - 1);
    }
    c.final = parts[0].second;
}

inline void Lowering::clip() {
    norms_.assign(m.processors, NONE);
    for (const Chunk& c : chunks_) {
        const BundlePlan& b = bundle(c);
        const int root = b.group[order(c, 0)];
        const int64_t volume = c.high - c.low;
        begin();
        wait_final(c);
        wait(norms_[root]);
        norms_[root] = end(NORM, root, 2 * volume, volume * b.itemsize + (norms_[root] >= 0 ? 2 : 1) * DOUBLE_BYTES);
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
    for (const Chunk& c : chunks_) {
        const BundlePlan& b = bundle(c);
        if (p->syncs[c.layer].place == EVERY)
            for (int32_t processor : b.group) updates[processor] = 1;
        else updates[b.group[order(c, 0)]] = 1;
    }
    scales_[first] = factor;
    for (int processor = 0; processor < m.processors; ++processor)
        if (updates[processor] && processor != first) {
            begin();
            wait(factor);
            scales_[processor] = end_copy(first, processor, DOUBLE_BYTES);
        }
}

inline int64_t Lowering::update_bytes(int64_t volume, int itemsize, int processor) const {
    return volume * itemsize * (3 + 2 * m.rule_buffers) + (scales_[processor] >= 0 ? DOUBLE_BYTES : 0);
}

// New weights may not be written while this step's tasks still read the old ones.
inline void Lowering::wait_weight_readers(int layer, int bundle, int place, int first, int last) {
    const BundlePlan& b = plan_of(layer).bundles[bundle];
    for (int cell = first; cell < last; ++cell) {
        const int index = layer_base_[layer] + b.index(place, cell);
        if (slots_) { wait_slot(2 * (index - slot_base_) + 1); continue; }
        const int32_t head = weight_head_[index];
        if (head < 0) continue;
        if (weight_next_[head] < 0) { wait(weight_task_[head]); continue; }
        int32_t& join = weight_join_[index];
        if (join < 0) {
            join = int32_t(t->joins());
            for (int32_t k = head; k >= 0; k = weight_next_[k]) t->join_after.push_back(uint32_t(weight_task_[k]));
            t->join_offset.push_back(uint32_t(t->join_after.size())), t->join_at.push_back(uint32_t(t->size()));
        }
        wait_join(join);
    }
}

// Sends what the root holds along a tree or a ring; send(from, to, sender's task or NONE) emits one copy.
template <class Send> inline void Lowering::broadcast(const Chunk& c, Send send) {
    const int n = int(bundle(c).group.size()), travel = p->syncs[c.layer].travel;
    auto& has = has_;
    has.assign(n, NONE);
    if (travel == TREE) {
        int step = 1;
        while (step < n) step *= 2;
        while (step > 1) {
            step /= 2;
            for (int i = 0; i < n - step; i += 2 * step) has[i + step] = send(i, i + step, has[i]);
        }
    } else {
        for (int k = 1; k < n; ++k) has[k] = send(k - 1, k, has[k - 1]);
    }
}

// Sends what the roots of a bundle's chunks hold, gradients or weights, straight to the other members.
inline void Lowering::send_from_owners(size_t first, size_t last, bool gradients) {
    const BundlePlan& b = bundle(chunks_[first]);
    const int holders = int(b.group.size());
    for (size_t k = first; k < last; ++k) {
        Chunk& c = chunks_[k];
        if (gradients) c.arrivals = uint32_t(arrivals_.size()), arrivals_.resize(arrivals_.size() + holders, NONE);
        for (int i = 1; i < holders; ++i)
            copies_.push_back({int32_t(k), b.group[order(c, 0)], b.group[order(c, i)], (c.high - c.low) * b.itemsize,
                               order(c, i), 0});
    }
    in_rounds(copies_, [&](const Copy& copy) {  // of a chunk (its writer) to a place (its state)
        const Chunk& c = chunks_[copy.writer];
        begin();
        if (gradients) wait_final(c);
        else {
            wait(c.final);
            wait_weight_readers(c.layer, c.bundle, copy.state, c.first_cell, c.last_cell);
        }
        const int32_t task = end_copy(copy.giver, copy.taker, copy.nbytes);
        if (gradients) arrivals_[c.arrivals + copy.state] = task;
    });
}

// The root's update, which takes the place of the sum as what the others wait for.
inline void Lowering::update(Chunk& c) {
    const BundlePlan& b = bundle(c);
    const int root = b.group[order(c, 0)];
    const int64_t volume = c.high - c.low;
    begin();
    wait_weight_readers(c.layer, c.bundle, order(c, 0), c.first_cell, c.last_cell);
    wait_final(c);
    wait(scales_[root]);
    c.final = end(UPDATE, root, m.rule_flops * volume, update_bytes(volume, b.itemsize, root));
}

inline void Lowering::send_weights(const Chunk& c) {
    const BundlePlan& b = bundle(c);
    broadcast(c, [&](int from, int to, int32_t sender) {
        begin();
        wait(from ? sender : c.final);
        wait_weight_readers(c.layer, c.bundle, order(c, to), c.first_cell, c.last_cell);
        return end_copy(b.group[order(c, from)], b.group[order(c, to)], (c.high - c.low) * b.itemsize);
    });
}

inline void Lowering::send_gradients(Chunk& c) {
    const BundlePlan& b = bundle(c);
    c.arrivals = uint32_t(arrivals_.size());
    arrivals_.resize(arrivals_.size() + b.group.size(), NONE);
    broadcast(c, [&](int from, int to, int32_t sender) {
        begin();
        if (from) wait(sender);
        else wait_final(c);
        int32_t copy = end_copy(b.group[order(c, from)], b.group[order(c, to)], (c.high - c.low) * b.itemsize);
        arrivals_[c.arrivals + order(c, to)] = copy;
        return copy;
    });
}

// Every member updates the whole bundle, whose chunks are first ... last - 1.
inline void Lowering::update_everywhere(size_t first, size_t last) {
    const Chunk& any = chunks_[first];
    const BundlePlan& b = bundle(any);
    for (int place = 0; place < int(b.group.size()); ++place) {
        const int processor = b.group[place];
        begin();
        wait_weight_readers(any.layer, any.bundle, place, 0, int(b.cells.size()));
        for (size_t k = first; k < last; ++k) {
            if (order(chunks_[k], 0) == place) wait_final(chunks_[k]);
            else wait(arrivals_[chunks_[k].arrivals + place]);
        }
        wait(scales_[processor]);
        end(UPDATE, processor, m.rule_flops * b.size, update_bytes(b.size, b.itemsize, processor));
    }
}

// Next step's state, written when this step's tasks have read the old one.
inline void Lowering::carry(std::pair<int, int> carried, std::pair<int, int> becomes) {
    const Config& config = *p->configs[carried.first];
    const Output& output = config.cut->outputs[carried.second];
    const int itemsize = m.nodes[carried.first].itemsizes[carried.second];
    for (size_t slot = 0; slot < output.rect.size(); ++slot) {
        const int piece = output.first_piece[slot], processor = config.processors[piece];
        const int32_t source = read(becomes, config.cut->writes[carried.second], piece, processor);
        begin();
        wait_instance(source);
        for (int32_t task : state_readers_[state_base_[tensor(carried)] + slot]) wait(task);
        end(MOVE, processor, 0, 2 * g.regions[output.rect[slot]].volume * itemsize);
    }
}

}  // namespace taskflow
