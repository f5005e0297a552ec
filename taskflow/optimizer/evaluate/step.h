// One step of one model: the current strategy, a proposal beside it, and the times of both.
// The definition is optimizer/evaluate/evaluator.py; tests/optimizer/algorithms/test_core_walks.py holds them equal.
#pragma once

#include <map>

#include "evaluate/simulation/by_fragment.h"
#include "evaluate/simulation/delta.h"

namespace taskflow {

class Step {
public:
    Step() : lowering_(model_, false) {}

    // ---- the model -------------------------------------------------------------------------------------------------
    void machine(int processors, const std::vector<int>& classes, bool rates, bool by_runs, const std::vector<double>& flops,
                 const std::vector<double>& nbytes, const std::vector<double>& overhead, CostCallback cost,
                 RouteCallback route, GroupCallback group, bool (*go_on)(void*), TableCallback table, void* asker) {
        model_.processors = processors;
        model_.processor_class = classes, model_.rates = rates, model_.by_runs = by_runs;
        model_.flops_per_second = flops, model_.bytes_per_second = nbytes, model_.overhead = overhead;
        model_.ask_cost = cost, model_.ask_route = route, model_.ask_group = group, model_.asker = asker;
        model_.checkpoint.ask = go_on, model_.checkpoint.asker = asker;
        model_.sync_tables.ask = table, model_.sync_tables.asker = asker;
        model_.route_of.assign(size_t(processors) * processors, -1);
        model_.routes.begin(processors);
    }
    void repeat(int times) { model_.repeats = times; }
    void rule(bool trains, int64_t state4, int64_t state8, int64_t flops, bool clips) {
        model_.trains = trains, model_.rule_flops = flops, model_.clips = clips;
        model_.rule_state[0] = state4, model_.rule_state[1] = state8;
    }
    void add_node(const std::vector<int>& input_nodes, const std::vector<int>& input_outputs,
                  const std::vector<int>& parameters, const std::vector<int>& itemsizes, const std::vector<int>& needs,
                  const std::vector<int>& seeds, bool state, bool active, bool keeps_inputs, bool keeps_weights,
                  bool keeps_outputs) {
        NodeInfo node;
        for (size_t i = 0; i < input_nodes.size(); ++i) node.inputs.push_back({input_nodes[i], input_outputs[i]});
        node.parameters = parameters, node.itemsizes = itemsizes;
        node.needs_gradient.assign(needs.begin(), needs.end()), node.seed.assign(seeds.begin(), seeds.end());
        node.state = state, node.active = active;
        node.keeps_inputs = keeps_inputs, node.keeps_weights = keeps_weights, node.keeps_outputs = keeps_outputs;
        model_.nodes.push_back(std::move(node));
    }
    void add_parameter(int layer, int whole, int itemsize, bool trained, int dtype) {
        if (layer == int(model_.layers.size())) model_.layers.emplace_back();
        model_.layers[layer].parameters.push_back(int(model_.parameters.size()));
        model_.parameters.push_back({layer, whole, itemsize, trained, dtype});
    }
    void add_loss(int node, int output, int list) {
        model_.losses.push_back({node, output}), model_.loss_lists.push_back(list);
    }
    void add_carry(int node, int output, int becomes_node, int becomes_output) {
        model_.carries.push_back({{node, output}, {becomes_node, becomes_output}});
    }
    void finish_model() {
        layers_of_.resize(model_.nodes.size());
        for (size_t n = 0; n < model_.nodes.size(); ++n)
            for (size_t k = 0; k < model_.nodes[n].parameters.size(); ++k) {
                int layer = model_.parameters[model_.nodes[n].parameters[k]].layer;
                model_.layers[layer].uses.push_back({int(n), int(k)});
                if (layers_of_[n].empty() || layers_of_[n].back() != layer) layers_of_[n].push_back(layer);
            }
        find_sole_readers();
        current_.configs.resize(model_.nodes.size()), current_.layers.resize(model_.layers.size());
        current_.syncs.resize(model_.layers.size());
        fragments_.resize(model_.layers.size());
        proposed_ = current_, proposed_fragments_ = fragments_;
    }
    void add_route(int source, int target, const std::vector<int>& resources, double latency, double bandwidth, int cls) {
        model_.route_of[size_t(source) * model_.processors + target] = add_route(resources, false, latency, bandwidth, cls);
    }
    void add_group(const std::vector<int32_t>& members, const std::vector<int>& resources, bool together) {
        const int number = int(model_.groups.size());
        model_.groups[members] = {add_route(resources, together, 0, 1, 0), number};
    }
    SyncTables& sync_tables() { return model_.sync_tables; }
    int add_region(const std::vector<int>& lo, const std::vector<int>& hi) { return model_.geometry.add_region(lo, hi); }
    int add_list(const std::vector<int>& list) { return model_.geometry.add_list(list); }
    int add_cut(int pieces, bool local, const std::vector<int>& inputs, const std::vector<int>& weights,
                const std::vector<int>& outputs, const std::vector<int>& like, const std::vector<int64_t>& flops,
                const std::vector<int64_t>& backward, const std::vector<std::vector<int64_t>>& bytes) {
        return model_.geometry.add_cut(pieces, local, inputs, weights, outputs, like, flops, backward, bytes);
    }

