// Taking over from the simulation that was kept last what only moves in time: exact, since simulated times are on a grid.
//
// A step that comes to the state that a kept one was in, but for the time, goes on like it, everything later by the same time,
// until something that is in only one of the two is taken or becomes ready. Two states are the same, but for the time, if
// - the same common tasks have ended in both, and nothing that is not common waits in the queue here, or is on its way between
//   two links there;
// - the last turns of both, from some turn on, are turns of the same tasks whose ends, on all that they took, differ by the same
//   time; and
// - all that was taken before these turns had ended when the last of them was taken: then whatever is still to come becomes
//   ready by an end of these turns, and waits for nothing older.
// So once a proposal's changes have had their effect, mostly a few layers later, the rest of the forward pass is one leap, and
// so is most of the backward pass, where the paper's delta algorithm would update every task. Nothing that a leap passes over is
// looked at: what a later task waits for is found out when it is asked for.
#pragma once

#include "evaluate/simulation/by_fragment.h"

namespace taskflow {

inline void Apart::prepare(const Lowering& lowering, const Tasks& kept_around) {
    begin_log();
    window_ = 1, synced_ = strangers_ = ended_common_ = highest_ = 0, any_ = anchored_ = false, anchor_most_ = anchor_old_ = -1;
    strange_.assign(n_ + 1, 0), common_.assign(layers_->size(), 0), old_place_.assign(n_ + 1, Past::NEVER);
    ended_.assign(n_ + 1, -1.0), seen_.assign(n_ + 1, 0), more_.assign(n_, Past::NEVER);
    new_place_.assign(kept_.places.size(), Past::NEVER);
    compare(lowering, kept_around);
    queue_.clear();
    if (leap(0, 0.0)) return;
    for (uint32_t i = 0; i < n_; ++i) {
        if (around_->after_offset[i] != around_->after_offset[i + 1]) continue;
        arrange(i), queue(i, events_[i]);
        strangers_ += strange_[i];
    }
    make_mark(0.0);
}

// What is common, the positions of the kept run that must not be leapt over, and who follows what in this run alone.
inline void Apart::compare(const Lowering& lowering, const Tasks& kept_around) {
    const Tasks& t = *around_;
    const std::vector<uint8_t>& same = lowering.same();
    const uint32_t blocks = uint32_t(same.size());
    diverging_.clear(), lost_.clear(), strangers_all_.clear(), others_.clear(), differing_.clear();
    auto begins = [&](uint32_t block) { return block < blocks ? t.blocks[block].second : n_; };
    auto share = [&](uint32_t now, uint32_t old, uint32_t count) {
        for (uint32_t i = 0; i < count; ++i) old_place_[now + i] = old + i, new_place_[old + i] = now + i;
    };
    auto lose = [&](uint32_t old) {
        if (kept_.places[old].taken == Past::NEVER) return;
        diverging_.push_back(kept_.places[old].taken), lost_.push_back(kept_.places[old].finished);
    };
    for (uint32_t b = 0; b < blocks;) {
        const void* found = std::memchr(same.data() + b, 0, blocks - b);
        const uint32_t end = found ? uint32_t(static_cast<const uint8_t*>(found) - same.data()) : blocks;
        share(begins(b), kept_.firsts[b], begins(end) - begins(b));
        if (end == blocks) break;
        if (end + 1 == blocks)
            for (const Stretch& s : lowering.carried_alike()) share(begins(end) + s.now, kept_.firsts[end] + s.was, s.count);
        for (uint32_t i = begins(end); i < begins(end + 1); ++i)
            if (old_place_[i] == Past::NEVER) strange_[i] = 1, strangers_all_.push_back(i);
        for (uint32_t i = kept_.firsts[end]; i < kept_.firsts[end + 1]; ++i)
            if (new_place_[i] == Past::NEVER) lose(i);
        differing_.push_back(end);
        b = end + 1;
    }
    // Common tasks that wait for one that is not are strange, too.
    for (uint32_t b : differing_) look_around(lowering, b);
    // What is strange becomes ready at the last of those that it waits for, or at once.
    auto ready_after = [&](uint32_t who, const uint32_t* from, const uint32_t* end) {
        uint32_t last = 0;
        bool any = from == end;
        for (; from < end; ++from) {
            others_.push_back({who, more_[*from]}), more_[*from] = uint32_t(others_.size()) - 1;
            const uint32_t old = old_place_[*from];
            if (old != Past::NEVER) last = std::max(last, kept_.places[old].finished), any = true;
        }
        if (any) diverging_.push_back(last);
    };
    for (uint32_t i : strangers_all_) {
        if (old_place_[i] != Past::NEVER) diverging_.push_back(kept_.places[old_place_[i]].taken);
        ready_after(i, t.after.data() + t.after_offset[i], t.after.data() + t.after_offset[i + 1]);
    }
    // Layers: those of which something differs, or may, are compared; of the others only the fragment.
    for (uint32_t b : differing_)
        for (uint32_t k : lowering.layer_readers(b)) common_[k] = 2;
    for (uint32_t k = 0; k < layers_->size(); ++k) {
        const Layer& layer = (*layers_)[k];
        const bool asked = common_[k] || lowering.renewed(int(k));
        common_[k] = layer.trained && layer.fragment && kept_.base[k] != NOWHERE && accepted_layers_[k].fragment == layer.fragment &&
                     (!asked || alike(k, kept_around));
        if (common_[k]) continue;
        if (kept_.base[k] != NOWHERE)
            for (uint32_t i = 0; i < accepted_layers_[k].fragment->size(); ++i) lose(kept_.base[k] + i);
        if (!layer.trained) continue;
        for (uint32_t s = layer.first_slot; s < layer.first_slot + layer.slots; ++s)
            ready_after(s | SLOT, t.join_after.data() + t.join_offset[s], t.join_after.data() + t.join_offset[s + 1]);
    }
    std::sort(diverging_.begin(), diverging_.end()), std::sort(lost_.begin(), lost_.end());
}
// A block that differs: which common tasks wait for one of its tasks that is not common.
inline void Apart::look_around(const Lowering& lowering, uint32_t block) {
    const Tasks& t = *around_;
    const uint32_t last = uint32_t(t.blocks.size()) - 1;
    auto look = [&](uint32_t b) {
        const uint32_t end = b < last ? t.blocks[b + 1].second : n_;
        for (uint32_t i = t.blocks[b].second; i < end; ++i)
            for (uint32_t k = t.after_offset[i]; k < t.after_offset[i + 1] && !strange_[i]; ++k)
                if (old_place_[t.after[k]] == Past::NEVER) strange_[i] = 1, strangers_all_.push_back(i);
    };
    look(block);
    if (block == last) return;
    for (uint32_t reader : lowering.readers(block)) look(std::min(reader, last));
}
// Whether what fills a layer's slots is as it was.
inline bool Apart::alike(uint32_t k, const Tasks& kept_around) const {
    const Layer& layer = (*layers_)[k];
    const Tasks& now = *around_;
    for (uint32_t s = layer.first_slot, was = accepted_layers_[k].first_slot; s < layer.first_slot + layer.slots; ++s, ++was) {
        uint32_t from = now.join_offset[s], old = kept_around.join_offset[was];
        const uint32_t end = now.join_offset[s + 1];
        if (end - from != kept_around.join_offset[was + 1] - old) return false;
        for (; from < end; ++from, ++old)
            if (old_place_[now.join_after[from]] != kept_around.join_after[old]) return false;
    }
    return true;
}

// ---- going on elsewhere --------------------------------------------------------------------------------------------
inline uint32_t Apart::lost_before(uint32_t position) const {
    return uint32_t(std::lower_bound(lost_.begin(), lost_.end(), position) - lost_.begin());
}

// Whether something that must not be leapt over is on its way between two links at a mark of the kept run: its first turn was before.
inline bool Apart::on_its_way(uint32_t at) {
    for (uint32_t w = kept_.marks[at].waiting; w < kept_.marks[at + 1].waiting; ++w) {
        const uint32_t old = kept_.waiting[w].task;
        if (kept_.places[old].taken >= kept_.marks[at].position) continue;
        if (old >= kept_.firsts.back() ? !common_[layer_at(kept_.joined, old)] : new_place_[old] == Past::NEVER || strange_[new_place_[old]])
            return true;
    }
    return false;
}

// From mark `from` of the kept run, whose state is this one's but for the time, as far as both go the same way. False if that
// is not as far as the next mark.
inline bool Apart::leap(uint32_t from, double later) {
    if (!(most_ < Past::EXACT && kept_.makespan() < Past::EXACT && std::abs(later) < Past::EXACT)) return false;
    const Past::Mark& mark = kept_.marks[from];
    if (from + 1 == kept_.marks.size() || on_its_way(from)) return false;
    const auto next = std::lower_bound(diverging_.begin(), diverging_.end(), mark.position);
    const uint32_t to = next == diverging_.end() ? uint32_t(kept_.marks.size()) - 1 : kept_.mark_from(*next + 1) - 1;
    if (to <= from) return false;
    const Part part{mark.position, kept_.marks[to].position, later, finals_ - mark.finals, true, uint32_t(changed_.size())};
    for (size_t r = 0; r < stride_; ++r) {
        const Resource& now = resources_[r];
        const double done = now.total - now.left;
        changed_.push_back({now.free, r < kept_.stride ? done - kept_.used[from * kept_.stride + r].done : done});
    }
    parts_.push_back({told_, uint32_t(turns_.size()), 0, 0, false, 0}), parts_.push_back(part);
    told_ = uint32_t(turns_.size());
    position_ += part.end - part.from, leapt_ += part.end - part.from;
    finals_ = part.finals + kept_.marks[to].finals;
    most_ = kept_.marks[to].most + later;
    if (next == diverging_.end()) rest_ = most_;
    else go_on_at(to, part);
    return true;
}

// The kept run's state at a mark, `part.later`, without what only that run has; nothing that only this one has is in it.
inline void Apart::go_on_at(uint32_t to, const Part& part) {
    const Past::Mark& mark = kept_.marks[to];
    ended_common_ = mark.finals - lost_before(mark.position);
    synced_ = mark.position, highest_ = 0, any_ = false, ++window_;
    anchored_ = true, expected_ = mark.position, shift_ = part.later, next_mark_ = to + 1;  // and the anchor is what it was
    queue_.clear();
    for (uint32_t w = mark.waiting; w < kept_.marks[to + 1].waiting; ++w) {
        const Past::Waiting& waiting = kept_.waiting[w];
        const uint32_t i = here(waiting.task);
        if (i == Past::NEVER || strange_[i]) continue;
        if (i < n_) arrange(i);
        events_[i].stop = waiting.stop, seen_[i] = window_;
        queue_.push(Queue::long_key(waiting.time + part.later, uint64_t(events_[i].order) << 32 | i));
    }
    for (size_t r = 0; r < std::min(stride_, kept_.stride); ++r) {
        const Past::Used& then = kept_.used[to * kept_.stride + r];
        Resource& resource = resources_[r];
        resource.free = then.free + part.later;
        resource.left = resource.total - (then.done + changed_[part.changed + r].done);
    }
    marked_ = position_;
    if (marks_every || queue_.size() <= 4 * between_) make_mark(mark.time + part.later);
}

// This run's number of a task of the kept one; its layer joins in if it has not yet.
inline uint32_t Apart::here(uint32_t old) {
    if (old < kept_.firsts.back()) return new_place_[old];
    const uint32_t k = layer_at(kept_.joined, old);
    if (!common_[k]) return Past::NEVER;
    if (base_[k] == NOWHERE) join_in(k, true);
    return base_[k] + (old - kept_.base[k]);
}
inline uint32_t Apart::layer_at(const std::vector<std::pair<uint32_t, uint32_t>>& joined, uint32_t task) const {
    return (std::upper_bound(joined.begin(), joined.end(), std::make_pair(task, ~0u)) - 1)->second;
}
inline void Apart::joined(uint32_t k) {
    const uint32_t base = base_[k], size = (*layers_)[k].fragment->size();
    joined_.push_back({base, k});
    if (!follows_) return;
    ended_.resize(events_.size(), -1.0), strange_.resize(events_.size(), !common_[k]);
    seen_.resize(events_.size(), 0);
    old_place_.resize(events_.size(), Past::NEVER);
    for (uint32_t i = 0; common_[k] && i < size; ++i) old_place_[base + i] = kept_.base[k] + i;
}

// ---- what happened in stretches leapt over -------------------------------------------------------------------------
inline bool Apart::has_ended(uint32_t task, double& end) const {
    if (ended_[task] >= 0) return end = ended_[task], true;
    const uint32_t old = old_place_[task];
    if (old == Past::NEVER || kept_.places[old].finished >= synced_) return false;
    const uint32_t position = kept_.places[old].finished;
    size_t k = parts_.size() - 1;
    while (!parts_[k].kept || parts_[k].from > position) --k;
    end = kept_.turns[position].end + parts_[k].later;
    return true;
}
inline void Apart::arrange(uint32_t i) {
    events_[i] = {0.0, around_->cost[i], 0, routes_->stop(around_->resource[i], routes_->processors()), 0, order(i)};
}
// What a task still waits for, after a leap. Whatever is just ending, and tells its followers, counts as not yet ended.
inline void Apart::refresh(uint32_t f) {
    double ready = 0, end;
    uint32_t waits = 0;
    auto look = [&](uint32_t a) {
        if (has_ended(a, end)) ready = std::max(ready, end);
        else ++waits;
    };
    if (f < n_) {
        arrange(f);
        for (uint32_t k = around_->after_offset[f]; k < around_->after_offset[f + 1]; ++k) look(around_->after[k]);
    } else {
        const Layer& layer = (*layers_)[layer_at(joined_, f)];
        const uint32_t base = base_[layer_at(joined_, f)];
        const Fragment& fragment = *layer.fragment;
        for (uint32_t k = fragment.after_offset[f - base]; k < fragment.after_offset[f - base + 1]; ++k) {
            const uint32_t a = fragment.after[k];
            if (!(a & JOIN)) { look(base + a); continue; }
            const uint32_t s = layer.first_slot + (a & ~JOIN);
            if (slots_[s].window != window_) refresh_slot(s);
            if (slots_[s].done) ready = std::max(ready, slots_[s].ready);
            else ++waits;
        }
    }
    events_[f].ready = ready, events_[f].waits = waits, seen_[f] = window_;
}
// Tells those that wait for a task: common ones are known from the kept run.
inline void Apart::follow_around(uint32_t task, double end) {
    const uint32_t old = old_place_[task];
    if (old != Past::NEVER)
        for (uint32_t k = kept_.follower_first[old]; k != Past::NEVER; k = kept_.followers[k].second) {
            const uint32_t f = kept_.followers[k].first;
            if (f & SLOT) {
                const uint32_t s = f & ~SLOT, layer = kept_.layer_of_slot[s];
                if (common_[layer]) fill<FOLLOWS>((*layers_)[layer].first_slot + (s - accepted_layers_[layer].first_slot), end);
            } else if (const uint32_t i = new_place_[f]; i != Past::NEVER && !strange_[i]) {
                tell<FOLLOWS>(i, end);
            }
        }
    for (uint32_t k = more_[task]; k != Past::NEVER; k = others_[k].second) {
        const uint32_t f = others_[k].first;
        if (f & SLOT) fill<FOLLOWS>(f & ~SLOT, end);
        else tell<FOLLOWS>(f, end);
    }
}
inline void Apart::refresh_slot(uint32_t s) {
    Slot& slot = slots_[s];
    slot.ready = 0, slot.waits = 0, slot.window = window_;
    double end;
    for (uint32_t k = around_->join_offset[s]; k < around_->join_offset[s + 1]; ++k) {
        if (has_ended(around_->join_after[k], end)) slot.ready = std::max(slot.ready, end);
        else ++slot.waits;
    }
    slot.done = !slot.waits;
}

// ---- while a stretch is simulated ----------------------------------------------------------------------------------
// A mark has an entry for all that waits, so they are no nearer to each other than there are entries: all of them together have no
// more than there are turns.
inline void Apart::make_mark(double time) {
    marked_ = position_;
    marks_.push_back({position_, finals_, uint32_t(waiting_.size()), time, most_});
    queue_.each([&](Queue::Key key) {
        waiting_.push_back({Queue::long_time(key), uint32_t(key), events_[uint32_t(key)].stop});
    });
    for (size_t r = 0; r < stride_; ++r) used_.push_back({resources_[r].free, resources_[r].total - resources_[r].left});
}
// The latest end of the kept run's turns before a position.
inline double Apart::most_before(uint32_t position) const {
    const Past::Mark& mark = kept_.marks[kept_.mark_from(position + 1) - 1];
    double most = mark.most;
    for (uint32_t p = mark.position; p < position; ++p) most = std::max(most, kept_.turns[p].end);
    return most;
}

// A task was taken at a time, and ended at another, or goes on at `stop`. True if nothing is left to be simulated.
template <Apart::Mode MODE> bool Apart::took(uint32_t task, double at, double first_end, double end, uint32_t stop) {
    const double before = most_;
    most_ = std::max(most_, end);
    turns_.push_back({end, first_end, task, stop});
    ++position_, finals_ += !stop;
    if (MODE == FOLLOWS) {
        const uint32_t old = old_place_[task];
        if (!stop) strangers_ -= strange_[task], ended_[task] = end;
        if (old == Past::NEVER) {
            anchored_ = false;
        } else {
            const uint32_t place = kept_.places[old].finished;
            if (!stop) ++ended_common_, highest_ = std::max(highest_, place), any_ = true;
            const Past::Turn* turn = kept_.turns.data() + expected_;
            if (anchored_ && expected_ < kept_.turns.size() && turn->task == old && turn->stop == stop && end - turn->end == shift_ &&
                first_end - turn->first == shift_) {
                ++expected_;
                // Most beginnings come to nothing.
                if (next_mark_ == Past::NEVER && expected_ - anchor_ == 4)
                    next_mark_ = kept_.mark_from(expected_), anchor_old_ = most_before(anchor_);
                if (next_mark_ != Past::NEVER && kept_.marks[next_mark_].position == expected_) {
                    const Past::Mark& mark = kept_.marks[next_mark_];
                    if (!strangers_ && anchor_most_ < at && anchor_old_ < mark.time && (!any_ || highest_ < mark.position) &&
                        ended_common_ == mark.finals - lost_before(mark.position) && leap(next_mark_, shift_))
                        return rest_ >= 0;
                    ++next_mark_;
                }
            } else if ((anchored_ = !stop && end - kept_.turns[place].end == first_end - kept_.turns[place].first)) {
                anchor_ = place, expected_ = place + 1, shift_ = end - kept_.turns[place].end, next_mark_ = Past::NEVER;
                anchor_most_ = before;
            }
        }
    }
    const uint32_t since = position_ - marked_;
    if (since >= between_ && (marks_every || since >= queue_.size())) make_mark(at);
    return false;
}

}  // namespace taskflow

#include "evaluate/simulation/record.h"
