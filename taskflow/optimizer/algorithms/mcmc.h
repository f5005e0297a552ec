// A walk by Metropolis-Hastings without Python: proposals drawn, evaluated and decided here. taskflow/optimizer/algorithms/mcmc_compiled.py hands
// the tables over and is called back where one lacks an entry, for a plan better than all before, and every few milliseconds.
// The definition is optimizer/algorithms/mcmc.py and optimizer/algorithms/splitmix.py; tests/optimizer/algorithms/test_walk.py
// holds them equal.
#pragma once

#include <chrono>
#include <cmath>

#include "evaluate/step.h"

namespace taskflow {

struct Draws {  // twin of taskflow/optimizer/algorithms/splitmix.py
    uint64_t state = 0;
    uint64_t word() {
        state += 0x9E3779B97F4A7C15ull;
        uint64_t z = state;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    double unit() { return double(word() >> 11) * 0x1p-53; }
    uint64_t below(uint64_t n) {
        int bits = 0;
        while (bits < 64 && n >> bits) ++bits;
        uint64_t found = word() >> (64 - bits);
        while (found >= n) found = word() >> (64 - bits);
        return found;
    }
};

// The configurations of an operator by number, as taskflow/optimizer/space/space.py numbers them.
struct Choices {
    enum Kind { STRUCTURED, CONTIGUOUS, ARBITRARY };
    int kind, processors;
    std::vector<std::vector<int>> degrees;  // by row
    std::vector<uint64_t> ends;             // how many configurations there are up to each row
    std::vector<int> devices;               // the only processors that it may have; empty: all
    std::vector<int> pinned;                // the processors of the only configuration; empty: it chooses

    uint64_t size() const { return ends.back(); }
    int row(uint64_t number) const { return int(std::upper_bound(ends.begin(), ends.end(), number) - ends.begin()); }

    // The processor of each piece.
    void place(uint64_t number, int row, std::vector<int>& out) const {
        if (!pinned.empty()) { out = pinned; return; }
        if (row) number -= ends[row - 1];
        const uint64_t n = uint64_t(processors);
        int pieces = 1;
        for (int d : degrees[row]) pieces *= d;
        out.resize(pieces);
        if (kind == ARBITRARY) {
            for (int k = 0; k < pieces; ++k, number /= n) out[k] = int(number % n);
        } else {
            const uint64_t offset = number % n;
            number /= n;
            int strides = 0;
            uint64_t stride = 1;
            for (int again = 0; again < 2; ++again) {  // counts them, then finds the one that is meant
                const int wanted = again ? int(number % strides) : -1;
                strides = 0;
                for (uint64_t s = 1; s <= n; ++s) {
                    if (s > 1 && (kind == CONTIGUOUS || pieces == 1 || n % s || s * pieces > n)) continue;
                    if (strides++ == wanted) stride = s;
                }
            }
            number /= strides;
            for (int k = 0; k < pieces; ++k) out[k] = k;
            if (number) permute(degrees[row], number, out);
            for (int& slot : out) slot = int((offset + stride * uint64_t(slot)) % n);
        }
        if (!devices.empty())
            for (int& p : out) p = devices[p];
    }

private:
    // Piece -> slot, the cut dimensions numbered in the given one of their orders, which are in the order of dictionaries.
    static void permute(const std::vector<int>& degrees, uint64_t order, std::vector<int>& slots) {
        std::vector<int> cut, weight(degrees.size(), 0), chosen;
        for (size_t i = 0; i < degrees.size(); ++i)
            if (degrees[i] > 1) cut.push_back(int(i));
        uint64_t ways = 1;
        for (size_t k = 2; k <= cut.size(); ++k) ways *= k;
        for (size_t left = cut.size(); left; --left) {
            ways /= left;
            const auto at = cut.begin() + ptrdiff_t(order / ways);
            order %= ways;
            chosen.push_back(*at), cut.erase(at);
        }
        int step = 1;
        for (size_t k = chosen.size(); k-- > 0; step *= degrees[chosen[k]]) weight[chosen[k]] = step;
        for (size_t piece = 0; piece < slots.size(); ++piece) {
            int rest = int(piece), slot = 0;
            for (size_t i = degrees.size(); i-- > 0; rest /= degrees[i]) slot += weight[i] * (rest % degrees[i]);
            slots[piece] = slot;
        }
    }
};

class Walk {
public:
    enum End { OUT_OF_PROPOSALS, OUT_OF_TIME, STALLED, MISSING, BETTER, FAILED };
    struct Rule {  // of a chain
        double scale;  // seconds; exp(-1) of the plans that are slower by this much are accepted
        uint64_t least;  // proposals before it may end
        double patience, share;  // ends when these, and this share of all, went by without a new best of the chain
    };

