// What a proposal changes, and the flat task graph put together from blocks that are kept and blocks that are made anew.
// There is no twin: the definition lowers each proposal from nothing; tests/optimizer/algorithms/test_core_walks.py holds it.
#pragma once

#include "evaluate/lowering/lower.h"

namespace taskflow {

inline void Lowering::set_up() {
    const size_t n = m.nodes.size(), layers = m.layers.size();
    take_turns();
    forward_.resize(n + 2), backward_.resize(n), collects_.resize(n), layers_.resize(layers);
    int tensors = 0;
    for (const NodeInfo& node : m.nodes) {
        tensor_base_.push_back(tensors), tensors += int(node.itemsizes.size());
        inputs_.push_back(node.inputs);
    }
    inputs_.push_back(m.losses);
    inputs_.emplace_back();
    for (auto& [_, becomes] : m.carries) inputs_.back().push_back(becomes);
    for (size_t i = 0; i < inputs_.back().size(); ++i)
        for (size_t k = 0; k < i; ++k) carries_share_ |= inputs_.back()[i] == inputs_.back()[k];
    readers_of_.resize(tensors), readers_.resize(tensors);
    for (size_t k = 0; k < inputs_.size(); ++k)
        for (Of of : inputs_[k]) readers_of_[tensor(of)].push_back(int(k));
    layers_of_.resize(n), covers_.resize(n);
    for (size_t k = 0; k < n; ++k) covers_[k].resize(m.nodes[k].parameters.size());
    for (size_t k = 0; k < layers; ++k)
        for (auto [node, _] : m.layers[k].uses)
            if (layers_of_[node].empty() || layers_of_[node].back() != int(k)) layers_of_[node].push_back(int(k));
    for (size_t k = 0; k < n; ++k)
        if (layers_of_[k].size() > 1) of_several_layers_.push_back(int(k));
    borrows_.assign(n + 2, 0);
    int bits = 1;
    while (tail_names() >= (3u << bits) / 4) ++bits;  // a quarter of all names at least for synchronisation
    shift_ = 31 - bits;
    mark_.resize(size_t(1) << bits), flat_base_.resize(carry_block() + 1);
}

inline void Lowering::update(const Plans& plans, const Plans* before) {
    if (forward_.empty()) set_up();
    slots_ = false, copies_.clear();  // the last proposal may have been interrupted
    compares_ = before != nullptr;
    if (stamp_ > 1u << 30) {
        for (auto& marks : mark_) std::fill(marks.begin(), marks.end(), 0);
        std::fill(slot_mark_.begin(), slot_mark_.end(), 0), stamp_ = 0;
    }
    p = &plans;
    for (size_t i = 0; i < m.layers.size(); ++i)
        for (size_t u = 0; u < m.layers[i].uses.size(); ++u) {
            auto [n, k] = m.layers[i].uses[u];
            covers_[n][k] = &p->layers[i]->cover[u];
        }
    restart_ = false;
    if (before && before->collective_sums != p->collective_sums) before = nullptr;  // nearly everything may be another
    mark(before);
    walk();
    if (!restart_) return;
    mark(nullptr);
    walk();
}

inline void Lowering::mark(const Plans* before) {
    mark_forward(before);
    mark_backward();
    mark_carried(before);
    const size_t tensors = readers_.size(), layers = m.layers.size();
    shared_reads_.assign(tensors, 0), gradient_reads_.assign(tensors, 0);
    gathering_.assign(layers, 0), gradient_weights_.assign(layers, 0);
    // The others are asked only where somebody who is lowered anew may find something of theirs.
    recalls_forward_.assign(m.nodes.size() + 2, 0), recalls_backward_.assign(m.nodes.size() + 2, 0);
    auto recall = [this](std::vector<uint8_t>& recalls, int tensor) {
        for (int r : readers_of_[tensor]) recalls[r] = 1;
    };
    for (size_t n = 0; n < inputs_.size(); ++n) {
        if (forward_dirty_[n])
            for (size_t i = 0; i < inputs_[n].size(); ++i) {
                const Of of = inputs_[n][i];
                if ((n > m.nodes.size() && !carry_dirty_[i]) || sole(of) || shared_reads_[tensor(of)]) continue;
                shared_reads_[tensor(of)] = 1;
                recall(recalls_forward_, tensor(of));
            }
        if (n >= m.nodes.size() || !(forward_dirty_[n] | backward_dirty_[n])) continue;
        for (int k : layers_of_[n]) gathering_[k] |= forward_dirty_[n], gradient_weights_[k] |= backward_dirty_[n];
        if (!backward_dirty_[n]) continue;
        auto put = [&](int of) {
            if (!gradient_reads_[of]) gradient_reads_[of] = 1, recall(recalls_backward_, of);
        };
        for (Of of : inputs_[n])
            if (!sole(of)) put(tensor(of));
        for (size_t o = 0; o < m.nodes[n].itemsizes.size(); ++o) put(tensor({int(n), int(o)}));
    }
    for (size_t k = 0; k < layers; ++k)
        if (gathering_[k] | gradient_weights_[k])
            for (auto [node, _] : m.layers[k].uses)
                recalls_forward_[node] |= gathering_[k], recalls_backward_[node] |= gradient_weights_[k];
}

// An operator's forward pass is lowered anew if it changed; if what it reads has other pieces or its pieces' tasks other
// names; if others read the same and may now share with it, or do no more; if an operator whose instances it uses is; or, where
// collectives sum partial values, if it makes such and a reader changed.
inline void Lowering::mark_forward(const Plans* before) {
    const size_t n = m.nodes.size();
    changed_.assign(n + 2, 0), moved_.assign(n, !before), forward_dirty_.assign(n + 2, !before);
    layer_dirty_.assign(m.layers.size(), !before);
    forward_dirty_[n + 1] = 0;  // see `mark_carried`
    find_fresh(before);
    for (int k : fresh_) changed_[k] = moved_[k] = 1;
    if (!before) return;
    // What changes is spread from there, since in deep networks a proposal changes a hundredth of the operators.
    for (int k : fresh_) {
        for (Of of : inputs_[k]) {
            // Partial values that a changed operator reads may now be summed in another way.
            if (p->collective_sums && p->configs[of.first]->cut->outputs[of.second].partial) moved_[of.first] = 1;
            if (!sole(of))
                for (int r : readers_of_[tensor(of)]) forward_dirty_[r] |= r > k && r <= int(n);
        }
    }
    for (size_t i = 0; i < m.layers.size(); ++i) {
        const LayerPlan *was = before->layers[i].get(), *now = p->layers[i].get();
        if (was == now) continue;
        layer_dirty_[i] = 1;
        for (size_t u = 0; u < m.layers[i].uses.size(); ++u)
            if (was->gathers[u] || now->gathers[u]) moved_[m.layers[i].uses[u].first] = 1;
    }
    for (size_t k = 0; k < n; ++k) {
        if (!moved_[k]) continue;
        forward_dirty_[k] = 1;
        for (int of = tensor_base_[k], last = of + int(m.nodes[k].itemsizes.size()); of < last; ++of)
            for (int r : readers_of_[of]) forward_dirty_[r] |= r <= int(n);
    }
    for (size_t k = 0; k < n + 1; ++k) {
        if (forward_dirty_[k] || !borrows_[k]) continue;
        for (int lender : forward_[k].before().lenders) forward_dirty_[k] |= forward_dirty_[lender];
    }
    // An operator with weights of several layers brings their gradients together in one block.
    for (bool again = true; again;) {
        again = false;
        for (int n : of_several_layers_) {
            bool any = false, all = true;
            for (int k : layers_of_[n]) any |= layer_dirty_[k], all &= layer_dirty_[k] != 0;
            if (any && !all) again = true;
            if (any) for (int k : layers_of_[n]) layer_dirty_[k] = 1;
        }
    }
}

inline void Lowering::find_fresh(const Plans* before) {
    const auto* now = p->configs.data();
    const auto* was = before ? before->configs.data() : nullptr;
    fresh_.clear();
    for (int k = 0, n = nodes(); k < n; ++k)
        if (!was || was[k] != now[k]) fresh_.push_back(k);
}

// Backward: if forward is; what sums the gradients that a changed operator puts; and those that put theirs after it where
// it may have put one first.
inline void Lowering::mark_backward() {
    backward_dirty_.assign(forward_dirty_.begin(), forward_dirty_.begin() + nodes());
    for (int k : fresh_) {
        for (Of of : inputs_[k]) {
            backward_dirty_[of.first] = 1;
            for (int r : readers_of_[tensor(of)])
                if (r < k) backward_dirty_[r] = 1;
        }
        for (int layer : layers_of_[k])
            for (auto [mate, _] : m.layers[layer].uses)
                if (mate < k) backward_dirty_[mate] = 1;
    }
}

// Carried state: if who has it, who makes what it becomes, or a reader of either is lowered anew. Whose instance it copies reads
// that too.
inline void Lowering::mark_carried(const Plans* before) {
    const int n = nodes();
    carry_dirty_.assign(m.carries.size(), !before);
    uint8_t any = !before;
    for (size_t k = 0; k < m.carries.size() && before; ++k) {
        auto look = [&](int of) {
            if (of < n) carry_dirty_[k] |= changed_[of] | forward_dirty_[of] | backward_dirty_[of];
            else if (of == n) carry_dirty_[k] |= forward_dirty_[n];
        };
        for (Of of : {m.carries[k].first, m.carries[k].second}) {
            look(of.first);
            for (int r : readers_of_[tensor(of)]) look(r);
        }
        any |= carry_dirty_[k];
    }
    forward_dirty_[n + 1] = any;
    if (any && carries_share_) carry_dirty_.assign(m.carries.size(), 1);
}

inline void Lowering::walk() {
    const int n = nodes();
    instances_.clear(), uses_.clear(), puts_.clear(), gradients_.clear();
    for (size_t k = 0; k < readers_.size(); ++k)
        if (gradient_reads_[k]) readers_[k].clear();
    for (Turn* turn : turned_) turn->proposed = turn->current;
    turned_.clear();
    for (int k = 0; k < n; ++k) {
        if (forward_dirty_[k]) lower_forward(k);
        else if (recalls_forward_[k]) recall_forward(k);
    }
    if (forward_dirty_[n]) losses();
    else if (recalls_forward_[n]) recall_forward(n);
    if (m.trains) {
        for (int k = n - 1; k >= 0; --k) {
            if (!(backward_dirty_[k] | recalls_backward_[k]) || !m.nodes[k].active) continue;
            if (backward_dirty_[k]) lower_backward(k);
            else if (backward_[k].now().ran) recall_backward(k);
        }
        collect();
    }
    if (forward_dirty_[n + 1]) carry();
}

// ---- the flat task graph -------------------------------------------------------------------------------------------
inline void Lowering::append(Tasks& out, const Tasks& block, uint32_t number, uint32_t label) {
    const uint32_t at = uint32_t(out.size()), count = uint32_t(block.size()), edges = uint32_t(out.after.size());
    flat_base_[number] = at;
    if (block.blocks.empty()) out.blocks.push_back({label, at});
    for (auto [inner, place] : block.blocks) out.blocks.push_back({inner, at + place});
    if (!count) return;
    out.cost.insert(out.cost.end(), block.cost.begin(), block.cost.end());
    out.resource.insert(out.resource.end(), block.resource.begin(), block.resource.end());
    out.after_offset.resize(at + count + 1), out.after.resize(edges + block.after.size());
    for (uint32_t k = 1; k <= count; ++k) out.after_offset[at + k] = edges + block.after_offset[k];
    uint32_t* after = out.after.data() + edges;
    for (uint32_t a : block.after) *after++ = a & JOIN ? a : flat_place(a);
    for (uint32_t k = 0; k < count; ++k)
        out.waiter.insert(out.waiter.end(), block.after_offset[k + 1] - block.after_offset[k], at + k);
    for (size_t j = 0; j < block.joins(); ++j) {
        for (uint32_t k = block.join_offset[j]; k < block.join_offset[j + 1]; ++k)
            out.join_after.push_back(flat_place(block.join_after[k]));
        out.join_offset.push_back(uint32_t(out.join_after.size()));
        out.join_at.push_back(at + block.join_at[j]);
    }
    if (!described_) return;
    auto add = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    add(out.kind, block.kind), add(out.processor, block.processor), add(out.source, block.source);
    add(out.node, block.node), add(out.flops, block.flops), add(out.nbytes, block.nbytes);
}

inline void Lowering::put_together(Tasks& out) {
    const int n = nodes();
    for (int k = 0; k < n; ++k) {
        append(out, forward_[k].now().copies, copies_block(k), copies_block(k));
        append(out, forward_[k].now().work, work_block(k), work_block(k));
    }
    append(out, forward_[n].now().copies, loss_block(), loss_block());
    if (!m.trains) return;
    for (int k = n - 1; k >= 0; --k) {
        append(out, backward_[k].now().sums, sums_block(k), sums_block(k));
        append(out, backward_[k].now().work, backward_block(k), backward_block(k));
    }
    for (int k = n - 1; k >= 0; --k) append(out, collects_[k].now(), collect_block(k), COLLECT + uint32_t(n - 1 - k));
    for (int k = 0; k < int(m.layers.size()); ++k) append(out, layers_[k].now().fills, fill_block(k), COLLECT + uint32_t(n + k));
}

// ---- the same, from what was accepted last --------------------------------------------------------------------------
// A block's number is its place in program order, so in deep networks most of a step can be copied in a few long runs.
inline const Tasks& Lowering::block(uint32_t number, bool before) const {
    const uint32_t n = uint32_t(nodes());
    if (number <= loss_block()) {
        const Sides<Forward>& f = forward_[number / 2];
        const Forward& side = before ? f.before() : f.now();
        return number % 2 ? side.work : side.copies;
    }
    if (number < collect_block(nodes() - 1)) {
        const uint32_t at = number - loss_block() - 1;
        const Sides<Backward>& b = backward_[n - 1 - at / 2];
        const Backward& side = before ? b.before() : b.now();
        return at % 2 ? side.work : side.sums;
    }
    if (number < fill_block(0)) {
        const Sides<Tasks>& c = collects_[n - 1 - (number - collect_block(nodes() - 1))];
        return before ? c.before() : c.now();
    }
    const Sides<Collected>& c = layers_[number - fill_block(0)];
    return before ? c.before().fills : c.now().fills;
}

// Which blocks were lowered anew, where all of them begin, and where the tasks of what was accepted last have gone.
inline void Lowering::find_blocks(const Tasks& kept) {
    const int n = nodes();
    const uint32_t blocks = m.trains ? tail_block() : loss_block() + 1;
    anew_.assign(blocks, 0);
    for (int k = 0; k < n; ++k)
        if (forward_dirty_[k]) anew_[copies_block(k)] = anew_[work_block(k)] = 1;
    anew_[loss_block()] = forward_dirty_[n];
    if (m.trains)
        for (int k = 0; k < n; ++k) {
            if (backward_dirty_[k] && m.nodes[k].active) anew_[sums_block(k)] = anew_[backward_block(k)] = 1;
            if (!layers_of_[k].empty()) anew_[collect_block(k)] = layer_dirty_[layers_of_[k][0]];
        }
    if (m.trains)
        for (size_t layer = 0; layer < m.layers.size(); ++layer) anew_[fill_block(int(layer))] = layer_dirty_[layer];
    moved_places_ = false;
    new_place_.resize(kept.size());
    auto place = [&](uint32_t from, uint32_t end, uint32_t to) {
        moved_places_ |= from != to;
        for (uint32_t i = from; i < end; ++i) new_place_[i] = to + (i - from);
    };
    uint32_t at = 0;
    for (uint32_t b = 0, end; b < blocks; b = end) {  // a block made anew, or a run of blocks that are as they were
        const uint32_t from = kept.blocks[b].second, shift = at - from;
        end = anew_[b] ? b + 1 : run_end(b);
        for (uint32_t k = b; k < end; ++k) flat_base_[k] = kept.blocks[k].second + shift;
        place(from, kept.blocks[end].second, at);
        at += anew_[b] ? uint32_t(block(b, false).size()) : kept.blocks[end].second - from;
    }
    flat_base_[carry_block()] = at;
    place(kept.blocks[blocks].second, uint32_t(kept.size()), at);
}
inline uint32_t Lowering::run_end(uint32_t first) const {
    const void* found = std::memchr(anew_.data() + first, 1, anew_.size() - first);
    return found ? uint32_t(static_cast<const uint8_t*>(found) - anew_.data()) : uint32_t(anew_.size());
}

// Blocks first to end - 1 as they are in what was accepted last.
inline void Lowering::copy(Tasks& out, const Tasks& kept, uint32_t first, uint32_t end) {
    const uint32_t from = kept.blocks[first].second;
    const uint32_t to = end < kept.blocks.size() ? kept.blocks[end].second : uint32_t(kept.size());
    const uint32_t at = uint32_t(out.size()), edges = uint32_t(out.after.size()), count = to - from;
    out.blocks.insert(out.blocks.end(), kept.blocks.begin() + first, kept.blocks.begin() + end);
    for (auto of = out.blocks.end() - (end - first); of != out.blocks.end(); ++of) of->second += at - from;
    out.cost.insert(out.cost.end(), kept.cost.begin() + from, kept.cost.begin() + to);
    out.resource.insert(out.resource.end(), kept.resource.begin() + from, kept.resource.begin() + to);
    const uint32_t edge = kept.after_offset[from], last = kept.after_offset[to];
    out.after_offset.resize(at + count + 1), out.after.resize(edges + (last - edge));
    for (uint32_t k = 1; k <= count; ++k) out.after_offset[at + k] = kept.after_offset[from + k] - edge + edges;
    uint32_t* after = out.after.data() + edges;
    const uint32_t* old = kept.after.data() + edge;
    if (moved_places_) for (uint32_t k = 0; k < last - edge; ++k) after[k] = new_place_[old[k]];
    else std::copy_n(old, last - edge, after);
    out.waiter.resize(edges + (last - edge));
    for (uint32_t k = 0; k < last - edge; ++k) out.waiter[edges + k] = kept.waiter[edge + k] + (at - from);
}

inline void Lowering::put_together(Tasks& out, const Tasks& kept) {
    find_blocks(kept);
    const uint32_t blocks = uint32_t(anew_.size());
    out.work = kept.work;
    for (uint32_t b = 0, end; b < blocks; b = end) {
        end = run_end(b);
        if (end > b) copy(out, kept, b, end);
        for (; end < blocks && anew_[end]; ++end) {
            const Tasks &now = block(end, false), &was = block(end, true);
            append(out, now, end, kept.blocks[end].first);
            if (&now != &was) add_work(out, was, -1.0), add_work(out, now, 1.0);
        }
    }
}

// Seconds by what is occupied, without taking routes apart. Differences of sums lose some of the last digits, so now and then it is
// counted from nothing.
inline void Lowering::add_work(Tasks& out, const Tasks& block, double sign) const {
    out.work.resize(size_t(m.processors) + m.routes.offset.size() - 1, 0.0);
    for (size_t i = 0; i < block.size(); ++i)
        out.work[block.resource[i] >= 0 ? block.resource[i] : m.processors - 1 - block.resource[i]] += sign * block.cost[i];
}
inline void Lowering::count_work(Tasks& out, const Tasks* kept) const {
    const Sides<Forward>& carried = forward_[nodes() + 1];
    if (kept && kept->age < MOST_AGE) {
        out.age = kept->age + 1;
        if (&carried.now() == &carried.before()) return;
        add_work(out, carried.before().copies, -1.0), add_work(out, carried.now().copies, 1.0);
    } else {
        out.age = 0, out.work.clear();
        add_work(out, out, 1.0);
    }
}

// What stands behind the slots, as joins: of every member and cell of the layer the task that wrote its gradient, then
// those that read its weights.
inline void Lowering::append_slots(Tasks& out, const Collected& layer) {
    const uint32_t edges = uint32_t(out.join_after.size());
    out.join_after.resize(edges + layer.slot_after.size());
    const uint32_t places = (1u << shift_) - 1;
    for (size_t k = 0; k < layer.slot_after.size(); ++k)  // none is of synchronisation itself, as `flat_place` also allows
        out.join_after[edges + k] = flat_base_[layer.slot_after[k] >> shift_] + (layer.slot_after[k] & places);
    const size_t joins = out.join_offset.size(), slots = layer.slot_offset.size() - 1;
    out.join_offset.resize(joins + slots);
    for (size_t k = 0; k < slots; ++k) out.join_offset[joins + k] = edges + layer.slot_offset[k + 1];
}

inline double Lowering::longest_path(const Tasks& tasks) {  // of tasks that have no joins yet
    double longest = 0;
    path_.resize(tasks.size());
    for (size_t task = 0; task < tasks.size(); ++task) {
        double ready = 0;
        for (uint32_t k = tasks.after_offset[task]; k < tasks.after_offset[task + 1]; ++k)
            ready = std::max(ready, path_[tasks.after[k]]);
        path_[task] = ready + tasks.cost[task];
        longest = std::max(longest, path_[task]);
    }
    return longest;
}

}  // namespace taskflow
