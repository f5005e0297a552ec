// Where the parameters of one layer live under given configurations: tasks/lower/parameters.py for one layer.
// The definition is tasks/lower/parameters.py; tests/optimizer/evaluate/test_core_equal.py holds them equal.
#pragma once

#include "evaluate/lowering/geometry.h"

namespace taskflow {

struct Config {  // one operator's configuration
    const Cut* cut = nullptr;
    std::vector<int32_t> processors;
    bool apart = false;        // whether every piece has a processor of its own
    std::vector<double> work;  // by piece: seconds that its processor is busy with it at least

    // Of a `local` cut, among the pieces that compute the same the one that a processor reads: tasks/lower/owners.py, nearest_copy.
    int32_t nearest(const std::vector<int32_t>& same, int processor) const {
        const int n = int(same.size());
        if (processors[same[processor % n]] == processor) return same[processor % n];
        for (int32_t piece : same)
            if (processors[piece] == processor) return piece;
        const int first = processors[same[0]], step = n > 1 ? processors[same[1]] - first : 1;
        bool even = step > 0;
        for (int k = 1; k < n && even; ++k) even = processors[same[k]] - processors[same[k - 1]] == step;
        if (even) return same[((processor / step - first / step) % n + n) % n];
        return *std::min_element(same.begin(), same.end(), [&](int32_t a, int32_t b) {
            return (processors[a] ^ processor) < (processors[b] ^ processor);
        });
    }
};

struct Sync {
    int way = 0;           // as Python counts them
    bool rotates = false;  // whether the first root differs from bundle to bundle
};

// Bytes of a number in which floats of ``itemsize`` bytes are summed: taskflow/floats.py.
inline int sum_bytes(int itemsize) { return std::max(itemsize, 4); }

struct ParameterInfo {
    int layer, whole, itemsize;  // whole: the region
    bool trained;
    int dtype;

    int gradient_bytes() const { return sum_bytes(itemsize); }
};

struct NodeInfo {
    std::vector<std::pair<int, int>> inputs;  // (node, output)
    std::vector<int> parameters;
    bool state, active, keeps_inputs, keeps_weights, keeps_outputs;
    std::vector<int> itemsizes;          // of outputs
    std::vector<uint8_t> needs_gradient, seed;  // of outputs
    std::vector<uint8_t> sole;           // of inputs: whether nothing else reads the tensor
};

struct LayerInfo {
    std::vector<int> parameters;
    std::vector<std::pair<int, int>> uses;  // (node, place among the node's parameters), nodes in order
};

struct CellAt {
    int32_t parameter;
    int64_t offset, volume;
};

struct BundlePlan {
    std::vector<int32_t> group;  // processors in rising order
    std::vector<CellAt> cells;
    int64_t size = 0;
    int itemsize = 4;
    bool trained = false;
    int first_index = 0;  // of (first group member, first cell) in the layer's tables of group members x cells

