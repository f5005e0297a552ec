// The forward pass: copies that fill the instances that pieces read, gathered weights, tasks, and sums of partial outputs.
// The definition is tasks/lower/forward.py; tests/optimizer/evaluate/test_core_equal.py holds them equal.
#pragma once

#include "evaluate/lowering/lower.h"

namespace taskflow {

inline void Lowering::lend(Forward& f, int reader, Ref from) {
    if (from.node == reader) return;
    borrows_[reader] = 1;
    if (std::find(f.lenders.begin(), f.lenders.end(), from.node) == f.lenders.end()) f.lenders.push_back(from.node);
}

// Fills the instances that `want` has made since the last time.
inline void Lowering::bring(Forward& f) {
    in_rounds(copies_, [&](const Copy& c) {
        begin();
        wait(c.writer);
        const int32_t task = end_transfer(c.giver, c.taker, c.nbytes, c.runs);
        if (c.state >= 0) f.state_reads.push_back({c.tensor, c.state, task});
        f.deps[c.at] = task;
    });
}

// The instance of list[piece] of a tensor on a processor, none for an empty Rect; `bring` emits what fills it.
// ``alone``: no other task on this processor reads the tensor, so there is no instance yet and none to remember.
inline Ref Lowering::want(int reader, Forward& f, Of of, int list, int piece, int processor, const Edge& edge, bool alone) {
    const int32_t region = g.lists[list][piece];
    if (g.regions[region].empty) return {};
    const Ref made{reader, int32_t(f.instances.size())};
    if (!alone) {
        bool fresh;
        int64_t& found = instances_.lookup(read_key(tensor(of), processor, region), fresh);
        if (!fresh) {
            lend(f, reader, unpacked(found));
            return unpacked(found);
        }
        found = packed(made);
    }
    const Config& producer = *p->configs[of.first];
    const Output& output = producer.cut->outputs[of.second];
    const Overlap *first = &edge.overlaps[edge.offset[piece]], *last = &edge.overlaps[edge.offset[piece + 1]];
    const Forward& made_by = forward_[of.first].now();
    const int32_t* writer = &made_by.writer[of.second * producer.cut->pieces];
    const bool state = m.nodes[of.first].state;
    Instance instance{uint32_t(f.deps.size()), 0, NONE};
    auto source = [&](const Overlap& o) {
        if (producer.cut->local) return producer.nearest(output.pieces[o.slot], processor);
        return made_by.nearest(of.second, o.slot, output.first_piece[o.slot], processor);
    };
    if (last - first == 1 && first->runs_there == 1 && producer.processors[source(*first)] == processor) {
        if (state) instance.state_slot = first->slot;
        f.deps.push_back(writer[source(*first)]);
    } else {
        const int itemsize = m.nodes[of.first].itemsizes[of.second];
        for (const Overlap* o = first; o != last; ++o) {
            const int owner = source(*o);
            copies_.push_back({writer[owner], producer.processors[owner], processor, o->volume * itemsize,
                               state ? int32_t(o->slot) : NONE, tensor(of), uint32_t(f.deps.size()),
                               {o->runs_there, o->runs_here}});
            f.deps.push_back(NONE);
        }
    }
    instance.count = uint32_t(f.deps.size()) - instance.after;
    f.instances.push_back(instance);
    return made;
}

inline void Lowering::wait_filled(Ref r) {
    if (r.none()) return;
    const Forward& f = forward_[r.node].now();
    const Instance& i = f.instances[r.at];
    for (uint32_t k = i.after; k < i.after + i.count; ++k) wait(f.deps[k]);
}

inline void Lowering::read_state(std::vector<StateRead>& reads, Of of, Ref r, int32_t task) const {
    if (!m.nodes[of.first].state || r.none()) return;
    const int32_t slot = instance(r).state_slot;
    if (slot >= 0) reads.push_back({tensor(of), slot, task});
}

// What a piece's weight is gathered into; none if it is a single cell as it lies.
inline Ref Lowering::use_weight(int n, Forward& f, int k, int piece, int processor) {
    const int layer = layer_of(n, k), parameter = m.nodes[n].parameters[k];
    const int32_t cover = cover_of(n, k, piece);
    if (cover < 0) return {};
    const auto& cells = plan_of(layer).covers[cover];
    if (cells.size() == 1) return {};
    const Ref made{n, int32_t(f.instances.size())};
    bool fresh;
    int64_t& found = uses_.lookup(
        read_key(parameter, processor, g.lists[p->configs[n]->cut->weights[k]][piece]), fresh);
    if (!fresh) {
        lend(f, n, unpacked(found));
        return unpacked(found);
    }
    found = packed(made);
    Instance gathered{uint32_t(f.deps.size()), uint32_t(cells.size()), NONE};
    for (size_t j = 0; j < cells.size(); ++j) {
        const int64_t volume = plan_of(layer).bundles[cells[j].bundle].cells[cells[j].cell].volume;
        begin();
        const int32_t task = end(MOVE, processor, 0, 2 * volume * m.parameters[parameter].itemsize, cells[j].runs);
        f.moves.push_back({piece, k, int32_t(j), task});
        f.deps.push_back(task);
    }
    f.instances.push_back(gathered);
    return made;
}

inline void Lowering::lower_forward(int n) {
    const NodeInfo& node = m.nodes[n];
    const Config& config = *p->configs[n];
    const Cut& cut = *config.cut;
    const size_t ins = node.inputs.size(), params = node.parameters.size(), outs = node.itemsizes.size();
    Forward& f = forward_[n].renew(turned_);
    f.clear();
    f.writer.assign(outs * cut.pieces, NONE), f.first.assign(cut.pieces, NONE);
    f.input.resize(cut.pieces * ins), f.gathered.assign(cut.pieces * params, Ref{});
    if (node.state) return;
    for (size_t i = 0; i < ins; ++i) {
        const Of of = node.inputs[i];
        f.edges.push_back(&g.edge(*p->configs[of.first]->cut, of.second, cut.inputs[i]));
    }
    open(f.copies, copies_block(n));
    for (int piece = 0; piece < cut.pieces; ++piece)
        for (size_t i = 0; i < ins; ++i)
            f.input[piece * ins + i] = want(n, f, node.inputs[i], cut.inputs[i], piece, config.processors[piece],
                                            *f.edges[i], config.apart && node.sole[i]);
    bring(f);
    open(f.work, work_block(n));
    for (int piece = 0; piece < cut.pieces; ++piece) {
        const int processor = config.processors[piece];
        const Ref *instance = &f.input[piece * ins];
        Ref* gathered = &f.gathered[piece * params];
        for (size_t k = 0; k < params; ++k) gathered[k] = use_weight(n, f, int(k), piece, processor);
        begin();
        for (size_t i = 0; i < ins; ++i) wait_filled(instance[i]);
        for (size_t k = 0; k < params; ++k) wait_filled(gathered[k]);
        const int64_t nbytes = cut.input_bytes[piece] + cut.weight_bytes[piece] + cut.output_bytes[piece] +
                               cut.saved_bytes[piece];
        const double cost = m.seconds(FORWARD, processor, cut.flops[piece], nbytes, cut.id, cut.like[piece], n);
        const int32_t task = end(FORWARD, processor, cut.flops[piece], nbytes, cost, n);
        f.first[piece] = task;
        for (size_t o = 0; o < outs; ++o) f.writer[o * cut.pieces + piece] = task;
        for (size_t i = 0; i < ins; ++i) read_state(f.state_reads, node.inputs[i], instance[i], task);
    }
    for (size_t o = 0; o < outs; ++o)
        if (cut.outputs[o].partial) sum_partial(n, f, int(o));
}

// What later readers of the same tensors and weights find, of an operator that is not lowered anew.
inline void Lowering::recall_forward(int n) {
    const Forward& f = forward_[n].now();
    const auto& inputs = inputs_[n];
    const size_t ins = inputs.size();
    for (size_t i = 0; i < ins; ++i) {
        if (!shared_reads_[tensor(inputs[i])] || f.input.empty()) continue;
        for (size_t piece = 0; piece * ins < f.input.size(); ++piece) {
            const Ref r = f.input[piece * ins + i];
            if (r.none() || r.node != n) continue;
            bool fresh;
            const int processor = n < nodes() ? p->configs[n]->processors[piece] : 0;
            const int list = n < nodes() ? p->configs[n]->cut->inputs[i] : m.loss_lists[i];
            int64_t& found = instances_.lookup(read_key(tensor(inputs[i]), processor, g.lists[list][piece]), fresh);
            if (fresh) found = packed(r);
        }
    }
    if (n >= nodes()) return;
    const size_t params = m.nodes[n].parameters.size();
    for (size_t k = 0; k < params; ++k) {
        if (!gathering_[layer_of(n, int(k))]) continue;
        for (size_t piece = 0; piece * params < f.gathered.size(); ++piece) {
            const Ref r = f.gathered[piece * params + k];
            if (r.none() || r.node != n) continue;
            bool fresh;
            int64_t& found = uses_.lookup(read_key(m.nodes[n].parameters[k], p->configs[n]->processors[piece],
                                                   g.lists[p->configs[n]->cut->weights[k]][piece]), fresh);
            if (fresh) found = packed(r);
        }
    }
}

inline void Lowering::losses() {
    const int n = nodes();
    Forward& f = forward_[n].renew(turned_);
    f.clear();
    open(f.copies, loss_block());
    for (size_t i = 0; i < m.losses.size(); ++i) {
        const Of of = m.losses[i];
        const Edge& edge = g.edge(*p->configs[of.first]->cut, of.second, m.loss_lists[i]);
        f.input.push_back(want(n, f, of, m.loss_lists[i], 0, 0, edge, false));
        bring(f);
    }
}

// Next step's state, written when this step's tasks have read the old one.
inline void Lowering::carry() {
    Forward& f = forward_[nodes() + 1].renew(turned_);
    f.clear();
    open(f.copies, carry_block());
    for (size_t k = 0; k < m.carries.size(); ++k) {
        if (carry_dirty_[k]) carry(m.carries[k].first, m.carries[k].second, f);
        else carry_as_before(k, f);
        f.carry_end.push_back(uint32_t(f.copies.size()));
    }
}
// In networks with running statistics there are hundreds of carries, of which a proposal changes a few.
inline void Lowering::carry_as_before(size_t k, Forward& f) {
    const Forward& was = forward_[nodes() + 1].before();
    const Tasks& old = was.copies;
    const uint32_t first = k ? was.carry_end[k - 1] : 0, last = was.carry_end[k], at = uint32_t(t->size());
    for (uint32_t i = first; i < last; ++i) {
        for (uint32_t e = old.after_offset[i]; e < old.after_offset[i + 1]; ++e) {
            const uint32_t task = old.after[e];
            t->after.push_back(task >> shift_ == carry_block() ? task + (at - first) : task);
        }
        t->add(old.resource[i], old.cost[i]);
        added();
    }
}
inline void Lowering::carry(Of carried, Of becomes, Forward& f) {
    const int reader = nodes() + 1;
    const Config& config = *p->configs[carried.first];
    const Output& output = config.cut->outputs[carried.second];
    const int itemsize = m.nodes[carried.first].itemsizes[carried.second], list = config.cut->writes[carried.second];
    auto& reads = carry_reads_;
    if (reads.size() < output.rect.size()) reads.resize(output.rect.size());
    for (size_t slot = 0; slot < output.rect.size(); ++slot) reads[slot].clear();
    auto note = [&](const std::vector<StateRead>& of_reader) {
        for (const StateRead& r : of_reader)
            if (r.tensor == tensor(carried)) reads[r.slot].push_back(r.task);
    };
    int last = NONE;
    for (int r : readers_of_[tensor(carried)]) {
        if (r == last) continue;
        last = r;
        note(forward_[r].now().state_reads);
        if (r < nodes() && m.trains) note(backward_[r].now().state_reads);
    }
    const Edge& edge = g.edge(*p->configs[becomes.first]->cut, becomes.second, list);
    for (size_t slot = 0; slot < output.rect.size(); ++slot) {
        const int piece = output.first_piece[slot], processor = config.processors[piece];
        const Ref source = want(reader, f, becomes, list, piece, processor, edge, false);
        bring(f);
        begin();
        wait_filled(source);
        for (int32_t task : reads[slot]) wait(task);
        end(MOVE, processor, 0, 2 * g.regions[output.rect[slot]].volume * itemsize);
    }
}

// The pieces that write a slot, one a processor: those of one processor are added there, in order.
inline void Lowering::add_locally(int n, int o, size_t slot, int32_t* writer) {
    const Config& config = *p->configs[n];
    const Output& output = config.cut->outputs[o];
    const int64_t volume = g.regions[output.rect[slot]].volume, nbytes = volume * m.nodes[n].itemsizes[o];
    kept_.clear(), more_.clear();
    for (int32_t piece : output.pieces[slot]) {
        const int processor = config.processors[piece];
        auto same = std::find_if(kept_.begin(), kept_.end(), [&](int32_t k) { return config.processors[k] == processor; });
        if (same == kept_.end()) { kept_.push_back(piece); continue; }
        auto group = std::find_if(more_.begin(), more_.end(), [&](auto& e) { return e.first == *same; });
        if (group == more_.end()) more_.push_back({*same, {piece}});
        else group->second.push_back(piece);
    }
    for (auto& [target, extra] : more_) {
        begin();
        for (int32_t piece : extra) wait(writer[piece]);
        wait(writer[target]);
        writer[target] = end(SUM, config.processors[target], volume * int64_t(extra.size()),
                             nbytes * int64_t(extra.size() + 2));
    }
}

// Which slots of an output an all-reduce sums: those written on several processors, each of which also reads some of it.
inline void Lowering::find_summed(int n, Forward& f, int o) {
    const Config& config = *p->configs[n];
    const Output& output = config.cut->outputs[o];
    const size_t first = f.summed.size();
    for (size_t s = 0; s < output.rect.size(); ++s) {
        if (output.pieces[s].size() < 2 || g.regions[output.rect[s]].empty) continue;
        const uint32_t from = uint32_t(f.summed_at.size());
        auto& at = f.summed_at;
        for (int32_t piece : output.pieces[s]) at.push_back({config.processors[piece], piece});
        std::sort(at.begin() + from, at.end());
        at.erase(std::unique(at.begin() + from, at.end(), [](auto& a, auto& b) { return a.first == b.first; }), at.end());
        if (at.size() - from < 2) at.resize(from);
        else f.summed.push_back({int32_t(o), int32_t(s), from, uint32_t(at.size())});
    }
    if (first == f.summed.size()) return;
    reads_there_.assign(f.summed_at.size(), 0);
    int last = NONE;
    for (int r : readers_of_[tensor({n, o})]) {
        if (r == last || r >= nodes()) continue;  // once for all its inputs; losses and carried state come elsewhere
        last = r;
        const Config& reader = *p->configs[r];
        for (size_t i = 0; i < m.nodes[r].inputs.size(); ++i) {
            if (m.nodes[r].inputs[i] != Of(n, o)) continue;
            const Edge& edge = g.edge(*config.cut, o, reader.cut->inputs[i]);
            for (int piece = 0; piece < reader.cut->pieces; ++piece)
                for (uint32_t k = edge.offset[piece]; k < edge.offset[piece + 1]; ++k) {
                    const SummedSlot* s = f.find_summed(o, edge.overlaps[k].slot);
                    if (!s) continue;
                    auto end = f.summed_at.begin() + s->last;
                    auto at = std::lower_bound(f.summed_at.begin() + s->first, end,
                                               std::make_pair(reader.processors[piece], NONE));
                    if (at != end && at->first == reader.processors[piece]) reads_there_[at - f.summed_at.begin()] = 1;
                }
        }
    }
    f.summed.erase(std::remove_if(f.summed.begin() + first, f.summed.end(), [&](const SummedSlot& s) {
        return std::find(reads_there_.begin() + s.first, reads_there_.begin() + s.last, 0) != reads_there_.begin() + s.last;
    }), f.summed.end());
}

// tasks/lower/forward.py: collectives where all that wrote a slot read it too, else sums at the owners, after the sums within each
// processor.
inline void Lowering::sum_partial(int n, Forward& f, int o) {
    const Config& config = *p->configs[n];
    const Output& output = config.cut->outputs[o];
    int32_t* writer = &f.writer[o * config.cut->pieces];
    if (p->collective_sums) {
        const size_t first = f.summed.size();
        find_summed(n, f, o);
        for (size_t k = first; k < f.summed.size(); ++k) {
            const SummedSlot& s = f.summed[k];
            const int64_t volume = g.regions[output.rect[s.slot]].volume;
            add_locally(n, o, s.slot, writer);
            begin();
            for (uint32_t i = s.first; i < s.last; ++i) wait(writer[f.summed_at[i].second]);
            const int32_t task = end_all_reduce(f, s, volume, m.nodes[n].itemsizes[o]);
            for (uint32_t i = s.first; i < s.last; ++i) writer[f.summed_at[i].second] = task;
        }
    }
    std::vector<int32_t> arrived;
    std::vector<std::pair<size_t, uint32_t>> sums;  // slot, end of its places in arrived
    for (size_t s = 0; s < output.rect.size(); ++s) {
        if (output.pieces[s].size() < 2 || (!f.summed.empty() && f.find_summed(o, int(s)))) continue;
        const int64_t nbytes = g.regions[output.rect[s]].volume * m.nodes[n].itemsizes[o];
        add_locally(n, o, s, writer);
        if (kept_.size() < 2) continue;
        for (size_t k = 1; k < kept_.size(); ++k) {
            copies_.push_back({writer[kept_[k]], config.processors[kept_[k]], config.processors[kept_[0]], nbytes, NONE, NONE,
                               uint32_t(arrived.size())});
            arrived.push_back(NONE);
        }
        sums.push_back({s, uint32_t(arrived.size())});
    }
    in_rounds(copies_, [&](const Copy& c) {
        begin();
        wait(c.writer);
        arrived[c.at] = end_copy(c.giver, c.taker, c.nbytes);
    });
    uint32_t k = 0;
    for (auto [s, last] : sums) {
        const int64_t volume = g.regions[output.rect[s]].volume, nbytes = volume * m.nodes[n].itemsizes[o];
        const int64_t count = last - k;
        const int32_t owner = output.pieces[s][0];
        begin();
        for (; k < last; ++k) wait(arrived[k]);
        wait(writer[owner]);
        writer[owner] = end(SUM, config.processors[owner], volume * count, nbytes * (count + 2));
    }
}

}  // namespace taskflow
