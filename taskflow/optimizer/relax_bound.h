// A lower bound on the step of a partial plan: the operators up to some place are fixed, the others may have any configuration.
//
// The step is relaxed: of the tasks that a complete plan would have, those of the fixed operators are kept (forward, backward,
// sums of gradients, synchronisation of layers all of whose users are fixed), each with a head (it cannot start before) and a
// tail (what must come after it), both longest paths; of the others, the least that any configuration needs. Then each
// processor, and all processors together as one that is as fast as all, takes at least Jackson's preemptive schedule.
#pragma once

#include <tuple>

#include "relax_jobs.h"
#include "relax_tables.h"

namespace taskflow {
namespace relax {

struct SyncTask {                              // of a layer's synchronisation
    int processor;                             // -1: a copy
    double cost, tail = 0;                     // tail: after it, in its layer's synchronisation
    std::vector<int> after;                    // earlier tasks of the same list
    std::vector<std::pair<int, int>> waits;    // (operator, piece) whose backward comes before
};

struct Layer {
    std::vector<int> users;                    // operators, by place in the order
    double work = 0, last = 0;                 // seconds of all its updates together, of one of them, at least
};

enum Reason { PATH, PROCESSOR, POOL };

class Bound {
public:
    Tables t;
    std::vector<Layer> layers;
    std::vector<std::vector<SyncTask>> syncs;
    Reason reason = PATH;

    void prepare() {
        t.prepare();
        const size_t n = t.ops.size();
        state_.assign(n, {});
        sync_of_.assign(layers.size(), -1);
        parts_.assign(n, {});
        after_.assign(t.edges.size(), {});
        fixed_ = 0;
    }
    int add_sync(std::vector<SyncTask> tasks) {
        for (size_t k = tasks.size(); k-- > 0;)
            for (int b : tasks[k].after) tasks[b].tail = std::max(tasks[b].tail, tasks[k].cost + tasks[k].tail);
        syncs.push_back(std::move(tasks));
        return int(syncs.size()) - 1;
    }
    void use_sync(int layer, int sync) { sync_of_[layer] = sync; }
    size_t fixed() const { return fixed_; }

    void push(int config) {
        const size_t n = fixed_++;
        State& s = state_[n];
        s.config = &t.ops[n].configs[config];
        s.number = config;
        ahead(n);
        for (int e : t.ops[n].in) collect(size_t(t.edges[e].from));
        collect(n);
    }
    void pop() {
        const size_t n = --fixed_;
        for (int e : t.ops[n].in) collect(size_t(t.edges[e].from));
    }

    // Seconds that no completion is faster than; once it is certain to reach ``limit``, any number from there up to it.
    double seconds(double limit) {
        reason = PATH;
        back_tails();
        back_heads();
        open_heads();
        open_tails();
        forward_tails();
        double least = longest();
        if (least >= limit) return least;
        jobs_.resize(t.processors + 1);
        for (auto& list : jobs_) list.clear();
        list_jobs();
        for (int p = 0; p < t.processors; ++p) {
            const double alone = jackson_.seconds(jobs_[p], limit);
            if (alone > least) least = alone, reason = PROCESSOR;
            if (least >= limit) return least;
        }
        auto& pool = jobs_[t.processors];
        for (Job& job : pool) job.cost /= t.processors;
        const double together = jackson_.seconds(pool, limit);
        if (together > least) least = together, reason = POOL;
        return least;
    }

private:
    struct Part { int processor, region, size; bool whole, same; double arrival; std::vector<std::pair<int, int>> from; };
    struct Extra { int processor; double head, cost; };
    struct State {
        const Config* config = nullptr;
        int number = 0;
        std::vector<double> head, end;                  // forward, by piece
        std::vector<std::vector<double>> ready;         // output -> slot: when it is complete
        std::vector<Extra> extras;                      // moves and sums of the forward pass
        std::vector<double> back_head, back_tail, tail; // backward's head, what comes after it; after forward
    };
    std::vector<State> state_;
    std::vector<int> sync_of_;
    std::vector<std::vector<std::vector<std::vector<Part>>>> parts_;  // op -> output -> slot -> parts of its gradient
    std::vector<std::vector<double>> after_;                          // edge -> touch: sums after this part has come
    std::vector<std::vector<Job>> jobs_;
    Jackson jackson_;
    size_t fixed_ = 0;
    std::vector<double> open_head_, open_back_, open_tail_, open_back_tail_;
    std::vector<std::pair<double, double>> arrivals_;
    std::vector<std::vector<std::pair<double, double>>> by_source_;

