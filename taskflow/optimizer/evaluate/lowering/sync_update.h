// tasks/lower/synchronise.py for timelines: updates, and the sending of sums or new weights.
#pragma once

#include "evaluate/lowering/lower.h"

namespace taskflow {

inline int64_t Lowering::update_bytes(int64_t volume, int itemsize, int processor) const {
    return volume * itemsize * (3 + 2 * m.rule_buffers) + (scales_[processor] >= 0 ? DOUBLE_BYTES : 0);
}

// New weights may not be written while this step's tasks still read the old ones.
inline void Lowering::wait_weight_readers(int layer, int bundle, int place, int first, int last) {
    const BundlePlan& b = plan_of(layer).bundles[bundle];
    for (int cell = first; cell < last; ++cell) {
        const int index = b.index(place, cell);
        if (slots_) { wait_slot(2 * uint32_t(index) + 1); continue; }
        const Collected& made = layers_[layer].now();
        const uint32_t count = made.reader_count(index), *readers = made.readers(index);
        if (!count) continue;
        if (count == 1) { wait(int32_t(*readers)); continue; }
        int32_t& join = weight_join_[layer][index];
        if (join < 0) {
            join = int32_t(t->joins());
            t->join_after.insert(t->join_after.end(), readers, readers + count);
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
                               order(c, i), NONE, 0});
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

// The new weights of all chunks of a bundle, which their holders have updated, to all.
inline void Lowering::all_gather(const Chunk* chunks, size_t count) {
    const Chunk& any = *chunks;
    const BundlePlan& b = bundle(any);
    const int holders = int(b.group.size());
    if (holders == 1) return;
    begin();
    for (size_t k = 0; k < count; ++k) wait(chunks[k].final);
    for (int place = 0; place < holders; ++place)
        wait_weight_readers(any.layer, any.bundle, place, 0, int(b.cells.size()));
    end_collective(b.group, 0, (holders - 1) * b.size * b.itemsize, 1);
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

}  // namespace taskflow
