// The passes of `bounds/partial_plan.h` over the operators: heads from the first to the last, then back; tails the other way round.
// There is no twin: a bound is right if no completion is faster; tests/optimizer/bounds/test_relaxed_step.py holds it.
#pragma once

#include "bounds/partial_plan.h"

namespace taskflow {
namespace relax {

// ---- what a gradient consists of -----------------------------------------------------------------------------------
// In the order in which the parts are added: readers from the last to the first, and their pieces in order.
inline void Bound::collect(int n) {
    const Op& op = t.ops[n];
    parts_[n].resize(op.seed.size());
    for (int o = 0; o < int(op.seed.size()); ++o) {
        auto& of_slot = parts_[n][o];
        of_slot.assign(cut(n).owner[o].size(), {});
        for (size_t k = op.out.size(); k-- > 0;) {
            const Edge& edge = t.edges[op.out[k]];
            if (edge.output != o || !edge.gradient || !fixed_[edge.to]) continue;
            for (const Touch& touch : touches(edge)) {
                const int reader = at(edge.to, touch.piece);
                auto& parts = of_slot[touch.slot];
                auto same = std::find_if(parts.begin(), parts.end(), [&](const Part& part) {
                    return part.processor == reader && part.region == touch.region;
                });
                if (same == parts.end()) {
                    parts.push_back({reader, touch.region, touch.size, touch.whole, touch.same, 0.0, {}});
                    same = parts.end() - 1;
                }
                same->from.push_back({edge.to, touch.piece});
            }
        }
        if (complete(n, o)) sums_after(n, o);
    }
}

// For each reader's piece: the seconds on the owner from its part's arrival until the gradient is complete.
inline void Bound::sums_after(int n, int o) {
    for (int e : t.ops[n].out) {
        const Edge& edge = t.edges[e];
        if (edge.output != o || !edge.gradient) continue;
        const auto& list = touches(edge);
        after_[e].assign(list.size(), 0.0);
        for (size_t i = 0; i < list.size(); ++i) {
            const Touch& touch = list[i];
            const auto& parts = parts_[n][o][touch.slot];
            const int owner = at(n, cut(n).owner[o][touch.slot]), reader = at(edge.to, touch.piece);
            if (in_place(n, o, parts, owner) || together_back(n, o, touch.slot)) continue;
            size_t k = 0;
            while (parts[k].processor != reader || parts[k].region != touch.region) ++k;
            const bool whole = all_whole(parts);
            for (size_t j = k; j < (whole ? parts.size() : k + 1); ++j)
                after_[e][i] += step(parts, t.ops[n].seed[o], j, owner, whole);
        }
    }
}

// ---- forward -------------------------------------------------------------------------------------------------------
// Whether another fixed operator reads the same instance, which is made once.
inline bool Bound::moved_before(const Edge& edge, int n, const Touch& touch, int processor) const {
    for (int e : t.ops[edge.from].out) {
        const Edge& other = t.edges[e];
        if (other.output != edge.output || other.to >= n || !fixed_[other.to]) continue;
        for (const Touch& there : touches(other))
            if (there.region == touch.region && at(other.to, there.piece) == processor) return true;
    }
    return false;
}

inline void Bound::ahead(int n) {
    const Op& op = t.ops[n];
    State& s = state_[n];
    const Cut& c = cut(n);
    s.head.assign(c.pieces, 0.0), s.end.assign(c.pieces, 0.0);
    s.extras.clear();
    open_groups(2 * c.pieces);  // by processor; from the middle on by route
    for (int e : op.in) {
        const Edge& edge = t.edges[e];
        if (!fixed_[edge.from]) {
            if (edge.always)
                for (double& head : s.head) raise(head, open_[edge.from].head + t.ops[edge.from].least_forward);
            continue;
        }
        const State& from = state_[edge.from];
        const std::vector<int>& owner = cut(edge.from).owner[edge.output];
        moved_.clear();
        for (const Touch& touch : touches(edge)) {
            const int giver = owner[touch.slot], source = at(edge.from, giver), target = at(n, touch.piece);
            const bool sent = source != target && !together(edge.from, edge.output, touch.slot);
            const double came = from.ready[edge.output][touch.slot];
            const double takes = sent || source == target ? t.gather(touch, source, target) : 0.0;
            raise(s.head[touch.piece], came + takes);
            join(touch.piece, source, edge.from, giver, {from.head[giver], f(edge.from, giver), takes});
            if (source != target) {
                if (t.serial && sent) join(c.pieces + touch.piece, source, e, touch.slot, {came, takes, 0.0});
            } else if (!touch.view && !moved_before(edge, n, touch, target)) {
                const Moved key{target, touch.slot, touch.region};
                if (std::find(moved_.begin(), moved_.end(), key) == moved_.end())
                    moved_.push_back(key), s.extras.push_back({target, came, takes});
            }
        }
    }
    for (int i = 0; i < c.pieces; ++i) {
        raise(s.head[i], grouped(i));
        raise(s.head[i], grouped(c.pieces + i));
        s.end[i] = s.head[i] + f(n, i);
    }
    add_partial(n);
}

// Partial values of one slot are added by its owner, or by an all-reduce, whichever is faster.
inline void Bound::add_partial(int n) {
    State& s = state_[n];
    const Cut& c = cut(n);
    s.ready.resize(c.owner.size());
    for (size_t o = 0; o < c.owner.size(); ++o) {
        s.ready[o].assign(c.owner[o].size(), 0.0);
        writers_.assign(c.owner[o].size(), 0);
        for (int i = 0; i < c.pieces; ++i) {
            const int slot = c.slot[o][i], p = at(n, c.owner[o][slot]), q = at(n, i);
            ++writers_[slot];
            raise(s.ready[o][slot], s.end[i] + (p == q ? 0.0 : t.copy_of(c.size[o][slot], q, p)));
        }
        for (size_t slot = 0; slot < c.owner[o].size(); ++slot) {
            if (writers_[slot] < 2) continue;
            const int p = at(n, c.owner[o][slot]);
            const double takes = sum_of(c.size[o][slot], p);
            if (!together(n, int(o), int(slot))) s.extras.push_back({p, s.ready[o][slot], takes});
            s.ready[o][slot] += takes;
            if (!together(n, int(o), int(slot))) continue;
            double last = 0;
            for (int i = 0; i < c.pieces; ++i)
                if (c.slot[o][i] == int(slot)) raise(last, s.end[i]);
            s.ready[o][slot] = std::min(s.ready[o][slot], last + s.config->together[o][slot]);
        }
    }
}

// ---- backward ------------------------------------------------------------------------------------------------------
// When the gradient of a slot is complete, at the earliest; NEVER if nothing says.
inline double Bound::gradient(int n, int o, int slot) {
    const Op& op = t.ops[n];
    const int owner = at(n, cut(n).owner[o][slot]);
    auto& parts = parts_[n][o][slot];
    double came = NEVER;
    for (int e : op.out) {
        const Edge& edge = t.edges[e];
        if (edge.output != o || !edge.gradient || fixed_[edge.to]) continue;
        raise(came, state_[n].ready[o][slot] + edge.loop[state_[n].number][slot]);
        if (edge.all) raise(came, open_[edge.to].back + t.ops[edge.to].least_backward);
    }
    for (Part& part : parts) {
        part.arrival = 0;
        for (auto& [reader, piece] : part.from) raise(part.arrival, state_[reader].back_head[piece] + b(reader, piece));
        if (part.processor != owner && !together_back(n, o, slot))
            part.arrival += t.copy_of(part.size, part.processor, owner);
    }
    const bool exact = complete(n, o) && !in_place(n, o, parts, owner) && !together_back(n, o, slot);
    const bool whole = exact && all_whole(parts);
    double now = op.seed[o] ? t.fill[size_t(cut(n).size[o][slot]) * t.processors + owner] : NEVER;
    for (size_t i = 0; i < parts.size(); ++i) {
        const double takes = exact ? step(parts, op.seed[o], i, owner, whole) : 0.0;
        if (whole) now = std::max(now, parts[i].arrival) + takes;
        else raise(now, parts[i].arrival + takes);
    }
    return std::max(came, now);
}

inline void Bound::back_head(int n) {
    const Op& op = t.ops[n];
    State& s = state_[n];
    const Cut& c = cut(n);
    s.back_head.assign(c.pieces, 0.0);
    for (int i = 0; i < c.pieces; ++i) {
        if (op.turn == AFTER_FORWARD) s.back_head[i] = s.end[i];
        else if (op.turn == AFTER_INPUTS) s.back_head[i] = s.head[i];
    }
    for (int o = 0; o < int(c.owner.size()); ++o)
        for (int slot = 0; slot < int(c.owner[o].size()); ++slot) {
            const double came = gradient(n, o, slot);
            for (int i = 0; i < c.pieces; ++i)
                if (c.slot[o][i] == slot) raise(s.back_head[i], came + share(n, o, slot, i));
        }
    open_groups(2 * c.pieces);  // by processor; from the middle on by route
    for (int o = 0; o < int(c.owner.size()); ++o) {
        const bool exact = complete(n, o);
        for (int slot = 0; slot < int(c.owner[o].size()); ++slot) {
            const int i = c.owner[o][slot], owner = at(n, i);
            const auto& parts = parts_[n][o][slot];
            const bool passed = together_back(n, o, slot);
            const bool known = exact && !in_place(n, o, parts, owner) && !passed, whole = known && all_whole(parts);
            for (size_t k = 0; k < parts.size(); ++k) {
                const Part& part = parts[k];
                const double sent = part.processor == owner || passed ? 0.0 : t.copy_of(part.size, part.processor, owner);
                const double takes = known ? step(parts, op.seed[o], k, owner, whole) : 0.0;
                for (auto& [reader, piece] : part.from)
                    join(i, part.processor, reader, piece, {state_[reader].back_head[piece], b(reader, piece), sent + takes});
                if (sent > 0 && t.serial) join(c.pieces + i, part.processor, o, int(k) << 16 | slot, {part.arrival - sent, sent, takes});
                // The owner's own sums come before its backward too.
                if (takes > 0) join(i, owner, -1 - o, int(k) << 16 | slot, {part.arrival, takes, 0.0});
            }
        }
    }
    for (int i = 0; i < c.pieces; ++i) {
        raise(s.back_head[i], grouped(i));
        raise(s.back_head[i], grouped(c.pieces + i));
    }
}

inline void Bound::sync_tails() {
    for (size_t n = 0; n < t.ops.size(); ++n)
        if (fixed_[n]) state_[n].back_tail.assign(cut(int(n)).pieces, 0.0);
    for (size_t layer = 0; layer < layers.size(); ++layer) {
        if (sync_of_[layer] < 0) {
            for (int user : layers[layer].users)
                if (fixed_[user])
                    for (double& tail : state_[user].back_tail) raise(tail, layers[layer].last);
            continue;
        }
        for (const SyncTask& task : syncs[sync_of_[layer]])
            if (task.processor != -2)
                for (auto& [n, piece] : task.waits) raise(state_[n].back_tail[piece], task.cost + task.tail);
    }
}

inline void Bound::back_tail(int n) {
    State& s = state_[n];
    open_groups(cut(n).pieces);
    for (int e : t.ops[n].in) {
        const Edge& edge = t.edges[e];
        if (!edge.gradient) continue;
        if (!fixed_[edge.from]) {
            if (edge.always)
                for (double& tail : s.back_tail)
                    raise(tail, t.ops[edge.from].least_backward + open_[edge.from].back_tail);
            continue;
        }
        const Cut& c = cut(edge.from);
        const auto& list = touches(edge);
        const bool exact = complete(edge.from, edge.output);
        for (size_t i = 0; i < list.size(); ++i) {
            const Touch& touch = list[i];
            const int owner = c.owner[edge.output][touch.slot], p = at(edge.from, owner);
            const bool passed = together_back(edge.from, edge.output, touch.slot);
            const double given = passed ? 0.0 : t.give(touch, at(n, touch.piece), p) + (exact ? after_[e][i] : 0.0);
            raise(s.back_tail[touch.piece], given + slot_tail(edge.from, edge.output, touch.slot));
            join(touch.piece, p, edge.from, owner, {given, b(edge.from, owner), state_[edge.from].back_tail[owner]});
        }
    }
    for (int i = 0; i < cut(n).pieces; ++i) raise(s.back_tail[i], grouped(i));
}

// ---- operators that are not fixed ----------------------------------------------------------------------------------
inline void Bound::open_head(int n) {
    for (int e : t.ops[n].in) {
        const Edge& edge = t.edges[e];
        if (!edge.always) continue;
        raise(open_[n].head, fixed_[edge.from] ? least_end(edge.from)
                                               : open_[edge.from].head + t.ops[edge.from].least_forward);
    }
}

inline void Bound::open_back(int n) {
    const Op& op = t.ops[n];
    double& back = open_[n].back;
    if (op.turn == AFTER_FORWARD) back = open_[n].head + op.least_forward;
    else if (op.turn == AFTER_INPUTS) back = open_[n].head;
    for (int e : op.out) {
        const Edge& edge = t.edges[e];
        if (!edge.gradient || !edge.all) continue;
        double end = open_[edge.to].back + t.ops[edge.to].least_backward;
        if (fixed_[edge.to]) {
            end = 1e300;
            for (int i = 0; i < cut(edge.to).pieces; ++i) end = std::min(end, state_[edge.to].back_head[i] + b(edge.to, i));
        }
        raise(back, end);
    }
}

inline void Bound::open_back_tail(int n) {
    double& tail = open_[n].back_tail;
    if (t.ops[n].layer >= 0) tail = layers[t.ops[n].layer].last;
    for (int e : t.ops[n].in) {
        const Edge& edge = t.edges[e];
        if (!edge.gradient || !edge.always) continue;
        double after = t.ops[edge.from].least_backward + open_[edge.from].back_tail;
        if (fixed_[edge.from]) {
            after = 1e300;
            for (int i = 0; i < cut(edge.from).pieces; ++i)
                after = std::min(after, b(edge.from, i) + state_[edge.from].back_tail[i]);
        }
        raise(tail, after);
    }
}

inline void Bound::open_tail(int n) {
    const Op& op = t.ops[n];
    double& tail = open_[n].tail;
    if (op.active && op.turn == AFTER_FORWARD) tail = op.least_backward + open_[n].back_tail;
    for (int e : op.out) {
        const Edge& edge = t.edges[e];
        if (!edge.all) continue;
        double after = t.ops[edge.to].least_forward + open_[edge.to].tail;
        if (fixed_[edge.to]) {
            after = 1e300;
            for (int i = 0; i < cut(edge.to).pieces; ++i) after = std::min(after, f(edge.to, i) + state_[edge.to].tail[i]);
        }
        raise(tail, after);
    }
}

}  // namespace relax
}  // namespace taskflow
