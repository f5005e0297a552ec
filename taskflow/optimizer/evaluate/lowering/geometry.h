// Rects, cuts of operators, and how the pieces of one cut overlap those of another: all that does not depend on placement.
// The definition is regions/rect.py and partition/grid.py; tests/optimizer/evaluate/test_core_equal.py holds them equal.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <unordered_map>
#include <vector>

namespace taskflow {

constexpr int MAX_DIMS = 8;

struct Box {  // half-open; coordinates beyond the region's number of dimensions are 0 and 1
    int32_t lo[MAX_DIMS], hi[MAX_DIMS];

    bool overlaps(const Box& o, int n) const {
        for (int i = 0; i < n; ++i)
            if (lo[i] >= o.hi[i] || o.lo[i] >= hi[i] || lo[i] >= hi[i] || o.lo[i] >= o.hi[i]) return false;
        return true;
    }
    bool contains(const Box& o, int n) const {  // of a non-empty Box
        for (int i = 0; i < n; ++i)
            if (lo[i] > o.lo[i] || hi[i] < o.hi[i]) return false;
        return true;
    }
    bool equals(const Box& o, int n) const {
        for (int i = 0; i < n; ++i)
            if (lo[i] != o.lo[i] || hi[i] != o.hi[i]) return false;
        return true;
    }
    int64_t volume(int n) const {
        int64_t v = 1;
        for (int i = 0; i < n; ++i) v *= std::max(0, hi[i] - lo[i]);
        return v;
    }
};

inline Box intersect(const Box& a, const Box& b, int n) {
    Box r{};
    for (int i = 0; i < n; ++i) r.lo[i] = std::max(a.lo[i], b.lo[i]), r.hi[i] = std::min(a.hi[i], b.hi[i]);
    return r;
}

// Whether the union of boxes holds all of `whole`: what each box leaves over is cut into at most two parts a dimension.
inline bool covers(const std::vector<const Box*>& boxes, const Box& whole, int n) {
    std::vector<Box> left{whole}, next;
    for (const Box* box : boxes) {
        next.clear();
        for (const Box& piece : left) {
            if (!piece.overlaps(*box, n)) { next.push_back(piece); continue; }
            Box middle = intersect(piece, *box, n), rest = piece;
            for (int i = 0; i < n; ++i) {
                if (rest.lo[i] < middle.lo[i]) { Box b = rest; b.hi[i] = middle.lo[i]; next.push_back(b); }
                if (middle.hi[i] < rest.hi[i]) { Box b = rest; b.lo[i] = middle.hi[i]; next.push_back(b); }
                rest.lo[i] = middle.lo[i], rest.hi[i] = middle.hi[i];
            }
        }
        left.swap(next);
        if (left.empty()) return true;
    }
    return left.empty();
}

// Disjoint boxes that form a grid: one list of positions a dimension, and which box is at each cell.
struct GridOfBoxes {
    int ndim = 0;
    std::vector<int32_t> cuts[MAX_DIMS];
    std::vector<int32_t> at;  // cell, last dimension fastest -> index; -1: none

    int cells(int i) const { return int(cuts[i].size()) - 1; }