    const Cut& cut(size_t n) const { return t.ops[n].cuts[state_[n].config->cut]; }
    double b(size_t n, int piece) const { return t.backward(t.ops[n], *state_[n].config, piece); }
    double f(size_t n, int piece) const { return t.forward(t.ops[n], *state_[n].config, piece); }
    int at(size_t n, int piece) const { return state_[n].config->processors[piece]; }
    bool is_fixed(int n) const { return size_t(n) < fixed_; }
    const std::vector<Touch>& touches(const Edge& e) const {
        return t.touches(e, state_[e.from].config->cut, state_[e.to].config->cut);
    }
    double sum_of(int size, int p) const { return t.sum[size_t(size) * t.processors + p]; }
    double move_of(int size, int p) const {  // moved or added
        return std::min(t.move[size_t(size) * t.processors + p], sum_of(size, p));
    }

    // When messages that came at some time and share a link have all been carried: one after the other.
    double carried(std::vector<std::pair<double, double>>& list) const {
        std::sort(list.begin(), list.end());
        double now = 0;
        for (auto& [came, takes] : list) now = std::max(now, came) + takes;
        return now;
    }

    // ---- forward -------------------------------------------------------------------------------------------------
    void ahead(size_t n) {
        const Op& op = t.ops[n];
        State& s = state_[n];
        const Cut& c = cut(n);
        s.head.assign(c.pieces, 0.0), s.end.assign(c.pieces, 0.0);
        s.extras.clear();
        by_source_.resize(size_t(t.processors) * c.pieces);
        for (auto& list : by_source_) list.clear();
        for (int e : op.in) {
            const Edge& edge = t.edges[e];
            const State& from = state_[edge.from];
            const std::vector<int>& owner = cut(edge.from).owner[edge.output];
            moved_.clear();
            for (const Touch& touch : touches(edge)) {
                const int source = from.config->processors[owner[touch.slot]], target = s.config->processors[touch.piece];
                const double came = from.ready[edge.output][touch.slot];
                const double takes = t.gather(touch, source, target);
                s.head[touch.piece] = std::max(s.head[touch.piece], came + takes);
                if (source != target) by_source_[size_t(touch.piece) * t.processors + source].push_back({came, takes});
                else if (!touch.view && !moved_before(edge, n, touch, target)) {
                    const Moved key{target, touch.slot, touch.region};
                    if (std::find(moved_.begin(), moved_.end(), key) == moved_.end())
                        moved_.push_back(key), s.extras.push_back({target, came, takes});
                }
            }
        }
        for (int i = 0; i < c.pieces; ++i) {
            for (int p = 0; p < t.processors; ++p) {
                auto& list = by_source_[size_t(i) * t.processors + p];
                if (list.size() > 1) s.head[i] = std::max(s.head[i], carried(list));
            }
            s.end[i] = s.head[i] + (op.tasks ? f(n, i) : 0.0);
        }
        s.ready.resize(c.owner.size());
        for (size_t o = 0; o < c.owner.size(); ++o) {
            s.ready[o].assign(c.owner[o].size(), 0.0);
            for (int i = 0; i < c.pieces; ++i) {
                const int slot = c.slot[o][i], owner = c.owner[o][slot], size = c.size[o][slot];
                double& ready = s.ready[o][slot];
                if (owner == i) { ready = std::max(ready, s.end[i]); continue; }
                const int p = at(n, owner), q = at(n, i);
                ready = std::max(ready, s.end[i] + (p == q ? 0.0 : t.copy_of(size, q, p)));
            }
            for (size_t slot = 0; slot < c.owner[o].size(); ++slot) {  // partial values are added by their owner
                const int owner = c.owner[o][slot];
                int writers = 0;
                for (int i = 0; i < c.pieces; ++i) writers += c.slot[o][i] == int(slot);
                if (writers < 2) continue;
                const double takes = sum_of(c.size[o][slot], at(n, owner));
                s.ready[o][slot] += takes;
                s.extras.push_back({at(n, owner), s.ready[o][slot] - takes, takes});
            }
        }
    }
    typedef std::tuple<int, int, int> Moved;  // processor, slot, region
    std::vector<Moved> moved_;
    // Whether another operator that is fixed reads the same instance, which is made once.
    bool moved_before(const Edge& edge, size_t n, const Touch& touch, int processor) const {
        for (int e : t.ops[edge.from].out) {
            const Edge& other = t.edges[e];
            if (other.output != edge.output || size_t(other.to) >= n) continue;
            for (const Touch& there : touches(other))
                if (there.region == touch.region && at(other.to, there.piece) == processor) return true;
        }
        return false;
    }

