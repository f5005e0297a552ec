// The gradient of an operator's outputs: the sum of what their readers put, and its way to all pieces that need it.
// The definition is tasks/lower/backward.py and tasks/lower/forward.py; tests/optimizer/evaluate/test_core_equal.py holds them
// equal.
#pragma once

#include "evaluate/lowering/lower.h"

namespace taskflow {

// Of an output as many gradients come together as it has slots, or pieces that each take those of their own readers.
inline size_t Lowering::gradients(const Cut& cut, int o) const {
    return cut.local ? size_t(cut.pieces) : cut.outputs[o].rect.size();
}

// Fills slot_after_[base ...]; false if nobody put anything.
inline bool Lowering::gather(int n, int o, size_t base) {
    const NodeInfo& node = m.nodes[n];
    const auto& readers = readers_[tensor({n, o})];
    if (!node.needs_gradient[o] || (readers.empty() && !node.seed[o])) return false;
    const Config& config = *p->configs[n];
    const Output& output = config.cut->outputs[o];
    const bool local = config.cut->local;
    const size_t slots = gradients(*config.cut, o);
    if (parts_.size() < slots) parts_.resize(slots);
    for (size_t s = 0; s < slots; ++s) parts_[s].clear();
    for (const Reader& r : readers)
        for (uint32_t k = r.edge->offset[r.piece]; k < r.edge->offset[r.piece + 1]; ++k)
            parts_[local ? config.nearest(output.pieces[r.edge->overlaps[k].slot], r.processor) : r.edge->overlaps[k].slot]
                .push_back({&r, &r.edge->overlaps[k]});
    if (slot_after_.size() < base + slots) slot_after_.resize(base + slots);
    slot_everywhere_.resize(base), slot_everywhere_.resize(base + slots, 0);
    slot_gradients_.clear(), part_arrivals_.clear();
    const Forward& f = forward_[n].now();
    for (size_t s = 0; s < slots; ++s) {
        const int32_t rect = output.rect[local ? output.slot[s] : s], first = output.first_piece[local ? output.slot[s] : s];
        const SummedSlot* summed = f.summed.empty() || node.seed[o] ? nullptr : f.find_summed(o, int(s));
        if (summed && put_everywhere(f, *summed, parts_[s], rect)) {
            begin();
            for (const Part& part : parts_[s]) wait(part.reader->last);
            slot_gradients_.push_back({end_all_reduce(f, *summed, g.regions[rect].volume, node.itemsizes[o]), false});
            slot_everywhere_[base + s] = 1;
            parts_[s].clear();  // nothing is to come
            continue;
        }
        const int32_t owner = local ? int32_t(s) : first;  // a loss begins with the first piece alone
        slot_gradients_.push_back(expect(parts_[s], g.regions[rect], rect, config.processors[owner],
                                         node.seed[o] && owner == first, node.itemsizes[o]));
    }
    in_rounds(copies_, [&](const Copy& c) {
        begin();
        wait(c.writer);
        part_arrivals_[c.at].task = end_transfer(c.giver, c.taker, c.nbytes, c.runs);
    });
    const Arrival* arrival = part_arrivals_.data();
    for (size_t s = 0; s < slots; ++s) {
        slot_after_[base + s].clear();
        const size_t slot = local ? output.slot[s] : s;
        complete(parts_[s], slot_gradients_[s], g.regions[output.rect[slot]],
                 config.processors[local ? s : output.first_piece[slot]], node.itemsizes[o], arrival, slot_after_[base + s]);
        arrival += parts_[s].size();
    }
    return true;
}

// Whether the processors that wrote a slot, and nobody else, put one gradient of all of it each.
inline bool Lowering::put_everywhere(const Forward& f, const SummedSlot& s, const std::vector<Part>& parts, int32_t id) const {
    if (parts.size() != s.last - s.first) return false;
    for (const Part& part : parts)
        if (part.reader->region != id || f.summed_on(s, part.reader->processor) < 0) return false;
    return true;
}

// An owner's gradient is filled if it must be, and the copies to it are noted.
inline Lowering::Gradient Lowering::expect(const std::vector<Part>& parts, const Region& rect, int32_t id, int owner, bool seed, int itemsize) {
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
            copies_.push_back({part.reader->last, giver, owner, part.overlap->volume * itemsize, NONE, NONE, uint32_t(base + k),
                               {part.overlap->runs_here, arrival.first ? part.overlap->runs_there : 1}});
        if (part.overlap->volume == rect.volume) covered = true;
    }
    return made;
}

// What has arrived is added in the order of the readers; ``after``: the tasks that complete the gradient.
inline void Lowering::complete(const std::vector<Part>& parts, const Gradient& made, const Region& rect, int owner, int itemsize,
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
            const int32_t runs = std::max(part.overlap->runs_there, arrived.task >= 0 ? 1 : part.overlap->runs_here);
            writers.push_back({shared, end(SUM, owner, part.overlap->volume, 3 * part.overlap->volume * itemsize, runs)});
        }
    }
    for (auto& [_, task] : writers) after.push_back(task);
}

// True if the parts cover the Rect and none overlaps an earlier one without lying in it.
inline bool Lowering::simple(const std::vector<Part>& parts, const Region& rect) {
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
inline void Lowering::share(int n, int o, size_t base) {
    const Config& config = *p->configs[n];
    const Output& output = config.cut->outputs[o];
    const size_t outs = m.nodes[n].itemsizes.size();
    auto& sent = sent_;
    sent.clear();
    for (int piece = 0; piece < config.cut->pieces; ++piece) {
        const int processor = config.processors[piece];
        const int32_t slot = output.slot[piece];
        const int owner = config.processors[output.first_piece[slot]];
        if (owner == processor || slot_everywhere_[base + slot]) continue;
        uint32_t& place = copied_[size_t(piece) * outs + o];
        const int64_t key = int64_t(slot) << 16 | processor;
        auto found = std::find_if(sent.begin(), sent.end(), [&](auto& e) { return e.first == key; });
        if (found != sent.end()) { place = found->second; continue; }
        place = uint32_t(shared_.size());
        shared_.push_back(slot);
        sent.push_back({key, place});
        copies_.push_back({NONE, owner, processor, g.regions[output.rect[slot]].volume * m.nodes[n].itemsizes[o], NONE, NONE, place});
    }
    in_rounds(copies_, [&](const Copy& c) {
        begin();
        for (int32_t task : slot_after_[base + shared_[c.at]]) wait(task);
        shared_[c.at] = end_copy(c.giver, c.taker, c.nbytes);
    });
}

}  // namespace taskflow
