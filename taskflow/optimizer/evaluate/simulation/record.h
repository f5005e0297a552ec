// Writing down what a simulation did, for the next one to take over from (evaluate/simulation/fast_forward.h).
#pragma once

#include "evaluate/simulation/fast_forward.h"

namespace taskflow {

inline void Apart::begin_log() {
    position_ = leapt_ = finals_ = told_ = 0, most_ = 0, rest_ = -1;
    between_ = marks_every ? marks_every : std::max(96u, uint32_t(resources_.size())), stride_ = resources_.size();
    turns_.clear(), marks_.clear(), waiting_.clear(), used_.clear(), parts_.clear(), changed_.clear(), joined_.clear();
}
// The accepted step, simulated once more, is what the next ones may take over from. False if it cannot be.
inline bool Apart::write_down(const Tasks& kept_around) {
    if (!accepted_) return false;
    const Tasks& around = *around_;
    std::vector<Layer>& layers = *layers_;
    const uint32_t before = before_;
    const double stop = stop_;
    take(kept_around, accepted_before_, accepted_layers_);
    if (from_start_) {
        stop_ = std::numeric_limits<double>::infinity();
        forget_layers(), link(), begin_log(), begin(), make_mark(0.0);
        simulate<LOGS>();
        keep_run();
        stop_ = stop;
    }
    take(around, before, layers);
    return !kept_.empty();
}

inline void Apart::keep() {
    if (follows_) keep_run();
    else kept_.clear();
    asked_ = 0;
    keep_layers();
}
// Puts what was taken over and what was simulated together.
inline void Apart::keep_run() {
    if (stride_ != resources_.size() || !(most_ < Past::EXACT)) { kept_.clear(); return; }
    uint32_t all = uint32_t(events_.size());
    for (uint32_t k = 0; k < layers_->size() && follows_; ++k) {
        if (!common_[k]) continue;
        const uint32_t size = (*layers_)[k].fragment->size();
        // Layers that took no part in what was simulated get a place now.
        if (base_[k] == NOWHERE) joined_.push_back({all, k}), base_[k] = all, all += size + 1;
        for (uint32_t i = 0; i < size; ++i) new_place_[kept_.base[k] + i] = base_[k] + i;
    }
    parts_.push_back({told_, uint32_t(turns_.size()), 0, 0, false, 0});
    fresh_.clear();
    fresh_.stride = stride_;
    fresh_.turns.resize(position_), fresh_.places.assign(all, {Past::NEVER, Past::NEVER});
    uint32_t at = 0, own = 0;
    for (const Part& part : parts_) {
        if (part.kept) keep_over(part, at);
        else keep_own(part, at, own);
        at += part.end - part.from;
    }
    fresh_.marks.push_back({position_, finals_, uint32_t(fresh_.waiting.size()), most_, most_});
    for (const auto& block : around_->blocks) fresh_.firsts.push_back(block.second);
    fresh_.firsts.push_back(n_);
    fresh_.base = base_, fresh_.joined = joined_;
    keep_followers();
    fresh_.layer_of_slot.resize(slots_.size());
    for (size_t s = 0; s < slots_.size(); ++s) fresh_.layer_of_slot[s] = slots_[s].layer;
    std::swap(kept_, fresh_);
}
inline void Apart::keep_followers() {
    const Tasks& t = *around_;
    const uint32_t edges = uint32_t(t.after.size());
    fresh_.follower_first.assign(n_, Past::NEVER), fresh_.followers.resize(edges + t.join_after.size());
    uint32_t* first = fresh_.follower_first.data();
    auto* to = fresh_.followers.data();
    for (uint32_t k = 0; k < edges; ++k) {
        uint32_t& of = first[t.after[k]];
        to[k] = {t.waiter[k], of}, of = k;
    }
    for (uint32_t s = 0, k = 0; s < t.joins(); ++s)
        for (; k < t.join_offset[s + 1]; ++k) {
            uint32_t& of = first[t.join_after[k]];
            to[edges + k] = {s | SLOT, of}, of = edges + k;
        }
}
inline void Apart::keep_turn(uint32_t position, const Past::Turn& turn) {
    fresh_.turns[position] = turn;
    Past::Place& place = fresh_.places[turn.task];
    place = {std::min(place.taken, position), position};
}
inline void Apart::keep_own(const Part& part, uint32_t at, uint32_t& own) {
    for (uint32_t p = part.from; p < part.end; ++p) keep_turn(at + (p - part.from), turns_[p]);
    for (; own < marks_.size() && marks_[own].position < at + (part.end - part.from); ++own) {
        const uint32_t from = marks_[own].waiting, end = own + 1 < marks_.size() ? marks_[own + 1].waiting : uint32_t(waiting_.size());
        fresh_.marks.push_back(marks_[own]), fresh_.marks.back().waiting = uint32_t(fresh_.waiting.size());
        fresh_.waiting.insert(fresh_.waiting.end(), waiting_.begin() + from, waiting_.begin() + end);
        fresh_.used.insert(fresh_.used.end(), used_.begin() + own * stride_, used_.begin() + (own + 1) * stride_);
    }
}
inline void Apart::keep_over(const Part& part, uint32_t at) {
    for (uint32_t p = part.from; p < part.end; ++p) {
        const Past::Turn& turn = kept_.turns[p];
        keep_turn(at + (p - part.from), {turn.end + part.later, turn.first + part.later, new_place_[turn.task], turn.stop});
    }
    for (uint32_t m = kept_.mark_from(part.from); kept_.marks[m].position < part.end; ++m) {
        const Past::Mark& mark = kept_.marks[m];
        fresh_.marks.push_back({mark.position - part.from + at, mark.finals + part.finals, uint32_t(fresh_.waiting.size()),
                                mark.time + part.later, mark.most + part.later});
        for (uint32_t w = mark.waiting; w < kept_.marks[m + 1].waiting; ++w) {
            const Past::Waiting& waiting = kept_.waiting[w];
            const uint32_t task = new_place_[waiting.task];
            if (task != Past::NEVER && !(task < n_ && strange_[task]))
                fresh_.waiting.push_back({waiting.time + part.later, task, waiting.stop});
        }
        const size_t used = fresh_.used.size(), both = std::min(stride_, kept_.stride);
        fresh_.used.resize(used + stride_);
        const Past::Used *was = kept_.used.data() + m * kept_.stride, *change = changed_.data() + part.changed;
        for (size_t r = 0; r < both; ++r) fresh_.used[used + r] = {was[r].free + part.later, was[r].done + change[r].done};
        for (size_t r = both; r < stride_; ++r) fresh_.used[used + r] = change[r];
    }
}

}  // namespace taskflow