    // ---- what a gradient consists of -----------------------------------------------------------------------------
    // In the order in which the parts are added: readers from the last to the first, and their pieces in order.
    void collect(size_t n) {
        const Op& op = t.ops[n];
        parts_[n].resize(op.seed.size());
        for (size_t o = 0; o < op.seed.size(); ++o) {
            auto& of_slot = parts_[n][o];
            of_slot.assign(cut(n).owner[o].size(), {});
            for (size_t k = op.out.size(); k-- > 0;) {
                const Edge& edge = t.edges[op.out[k]];
                if (edge.output != int(o) || !edge.gradient || !is_fixed(edge.to)) continue;
                const auto& list = touches(edge);
                after_[op.out[k]].assign(list.size(), 0.0);
                for (size_t i = 0; i < list.size(); ++i) {
                    const Touch& touch = list[i];
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
    bool complete(size_t n, size_t o) const {
        if (!t.ops[n].known[o]) return false;
        for (int e : t.ops[n].out)
            if (t.edges[e].output == int(o) && t.edges[e].gradient && !is_fixed(t.edges[e].to)) return false;
        return true;
    }
    // The sums that follow a part's arrival at the owner.
    void sums_after(size_t n, size_t o) {
        for (int e : t.ops[n].out) {
            const Edge& edge = t.edges[e];
            if (edge.output != int(o) || !edge.gradient) continue;
            const auto& list = touches(edge);
            for (size_t i = 0; i < list.size(); ++i) {
                const Touch& touch = list[i];
                const auto& parts = parts_[n][o][touch.slot];
                const int owner = at(n, cut(n).owner[o][touch.slot]), reader = at(edge.to, touch.piece);
                size_t k = 0;
                while (parts[k].processor != reader || parts[k].region != touch.region) ++k;
                after_[e][i] = chain(parts, t.ops[n].seed[o], k, owner);
            }
        }
    }
    static bool all_whole(const std::vector<Part>& parts) {
        for (const Part& part : parts)
            if (!part.whole) return false;
        return true;
    }
    // Seconds on the owner from the arrival of part k until the gradient is complete.
    double chain(const std::vector<Part>& parts, bool seed, size_t k, int owner) const {
        if (!seed && parts.size() == 1 && parts[0].processor == owner && parts[0].same) return 0.0;
        double seconds = 0;
        if (!all_whole(parts)) return parts[k].processor == owner ? move_of(parts[k].size, owner) : 0.0;
        for (size_t i = k; i < parts.size(); ++i) seconds += step(parts, seed, i, owner);
        return seconds;
    }
    // What the owner does with part i of several that are each all of the slot: the first is moved, the others are added.
    double step(const std::vector<Part>& parts, bool seed, size_t i, int owner) const {
        if (i > 0 || seed) return sum_of(parts[i].size, owner);
        return parts[i].processor == owner ? move_of(parts[i].size, owner) : 0.0;
    }

    // ---- backward ------------------------------------------------------------------------------------------------
    void back_tails() {
        for (size_t n = 0; n < fixed_; ++n) state_[n].back_tail.assign(cut(n).pieces, 0.0);
        for (size_t layer = 0; layer < layers.size(); ++layer) {
            if (sync_of_[layer] < 0) {
                for (int user : layers[layer].users)
                    if (is_fixed(user))
                        for (double& tail : state_[user].back_tail) tail = std::max(tail, layers[layer].last);
                continue;
            }
            for (const SyncTask& task : syncs[sync_of_[layer]])
                for (auto& [n, piece] : task.waits) {
                    double& tail = state_[n].back_tail[piece];
                    tail = std::max(tail, task.cost + task.tail);
                }
        }
        for (size_t n = 0; n < fixed_; ++n) {
            if (!t.ops[n].active) continue;
            State& s = state_[n];
            for (int e : t.ops[n].in) {
                const Edge& edge = t.edges[e];
                if (!edge.gradient) continue;
                const Cut& c = cut(edge.from);
                const auto& list = touches(edge);
                const bool exact = complete(edge.from, edge.output);
                for (size_t i = 0; i < list.size(); ++i) {
                    const Touch& touch = list[i];
                    const int owner = c.owner[edge.output][touch.slot], p = at(edge.from, owner);
                    const double given = t.give(touch, at(n, touch.piece), p) + (exact ? after_[e][i] : 0.0);
                    s.back_tail[touch.piece] = std::max(s.back_tail[touch.piece], given + slot_tail(edge.from, edge.output, touch.slot));
                }
            }
        }
    }
    // After a slot's gradient is complete: its pieces' backward and what follows them.
    double slot_tail(size_t n, int o, int slot) const {
        const Cut& c = cut(n);
        const int owner = c.owner[o][slot];
        double longest = b(n, owner) + state_[n].back_tail[owner];
        for (int i = 0; i < c.pieces; ++i) {
            if (i == owner || c.slot[o][i] != slot) continue;
            const double sent = at(n, i) == at(n, owner) ? 0.0 : t.copy_of(c.size[o][slot], at(n, owner), at(n, i));
            longest = std::max(longest, sent + b(n, i) + state_[n].back_tail[i]);
        }
        return longest;
    }
    void back_heads() {
        for (size_t n = fixed_; n-- > 0;) {
            const Op& op = t.ops[n];
            if (!op.active) continue;
            State& s = state_[n];
            const Cut& c = cut(n);
            s.back_head.assign(c.pieces, 0.0);
            for (int i = 0; i < c.pieces; ++i) {
                if (op.turn == AFTER_FORWARD) s.back_head[i] = s.end[i];
                else if (op.turn == AFTER_INPUTS) s.back_head[i] = s.head[i];
            }
            for (size_t o = 0; o < c.owner.size(); ++o)
                for (size_t slot = 0; slot < c.owner[o].size(); ++slot) {
                    const int owner = c.owner[o][slot];
                    const double came = gradient(n, o, slot);
                    for (int i = 0; i < c.pieces; ++i) {
                        if (c.slot[o][i] != int(slot)) continue;
                        const double sent =
                            at(n, i) == at(n, owner) ? 0.0 : t.copy_of(c.size[o][slot], at(n, owner), at(n, i));
                        s.back_head[i] = std::max(s.back_head[i], came + sent);
                    }
                }
        }
    }
    // When the gradient of a slot is complete, at the earliest; NEVER if nothing says.
    double gradient(size_t n, size_t o, size_t slot) {
        const Op& op = t.ops[n];
        const int owner = at(n, cut(n).owner[o][slot]);
        auto& parts = parts_[n][o][slot];
        double came = NEVER;
        for (int e : op.out) {
            const Edge& edge = t.edges[e];
            if (edge.output == int(o) && edge.gradient && !is_fixed(edge.to))
                came = std::max(came, state_[n].ready[o][slot] + edge.loop[state_[n].number][slot]);
        }
        for (Part& part : parts) {
            part.arrival = 0;
            for (auto& [reader, piece] : part.from)
                part.arrival = std::max(part.arrival, state_[reader].back_head[piece] + b(reader, piece));
            if (part.processor != owner) part.arrival += t.copy_of(part.size, part.processor, owner);
        }
        const bool exact = complete(n, o) && !(parts.size() == 1 && !op.seed[o] && parts[0].processor == owner && parts[0].same);
        double now = op.seed[o] ? t.fill[size_t(cut(n).size[o][slot]) * t.processors + owner] : NEVER;
        if (exact && all_whole(parts)) {
            for (size_t i = 0; i < parts.size(); ++i)
                now = std::max(now, parts[i].arrival) + step(parts, op.seed[o], i, owner);
            return std::max(came, now);
        }
        for (const Part& part : parts)
            now = std::max(now, part.arrival + (exact && part.processor == owner ? move_of(part.size, owner) : 0.0));
        return std::max(came, now);
    }

    // ---- operators that are not fixed ----------------------------------------------------------------------------
    double least_end(int n) const {  // of a fixed operator's forward tasks
        const auto& end = state_[n].end;
        return *std::min_element(end.begin(), end.end());
    }
    void open_heads() {
        const size_t n = t.ops.size();
        open_head_.assign(n, 0.0), open_back_.assign(n, 0.0);
        for (size_t u = fixed_; u < n; ++u)
            for (int e : t.ops[u].in) {
                const Edge& edge = t.edges[e];
                if (!edge.always) continue;
                const double end =
                    is_fixed(edge.from) ? least_end(edge.from) : open_head_[edge.from] + t.ops[edge.from].least_forward;
                open_head_[u] = std::max(open_head_[u], end);
            }
        for (size_t u = n; u-- > fixed_;) {
            const Op& op = t.ops[u];
            if (!op.active) continue;
            if (op.turn == AFTER_FORWARD) open_back_[u] = open_head_[u] + op.least_forward;
            else if (op.turn == AFTER_INPUTS) open_back_[u] = open_head_[u];
            for (int e : op.out)
                if (t.edges[e].gradient && t.edges[e].all)
                    open_back_[u] = std::max(open_back_[u], open_back_[t.edges[e].to] + t.ops[t.edges[e].to].least_backward);
        }
    }
    void open_tails() {
        const size_t n = t.ops.size();
        open_tail_.assign(n, 0.0), open_back_tail_.assign(n, 0.0);
        for (size_t u = fixed_; u < n; ++u) {
            if (!t.ops[u].active) continue;
            double& tail = open_back_tail_[u];
            if (t.ops[u].layer >= 0) tail = layers[t.ops[u].layer].last;
            for (int e : t.ops[u].in) {
                const Edge& edge = t.edges[e];
                if (!edge.gradient || !edge.always) continue;
                double after = t.ops[edge.from].least_backward + open_back_tail_[edge.from];
                if (is_fixed(edge.from)) {
                    after = 1e300;
                    for (int i = 0; i < cut(edge.from).pieces; ++i)
                        after = std::min(after, b(edge.from, i) + state_[edge.from].back_tail[i]);
                }
                tail = std::max(tail, after);
            }
        }
        for (size_t u = n; u-- > fixed_;) {
            const Op& op = t.ops[u];
            if (op.active && op.turn == AFTER_FORWARD) open_tail_[u] = op.least_backward + open_back_tail_[u];
            for (int e : op.out)
                if (t.edges[e].all)
                    open_tail_[u] = std::max(open_tail_[u], t.ops[t.edges[e].to].least_forward + open_tail_[t.edges[e].to]);
        }
    }

    // ---- together ------------------------------------------------------------------------------------------------
    void forward_tails() {
        for (size_t n = fixed_; n-- > 0;) {
            const Op& op = t.ops[n];
            State& s = state_[n];
            const Cut& c = cut(n);
            s.tail.assign(c.pieces, 0.0);
            if (op.active && op.turn == AFTER_FORWARD)
                for (int i = 0; i < c.pieces; ++i) s.tail[i] = b(n, i) + s.back_tail[i];
            for (int e : op.out) {
                const Edge& edge = t.edges[e];
                const std::vector<int>& owner = c.owner[edge.output];
                if (is_fixed(edge.to)) {
                    const State& to = state_[edge.to];
                    for (const Touch& touch : touches(edge)) {
                        const int i = owner[touch.slot];
                        const double takes = t.gather(touch, at(n, i), at(edge.to, touch.piece));
                        double after = takes + (t.ops[edge.to].tasks ? f(edge.to, touch.piece) : 0.0) + to.tail[touch.piece];
                        if (t.ops[edge.to].active && t.ops[edge.to].turn == AFTER_INPUTS)
                            after = std::max(after, takes + b(edge.to, touch.piece) + to.back_tail[touch.piece]);
                        s.tail[i] = std::max(s.tail[i], after);
                    }
                } else if (edge.gradient) {
                    for (size_t slot = 0; slot < owner.size(); ++slot) {
                        const double loop = edge.loop[s.number][slot];
                        if (loop > 0)
                            s.tail[owner[slot]] = std::max(s.tail[owner[slot]], loop + slot_tail(n, edge.output, int(slot)));
                    }
                }
            }
        }
    }
    double longest() const {
        double most = 0;
        for (size_t n = 0; n < fixed_; ++n) {
            const State& s = state_[n];
            for (int i = 0; i < cut(n).pieces; ++i) {
                most = std::max(most, s.end[i] + s.tail[i]);
                if (t.ops[n].active) most = std::max(most, s.back_head[i] + b(n, i) + s.back_tail[i]);
            }
        }
        for (size_t u = fixed_; u < t.ops.size(); ++u) {
            most = std::max(most, open_head_[u] + t.ops[u].least_forward + open_tail_[u]);
            if (t.ops[u].active) most = std::max(most, open_back_[u] + t.ops[u].least_backward + open_back_tail_[u]);
        }
        return most;
    }
    void job(int processor, double head, double cost, double tail) {
        if (cost <= 0) return;
        if (processor >= 0) jobs_[processor].push_back({head, cost, tail});
        jobs_[t.processors].push_back({head, cost, tail});
    }
    void list_jobs() {
        for (size_t n = 0; n < fixed_; ++n) {
            const Op& op = t.ops[n];
            const State& s = state_[n];
            for (int i = 0; i < cut(n).pieces; ++i) {
                if (op.tasks) job(at(n, i), s.head[i], f(n, i), s.tail[i]);
                if (op.active) job(at(n, i), s.back_head[i], b(n, i), s.back_tail[i]);
            }
            for (const Extra& extra : s.extras) job(extra.processor, extra.head, extra.cost, 0.0);
            if (op.active) gradient_jobs(n);
        }
        for (size_t u = fixed_; u < t.ops.size(); ++u) {
            const Op& op = t.ops[u];
            if (op.tasks) job(-1, open_head_[u], op.work_forward, open_tail_[u]);
            if (op.active) job(-1, open_back_[u], op.work_backward, open_back_tail_[u]);
        }
        for (size_t layer = 0; layer < layers.size(); ++layer) sync_jobs(layer);
    }
    void gradient_jobs(size_t n) {
        const Op& op = t.ops[n];
        for (size_t o = 0; o < op.seed.size(); ++o) {
            const Cut& c = cut(n);
            for (size_t slot = 0; slot < c.owner[o].size(); ++slot) {
                const int owner = at(n, c.owner[o][slot]), size = c.size[o][slot];
                const double tail = slot_tail(n, int(o), int(slot));
                if (op.seed[o]) job(owner, 0.0, t.fill[size_t(size) * t.processors + owner], tail);
                const auto& parts = parts_[n][o][slot];
                if (parts.empty() || !complete(n, o)) continue;
                if (parts.size() == 1 && !op.seed[o] && parts[0].processor == owner && parts[0].same) continue;
                const bool whole = all_whole(parts);
                for (size_t i = 0; i < parts.size(); ++i) {
                    const double cost = whole ? step(parts, op.seed[o], i, owner)
                                              : parts[i].processor == owner ? move_of(parts[i].size, owner) : 0.0;
                    job(owner, parts[i].arrival, cost, tail);
                }
            }
        }
    }
    void sync_jobs(size_t layer) {
        const Layer& of = layers[layer];
        if (sync_of_[layer] < 0) {
            double head = 1e300;
            for (int n : of.users) {
                if (!is_fixed(n)) { head = std::min(head, open_back_[n] + t.ops[n].least_backward); continue; }
                for (int i = 0; i < cut(n).pieces; ++i) head = std::min(head, state_[n].back_head[i] + b(n, i));
            }
            job(-1, head, of.work, 0.0);
            return;
        }
        const auto& tasks = syncs[sync_of_[layer]];
        sync_end_.assign(tasks.size(), 0.0);
        for (size_t k = 0; k < tasks.size(); ++k) {
            double head = 0;
            for (int before : tasks[k].after) head = std::max(head, sync_end_[before]);
            for (auto& [n, piece] : tasks[k].waits) head = std::max(head, state_[n].back_head[piece] + b(n, piece));
            sync_end_[k] = head + tasks[k].cost;
            if (tasks[k].processor >= 0) job(tasks[k].processor, head, tasks[k].cost, tasks[k].tail);
        }
    }
    std::vector<double> sync_end_;
};

}  // namespace relax
}  // namespace taskflow
