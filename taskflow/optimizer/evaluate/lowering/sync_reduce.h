// tasks/lower/synchronise.py for timelines: chunks, gradient sums and clipping.
#pragma once

#include "evaluate/lowering/lower.h"

namespace taskflow {

constexpr int64_t SMALLEST_CHUNK_BYTES = 1 << 20;
constexpr int64_t DOUBLE_BYTES = 8;

inline void Lowering::synchronise() {
    chunks_.clear(), arrivals_.clear(), weight_join_.resize(m.layers.size());
    for (size_t k = 0; k < m.layers.size(); ++k) weight_join_[k].assign(plan_of(int(k)).indices, NONE);
    for (int layer = 0; layer < int(m.layers.size()); ++layer) cut_into_chunks(layer);
    for (size_t first = 0, last; first < chunks_.size(); first = last) {
        name(REDUCE + chunks_[first].layer);
        reduce(first, last = bundle_end(first));
    }
    name(CLIPPING);
    scales_.assign(m.processors, NONE);
    if (m.clips) clip();
    for (size_t first = 0, last; first < chunks_.size(); first = last) {
        name(SEND + chunks_[first].layer);
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
    const int travel = p->syncs[chunks_[first].layer].travel;
    if (travel == OWNER_TRAVEL) return send_from_owners(first, last, everywhere);
    if (travel == COLLECTIVE_TRAVEL && !everywhere) return all_gather(&chunks_[first], last - first);
    if (travel == COLLECTIVE_TRAVEL) {  // every holder has the sum
        for (size_t k = first; k < last; ++k) {
            chunks_[k].arrivals = uint32_t(arrivals_.size());
            arrivals_.resize(arrivals_.size() + bundle(chunks_[k]).group.size(), chunks_[k].final);
        }
        return;
    }
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
        name(UPDATES + chunk.layer);
        update_everywhere(first, last);
    }
}

// The synchronisation of one layer without clipping, as a fragment that knows nothing of the tasks around it: they stand
// behind its slots. After `run` with the same plans.
inline void Lowering::fragment(int layer, Tasks& out, uint32_t part_end[3]) {
    open(out, 0);
    slots_ = true;
    chunks_.clear(), arrivals_.clear();
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

inline void Lowering::cut_into_chunks(int layer) {
    const Sync& sync = p->syncs[layer];
    const bool many = sync.place == SPREAD || (sync.place == EVERY && sync.travel == RING);
    for (int k = 0; k < int(plan_of(layer).bundles.size()); ++k) {
        const BundlePlan& b = plan_of(layer).bundles[k];
        const int holders = int(b.group.size());
        bool any = false;
        for (int place = 0; place < holders && !any; ++place) any = gives(layer, k, place);
        if (!any) continue;
        int64_t wanted =
            sync.chunks ? sync.chunks : std::max<int64_t>(1, b.size * b.itemsize / SMALLEST_CHUNK_BYTES);
        if (sync.travel == COLLECTIVE_TRAVEL) wanted = holders;  // one share a holder, in the holders' order
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
            c.shift = int(sync.travel == COLLECTIVE_TRAVEL ? i : (layer + k + i * holders / count) % holders);
            chunks_.push_back(c);
        }
    }
}

// Waits for what wrote a member's own gradient of a chunk.
inline void Lowering::wait_gradient(const Chunk& c, int place) {
    const BundlePlan& b = bundle(c);
    for (int cell = c.first_cell; cell < c.last_cell; ++cell) {
        const int index = b.index(place, cell);
        if (slots_) wait_slot(2 * uint32_t(index));
        else wait(layers_[c.layer].now().writer[index]);
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
    if (p->syncs[layer].travel == COLLECTIVE_TRAVEL) {
        return all_reduce(&chunks_[first], last - first);
    }
    for (size_t k = first; k < last; ++k) {  // a root without a gradient of its own starts from zero
        Chunk& c = chunks_[k];
        if (gives(layer, c.bundle, order(c, 0))) continue;
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
            if (!gives(layer, c.bundle, order(c, i))) continue;
            copies_.push_back({int32_t(k), b.group[order(c, i)], b.group[order(c, 0)], (c.high - c.low) * b.itemsize,
                               order(c, i), NONE, uint32_t(sums_.size())});
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
        for (int i = 1; i < holders; ++i) count += gives(layer, c.bundle, order(c, i));
        if (!count) continue;
        const int64_t volume = c.high - c.low;
        begin();
        for (int i = 0; i < count; ++i) wait(*arrived++);
        wait_final(c);
        c.final = end(SUM, b.group[order(c, 0)], volume * count, volume * b.itemsize * (count + 2));
    }
}

// All holders' gradients of a bundle at once, whose one chunk all get, or each of whose chunks one; those without one of their
// own give zeros.
inline void Lowering::all_reduce(Chunk* chunks, size_t count) {
    const Chunk& c = *chunks;
    const BundlePlan& b = bundle(c);
    const int holders = int(b.group.size()), halves = p->syncs[c.layer].place == EVERY ? 2 : 1;
    const int64_t nbytes = b.size * b.itemsize;
    auto& parts = members_;  // (place in the group, what filled it with zeros or NONE)
    parts.clear();
    for (int place = 0; place < holders; ++place) {
        parts.push_back({place, NONE});
        if (gives(c.layer, c.bundle, place)) continue;
        begin();
        parts.back().second = end(FILL, b.group[place], 0, nbytes);
    }
    if (holders == 1) return;
    begin();
    for (const auto& part : parts) {
        if (part.second >= 0) wait(part.second);
        else for (size_t k = 0; k < count; ++k) wait_gradient(chunks[k], part.first);
    }
    const int32_t task = end_collective(b.group, (holders - 1) * b.size, halves * (holders - 1) * nbytes, halves);
    for (size_t k = 0; k < count; ++k) chunks[k].final = task;
}

inline void Lowering::reduce_along(Chunk& c) {
    const BundlePlan& b = bundle(c);
    const int holders = int(b.group.size());
    const int64_t volume = c.high - c.low, nbytes = volume * b.itemsize;
    auto& parts = members_;  // (place in the group, task that wrote it or NONE)
    parts.clear();
    for (int k = 0; k < holders; ++k) {
        const int place = order(c, k);
        if (k == 0 || gives(c.layer, c.bundle, place)) parts.push_back({place, k ? NONE : c.final});
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

}  // namespace taskflow