    int gradient_bytes() const { return sum_bytes(itemsize); }
    int place(int processor) const {
        return int(std::lower_bound(group.begin(), group.end(), processor) - group.begin());
    }
    int index(int member, int cell) const { return first_index + member * int(cells.size()) + cell; }
};

struct BundleCell { int32_t bundle, cell, runs; };  // runs: stretches of memory of the cell in the Rect that it covers a part of

struct LayerPlan {
    std::vector<BundlePlan> bundles;
    std::vector<std::vector<BundleCell>> covers;  // distinct (parameter, Rect) -> its cells, in the layout's order
    std::vector<std::vector<int32_t>> cover;      // use -> piece -> covers, or -1 for an empty Rect
    std::vector<uint8_t> gathers;                 // use -> whether some piece needs several cells
    std::vector<int32_t> member_base;             // bundle -> members of the bundles before it
    int indices = 0, members = 0;                 // group members x cells, and group members, of all bundles
};

inline LayerPlan plan_layer(const Geometry& geometry, const LayerInfo& layer, const std::vector<ParameterInfo>& infos,
                            const std::vector<NodeInfo>& nodes,
                            const std::vector<std::shared_ptr<const Config>>& configs, int processors) {
    const size_t words = size_t(processors + 63) / 64;
    LayerPlan plan;
    struct Group { std::vector<uint64_t> bits; bool trained; int dtype; };
    std::vector<Group> groups;
    std::unordered_map<uint64_t, std::vector<int>> by_hash;
    plan.cover.resize(layer.uses.size());
    struct Read { int32_t region; std::vector<uint64_t> bits; int32_t cover; };
    for (int parameter : layer.parameters) {
        const ParameterInfo& info = infos[parameter];
        const Region& all = geometry.regions[info.whole];
        std::vector<Read> reads;
        std::unordered_map<int32_t, int32_t> place;
        std::vector<Box> boxes;
        for (size_t u = 0; u < layer.uses.size(); ++u) {
            auto [node, k] = layer.uses[u];
            if (nodes[node].parameters[k] != parameter) continue;
            const Config& config = *configs[node];
            const auto& list = geometry.lists[config.cut->weights[k]];
            plan.cover[u].resize(list.size());
            int32_t last = -1, at = -1;
            for (size_t piece = 0; piece < list.size(); ++piece) {
                int32_t region = list[piece];
                if (geometry.regions[region].empty) { plan.cover[u][piece] = -1; continue; }
                if (region != last) {
                    auto [it, fresh] = place.emplace(region, int32_t(reads.size()));
                    if (fresh) {
                        reads.push_back({region, std::vector<uint64_t>(words), int32_t(plan.covers.size() + reads.size())});
                        boxes.push_back(geometry.regions[region].box);
                    }
                    last = region, at = it->second;
                }
                int p = config.processors[piece];
                reads[at].bits[p >> 6] |= uint64_t(1) << (p & 63);
                plan.cover[u][piece] = reads[at].cover;
            }
        }
        const bool trained = info.trained && !reads.empty();
        GridOfBoxes grid;
        boxes.push_back(all.box);
        grid.cut(boxes, all.ndim);
        std::vector<uint64_t> holders(grid.at.size() * words);
        std::vector<std::vector<size_t>> cells_of(reads.size());
        for (size_t r = 0; r < reads.size(); ++r)
            grid.overlapping(boxes[r], [&](size_t cell) {
                for (size_t w = 0; w < words; ++w) holders[cell * words + w] |= reads[r].bits[w];
                cells_of[r].push_back(cell);
            });
        // What no task uses is held by the holders of the first cell that is used; if none is, by processor 0.
        auto used = [&](size_t cell) {
            return std::any_of(&holders[cell * words], &holders[cell * words] + words, [](uint64_t w) { return w != 0; });
        };
        size_t first = 0;
        while (first < grid.at.size() && !used(first)) ++first;
        if (first == grid.at.size()) holders[(first = 0)] = 1;
        std::vector<BundleCell> where(grid.at.size());
        for (size_t cell = 0; cell < grid.at.size(); ++cell) {
            const uint64_t* bits = &holders[(used(cell) ? cell : first) * words];
            uint64_t hash = 1469598103934665603ull;
            for (size_t w = 0; w < words; ++w) hash = (hash ^ bits[w]) * 1099511628211ull;
            auto& candidates = by_hash[hash];
            int bundle = -1;
            for (int g : candidates)
                if (std::equal(bits, bits + words, groups[g].bits.begin()) && groups[g].trained == trained &&
                    groups[g].dtype == info.dtype)
                    bundle = g;
            if (bundle < 0) {
                bundle = int(groups.size());
                candidates.push_back(bundle);
                groups.push_back({std::vector<uint64_t>(bits, bits + words), trained, info.dtype});
                plan.bundles.emplace_back();
                plan.bundles[bundle].itemsize = info.itemsize;
                plan.bundles[bundle].trained = trained;
                for (int p = 0; p < processors; ++p)
                    if (bits[p >> 6] >> (p & 63) & 1) plan.bundles[bundle].group.push_back(p);
            }
            BundlePlan& b = plan.bundles[bundle];
            int64_t volume = grid.box(cell).volume(all.ndim);
            where[cell] = {bundle, int32_t(b.cells.size()), 1};
            b.cells.push_back({parameter, b.size, volume});
            b.size += volume;
        }
        for (size_t r = 0; r < reads.size(); ++r) {
            std::vector<BundleCell> cover;
            for (size_t cell : cells_of[r]) {
                cover.push_back(where[cell]);
                cover.back().runs = runs(grid.box(cell), boxes[r], all.ndim);
            }
            std::sort(cover.begin(), cover.end(), [](const BundleCell& a, const BundleCell& b) {
                return a.bundle != b.bundle ? a.bundle < b.bundle : a.cell < b.cell;
            });
            plan.covers.push_back(std::move(cover));
        }
    }
    for (BundlePlan& b : plan.bundles) {
        b.first_index = plan.indices;
        plan.member_base.push_back(plan.members);
        plan.indices += int(b.group.size() * b.cells.size());
        plan.members += int(b.group.size());
    }
    for (const auto& cover : plan.cover)
        plan.gathers.push_back(std::any_of(cover.begin(), cover.end(), [&](int32_t c) {
            return c >= 0 && plan.covers[c].size() > 1;
        }));
    return plan;
}

}  // namespace taskflow