    // ---- proposals -------------------------------------------------------------------------------------------------
    void begin() { take_over(current_, proposed_), proposed_fragments_ = fragments_; }
    void change(int node, int cut, const std::vector<int>& processors) {
        auto config = std::make_shared<Config>();
        config->cut = model_.geometry.cuts.at(cut).get();
        config->processors.assign(processors.begin(), processors.end());
        if (int(processors.size()) != config->cut->pieces) throw std::invalid_argument("pieces without processors");
        std::vector<int> sorted(processors);
        std::sort(sorted.begin(), sorted.end());
        config->apart = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
        measure(node, *config);
        proposed_.configs[node] = std::move(config);
        touched_.push_back(node);
        for (int layer : layers_of_[node]) proposed_.layers[layer].reset();
    }
    void change_sums(bool collective) { proposed_.collective_sums = collective; }
    void change_sync(int layer, int way, bool rotates) { proposed_.syncs[layer] = {way, rotates}; }

    // The paper's Algorithm 1, from the start of each proposal's step; or its Algorithm 2, from the current plan's times.
    enum Algorithm { FULL, DELTA };
    int algorithm = FULL;

    // Seconds of the proposal; infinity as soon as it is certain to pass the limit, if it has more tasks than there are numbers for, or
    // if Python says at a checkpoint that it is not to go on: then the current plan stays, and the proposal must not be accepted.
    double evaluate(double limit) {
        try {
            return evaluate_proposal(limit);
        } catch (const Interrupted&) {
        } catch (const std::length_error&) {
        }
        return std::numeric_limits<double>::infinity();
    }
    void accept() {
        load();
        current_load_ = load_;
        take_over(proposed_, current_), fragments_ = proposed_fragments_;
        lowering_.accept();
        accepted_ = true;
        size_ = spare_size_;
        flat_ = spare_flat_;
        if (flat_) fragment_simulation_.forget();
        else fragment_simulation_.keep(), std::swap(around_, kept_around_);
        keeps_around_ = !flat_;
        if (flat_) std::swap(tasks_, spare_tasks_), std::swap(times_, spare_times_);
    }
    // Makes the flat tasks of the current strategy, with all columns, and their times.
    void complete() {
        if (flat_ && (!tasks_.kind.empty() || !tasks_.size())) return;
        const double infinity = std::numeric_limits<double>::infinity();
        model_.checkpoint.paused = true;
        Lowering described(model_, true);
        described.run(current_, nullptr, tasks_, infinity);
        if (!flat_) simulation_.run(tasks_, model_.routes, times_, infinity, model_.checkpoint);
        model_.checkpoint.paused = false;
        flat_ = true;
    }
    size_t size() const { return size_; }
    void ask_every(double seconds) { model_.checkpoint.every = std::chrono::duration<double>(seconds); }
    Tasks& tasks() { return tasks_; }
    Times& times() { return times_; }

private:
    int add_route(const std::vector<int>& resources, bool together, double latency, double bandwidth, int cls) {
        const int number = model_.routes.add(resources, together);
        model_.route_latency.push_back(latency), model_.route_bandwidth.push_back(bandwidth);
        model_.route_class.push_back(cls);
        if (int(model_.recent_.size()) <= cls) model_.recent_.resize(cls + 1);
        return number;
    }
    // Makes `to` what `from` is, of which only the configurations of touched_ may be others.
    void take_over(const Plans& from, Plans& to) {
        for (int node : touched_) to.configs[node] = from.configs[node];
        to.layers = from.layers, to.syncs = from.syncs, to.collective_sums = from.collective_sums;
        touched_.clear();
    }
    double evaluate_proposal(double limit) {
        if (limit < std::numeric_limits<double>::infinity() && overloaded(limit))
            return std::numeric_limits<double>::infinity();
        plan_layers();
        if (algorithm == DELTA) return evaluate_by_propagation(limit);
        // The factor of clipping needs all layers' sums at once, so there the layers cannot be kept apart.
        return model_.clips ? evaluate_flat(limit) : evaluate_by_fragment(limit);
    }
    // The strategy that was lowered and accepted last.
    const Plans* before() const { return accepted_ ? &current_ : nullptr; }

