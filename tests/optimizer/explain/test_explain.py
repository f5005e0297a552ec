"""Explanations: the critical path is the step, the table is the sum of the tasks, and what-if changes only what it says."""

from __future__ import annotations

from math import fsum

import pytest

import taskflow
from taskflow.machine import Cluster, load_machine
from taskflow.machine.machine_file import unparse
from taskflow.mapper import Strategy, choose
from taskflow.models import build
from taskflow.optimizer.budget import Budget
from taskflow.optimizer.evaluate import DEFAULT_RULE, make_evaluator
from taskflow.optimizer.evaluate.critical_path import critical_path
from taskflow.optimizer.evaluate.evaluator import Evaluator
from taskflow.optimizer.explain.alternatives import alternatives
from taskflow.optimizer.explain.difference import difference, grouped
from taskflow.optimizer.explain.explain import Explanation, explain, verify
from taskflow.optimizer.explain.labels import TaskPurpose, labels, totals
from taskflow.optimizer.explain.machine_changes import Change, changed, link_ends, link_pairs
from taskflow.optimizer.explain.what_if import Scenario, what_if
from taskflow.rules import SGD
from taskflow.tasks.task import Compute, Kind

MODELS = ("nmt", "rnnlm", "alexnet", "transformer")


def evaluator_at(
    model: str, mapper: str, machine: str = "k80", devices: int = 6, seed: int = 0, clip: float | None = None
) -> Evaluator:
    cluster = load_machine(machine, devices)
    graph = build(model, preset="small")
    evaluator = make_evaluator(graph, cluster, clip_norm=clip)
    evaluator.set(choose(mapper, graph, cluster, seed=seed)[0])
    return evaluator


@pytest.mark.parametrize("mapper", ["data", "expert", "random"])
@pytest.mark.parametrize("model", ["nmt", "rnnlm", "alexnet"])
def test_the_critical_path_is_the_step_and_the_table_the_tasks(model: str, mapper: str) -> None:
    evaluator = evaluator_at(model, mapper, clip=1.0 if model == "rnnlm" else None)
    tasks, timeline = evaluator.lowered(), evaluator.timeline()
    found = explain(evaluator)  # verifies that the path has no gap
    assert found.seconds == timeline.makespan == evaluator.seconds
    for parts in (
        [s.seconds for s in found.steps], [s.seconds for s in found.stretches], list(found.shares.values()),
        [o.critical for o in found.operators],
    ):
        assert fsum(parts) == pytest.approx(found.seconds, rel=1e-9)
    seconds = [s.end - s.start for s in timeline.spans]
    everything = totals(tasks, labels(tasks), seconds)
    for work in TaskPurpose:
        assert fsum(o.seconds[work] for o in found.operators) == pytest.approx(everything[work], rel=1e-9, abs=1e-15)
    assert sum(o.transfer_bytes + o.sync_bytes for o in found.operators) == tasks.transfer_bytes
    assert sum(o.tasks for o in found.operators) == len(tasks)
    assert fsum(o.waiting for o in found.operators) == pytest.approx(fsum(s.start - s.ready for s in timeline.spans), abs=1e-12)
    # What limits it agrees with the evaluator's own account of processors and links.
    usage = evaluator.usage()
    busy = {b.name: b.seconds for b in found.busy}
    for p, s in enumerate(usage.processor_seconds):
        assert busy.get(f"device {p}", 0.0) == pytest.approx(s, abs=1e-12)
    assert sorted(b.seconds for b in found.busy if b.link) == pytest.approx(sorted(usage.link_seconds.values()))
    assert all(b.seconds <= found.seconds * (1 + 1e-9) for b in found.busy)
    assert found.limit.seconds == max(busy.values())