    void cut(const std::vector<Box>& boxes, int n) {
        ndim = n;
        size_t total = 1;
        for (int i = 0; i < n; ++i) {
            auto& c = cuts[i];
            c.clear();
            for (const Box& b : boxes) c.push_back(b.lo[i]), c.push_back(b.hi[i]);
            std::sort(c.begin(), c.end());
            c.erase(std::unique(c.begin(), c.end()), c.end());
            total *= size_t(cells(i));
        }
        at.assign(total, -1);
    }
    // Calls f(cell) for every cell that overlaps the box, last dimension fastest.
    template <class F> void overlapping(const Box& box, F f) const {
        int first[MAX_DIMS], last[MAX_DIMS], k[MAX_DIMS];
        for (int i = 0; i < ndim; ++i) {
            const auto& c = cuts[i];
            first[i] = std::max(0, int(std::upper_bound(c.begin(), c.end(), box.lo[i]) - c.begin()) - 1);
            last[i] = std::min(cells(i), int(std::lower_bound(c.begin(), c.end(), box.hi[i]) - c.begin()));
            if (first[i] >= last[i]) return;
            k[i] = first[i];
        }
        for (;;) {
            size_t cell = 0;
            for (int i = 0; i < ndim; ++i) cell = cell * cells(i) + k[i];
            f(cell);
            int i = ndim - 1;
            for (; i >= 0; --i) {
                if (++k[i] < last[i]) break;
                k[i] = first[i];
            }
            if (i < 0) return;
        }
    }
    Box box(size_t cell) const {
        Box b{};
        for (int i = ndim - 1; i >= 0; --i) {
            size_t k = cell % cells(i);
            cell /= cells(i);
            b.lo[i] = cuts[i][k], b.hi[i] = cuts[i][k + 1];
        }
        return b;
    }
};

struct Region {  // an interned Rect
    Box box;
    int ndim;
    int64_t volume;
    bool empty;
};

// The distinct Rects that the pieces of a cut write of one output: disjoint, each owned by the first piece that writes it.
struct Output {
    std::vector<int32_t> slot;         // piece -> slot
    std::vector<int32_t> rect;         // slot -> region
    std::vector<int32_t> first_piece;  // slot -> its owner
    std::vector<std::vector<int32_t>> pieces;  // slot -> all that write it
    bool partial = false;              // some slot is a sum of several pieces' values
    GridOfBoxes grid;
};

// An operator cut in one way; shared by operators with equal attributes and specs.
struct Cut {
    int id, pieces;
    bool local = false;  // of weights alone, and computed whole on each processor that has a piece, for what reads it there
    std::vector<int32_t> inputs, weights, writes;  // lists of Rects, one for each piece
    std::vector<Output> outputs;
    std::vector<int32_t> like;  // by piece: the first one that costs the same
    std::vector<int64_t> flops, backward_flops;
    std::vector<int64_t> input_bytes, weight_bytes, output_bytes, saved_bytes;  // by piece
};

struct Runs {  // in how many stretches of memory lies what a task reads, and what it writes (tasks/lower/emit.py)
    int32_t read = 1, written = 1;
};

struct Overlap {  // what one read takes from one slot
    int32_t slot, runs_there, runs_here;  // stretches of memory in the slot, and in the read Rect
    int64_t volume;
    Box shared;
};

struct Edge {  // how every Rect of a list overlaps an output's slots
    std::vector<uint32_t> offset;
    std::vector<Overlap> overlaps;
};

inline int32_t runs(const Box& part, const Box& of, int n) {
    int64_t length = 1;
    for (int i = n - 1; i >= 0; --i) {
        length *= part.hi[i] - part.lo[i];
        if (part.hi[i] - part.lo[i] != of.hi[i] - of.lo[i]) break;
    }
    return length ? int32_t(std::clamp<int64_t>(part.volume(n) / length, 1, INT32_MAX)) : 1;
}

class Geometry {
public:
    std::vector<Region> regions;
    std::vector<std::vector<int32_t>> lists;  // lists of regions
    std::vector<std::unique_ptr<Cut>> cuts;