    double evaluate_flat(double limit) {
        if (!lowering_.run(proposed_, before(), spare_tasks_, limit)) return std::numeric_limits<double>::infinity();
        spare_flat_ = true, spare_size_ = spare_tasks_.size();
        return simulation_.run(spare_tasks_, model_.routes, spare_times_, limit, model_.checkpoint);
    }
    double evaluate_by_propagation(double limit) {
        if (!lowering_.run(proposed_, before(), spare_tasks_, limit)) return std::numeric_limits<double>::infinity();
        spare_flat_ = true, spare_size_ = spare_tasks_.size();
        if (!flat_ || !tasks_.size()) return simulation_.run(spare_tasks_, model_.routes, spare_times_, limit, model_.checkpoint);
        return delta_.run(tasks_, times_, spare_tasks_, model_.routes, simulation_, spare_times_, limit, model_.checkpoint);
    }
    double evaluate_by_fragment(double limit) {
        const uint32_t first_tasks = lowering_.run_around(proposed_, before(), around_, keeps_around_ ? &kept_around_ : nullptr);
        parts_.resize(model_.trains ? proposed_.layers.size() : 0);
        uint32_t first_slot = 0;
        for (size_t k = 0; k < parts_.size(); ++k) {
            const uint32_t slots = 2 * uint32_t(proposed_.layers[k]->indices);
            auto& kept = proposed_fragments_[k];
            bool trained = kept != nullptr;
            if (!kept || lowering_.renewed(int(k)) || !kept->made_for(proposed_.layers[k], proposed_.syncs[k])) {
                const std::vector<uint8_t>& flat = lowering_.flat(int(k));
                trained = std::find(flat.begin(), flat.end(), 1) != flat.end();
                if (kept && !(kept->made_for(proposed_.layers[k], proposed_.syncs[k]) && kept->flat == flat)) kept.reset();
            }
            FragmentSimulation::Layer& part = parts_[k];
            if (!trained) part.fragment = nullptr;
            else if (part.fragment != kept) part.fragment = kept;
            part.first_slot = first_slot, part.slots = slots, part.trained = trained;
            first_slot += slots;
        }
        const double seconds = fragment_simulation_.run(around_, first_tasks, parts_, model_.routes, limit, model_.checkpoint, [this](int layer) {
            parts_[layer].fragment = proposed_fragments_[layer] =
                make_fragment(lowering_, layer, spare_tasks_, model_.routes, proposed_.layers[layer],
                              proposed_.syncs[layer], lowering_.flat(layer));
        });
        spare_flat_ = false, spare_size_ = around_.size();
        for (auto& part : parts_)
            if (part.fragment) spare_size_ += part.fragment->size();
        return seconds;
    }
    void find_sole_readers() {
        std::map<std::pair<int, int>, int> readers;
        for (auto& node : model_.nodes)
            for (auto& input : node.inputs) ++readers[input];
        for (auto& loss : model_.losses) ++readers[loss];
        for (auto& [carried, becomes] : model_.carries) ++readers[becomes];
        for (auto& node : model_.nodes)
            for (auto& input : node.inputs) node.sole.push_back(readers[input] == 1);
    }
    // Forward as it will be, backward with the bytes that it touches in any case.
    void measure(int n, Config& config) {
        const Cut& cut = *config.cut;
        const NodeInfo& node = model_.nodes[n];
        config.work.assign(cut.pieces, 0.0);
        if (node.state) return;
        bool backward = false;
        for (uint8_t needs : node.needs_gradient) backward |= needs != 0;
        backward = backward && model_.trains && node.active;
        for (int piece = 0; piece < cut.pieces; ++piece) {
            const int processor = config.processors[piece], like = cut.like[piece];
            if (!model_.rates && like < piece &&
                model_.processor_class[config.processors[like]] == model_.processor_class[processor]) {
                config.work[piece] = config.work[like];  // each look-up leaves the cache
                continue;
            }
            const int64_t in = cut.input_bytes[piece], weights = cut.weight_bytes[piece], out = cut.output_bytes[piece];
            config.work[piece] = model_.seconds(FORWARD, processor, cut.flops[piece],
                                                in + weights + out + cut.saved_bytes[piece], cut.id, like, n);
            if (!backward) continue;
            const int64_t least = node.keeps_inputs * in + node.keeps_weights * weights + node.keeps_outputs * out +
                                  cut.saved_bytes[piece];
            config.work[piece] +=
                model_.seconds(BACKWARD, processor, cut.backward_flops[piece], least, cut.id, like, n);
        }
    }
    // True if some processor has more to compute than the limit allows.
    bool overloaded(double limit) {
        load();
        const double stop = limit * (1 + 1e-9);
        return std::any_of(load_.begin(), load_.end(), [stop](double load) { return load > stop; });
    }