@pytest.mark.parametrize("model", [*MODELS, "inception-v3"])
def test_labels_say_what_tasks_are_for(model: str) -> None:
    evaluator = evaluator_at(model, "random", devices=3, seed=3)
    graph, tasks = evaluator.graph, evaluator.lowered()
    names, layers = {n.name for n in graph}, {p.layer for p in graph.parameters}
    weight_regions = {b.name for b in tasks.bundles}
    for task, label in zip(tasks, labels(tasks)):
        assert label.operator in names and (label.what != "weights put together" or task.kind is Kind.MOVE)
        if isinstance(task.work, Compute):
            assert label.work is TaskPurpose.COMPUTE and label.operator == task.work.node.name
        elif task.kind is Kind.UPDATE:
            assert label.work is TaskPurpose.UPDATE and label.operator in layers
        elif task.kind is Kind.COPY:
            region = tasks.buffers[task.reads[0].buffer].region.removeprefix("d ")
            if label.work is TaskPurpose.SYNC:
                assert label.operator in layers
            else:  # a tensor of this operator, never a layer's flat weights
                tensors = {t.name for t in graph.node(label.operator).outputs}
                assert label.work is TaskPurpose.TRANSFER
                assert region.partition(" arriving")[0].removeprefix("sum ").removeprefix("lasting:").partition("[")[0] in tensors
            if region in weight_regions and tasks.buffers[task.reads[0].buffer].kept:
                assert label.work is TaskPurpose.SYNC and label.what == "new weights"


def test_a_path_with_a_gap_is_refused() -> None:
    evaluator = evaluator_at("rnnlm", "data")
    timeline = evaluator.timeline()
    path = critical_path(evaluator.lowered(), timeline, evaluator.machine)
    verify(path, timeline.makespan)
    with pytest.raises(AssertionError, match="gap"):
        verify((*path[:2], *path[3:]), timeline.makespan)
    with pytest.raises(AssertionError, match="as long as the step"):
        verify(path[:-1], timeline.makespan)


def test_tasks_that_take_no_time_are_on_the_path_in_their_order() -> None:
    """Views are free on these devices, so that many tasks begin at the same moment."""
    graph, machine = build("llama", batch=8, preset="small"), load_machine("a100", 2)
    evaluator = make_evaluator(graph, machine)
    for seed in range(12):
        evaluator.set(choose("random", graph, machine, seed=seed)[0])
        assert sum(span.start == span.end for span in evaluator.timeline().spans) > 10
        assert explain(evaluator).seconds == evaluator.seconds  # verifies the path


def test_the_reason_of_each_lap() -> None:
    evaluator = evaluator_at("nmt", "random", seed=5)
    tasks, timeline = evaluator.lowered(), evaluator.timeline()
    path = critical_path(tasks, timeline, evaluator.machine)
    assert path[0].because == "start" and {lap.because for lap in path[1:]} == {"needs", "busy"}
    for before, lap in zip(path, path[1:]):
        if lap.because == "needs":
            assert before.task in tasks.tasks[lap.task].after and lap.waited == 0
        else:
            assert lap.waited > 0 and timeline.spans[lap.task].ready < lap.start


def test_forward_only_and_stretches() -> None:
    cluster, graph = load_machine("p100", 4), build("inception-v3", preset="small")
    evaluator = make_evaluator(graph, cluster, rule=None)
    evaluator.set(choose("data", graph, cluster)[0])
    found = explain(evaluator)
    assert {s.kind for s in found.stretches} <= {"forward", "transfers"} and found.shares[TaskPurpose.SYNC] == 0
    trained = explain(evaluator_at("nmt", "data", devices=4))
    kinds = [s.kind for s in trained.stretches]
    assert kinds[0] == "forward" and kinds[-1] == "synchronisation" and "backward" in kinds
    assert len(trained.stretches) < len(trained.steps)
    for a, b in zip(trained.stretches, trained.stretches[1:]):
        assert a.start + a.seconds == pytest.approx(b.start, abs=1e-12)


