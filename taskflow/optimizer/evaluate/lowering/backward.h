// Backward tasks: what forward reads, backward reduces into.
// The definition is tasks/lower/backward.py; tests/optimizer/evaluate/test_core_equal.py holds them equal.
#pragma once

#include "evaluate/lowering/lower.h"

namespace taskflow {

inline void Lowering::lower_backward(int n) {
    const NodeInfo& node = m.nodes[n];
    const Cut& cut = *p->configs[n]->cut;
    const size_t outs = node.itemsizes.size();
    const Backward& was = backward_[n].before();
    Backward& made = backward_[n].renew(turned_);
    made.clear();
    open(made.sums, sums_block(n));
    auto& base = bases_;
    base.assign(outs, -1);
    size_t slots = 0;
    for (size_t o = 0; o < outs; ++o) {
        if (!gather(n, int(o), slots)) continue;
        made.ran = true;
        base[o] = int64_t(slots);
        slots += gradients(cut, int(o));
    }
    // Whom its gradients concern was marked as if it runs when it ran before.
    if (!changed_[n] && made.ran != was.ran) restart_ = true;
    if (!made.ran) return;
    copied_.assign(size_t(cut.pieces) * outs, NOWHERE);
    shared_.clear();
    for (size_t o = 0; o < outs; ++o)
        if (base[o] >= 0 && cut.outputs[o].partial) share(n, int(o), size_t(base[o]));
    open(made.work, backward_block(n));
    for (int piece = 0; piece < cut.pieces; ++piece) backward_piece(n, piece, made);
}

inline void Lowering::backward_piece(int n, int piece, Backward& made) {
    const NodeInfo& node = m.nodes[n];
    const Config& config = *p->configs[n];
    const Cut& cut = *config.cut;
    const Forward& f = forward_[n].now();
    const size_t outs = node.itemsizes.size(), ins = node.inputs.size(), params = node.parameters.size();
    const int processor = config.processors[piece];
    const uint32_t* copied = &copied_[size_t(piece) * outs];
    const Ref *instance = f.input.data() + piece * ins, *gathered = f.gathered.data() + piece * params;
    begin();
    int64_t nbytes = cut.saved_bytes[piece];
    if (node.keeps_inputs) {
        for (size_t i = 0; i < ins; ++i) wait_filled(instance[i]);
        nbytes += cut.input_bytes[piece];
    }
    if (node.keeps_weights) {
        for (size_t k = 0; k < params; ++k) wait_filled(gathered[k]);
        nbytes += cut.weight_bytes[piece];
    }
    if (node.keeps_outputs) {
        for (size_t o = 0; o < outs; ++o)
            if (!g.regions[cut.outputs[o].rect[cut.outputs[o].slot[piece]]].empty)
                wait(f.writer[o * cut.pieces + piece]);
        nbytes += cut.output_bytes[piece];
    }
    if (cut.saved_bytes[piece] > 0) wait(f.first[piece]);
    for (size_t o = 0; o < outs; ++o) {
        if (bases_[o] < 0) continue;
        const int32_t slot = cut.outputs[o].slot[piece];
        if (copied[o] != NOWHERE) wait(shared_[copied[o]]);
        else
            for (int32_t task : slot_after_[bases_[o] + (cut.local ? piece : slot)]) wait(task);
        nbytes += g.regions[cut.outputs[o].rect[slot]].volume * node.itemsizes[o];
    }
    // Gradients that are there already are added to.
    const int32_t task = int32_t(base_ | uint32_t(t->size()));
    bool fresh;
    for (size_t i = 0; i < ins; ++i) {
        if (instance[i].none() || !wants_gradient(node.inputs[i])) continue;
        const Of of = node.inputs[i];
        Reader& reader = put(n, f, int(i), piece, fresh);
        if (!fresh && reader.last != task) wait(reader.last);
        reader.last = task;
        nbytes += (fresh ? 1 : 2) * g.regions[reader.region].volume * m.nodes[of.first].itemsizes[of.second];
    }
    for (size_t k = 0; k < params; ++k) {
        const Region& region = g.regions[g.lists[cut.weights[k]][piece]];
        if (region.empty || !is_trained(n, int(k))) continue;
        int64_t& last = weight_gradient(n, int(k), piece, fresh);
        if (!fresh && last != task) wait(int32_t(last));
        last = task;
        nbytes += (fresh ? 1 : 2) * region.volume * m.parameters[node.parameters[k]].gradient_bytes();
    }
    const double cost = m.seconds(BACKWARD, processor, cut.backward_flops[piece], nbytes, cut.id, cut.like[piece], n);
    made.task.push_back(end(BACKWARD, processor, cut.backward_flops[piece], nbytes, cost, n));
    if (node.keeps_inputs)
        for (size_t i = 0; i < ins; ++i) read_state(made.state_reads, node.inputs[i], instance[i], task);
}

// The gradient that a piece puts for an input; ``fresh``: nobody has put it before.
inline Lowering::Reader& Lowering::put(int n, const Forward& f, int i, int piece, bool& fresh) {
    const NodeInfo& node = m.nodes[n];
    const Config& config = *p->configs[n];
    const int of = tensor(node.inputs[i]), processor = config.processors[piece];
    const int32_t region = g.lists[config.cut->inputs[i]][piece];
    auto& readers = readers_[of];
    fresh = true;
    if (!(config.apart && node.sole[i])) {
        int64_t& place = puts_.lookup(read_key(of, processor, region), fresh);
        if (!fresh) return readers[place];
        place = int64_t(readers.size());
    }
    readers.push_back({processor, region, NONE, f.edges[i], piece});
    return readers.back();
}
inline int64_t& Lowering::weight_gradient(int n, int k, int piece, bool& fresh) {
    const Config& config = *p->configs[n];
    return gradients_.lookup(read_key(m.nodes[n].parameters[k], config.processors[piece],
                                      g.lists[config.cut->weights[k]][piece]), fresh);
}

// What operators before it find of one that is not lowered anew.
inline void Lowering::recall_backward(int n) {
    const NodeInfo& node = m.nodes[n];
    const Backward& made = backward_[n].now();
    const Forward& f = forward_[n].now();
    const size_t ins = node.inputs.size();
    bool here = false;
    for (size_t i = 0; i < ins; ++i) here |= gradient_reads_[tensor(node.inputs[i])] != 0;
    for (int layer : layers_of_[n]) here |= gradient_weights_[layer] != 0;
    if (!here) return;
    bool fresh;
    for (size_t piece = 0; piece < made.task.size(); ++piece) {
        for (size_t i = 0; i < ins; ++i)
            if (wants_gradient(node.inputs[i]) && gradient_reads_[tensor(node.inputs[i])] && !f.input[piece * ins + i].none())
                put(n, f, int(i), int(piece), fresh).last = made.task[piece];
        for (size_t k = 0; k < node.parameters.size(); ++k)
            if (gradient_weights_[layer_of(n, int(k))] && is_trained(n, int(k)) && !g.regions[g.lists[p->configs[n]->cut->weights[k]][piece]].empty)
                weight_gradient(n, int(k), int(piece), fresh) = made.task[piece];
    }
}

}  // namespace taskflow
