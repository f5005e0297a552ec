// What the passes of `bounds/passes.h` give together: the longest path through an operator, and jobs of processors.
// There is no twin: a bound is right if no completion is faster; tests/optimizer/bounds/test_relaxed_step.py holds it.
#pragma once

#include "bounds/passes.h"

namespace taskflow {
namespace relax {

inline void Bound::tail(int n) {
    const Op& op = t.ops[n];
    State& s = state_[n];
    const Cut& c = cut(n);
    s.tail.assign(c.pieces, 0.0);
    if (op.active && op.turn == AFTER_FORWARD)
        for (int i = 0; i < c.pieces; ++i) s.tail[i] = b(n, i) + s.back_tail[i];
    open_groups(c.pieces);
    for (int e : op.out) {
        const Edge& edge = t.edges[e];
        const std::vector<int>& owner = c.owner[edge.output];
        if (fixed_[edge.to]) {
            const State& to = state_[edge.to];
            const Op& reader = t.ops[edge.to];
            for (const Touch& touch : touches(edge)) {
                const int i = owner[touch.slot], p = at(edge.to, touch.piece);
                const bool passed = at(n, i) != p && together(n, edge.output, touch.slot);
                const double takes = passed ? 0.0 : t.gather(touch, at(n, i), p), works = f(edge.to, touch.piece);
                raise(s.tail[i], takes + works + to.tail[touch.piece]);
                join(i, p, edge.to, touch.piece, {takes, works, to.tail[touch.piece]});
                if (reader.active && reader.turn == AFTER_INPUTS)
                    raise(s.tail[i], takes + b(edge.to, touch.piece) + to.back_tail[touch.piece]);
            }
            continue;
        }
        for (size_t slot = 0; slot < owner.size(); ++slot) {
            double& tail = s.tail[owner[slot]];
            if (edge.all) raise(tail, t.ops[edge.to].least_forward + open_[edge.to].tail);
            if (edge.gradient && edge.loop[s.number][slot] > 0)
                raise(tail, edge.loop[s.number][slot] + slot_tail(n, edge.output, int(slot)));
        }
    }
    for (int i = 0; i < c.pieces; ++i) raise(s.tail[i], grouped(i));
}

inline double Bound::longest() const {
    double most = 0;
    for (int n = 0; n < int(t.ops.size()); ++n) {
        const Op& op = t.ops[n];
        if (!fixed_[n]) {
            raise(most, open_[n].head + op.least_forward + open_[n].tail);
            if (op.active) raise(most, open_[n].back + op.least_backward + open_[n].back_tail);
            continue;
        }
        const State& s = state_[n];
        for (int i = 0; i < cut(n).pieces; ++i) {
            raise(most, s.end[i] + s.tail[i]);
            if (op.active) raise(most, s.back_head[i] + b(n, i) + s.back_tail[i]);
        }
    }
    return most;
}

inline void Bound::list_jobs() {
    for (int n = 0; n < int(t.ops.size()); ++n) {
        const Op& op = t.ops[n];
        if (!fixed_[n]) {
            if (op.tasks) job(-1, open_[n].head, op.work_forward, open_[n].tail);
            if (op.active) job(-1, open_[n].back, op.work_backward, open_[n].back_tail);
            continue;
        }
        const State& s = state_[n];
        for (int i = 0; i < cut(n).pieces; ++i) {
            if (op.tasks) job(at(n, i), s.head[i], f(n, i), s.tail[i]);
            if (op.active) job(at(n, i), s.back_head[i], b(n, i), s.back_tail[i]);
        }
        for (const Extra& extra : s.extras) job(extra.processor, extra.head, extra.cost, 0.0);
        if (op.active) gradient_jobs(n);
    }
    for (size_t layer = 0; layer < layers.size(); ++layer) sync_jobs(int(layer));
}

inline void Bound::gradient_jobs(int n) {
    const Op& op = t.ops[n];
    const Cut& c = cut(n);
    for (int o = 0; o < int(op.seed.size()); ++o) {
        const bool exact = complete(n, o);
        for (int slot = 0; slot < int(c.owner[o].size()); ++slot) {
            const int owner = at(n, c.owner[o][slot]);
            const double tail = slot_tail(n, o, slot);
            if (op.seed[o]) job(owner, 0.0, t.fill[size_t(c.size[o][slot]) * t.processors + owner], tail);
            const auto& parts = parts_[n][o][slot];
            if (!exact || parts.empty() || in_place(n, o, parts, owner) || together_back(n, o, slot)) continue;
            const bool whole = all_whole(parts);
            for (size_t i = 0; i < parts.size(); ++i)
                job(owner, parts[i].arrival, step(parts, op.seed[o], i, owner, whole), tail);
        }
    }
}

inline void Bound::sync_jobs(int layer) {
    const Layer& of = layers[layer];
    if (sync_of_[layer] < 0) {
        double head = 1e300;
        for (int n : of.users) {
            if (!fixed_[n]) head = std::min(head, open_[n].back + t.ops[n].least_backward);
            else
                for (int i = 0; i < cut(n).pieces; ++i) head = std::min(head, state_[n].back_head[i] + b(n, i));
        }
        job(-1, head, of.work, 0.0);
        return;
    }
    const auto& tasks = syncs[sync_of_[layer]];
    sync_end_.assign(tasks.size(), 0.0);
    for (size_t k = 0; k < tasks.size(); ++k) {
        double head = 0;
        if (tasks[k].processor == -2) {
            head = 1e300;
            for (auto& [n, piece] : tasks[k].waits) head = std::min(head, state_[n].back_head[piece] + b(n, piece));
            job(-1, head, tasks[k].cost, 0.0);
            continue;
        }
        for (int before : tasks[k].after) raise(head, sync_end_[before]);
        for (auto& [n, piece] : tasks[k].waits) raise(head, state_[n].back_head[piece] + b(n, piece));
        sync_end_[k] = head + tasks[k].cost;
        if (tasks[k].processor >= 0) job(tasks[k].processor, head, tasks[k].cost, tasks[k].tail);
    }
}

}  // namespace relax
}  // namespace taskflow