# ---- alternatives ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("model", "operator"), [("nmt", "softmax"), ("alexnet", "features.3"), ("mlp", "fc1")])
def test_alternatives_are_what_simulation_says(model: str, operator: str) -> None:
    evaluator = evaluator_at(model, "data", devices=4)
    start, now = evaluator.strategy, explain(evaluator)
    found = alternatives(evaluator, operator, most=6)
    assert evaluator.strategy == start and evaluator.seconds == now.seconds
    reasons = {a.reason for a in found} | ({"data parallel"} if start[operator].degrees[0] == 4 else set())
    assert {"data parallel", "whole on one device"} <= reasons
    assert [a.seconds for a in found] == sorted(a.seconds for a in found)
    assert len({a.config for a in found}) == len(found) and start[operator] not in {a.config for a in found}
    for other in found:
        unchanged = evaluator.strategy == start
        evaluator.set(evaluator.changed({operator: other.config}, {}) if unchanged else _with(start, operator, other.config))
        explained = explain(evaluator)
        assert explained.seconds == other.seconds
        assert other.grows is not None
        assert fsum(other.grows.values()) == pytest.approx(other.seconds - now.seconds, abs=1e-12)
        for work in TaskPurpose:
            assert now.shares[work] + other.grows[work] == pytest.approx(explained.shares[work], abs=1e-12)
        evaluator.set(start)
    with pytest.raises(KeyError, match="no operator 'nothing'"):
        alternatives(evaluator, "nothing")


def _with(strategy: Strategy, operator: str, config: taskflow.OpConfig) -> Strategy:
    return Strategy(strategy.processors, {**strategy.configs, operator: config}, strategy.syncs, strategy.name)


# ---- what if ---------------------------------------------------------------------------------------------------------
def test_a_changed_machine_differs_in_what_was_changed_only() -> None:
    machine = load_machine("k80", 8)
    plain = unparse(machine)
    for text, where in (("links=2x", "links"), ("memory=0.5x", "memory"), ("compute=3x", "compute"), ("latency=4", "latency")):
        other = unparse(changed(machine, [Change.parse(text)]))
        factor = Change.parse(text).factor
        for a, b in zip(plain["devices"], other["devices"]):
            assert b["memory_bytes"] == (a["memory_bytes"] * factor if where == "memory" else a["memory_bytes"])
            rate = factor if where == "compute" else 1
            assert b["flops_per_second"]["float32"] == a["flops_per_second"]["float32"] * rate
            assert b["memory_bytes_per_second"] == a["memory_bytes_per_second"] * rate
            assert b["launch_seconds"] == a["launch_seconds"]
        for a, b in zip(plain["nodes"][0]["links"], other["nodes"][0]["links"]):
            assert b["bytes_per_second"] == a["bytes_per_second"] * (factor if where == "links" else 1)
            assert b["latency_seconds"] == a["latency_seconds"] * (factor if where == "latency" else 1)
    network = unparse(changed(machine, [Change.parse("network=4x")]))["nodes"][0]["links"]
    faster = [b["between"] for a, b in zip(plain["nodes"][0]["links"], network) if b["bytes_per_second"] != a["bytes_per_second"]]
    assert faster and all("network" in between for between in faster) and len(faster) < len(network)
    assert "network" in link_ends(machine)


@pytest.mark.parametrize("text", ["links", "links=", "links=fast", "links=0x", "=2x", "links=-1x", "links=1e7x"])
def test_changes_that_cannot_be_read(text: str) -> None:
    number = any(digit in text for digit in "017")
    with pytest.raises(ValueError, match="the factor must be a number from" if number else "write WHAT=FACTOR"):
        Change.parse(text)


def test_a_change_of_links_that_are_not_there() -> None:
    with pytest.raises(ValueError, match=r"has no links at 'nvlink'; use links, memory, compute, latency, or one of .*pcie"):
        changed(load_machine("k80", 4), [Change.parse("nvlink=2x")])
    with pytest.raises(ValueError, match=r"has no links at 'links'.*no links at all"):
        changed(taskflow.host(1), [Change.parse("links=2x")])


def test_outcomes_are_those_of_the_changed_machine() -> None:
    machine: Cluster = load_machine("k80", 4)
    graph = build("nmt", preset="small", hidden=64, vocabulary=4000, batch=64)
    strategy = choose("data", graph, machine)[0]
    scenarios = [
        Scenario((Change("links", 4.0),)), Scenario((Change("compute", 2.0), Change("links", 2.0))),
        Scenario((Change("memory", 1e-4),)),
    ]
    plain = make_evaluator(graph, machine).set(strategy)
    links, both, small = what_if(graph, machine, strategy, scenarios, rule=DEFAULT_RULE)
    for outcome in (links, both, small):
        expected = make_evaluator(graph, changed(machine, outcome.scenario.changes)).set(strategy)
        assert outcome.seconds == expected and outcome.speedup == pytest.approx(plain / expected)
        assert fsum(outcome.shares.values()) == pytest.approx(outcome.seconds, rel=1e-9)
    assert links.seconds < plain and small.seconds == plain
    assert not links.lacks and "lack memory" in small.lacks and "data" in small.no_longer_fit and not small.now_fit
    # The other way round: from a machine that is too small to one that is not.
    poor = changed(machine, [Change("memory", 1e-4)])
    rich = what_if(graph, poor, strategy, [Scenario((Change("memory", 1e4),))], rule=SGD(lr=0.1), budget=None)[0]
    assert "data" in rich.now_fit and not rich.lacks