    // Seconds of each processor: from those of the current strategy, where little changes.
    void load() {
        auto add = [this](const Config& config, double sign) {
            for (size_t piece = 0; piece < config.work.size(); ++piece)
                load_[config.processors[piece]] += sign * config.work[piece];
        };
        std::sort(touched_.begin(), touched_.end());
        touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
        if (++loaded_ % MOST_LOADED && accepted_ && touched_.size() * 4 < proposed_.configs.size()) {
            load_ = current_load_;
            for (int node : touched_) add(*current_.configs[node], -1.0), add(*proposed_.configs[node], 1.0);
        } else {
            load_.assign(model_.processors, 0.0);
            for (auto& config : proposed_.configs) add(*config, 1.0);
        }
    }

    void plan_layers() {
        for (size_t k = 0; k < proposed_.layers.size(); ++k) {
            if (proposed_.layers[k]) continue;
            model_.checkpoint();
            proposed_.layers[k] = std::make_shared<LayerPlan>(
                plan_layer(model_.geometry, model_.layers[k], model_.parameters, model_.nodes, proposed_.configs,
                           model_.processors));
        }
    }

    Model model_;
    Lowering lowering_;
    bool accepted_ = false;  // whether current_ has been lowered
    Simulation simulation_;
    Delta delta_;
    Plans current_, proposed_;
    std::vector<std::shared_ptr<Fragment>> fragments_, proposed_fragments_;  // by layer, of both
    Tasks tasks_, spare_tasks_, around_, kept_around_;
    bool keeps_around_ = false;  // whether kept_around_ is what lowering gave for current_
    FragmentSimulation fragment_simulation_;
    std::vector<FragmentSimulation::Layer> parts_;
    bool flat_ = false, spare_flat_ = false;  // whether tasks_ (spare_tasks_) hold the flat tasks and times_ their times
    size_t size_ = 0, spare_size_ = 0;
    Times times_, spare_times_;
    static constexpr uint32_t MOST_LOADED = 1024;  // sums are made from nothing now and then, since differences lose digits
    std::vector<double> load_, current_load_;
    std::vector<int> touched_;  // whose configurations the proposal changes, and nobody else's
    uint32_t loaded_ = 0;
    std::vector<std::vector<int>> layers_of_;
};

}  // namespace taskflow
