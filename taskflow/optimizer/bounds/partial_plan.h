// A lower bound on the step of a partial plan: some operators are fixed, the others may have any of their configurations.
//
// The step is relaxed: of the tasks that a complete plan would have, those of the fixed operators are kept (forward, backward,
// sums of gradients, synchronisation of layers all of whose users are fixed), each with a head (it cannot start before) and a
// tail (what must come after it); of the others, the least that any configuration needs. Then each processor, and all
// processors together as one that is as fast as all, takes at least Jackson's preemptive schedule.
//
// Heads and tails are longest paths; and what a task waits for (or what waits for it) on one processor takes Jackson's
// schedule there, too. A transfer takes its seconds; those that one piece waits for on one route come one after the other.
// There is no twin: a bound is right if no completion is faster; tests/optimizer/bounds/test_relaxed_step.py holds it.
#pragma once

#include <tuple>

#include "bounds/jackson.h"
#include "bounds/tables.h"

namespace taskflow {
namespace relax {

struct SyncTask {                              // of a layer's synchronisation
    int processor;                             // -1: a copy; -2: any, after the first of what it waits for
    double cost, tail = 0;                     // tail: after it, in its layer's synchronisation
    std::vector<int> after;                    // earlier tasks of the same list
    std::vector<std::pair<int, int>> waits;    // (operator, piece) whose backward comes before
};

struct Layer {
    std::vector<int> users;                    // operators
    double work = 0, last = 0;                 // seconds of all its updates together, of the shortest one, at least
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
        fixed_.assign(n, 0);
        sync_of_.assign(layers.size(), -1);
        parts_.assign(n, {});
        after_.assign(t.edges.size(), {});
    }
    int add_sync(std::vector<SyncTask> tasks) {
        for (size_t k = tasks.size(); k-- > 0;)
            for (int b : tasks[k].after) tasks[b].tail = std::max(tasks[b].tail, tasks[k].cost + tasks[k].tail);
        syncs.push_back(std::move(tasks));
        return int(syncs.size()) - 1;
    }
    void use_sync(int layer, int sync) { sync_of_[layer] = sync; }

    void fix(int n, int config) {
        state_[n].config = &t.ops[n].configs[config];
        state_[n].number = config;
        fixed_[n] = 1;
        collect_around(n);
        collect(n);
    }
    void free(int n) {
        fixed_[n] = 0;
        collect_around(n);
    }