def test_the_links_between_two_ends() -> None:
    """A network card behind a PCIe switch: both kinds of links end there, and each can be changed without the other."""
    machine = load_machine("k80", 8)
    assert link_pairs(machine) == ["gpu[01]-board0", "gpu[23]-board1", "board*-pcie", "pcie-network"]
    wires = machine.nodes[0].wires
    for pair in link_pairs(machine):
        for before, after in zip(wires, changed(machine, [Change(pair, 3.0)]).nodes[0].wires, strict=True):
            factor = 3.0 if "-".join(before.between) == pair else 1.0
            assert after.bytes_per_second == factor * before.bytes_per_second, (pair, before)
    card = changed(machine, [Change("pcie-network", 3.0)])
    assert card.nodes == changed(machine, [Change("network-pcie", 3.0)]).nodes != changed(machine, [Change("pcie", 3.0)]).nodes
    with pytest.raises(ValueError, match=r"no links at 'board\*-network'.*of both ends, .*pcie-network"):
        changed(machine, [Change("board*-network", 2.0)])
    mesh = load_machine("p100", 8)
    for pair in link_pairs(mesh):  # the processors of a mesh have links with each other
        assert changed(mesh, [Change(pair, 2.0)]).nodes != mesh.nodes


def test_searching_again_on_the_changed_machine() -> None:
    machine, graph = load_machine("k80", 2), build("mlp", preset="small")
    strategy = choose("model", graph, machine)[0]
    scenarios = [Scenario((Change("links", 50.0),)), Scenario((Change("memory", 1e-9),))]
    fast, none = what_if(graph, machine, strategy, scenarios, rule=DEFAULT_RULE, budget=Budget(proposals=60))
    assert fast.found is not None and fast.here is not None and fast.found.seconds <= fast.seconds
    assert fast.here.seconds <= make_evaluator(graph, machine).set(strategy) and fast.found_fits_here
    assert none.found is None and "that fits the memory" in none.none_found


# ---- difference ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("model", MODELS)
def test_effects_of_layers_add_up(model: str) -> None:
    evaluator = evaluator_at(model, "data")
    graph, first = evaluator.graph, evaluator.strategy
    second = choose("random", graph, evaluator.machine, seed=1)[0]
    groups = grouped(graph)
    assert sorted(name for _, names, _ in groups for name in names) == sorted(node.name for node in graph)
    before = evaluator.seconds
    found = difference(evaluator, first, second)
    assert evaluator.seconds == make_evaluator(graph, evaluator.machine).set(second)
    assert found[0].before == before and found[-1].after == evaluator.seconds
    assert all(a.after == b.before for a, b in zip(found, found[1:]))
    assert fsum(c.effect for c in found) == pytest.approx(evaluator.seconds - before, abs=1e-12)
    told = {name: pair for change in found for name, pair in change.operators.items()}
    assert told == {n.name: (first[n.name], second[n.name]) for n in graph if first[n.name] != second[n.name]}
    assert difference(evaluator, second, second) == ()


def test_an_explanation_is_a_value() -> None:
    assert isinstance(explain(evaluator_at("mlp", "data", devices=2)), Explanation)
    assert explain(evaluator_at("mlp", "data", devices=2)) == explain(evaluator_at("mlp", "data", devices=2))


def test_alternatives_end_with_their_time() -> None:
    evaluator = evaluator_at("mlp", "data", devices=4)
    assert alternatives(evaluator, "fc1", seconds=1e-9) == ()
