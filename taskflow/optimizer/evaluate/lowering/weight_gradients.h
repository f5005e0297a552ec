// What synchronisation of a layer finds: its holders' gradients in their flat buffers, and the tasks that read its weights.
// The definition is tasks/lower/backward.py; tests/optimizer/evaluate/test_core_equal.py holds them equal.
#pragma once

#include "evaluate/lowering/lower.h"

namespace taskflow {

inline void Lowering::collect() {
    auto each = [this](auto f) {  // operators of layers that changed, as backward takes them
        for (int n = nodes() - 1; n >= 0; --n)
            if (!layers_of_[n].empty() && layer_dirty_[layers_of_[n][0]]) f(n);
    };
    for (int layer = 0; layer < int(layers_.size()); ++layer) {
        if (!layer_dirty_[layer]) continue;
        Collected& c = layers_[layer].renew(turned_);
        c.writer.assign(plan_of(layer).indices, NONE), c.flat.assign(plan_of(layer).members, 0);
    }
    gradients_.clear();
    each([this](int n) { collect_direct(n); });
    each([this](int n) { collect_gathered(n); });
    for (int layer = 0; layer < int(layers_.size()); ++layer) {
        if (!layer_dirty_[layer]) continue;
        fill_up(layer);
        list_readers(layer);
    }
}

// Gradients of single cells are where they belong; of others the last task that added to them is noted.
inline void Lowering::collect_direct(int n) {
    const Backward& made = backward_[n].now();
    if (!made.ran) return;
    for (size_t piece = 0; piece < made.task.size(); ++piece)
        for (size_t k = 0; k < m.nodes[n].parameters.size(); ++k) {
            const int32_t cover = cover_of(n, int(k), int(piece));
            if (cover < 0 || !is_trained(n, int(k))) continue;
            const int layer = layer_of(n, int(k)), processor = p->configs[n]->processors[piece];
            const auto& cells = plan_of(layer).covers[cover];
            if (cells.size() == 1) {
                const BundlePlan& b = plan_of(layer).bundles[cells[0].bundle];
                Collected& c = layers_[layer].now();
                c.writer[cell_index(layer, cells[0], processor)] = made.task[piece];
                c.flat[member(layer, cells[0].bundle, b.place(processor))] = 1;
            } else {
                bool fresh;
                weight_gradient(n, int(k), int(piece), fresh) = made.task[piece];
            }
        }
}

// Gradients of several cells go into the flat buffers, in the order in which they were begun.
inline void Lowering::collect_gathered(int n) {
    constexpr int64_t DONE = -2;
    const Backward& made = backward_[n].now();
    open(collects_[n].renew(turned_), collect_block(n));
    if (!made.ran) return;
    for (size_t piece = 0; piece < made.task.size(); ++piece)
        for (size_t k = 0; k < m.nodes[n].parameters.size(); ++k) {
            const int32_t cover = cover_of(n, int(k), int(piece));
            if (cover < 0 || !is_trained(n, int(k))) continue;
            const int layer = layer_of(n, int(k)), processor = p->configs[n]->processors[piece];
            const auto& cells = plan_of(layer).covers[cover];
            if (cells.size() == 1) continue;
            bool fresh;
            int64_t& gradient = weight_gradient(n, int(k), int(piece), fresh);
            if (gradient == DONE) continue;
            Collected& c = layers_[layer].now();
            for (BundleCell at : cells) {
                const BundlePlan& b = plan_of(layer).bundles[at.bundle];
                int32_t& writer = c.writer[cell_index(layer, at, processor)];
                begin();
                wait(int32_t(gradient));
                wait(writer);
                const int64_t nbytes = b.cells[at.cell].volume * b.gradient_bytes();
                writer = end(MOVE, processor, 0, (writer >= 0 ? 3 : 2) * nbytes, at.runs);
                c.flat[member(layer, at.bundle, b.place(processor))] = 1;
            }
            gradient = DONE;
        }
}

// What nothing reached becomes zero.
inline void Lowering::fill_up(int layer) {
    Collected& c = layers_[layer].now();
    open(c.fills, fill_block(layer));
    for (int k = 0; k < int(plan_of(layer).bundles.size()); ++k) {
        const BundlePlan& b = plan_of(layer).bundles[k];
        for (int place = 0; place < int(b.group.size()); ++place) {
            if (!c.flat[member(layer, k, place)]) continue;
            for (int cell = 0; cell < int(b.cells.size()); ++cell) {
                int32_t& writer = c.writer[b.index(place, cell)];
                if (writer >= 0) continue;
                begin();
                writer = end(FILL, b.group[place], 0, b.cells[cell].volume * b.gradient_bytes());
            }
        }
    }
}

inline void Lowering::list_readers(int layer) {
    auto& reads = reads_;  // (cell of a holder, task)
    reads.clear();
    for (auto [n, k] : m.layers[layer].uses) {
        const Forward& f = forward_[n].now();
        const Backward& made = backward_[n].now();
        const auto& processors = p->configs[n]->processors;
        for (size_t piece = 0; piece < f.first.size(); ++piece) {
            const int32_t number = cover_of(n, k, int(piece));
            if (number < 0 || plan_of(layer).covers[number].size() != 1) continue;
            const int32_t index = cell_index(layer, plan_of(layer).covers[number][0], processors[piece]);
            reads.push_back({index, f.first[piece]});
            if (made.ran && m.nodes[n].keeps_weights) reads.push_back({index, made.task[piece]});
        }
        for (const Move& move : f.moves)
            if (move.parameter == k)
                reads.push_back({cell_index(layer, plan_of(layer).covers[cover_of(n, k, move.piece)][move.cell],
                                            processors[move.piece]), move.task});
    }
    Collected& c = layers_[layer].now();
    const size_t cells = c.writer.size();
    c.slot_offset.assign(2 * cells + 2, 0);
    for (auto [index, _] : reads) ++c.slot_offset[2 * index + 3];
    for (size_t k = 0; k < cells; ++k) c.slot_offset[2 * k + 2] += c.writer[k] >= 0;
    for (size_t k = 1; k < c.slot_offset.size(); ++k) c.slot_offset[k] += c.slot_offset[k - 1];
    c.slot_after.resize(c.slot_offset.back());
    for (size_t k = 0; k < cells; ++k)
        if (c.writer[k] >= 0) c.slot_after[c.slot_offset[2 * k + 1]++] = uint32_t(c.writer[k]);
    for (auto [index, task] : reads) c.slot_after[c.slot_offset[2 * index + 2]++] = uint32_t(task);
    c.slot_offset.pop_back();
}

}  // namespace taskflow
