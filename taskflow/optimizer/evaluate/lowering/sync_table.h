// The tables of tasks/lower/gradient_sync.py, which Python makes and the core keeps: how bundles are synchronised.
// The definition is tasks/lower/gradient_sync.py; tests/optimizer/evaluate/test_core_sync_table.py holds them equal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace taskflow {

enum SyncStep : uint8_t { FILL_GRADIENT, SEND_GRADIENT, ADD_ARRIVED, ALL_REDUCE, REDUCE_SCATTER, UPDATE_WEIGHTS, SEND_SUM,
                          SEND_WEIGHTS, ALL_GATHER };
enum SyncPhase { SUMS, SENDS, UPDATES_EVERYWHERE };
enum EmitOrder { EACH, ROUNDS, ONCE };

struct SyncRow {
    uint8_t step;
    bool sums;
    int32_t place, source, parts, share;  // share: a chunk, or -1: the whole bundle
    uint32_t after, gradients, readers;   // where its entries begin in the pattern's lists; they end where the next row's begin
};

struct RowStage {
    int phase, order;
    uint32_t first, last;
};

struct ChunkPattern {
    std::vector<SyncRow> rows;  // and one that ends the lists
    std::vector<int32_t> after, gradients, readers;
    std::vector<RowStage> stages;
    std::vector<int32_t> sums;  // by place: a row, or -1

    bool has(int phase) const {
        for (const RowStage& stage : stages)
            if (stage.phase == phase) return true;
        return false;
    }
};

struct SyncChunk {
    int64_t low, high;
    int32_t root;
    std::shared_ptr<const ChunkPattern> pattern;
};

struct SyncKey {
    int way, holders, itemsize;
    int64_t size;
    std::vector<uint8_t> giving;  // empty if all holders have a gradient
    bool operator==(const SyncKey& o) const {
        return way == o.way && holders == o.holders && itemsize == o.itemsize && size == o.size && giving == o.giving;
    }
};

struct SyncHash {
    size_t operator()(const SyncKey& k) const {
        uint64_t h = uint64_t(k.size) * 0x9E3779B97F4A7C15ull ^ uint64_t(k.way) << 40 ^ uint64_t(k.holders) << 8 ^ uint64_t(k.itemsize);
        for (uint8_t gives : k.giving) h = (h ^ gives) * 1099511628211ull;
        return size_t((h ^ (h >> 29)) * 0xFF51AFD7ED558CCDull);
    }
};

typedef void (*TableCallback)(void*, int way, int holders, const uint8_t* giving, int64_t size, int itemsize);

class SyncTables {
public:
    TableCallback ask = nullptr;
    void* asker = nullptr;

    // The chunks of a bundle; none if Python has failed to say.
    const std::vector<SyncChunk>& find(const SyncKey& key) {
        auto known = tables_.find(key);
        if (known != tables_.end()) return known->second;
        answer_.clear();
        ask(asker, key.way, key.holders, key.giving.empty() ? nullptr : key.giving.data(), key.size, key.itemsize);
        if (answer_.empty()) return answer_;
        return tables_[key] = answer_;
    }
    // Rows: step, place, source, parts, share, sums; of each what it waits for: rows, gradients, readers.
    int add(const std::vector<std::vector<int>>& rows, const std::vector<std::vector<std::vector<int>>>& waits,
            const std::vector<std::vector<int>>& stages, const std::vector<int>& sums) {
        ChunkPattern pattern;
        for (size_t k = 0; k <= rows.size(); ++k) {
            SyncRow row{};
            row.after = uint32_t(pattern.after.size()), row.gradients = uint32_t(pattern.gradients.size());
            row.readers = uint32_t(pattern.readers.size());
            if (k < rows.size()) {
                const std::vector<int>& of = rows[k];
                row.step = uint8_t(of.at(0)), row.place = of.at(1), row.source = of.at(2), row.parts = of.at(3);
                row.share = of.at(4), row.sums = of.at(5) != 0;
                const auto& lists = waits.at(k);
                pattern.after.insert(pattern.after.end(), lists.at(0).begin(), lists.at(0).end());
                pattern.gradients.insert(pattern.gradients.end(), lists.at(1).begin(), lists.at(1).end());
                pattern.readers.insert(pattern.readers.end(), lists.at(2).begin(), lists.at(2).end());
            }
            pattern.rows.push_back(row);
        }
        for (const auto& of : stages) pattern.stages.push_back({of.at(0), of.at(1), uint32_t(of.at(2)), uint32_t(of.at(3))});
        pattern.sums.assign(sums.begin(), sums.end());
        patterns_.push_back(std::make_shared<const ChunkPattern>(std::move(pattern)));
        return int(patterns_.size()) - 1;
    }
    void answer(int64_t low, int64_t high, int root, int pattern) { answer_.push_back({low, high, root, patterns_.at(pattern)}); }
    void forget() { tables_.clear(), patterns_.clear(); }

private:
    std::unordered_map<SyncKey, std::vector<SyncChunk>, SyncHash> tables_;
    std::vector<std::shared_ptr<const ChunkPattern>> patterns_;
    std::vector<SyncChunk> answer_;
};

}  // namespace taskflow