    Walk(Step& step, const bool& failed) : step_(step), failed_(failed) {}
    int add_choices(int kind, int processors, std::vector<std::vector<int>> degrees, std::vector<uint64_t> ends,
                    std::vector<int> devices, std::vector<int> pinned) {
        choices_.push_back({kind, processors, std::move(degrees), std::move(ends), std::move(devices), std::move(pinned)});
        return int(choices_.size()) - 1;
    }
    void add_leader(int choices) {
        leaders_.push_back({choices, std::vector<std::vector<Member>>(choices_[choices].degrees.size()), 0, false});
    }
    // What a row of a leader means for it and each of its followers: a cut, and of each piece the leader's piece whose
    // processor it runs on (empty: they are the same).
    void add_member(int leader, int row, int node, int cut, std::vector<int> places) {
        leaders_[leader].rows[row].push_back({node, cut, std::move(places)});
    }
    void begin(uint64_t state, double now, Rule rule) {
        draws_.state = state, seconds = best = now, rule_ = rule, count = found = accepted = 0, drawn_ = false;
    }
    // Proposals until there were `most` of the chain, `span` seconds are over, the chain ends, or Python is wanted. `record`: what a plan must
    // be faster than to be BETTER: it has been evaluated and awaits a decision.
    End run(double record, uint64_t most, double span) {
        using Clock = std::chrono::steady_clock;
        const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(span));
        for (;;) {
            if (ends()) return STALLED;
            if (!drawn_) {
                if (count >= most) return OUT_OF_PROPOSALS;
                if (Clock::now() > end) return OUT_OF_TIME;
                draw();
            }
            const auto& members = leaders_[leader].rows[row];
            if (members.empty()) return MISSING;
            drawn_ = false;
            ++count, improved_ = false;
            propose(members);
            if (failed_) return FAILED;
            if (!(proposed <= limit_)) continue;
            if (proposed < record) return BETTER;
            step_.accept();
            take();
        }
    }
    // The proposal that was evaluated last has become the current plan.
    void take() {
        seconds = proposed;
        ++accepted;
        if (!leaders_[leader].moved) leaders_[leader].moved = true, moved_.push_back(leader);
        leaders_[leader].number = number;
        if (seconds < best) best = seconds, found = count, improved_ = true;
    }
    // What the leaders whose configuration was accepted since the last call now have: (leader, number).
    std::vector<std::pair<int, uint64_t>> settle() {
        std::vector<std::pair<int, uint64_t>> all;
        for (int k : moved_) all.push_back({k, leaders_[k].number}), leaders_[k].moved = false;
        moved_.clear();
        return all;
    }
    // The processors of a configuration, for tests.
    std::vector<int> processors(int of, uint64_t which) {
        const Choices& choices = choices_[leaders_[of].choices];
        choices.place(which, choices.row(which), places_);
        return places_;
    }
    void draw() {
        leader = int(draws_.below(leaders_.size()));
        const Choices& choices = choices_[leaders_[leader].choices];
        number = draws_.below(choices.size());
        row = choices.row(number);
        // Accept if u <= exp((seconds - proposed) / scale), with u drawn first: then simulation may stop beyond the limit. Through
        // memory, since the limit must be that of Python to the bit, also where the compiler would fuse product and sum.
        volatile double further = rule_.scale * std::log(1.0 - draws_.unit());
        limit_ = seconds - further;
        drawn_ = true;
    }
    uint64_t state() const { return draws_.state; }

    double seconds = 0, best = 0, proposed = 0;  // of the current plan, of the chain's best, of the last proposal
    uint64_t count = 0, found = 0, accepted = 0;  // proposals of the chain; at which of them the best came; how many were accepted
    int leader = 0, row = 0;  // of the last proposal, as
    uint64_t number = 0;      // is its configuration

private:
    struct Member { int node, cut; std::vector<int> places; };
    struct Leader { int choices; std::vector<std::vector<Member>> rows; uint64_t number; bool moved; };

    bool ends() const {
        return count && !drawn_ && !improved_ && count >= rule_.least &&
               double(count - found) > rule_.patience + rule_.share * double(count);
    }
    void propose(const std::vector<Member>& members) {
        choices_[leaders_[leader].choices].place(number, row, places_);
        step_.begin();
        for (const Member& member : members) {
            if (member.places.empty()) { step_.change(member.node, member.cut, places_); continue; }
            follows_.resize(member.places.size());
            for (size_t k = 0; k < follows_.size(); ++k) follows_[k] = places_[member.places[k]];
            step_.change(member.node, member.cut, follows_);
        }
        proposed = step_.evaluate(limit_);
    }

    Step& step_;
    const bool& failed_;  // whether Python raised an exception when it was asked
    std::vector<Choices> choices_;
    std::vector<Leader> leaders_;
    std::vector<int> moved_, places_, follows_;
    Draws draws_;
    Rule rule_{};
    double limit_ = 0;
    bool drawn_ = false, improved_ = false;  // whether a proposal waits for a table; whether the last one was a new best
};

}  // namespace taskflow
