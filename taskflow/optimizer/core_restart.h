// Beginning a simulation where the one that was kept last goes the same way, instead of at the start of the step.
#pragma once

#include "core_apart.h"

namespace taskflow {

inline const Past::Mark* Apart::find_start(const std::vector<uint8_t>& same) {
    if (kept_.marks.empty()) return nullptr;
    const auto& blocks = around_->blocks;
    old_place_.assign(n_, Past::NEVER);
    for (size_t b = 0; b < blocks.size(); ++b) {
        const uint32_t first = blocks[b].second, end = b + 1 < blocks.size() ? blocks[b + 1].second : n_;
        if (same[b])
            for (uint32_t i = first; i < end; ++i) old_place_[i] = kept_.firsts[b] + (i - first);
    }
    const Past::Mark* mark = kept_.before(kept_.differs(*around_, old_place_, same));
    if (!mark) return nullptr;
    done_.resize(n_);
    for (uint32_t i = 0; i < n_; ++i) {
        const uint32_t old = old_place_[i];
        const bool done = old != Past::NEVER && kept_.tasks[old].finished < mark->position;
        done_[i] = done ? kept_.tasks[old].end : -1.0;
    }
    return mark;
}

// Queues what is ready.
inline void Apart::begin() {
    queue_.clear();
    now_.clear();
    position_ = again_ = 0, between_ = std::max(32u, uint32_t(resources_.size()));
    if (logs_) now_.tasks.resize(n_), now_.stride = resources_.size(), turns_.clear();
    if (!mark_) {
        for (uint32_t i = 0; i < n_; ++i)
            if (!events_[i].waits) queue(i, events_[i]);
        for (uint32_t k = 0; k < layers_->size() && !from_start_; ++k)
            if (at_once((*layers_)[k])) join_in(k);
        return;
    }
    position_ = mark_->position;
    const Resource* then = kept_.resources.data() + size_t(mark_ - kept_.marks.data()) * kept_.stride;
    for (size_t r = 0; r < kept_.stride; ++r)
        resources_[r].free = then[r].free, resources_[r].left -= then[r].total - then[r].left;
    // Copies on their way: the last that is known of each.
    transit_.assign(kept_.tasks.size(), Past::NEVER);
    for (uint32_t w = 0; w < mark_->ways; ++w) transit_[kept_.ways[w].task] = w;
    for (uint32_t i = 0; i < n_; ++i) {
        if (done_[i] >= 0 || events_[i].waits) continue;
        const uint32_t old = old_place_[i];
        if (old == Past::NEVER || kept_.tasks[old].taken >= mark_->position) {
            queue(i, events_[i]);
            continue;
        }
        const Past::Way& way = kept_.ways[transit_[old]];
        events_[i].stop = way.stop;
        queue(i, events_[i], way.start);
    }
    for (uint32_t s = 0; s < slots_.size(); ++s)
        if (!slots_[s].waits && !unfilled(s)) filled(s);
}

// Little is written down, since most of what is proposed is not accepted; `look_back` makes more of it.
inline void Apart::log(Queue::Key key, double time, uint32_t stop) {
    turns_.push_back({time, uint32_t(key), stop});
    again_ += stop != 0;
    if (++position_ % between_) return;
    now_.marks.push_back({position_, again_, Queue::long_time(key)});
    now_.resources.insert(now_.resources.end(), resources_.begin(), resources_.begin() + now_.stride);
}

inline void Apart::look_back() {
    uint32_t position = position_ - uint32_t(turns_.size());
    for (const Past::Turn& turn : turns_) {
        Past::Task& past = now_.tasks[turn.task];
        if (past.taken == Past::NEVER) past.taken = position, past.ready = events_[turn.task].ready;
        if (turn.stop) now_.ways.push_back({position, turn.task, turn.stop, turn.time});
        else past.finished = position, past.end = turn.time;
        ++position;
    }
}

// Puts what was kept until the mark and what was logged since then together.
inline void Apart::keep() {
    now_.firsts.clear();
    for (const auto& block : around_->blocks) now_.firsts.push_back(block.second);
    now_.firsts.push_back(n_);
    if (now_.tasks.empty()) { kept_.clear(); return; }
    look_back();
    if (mark_) {
        std::vector<uint32_t> new_place(kept_.tasks.size(), Past::NEVER);
        for (uint32_t i = 0; i < n_; ++i) {
            const uint32_t old = old_place_[i];
            if (old == Past::NEVER || kept_.tasks[old].taken >= mark_->position) continue;
            Past::Task& task = now_.tasks[i];
            const Past::Task& was = kept_.tasks[old];
            task.taken = was.taken, task.ready = was.ready;
            if (done_[i] >= 0) task = was;
            new_place[old] = i;
        }
        const uint32_t marks = uint32_t(mark_ - kept_.marks.data()) + 1;
        kept_.marks.resize(marks), kept_.ways.resize(mark_->ways), kept_.resources.resize(marks * kept_.stride);
        for (Past::Way& way : kept_.ways) way.task = new_place[way.task];
        for (Past::Mark& mark : now_.marks) mark.ways += uint32_t(kept_.ways.size());
        if (now_.stride > kept_.stride) {  // new links since then
            std::vector<Resource> wider(marks * now_.stride, Resource{0.0, 0.0, 0.0});
            for (uint32_t k = 0; k < marks; ++k)
                std::copy_n(kept_.resources.begin() + k * kept_.stride, kept_.stride, wider.begin() + k * now_.stride);
            kept_.resources.swap(wider);
        }
        now_.ways.insert(now_.ways.begin(), kept_.ways.begin(), kept_.ways.end());
        now_.marks.insert(now_.marks.begin(), kept_.marks.begin(), kept_.marks.end());
        now_.resources.insert(now_.resources.begin(), kept_.resources.begin(), kept_.resources.end());
    }
    std::swap(kept_, now_);
    mark_ = nullptr;
}

}  // namespace taskflow