    int add_region(const std::vector<int>& lo, const std::vector<int>& hi) {
        if (lo.size() > MAX_DIMS) throw std::invalid_argument("more than 8 dimensions");
        Region r{};
        r.ndim = int(lo.size());
        for (int i = 0; i < r.ndim; ++i) r.box.lo[i] = lo[i], r.box.hi[i] = hi[i];
        r.volume = r.box.volume(r.ndim);
        r.empty = r.volume == 0;
        regions.push_back(r);
        return int(regions.size()) - 1;
    }
    int add_list(const std::vector<int>& list) {
        lists.emplace_back(list.begin(), list.end());
        return int(lists.size()) - 1;
    }
    int add_cut(int pieces, bool local, const std::vector<int>& inputs, const std::vector<int>& weights,
                const std::vector<int>& outputs, const std::vector<int>& like, const std::vector<int64_t>& flops,
                const std::vector<int64_t>& backward_flops, const std::vector<std::vector<int64_t>>& bytes) {
        auto cut = std::make_unique<Cut>();
        cut->id = int(cuts.size());
        cut->pieces = pieces, cut->local = local;
        cut->inputs.assign(inputs.begin(), inputs.end());
        cut->weights.assign(weights.begin(), weights.end());
        cut->writes.assign(outputs.begin(), outputs.end());
        for (int list : outputs) cut->outputs.push_back(output(lists[list]));
        for (Output& output : cut->outputs) output.partial &= !local;
        cut->like.assign(like.begin(), like.end());
        cut->flops = flops, cut->backward_flops = backward_flops;
        cut->input_bytes = bytes[0], cut->weight_bytes = bytes[1], cut->output_bytes = bytes[2];
        cut->saved_bytes = bytes[3];
        cuts.push_back(std::move(cut));
        return int(cuts.size()) - 1;
    }
    const Edge& edge(const Cut& producer, int output, int list) {
        uint64_t key = (uint64_t(producer.id) << 36) | (uint64_t(output) << 28) | uint64_t(list);
        auto& found = edges_[key];
        if (!found) found = make_edge(producer.outputs[output], lists[list]);
        return *found;
    }

private:
    std::unordered_map<uint64_t, std::unique_ptr<Edge>> edges_;

    Output output(const std::vector<int32_t>& list) {
        Output out;
        std::unordered_map<int32_t, int32_t> slots;
        for (size_t piece = 0; piece < list.size(); ++piece) {
            auto [it, fresh] = slots.emplace(list[piece], int32_t(out.rect.size()));
            if (fresh) {
                out.rect.push_back(list[piece]);
                out.first_piece.push_back(int32_t(piece));
                out.pieces.emplace_back();
            }
            out.slot.push_back(it->second);
            out.pieces[it->second].push_back(int32_t(piece));
            out.partial |= !fresh;
        }
        std::vector<Box> boxes;
        for (int32_t r : out.rect) boxes.push_back(regions[r].box);
        out.grid.cut(boxes, regions[out.rect[0]].ndim);
        for (size_t s = 0; s < boxes.size(); ++s)
            out.grid.overlapping(boxes[s], [&](size_t cell) {
                if (out.grid.at[cell] >= 0) throw std::invalid_argument("pieces of a tensor do not form a grid");
                out.grid.at[cell] = int32_t(s);
            });
        if (out.grid.at.size() != boxes.size()) throw std::invalid_argument("pieces of a tensor do not form a grid");
        return out;
    }

    std::unique_ptr<Edge> make_edge(const Output& output, const std::vector<int32_t>& list) {
        auto edge = std::make_unique<Edge>();
        for (int32_t id : list) {
            const Region& read = regions[id];
            edge->offset.push_back(uint32_t(edge->overlaps.size()));
            if (read.empty) continue;
            output.grid.overlapping(read.box, [&](size_t cell) {
                int32_t slot = output.grid.at[cell];
                const Region& owned = regions[output.rect[slot]];
                Overlap o{slot, 1, 1, 0, intersect(owned.box, read.box, read.ndim)};
                o.runs_there = runs(o.shared, owned.box, read.ndim), o.runs_here = runs(o.shared, read.box, read.ndim);
                o.volume = o.shared.volume(read.ndim);
                edge->overlaps.push_back(o);
            });
        }
        edge->offset.push_back(uint32_t(edge->overlaps.size()));
        return edge;
    }
};

}  // namespace taskflow