    // Seconds that no completion is faster than; once it is certain to reach ``limit``, any number from there up to it.
    double seconds(double limit) {
        reason = PATH;
        const int n = int(t.ops.size());
        open_.assign(n, {});
        for (int i = 0; i < n; ++i) fixed_[i] ? ahead(i) : open_head(i);
        sync_tails();
        for (int i = 0; i < n; ++i)
            if (t.ops[i].active) fixed_[i] ? back_tail(i) : open_back_tail(i);
        for (int i = n; i-- > 0;)
            if (t.ops[i].active) fixed_[i] ? back_head(i) : open_back(i);
        for (int i = n; i-- > 0;) fixed_[i] ? tail(i) : open_tail(i);
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

    // Of a fixed operator, by piece, after `seconds`: heads and tails of forward and of backward.
    std::vector<std::vector<double>> times(int n) const {
        const State& s = state_[n];
        return {s.head, s.tail, s.back_head, s.back_tail};
    }

private:
    struct Part {                                       // of a gradient: what one processor puts for one Rect
        int processor, region, size;
        bool whole, same;
        double arrival;
        std::vector<std::pair<int, int>> from;          // (reader, its piece)
    };
    struct Extra { int processor; double head, cost; };
    struct State {                                      // of a fixed operator; by piece
        const Config* config = nullptr;
        int number = 0;
        std::vector<double> head, end, tail;            // forward: start, end, what comes after it
        std::vector<double> back_head, back_tail;       // backward: start, what comes after it
        std::vector<std::vector<double>> ready;         // output -> slot: when it is complete
        std::vector<Extra> extras;                      // moves and sums of the forward pass
    };
    struct Open { double head = 0, tail = 0, back = 0, back_tail = 0; };  // of one that is not fixed
    typedef std::tuple<int, int, int> Moved;            // processor, slot, region

    std::vector<State> state_;
    std::vector<Open> open_;
    std::vector<char> fixed_;
    std::vector<int> sync_of_;
    std::vector<std::vector<std::vector<std::vector<Part>>>> parts_;  // op -> output -> slot -> parts of its gradient
    std::vector<std::vector<double>> after_;            // edge -> touch: sums after this part has come
    std::vector<std::vector<Job>> jobs_;
    std::vector<double> sync_end_;
    std::vector<Moved> moved_;
    std::vector<int> writers_;
    Jackson jackson_;

    const Cut& cut(int n) const { return t.ops[n].cuts[state_[n].config->cut]; }
    int at(int n, int piece) const { return state_[n].config->processors[piece]; }
    double b(int n, int piece) const { return t.backward(t.ops[n], *state_[n].config, piece); }
    double f(int n, int piece) const {
        return t.ops[n].tasks ? t.forward(t.ops[n], *state_[n].config, piece) : 0.0;
    }
    double sum_of(int size, int p) const { return t.sum[size_t(size) * t.processors + p]; }
    double put_of(int size, int p) const {              // moved or added
        return std::min(t.move[size_t(size) * t.processors + p], sum_of(size, p));
    }
    const std::vector<Touch>& touches(const Edge& e) const {
        return t.touches(e, state_[e.from].config->cut, state_[e.to].config->cut);
    }
    static void raise(double& value, double to) {
        if (to > value) value = to;
    }

    // ---- groups: what one piece waits for, or what waits for it, by processor or by route -----------------------------
    struct Member { int op, piece; Job job; };
    std::vector<std::vector<Member>> groups_;
    std::vector<Job> few_;
    void open_groups(int pieces) {
        groups_.resize(std::max(groups_.size(), size_t(pieces) * t.processors));
        for (size_t i = 0; i < size_t(pieces) * t.processors; ++i) groups_[i].clear();
    }
    // A task counts once, with its longest head and tail.
    void join(int piece, int processor, int op, int member, Job job) {
        auto& list = groups_[size_t(piece) * t.processors + processor];
        for (Member& m : list)
            if (m.op == op && m.piece == member) {
                raise(m.job.head, job.head), raise(m.job.tail, job.tail);
                return;
            }
        list.push_back({op, member, job});
    }
    double grouped(int piece) {
        double longest = 0;
        for (int p = 0; p < t.processors; ++p) {
            const auto& list = groups_[size_t(piece) * t.processors + p];
            if (list.size() < 2) continue;              // a single one is a path
            few_.clear();
            for (const Member& m : list) few_.push_back(m.job);
            raise(longest, jackson_.seconds(few_, 1e300));
        }
        return longest;
    }

    void collect_around(int n) {
        for (int e : t.ops[n].in)
            if (fixed_[t.edges[e].from]) collect(t.edges[e].from);
    }
    void collect(int n);
    void sums_after(int n, int o);
    bool moved_before(const Edge& edge, int n, const Touch& touch, int processor) const;
    void ahead(int n);
    void add_partial(int n);
    double gradient(int n, int o, int slot);
    void back_head(int n);
    void back_tail(int n);
    void tail(int n);
    void sync_tails();
    void open_head(int n);
    void open_back(int n);
    void open_tail(int n);
    void open_back_tail(int n);
    double longest() const;
    void list_jobs();
    void gradient_jobs(int n);
    void sync_jobs(int layer);

    // Whether all parts of an output's gradient are known.
    bool complete(int n, int o) const {
        if (!t.ops[n].known[o]) return false;
        for (int e : t.ops[n].out)
            if (t.edges[e].output == o && t.edges[e].gradient && !fixed_[t.edges[e].to]) return false;
        return true;
    }
    static bool all_whole(const std::vector<Part>& parts) {
        for (const Part& part : parts)
            if (!part.whole) return false;
        return true;
    }
    // The only part is the gradient.
    bool in_place(int n, int o, const std::vector<Part>& parts, int owner) const {
        return parts.size() == 1 && !t.ops[n].seed[o] && parts[0].processor == owner && parts[0].same;
    }
    // Whether an all-reduce may sum the partial values of a slot, and leaves the sum with all that have computed one; and so the
    // gradients of its readers. Then nothing is counted on the way that an owner might not have to do.
    bool together(int n, int o, int slot) const { return state_[n].config->maybe_together(o, slot); }
    bool together_back(int n, int o, int slot) const { return !t.ops[n].seed[o] && together(n, o, slot); }
    // What the owner does with part i: if each is all of the slot, the first is moved and the others are added.
    double step(const std::vector<Part>& parts, bool seed, size_t i, int owner, bool whole) const {
        if (whole && (i > 0 || seed)) return sum_of(parts[i].size, owner);
        return parts[i].processor == owner ? put_of(parts[i].size, owner) : 0.0;
    }
    // From the owner's gradient of a slot to another piece that wrote a partial value of it.
    double share(int n, int o, int slot, int piece) const {
        const Cut& c = cut(n);
        const int from = at(n, c.owner[o][slot]), to = at(n, piece);
        return from == to || together_back(n, o, slot) ? 0.0 : t.copy_of(c.size[o][slot], from, to);
    }
    // After a slot's gradient is complete: its pieces' backward and what follows them.
    double slot_tail(int n, int o, int slot) const {
        const Cut& c = cut(n);
        double most = 0;
        for (int i = 0; i < c.pieces; ++i)
            if (c.slot[o][i] == slot) most = std::max(most, share(n, o, slot, i) + b(n, i) + state_[n].back_tail[i]);
        return most;
    }
    double least_end(int n) const {
        return *std::min_element(state_[n].end.begin(), state_[n].end.end());
    }
    void job(int processor, double head, double cost, double tail) {
        if (cost <= 0) return;
        if (processor >= 0) jobs_[processor].push_back({head, cost, tail});
        jobs_[t.processors].push_back({head, cost, tail});
    }
};

}  // namespace relax
}  // namespace taskflow

#include "bounds/jobs.h"
