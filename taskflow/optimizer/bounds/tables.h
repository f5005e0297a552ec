// What the relaxed step of `bounds/partial_plan.h` is made of: operators' cuts and configurations, what pieces read from each other,
// and the seconds of what lies between them. taskflow/optimizer/bounds/partial_plan.py fills it.
// There is no twin: a bound is right if no completion is faster; tests/optimizer/bounds/test_relaxed_step.py holds it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace taskflow {
namespace relax {

constexpr double NEVER = -std::numeric_limits<double>::infinity();

struct Touch {    // a piece reads something of a slot (a Rect that one piece owns) of a tensor
    int slot, piece, size, region;
    bool view;    // without a copy, if it is on the owner's processor
    bool whole;   // all of the slot
    bool same;    // the slot exactly
};

struct Cut {
    int pieces = 0;
    std::vector<double> forward, backward;     // seconds: piece * processors + processor
    std::vector<std::vector<int>> slot;        // output -> piece -> slot
    std::vector<std::vector<int>> owner;       // output -> slot -> the piece that owns it
    std::vector<std::vector<int>> size;        // output -> slot -> its size
};

struct Config {
    int cut;
    std::vector<int> processors;
    std::vector<std::vector<double>> together;  // output -> slot -> seconds of the all-reduce that may sum it, or NEVER; or empty

    bool maybe_together(int output, int slot) const { return !together.empty() && together[output][slot] > NEVER; }
};

struct Edge {
    int from, output, to;
    bool gradient;                             // whether backward sends a gradient along it
    bool always, all;                          // every piece reads some of it; all of it is read
    std::vector<std::vector<Touch>> touches;   // cut of from * cuts of to + cut of to, by piece
    std::vector<std::vector<double>> loop;     // config of from, slot -> least seconds until its gradient is back
};

enum Turn { FREE, AFTER_INPUTS, AFTER_FORWARD };  // what a backward task waits for of its own forward pass

struct Op {
    bool tasks = true, active = false;         // no tasks: state; active: backward runs
    int turn = FREE, layer = -1;
    std::vector<Cut> cuts;
    std::vector<Config> configs;
    std::vector<int> in, out;                  // edges
    std::vector<bool> seed, known;             // by output: a loss; `out` has all that its gradient consists of
    double least_forward = 0, least_backward = 0, work_forward = 0, work_backward = 0;
};

struct Tables {
    int processors = 0;
    bool serial = true;                        // two messages between the same processors share a link
    std::vector<double> copy, move, sum, fill; // size * processors^2 + source * processors + target; size * processors + p
    std::vector<Op> ops;                       // in the order in which they are fixed, which is topological
    std::vector<Edge> edges;

    double forward(const Op& op, const Config& c, int piece) const {
        return op.cuts[c.cut].forward[size_t(piece) * processors + c.processors[piece]];
    }
    double backward(const Op& op, const Config& c, int piece) const {
        return op.cuts[c.cut].backward[size_t(piece) * processors + c.processors[piece]];
    }
    double copy_of(int size, int source, int target) const {
        return copy[(size_t(size) * processors + source) * processors + target];
    }
    double gather(const Touch& t, int owner, int reader) const {  // until a reader has what another piece made
        if (owner != reader) return copy_of(t.size, owner, reader);
        return t.view ? 0.0 : move[size_t(t.size) * processors + reader];
    }
    double give(const Touch& t, int reader, int owner) const {    // until the owner has a reader's gradient
        return owner == reader ? 0.0 : copy_of(t.size, reader, owner);
    }
    const std::vector<Touch>& touches(const Edge& e, int from_cut, int to_cut) const {
        return e.touches[size_t(from_cut) * ops[e.to].cuts.size() + to_cut];
    }

    // For operators that are not fixed yet: how long it takes at least from a piece's value to its gradient, by whatever
    // configurations the operators in between have. Dynamic programming from the last operator to the first.
    void prepare() {
        for (size_t n = ops.size(); n-- > 0;) {
            Op& op = ops[n];
            op.least_forward = op.least_backward = op.work_forward = op.work_backward = 0;
            bool first = true;
            for (const Config& c : op.configs) {
                double f = 0, b = 0, fs = std::numeric_limits<double>::infinity(), bs = fs;
                for (int i = 0; i < op.cuts[c.cut].pieces; ++i) {
                    const double x = forward(op, c, i), y = backward(op, c, i);
                    f += x, b += y, fs = std::min(fs, x), bs = std::min(bs, y);
                }
                op.least_forward = first ? fs : std::min(op.least_forward, fs);
                op.least_backward = first ? bs : std::min(op.least_backward, bs);
                op.work_forward = first ? f : std::min(op.work_forward, f);
                op.work_backward = first ? b : std::min(op.work_backward, b);
                first = false;
            }
            std::vector<std::vector<double>> turnaround = around(op);
            for (int e : op.in) fill_loop(edges[e], op, turnaround);
        }
    }

private:
    // By config and piece: from the start of forward to the end of backward, at least; NEVER if one does not wait for the other.
    std::vector<std::vector<double>> around(const Op& op) const {
        std::vector<std::vector<double>> result(op.configs.size());
        for (size_t k = 0; k < op.configs.size(); ++k) {
            const Config& c = op.configs[k];
            const Cut& cut = op.cuts[c.cut];
            result[k].assign(cut.pieces, NEVER);
            if (!op.active) continue;
            for (int i = 0; i < cut.pieces; ++i) {
                const double f = forward(op, c, i), b = backward(op, c, i);
                double& least = result[k][i];
                if (op.turn == AFTER_FORWARD) least = f + b;
                else if (op.turn == AFTER_INPUTS) least = b;
                for (int e : op.out) {
                    if (!edges[e].gradient) continue;
                    const int slot = cut.slot[edges[e].output][i];
                    if (cut.owner[edges[e].output][slot] != i) continue;
                    least = std::max(least, f + edges[e].loop[k][slot] + b);
                }
            }
        }
        return result;
    }
    void fill_loop(Edge& e, const Op& to, const std::vector<std::vector<double>>& turnaround) {
        const Op& from = ops[e.from];
        e.loop.assign(from.configs.size(), {});
        std::vector<double> least, longest;
        for (size_t k = 0; k < from.configs.size(); ++k) {
            const Config& c = from.configs[k];
            const std::vector<int>& owner = from.cuts[c.cut].owner[e.output];
            least.assign(owner.size(), std::numeric_limits<double>::infinity());
            for (size_t m = 0; e.gradient && m < to.configs.size(); ++m) {
                const Config& d = to.configs[m];
                longest.assign(owner.size(), NEVER);
                for (const Touch& t : touches(e, c.cut, d.cut)) {
                    const int source = c.processors[owner[t.slot]], target = d.processors[t.piece];
                    // Where an all-reduce may leave the sum with the reader, no way is certain.
                    const bool sent = !c.maybe_together(e.output, t.slot);
                    const double there = sent || source == target ? gather(t, source, target) : 0.0;
                    longest[t.slot] = std::max(
                        longest[t.slot], there + turnaround[m][t.piece] + (sent ? give(t, target, source) : 0.0));
                }
                for (size_t s = 0; s < owner.size(); ++s) least[s] = std::min(least[s], longest[s]);
            }
            for (double& value : least)
                if (!e.gradient || to.configs.empty()) value = NEVER;
            e.loop[k] = least;
        }
    }
};

}  // namespace relax
}  // namespace taskflow
