"""Several jobs on one machine: the divisions there are, jobs simulated together, and what is chosen, against enumeration."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from math import inf
from pathlib import Path

import pytest
from click.testing import CliRunner
from fast_and_slow import fast_among

from taskflow.cli.main import main
from taskflow.machine import Cluster, PartOfMachine, load_machine
from taskflow.mapper import DataParallel, HybridParallel, Strategy, map_graph, save
from taskflow.models import build
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.cost import AnalyticCosts, ModelCosts
from taskflow.optimizer.evaluate import DEFAULT_RULE, Evaluator, evaluator
from taskflow.optimizer.evaluate.evaluator import PythonEvaluator
from taskflow.optimizer.grid import no_grid
from taskflow.optimizer.sharing import (
    Job,
    divisions,
    equal_division,
    members,
    merge,
    shape_of,
    share,
    simulate_jobs,
    units,
)
from taskflow.optimizer.sharing import share as sharing
from taskflow.tasks import simulate


def small(fast: int = 2, slow: int = 2, network: float = 1.0) -> Cluster:
    """Some devices of the mixed example, all of one node behind one card of 1/``network`` of the rate."""
    machine = load_machine("a100-v100")
    nodes = []
    for node, count in zip(machine.nodes, (fast, slow)):
        within = [wire for wire in node.wires if "network" not in wire.between]
        (card,) = (wire for wire in node.wires if "network" in wire.between)
        shared = replace(card, between=("card", "network"), bytes_per_second=card.bytes_per_second / network)
        to_card = replace(card, between=("gpu*", "card"))
        nodes.append(replace(
            node, processors=(replace(node.processors[0], count=count),), switches=(*node.switches, "card"),
            wires=(*within, to_card, shared),
        ))
    kinds = tuple(replace(kind, program=None) for kind in machine.kinds)
    return replace(machine, kinds=kinds, nodes=tuple(nodes), collectives=None)


def jobs(*names: str, batch: int = 64) -> list[Job]:
    return [Job(f"{name} {i}", build(name, preset="small", batch=batch), DEFAULT_RULE) for i, name in enumerate(names)]


# ---- divisions -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("machine", "devices", "count"), [("k80", 8, 2), ("k80", 6, 3), ("a100-v100", 8, 2), ("h100", 5, 3)])
def test_divisions_are_all_those_that_differ(machine: str, devices: int, count: int) -> None:
    cluster = load_machine(machine, devices)
    of = units(cluster, count)
    found = list(divisions(of, count))
    node = {p: (i, of.kinds[i]) for i, place in enumerate(of.places) for unit in place for p in unit}

    def key(owners: tuple[int, ...]) -> object:
        columns: dict[tuple[int, str], list[int]] = {}
        for p, owner in enumerate(owners):
            columns.setdefault(node[p], [0] * count)[owner] += 1
        return tuple(sorted((kind, tuple(column)) for (_, kind), column in columns.items()))

    assert of.count == devices
    wanted = {key(owners) for owners in product(range(count), repeat=devices) if len(set(owners)) == count}
    dealt = []
    for division in found:
        groups = members(of, division)
        assert sorted(p for group in groups for p in group) == list(range(devices))
        owners = tuple(next(j for j, group in enumerate(groups) if p in group) for p in range(devices))
        dealt.append(key(owners))
    assert len(set(dealt)) == len(dealt) and set(dealt) == wanted


def test_units_are_few_and_equal() -> None:
    for machine, devices, count, wanted in (
        ("k80", 64, 2, 8), ("k80", 16, 2, 8), ("h100", 64, 3, 8), ("h100", 8, 2, 8), ("k80", 10, 2, 5), ("h100", 7, 3, 7),
    ):
        of = units(load_machine(machine, devices), count)
        assert of.count == wanted, (machine, devices)
        assert len({len(unit) for place in of.places for unit in place}) == 1
        equal = equal_division(of, count)
        assert sum(map(sum, equal)) == of.count and max(map(sum, equal)) - min(map(sum, equal)) <= 1
    with pytest.raises(ValueError, match="takes 8 jobs at most, got 9"):
        units(load_machine("h100"), 9)
    with pytest.raises(ValueError, match="3 jobs need as many devices, h100 has 2"):
        units(load_machine("h100", 2), 3)


# ---- concurrent jobs ---------------------------------------------------------------------------------------------------
def judge_of(job: Job, machine: Cluster, group: tuple[int, ...]) -> Evaluator:
    part = PartOfMachine(machine, group)
    return evaluator(job.graph, part, ModelCosts(AnalyticCosts(part), job.graph, part, job.rule), job.rule)


def data(judge: Evaluator) -> Strategy:
    return map_graph(DataParallel(), judge.graph, judge.machine)


def test_a_part_is_the_machine_of_its_members() -> None:
    machine, (job,) = load_machine("a100-v100"), jobs("LeNet")
    first = make_evaluator(job.graph, machine.prefix(4))
    assert judge_of(job, machine, (0, 1, 2, 3)).set(data(first)) == first.set(data(first))
    for group in ((0, 1, 4), (1, 4, 5), (7, 2, 0)):
        judge = judge_of(job, small(4, 4), group)
        assert judge.set(data(judge)) == PythonEvaluator(job.graph, judge.machine, judge.costs, job.rule, None).set(data(judge))
    crossing = PartOfMachine(machine, (1, 6))
    assert crossing.route(0, 1) == machine.route(1, 6) and crossing.processors[1].kind == "v100"
    with pytest.raises(ValueError, match="different processors of 0 to 7, got"):
        PartOfMachine(machine, (1, 8))


def test_merged_steps_of_one_job_follow_each_other() -> None:
    machine, (job,) = small(), jobs("LeNet")
    judge = judge_of(job, machine, (1, 2, 3))
    seconds = judge.set(data(judge))
    graph = judge.lowered()
    merged, owners = merge([graph], [(1, 2, 3)], [3])
    line = simulate(merged, machine, lambda task: judge.costs.task(graph.tasks[owners[task.number][1]]))
    assert line.makespan == pytest.approx(3 * seconds, rel=1e-12)


def test_only_jobs_that_share_links_are_in_each_others_way() -> None:
    machine, both = small(network=1000.0), jobs("MLP", "MLP", batch=256)

    def beside(*groups: tuple[int, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        judges = [judge_of(job, machine, group) for job, group in zip(both, groups)]
        found = simulate_jobs(judges, [data(judge) for judge in judges])
        return found.seconds, found.alone

    apart = beside((0, 1), (2, 3))
    assert apart[0] == apart[1]
    crossed = beside((0, 2), (1, 3))
    assert all(seconds > 1.3 * alone for seconds, alone in zip(*crossed))
    with pytest.raises(ValueError, match=r"without a device in two of them, got \[0, 1, 1, 2\]"):
        beside((0, 1), (1, 2))


# ---- shares ----------------------------------------------------------------------------------------------------------
DIVIDED = [
    (objective, *machine)
    for objective in ("slowest", "throughput")
    for machine in ((2, 2, 1.0), (2, 2, 500.0), (3, 2, 20.0))
]


@pytest.mark.parametrize(("objective", "fast", "slow", "network"), fast_among(DIVIDED, [DIVIDED[1], DIVIDED[3]]))
def test_no_division_of_the_devices_is_better(objective: str, fast: int, slow: int, network: float) -> None:
    """Every way to give every single device to one of the jobs, with the same plans, simulated together."""
    machine, both = small(fast, slow, network), jobs("LeNet", "RNNLM")
    both[1] = replace(both[1], weight=3.0)
    internals = sharing.__globals__
    judge = internals["_Share"](both, machine, internals["Budget"](inf, 600), 0, objective, lambda text: None)
    found = judge.found()
    assert found.complete and found.ranked == found.divisions
    of, count = judge.units, fast + slow
    place = [i for i, there in enumerate(of.places) for _ in there]
    whole = [job.machine_seconds for job in found.jobs]
    best = inf
    for owners in product(range(2), repeat=count):
        rows = [[0] * len(of.places) for _ in both]
        for p, owner in enumerate(owners):
            rows[owner][place[p]] += 1
        if not all(map(any, rows)):
            continue
        plans, judges = [], []
        for j, row in enumerate(rows):
            own = sorted((p for p in range(count) if owners[p] == j), key=lambda p: (of.kinds[place[p]], p))
            judges.append(judge.evaluator(both[j], own))
            plans.append(judge.plans[j, shape_of(of, row)][1])
        seconds = simulate_jobs(judges, plans).seconds
        worth = internals["score"](objective, [s / w for s, w in zip(seconds, whole)], [1.0, 3.0])
        best = min(best, worth)
    reached = found.slowest if objective == "slowest" else -4 * found.throughput
    assert reached == pytest.approx(best, rel=1e-12)
    assert all(job.slowdown >= 1 - 1e-12 for job in found.jobs)


def test_a_large_job_gets_more_than_half() -> None:
    """Of two jobs of which one gains from devices and the other hardly does, the first gets more than its equal part."""
    machine = load_machine("p100", 4)
    both = [Job("AlexNet", build("AlexNet", batch=512), DEFAULT_RULE), *jobs("LeNet", batch=8)]
    found = share(both, machine, budget="400p")
    assert len(found.jobs[0].devices) == 3 and len(found.jobs[1].devices) == 1
    assert found.slowest < max(job.slowdown for job in found.equal) < found.turns["slowest"]
    again = share(both, machine, budget="400p")
    assert [job.strategy for job in again.jobs] == [job.strategy for job in found.jobs]
    assert json.loads(json.dumps(found.as_json()))["slowest_slowdown"] == found.slowest


def test_what_cannot_be_shared_is_said() -> None:
    machine, both = load_machine("p100", 4), jobs("LeNet", "LeNet")
    for wrong, says in (
        ((both[:1], {}), "needs two jobs or more, got 1"),
        ((both, {"objective": "luck"}), "objective must be one of slowest, throughput"),
        (([both[0], replace(both[1], weight=-1.0)], {}), "the weight of LeNet 1 must be more than 0, got -1"),
    ):
        with pytest.raises(ValueError, match=says):
            share(wrong[0], machine, **wrong[1])
    tiny = replace(machine, kinds=tuple(replace(kind, memory_bytes=1000) for kind in machine.kinds))
    with pytest.raises(ValueError, match="LeNet 0 does not fit the memory of all devices of p100"):
        share(both, tiny, budget="20p")


def test_interrupted_before_and_after_there_is_something(monkeypatch: pytest.MonkeyPatch) -> None:
    internals, both, machine = sharing.__globals__, jobs("LeNet", "RNNLM"), load_machine("p100", 4)
    original, calls = internals["search"], []

    def interrupted(at: int):  # type: ignore[no-untyped-def]
        calls.clear()

        def search(*args, **options):  # type: ignore[no-untyped-def]
            calls.append(1)
            if len(calls) == at:
                raise KeyboardInterrupt
            return original(*args, **options)

        return search

    monkeypatch.setitem(internals, "search", interrupted(1))
    with pytest.raises(KeyboardInterrupt):
        share(both, machine, budget="100p")
    monkeypatch.setitem(internals, "search", interrupted(5))
    found = share(both, machine, budget="100p")
    assert found.interrupted and not found.complete and found.simulated == 1 and len(found.jobs) == 2


def test_the_command_takes_plan_files_and_writes_plans(tmp_path: Path) -> None:
    machine, graph = load_machine("p100", 2), build("LeNet", preset="small", batch=32)
    made = {"model": "lenet", "machine": "p100", "devices": 2, "batch": 32, "size": "small", "rule": "momentum", "set": {}}
    save(map_graph(DataParallel(), graph, machine), graph, "p100", tmp_path / "mine.json", made)
    where = ("-m", "p100", "-n", "4", "--budget", "60p")
    run = CliRunner().invoke(main, [
        "share", str(tmp_path / "mine.json"), "lenet", *where, "--size", "small", "--out", str(tmp_path / "plans"), "--json",
    ])
    assert run.exit_code == 0, run.output
    told = json.loads(run.stdout)
    assert [job["name"] for job in told["jobs"]] == ["mine", "lenet"]
    for job in told["jobs"]:
        plan = str(tmp_path / "plans" / f"{job['name']}.json")
        batch = ("--batch", "32") if job["name"] == "mine" else ()
        asks = ("--model", "lenet", "--size", "small", "-m", "p100", "-n", "4", *batch, "--json")
        shown = CliRunner().invoke(main, ["explain", plan, *asks])
        assert json.loads(shown.stdout)["iteration_seconds"] == pytest.approx(
            job["iteration_seconds_without_the_others"], rel=0.02  # the loss goes to device 0 of the machine, not to the job's
        )
    words = CliRunner().invoke(main, ["share", "lenet", "lenet", *where, "--size", "small"]).stdout
    assert "lenet 2" in words and "equal parts" in words and "taking turns" in words
    for wrong, says in (
        (("--weights", "1"), "write one number for each of the 2 jobs, such as 1,1"),
        (("--weights", "1,x"), "write one number for each"),
        (("--costs", "measured"), "predicted by the machine's rates only"),
        (("--out", "nowhere/at/all"), "no such folder"),
    ):
        run = CliRunner().invoke(main, ["share", "lenet", "lenet", *where, "--size", "small", *wrong])
        assert run.exit_code == 2 and says in run.stderr and "Traceback" not in run.output


@pytest.mark.parametrize("machine", [load_machine("p100", 4), small()], ids=["one kind", "two kinds"])
def test_large_networks_share_a_machine(machine: Cluster) -> None:
    """Those of which a search looks at plans in notation, on groups of devices, too."""
    kinds = tuple(replace(kind, memory_bytes=1_400_000) for kind in machine.kinds)
    full = replace(machine, kinds=kinds)
    networks = jobs("GPT-2", "GPT-2", batch=8)
    part = PartOfMachine(full, (0, 2))
    why = "devices of several kinds are a part of a machine" if len(kinds) > 1 else ""
    assert no_grid(networks[0].graph, part, DEFAULT_RULE) == why
    found = share(networks, full, budget="60p")
    assert {device for job in found.jobs for device in job.devices} <= set(range(4)) and found.slowest >= 1


def test_a_plan_keeps_what_it_is_on_other_devices() -> None:
    """Copies too, such as those of what lies between shared layers without sequence parallelism."""
    graph = build("GPT-2", 8, 2, preset="small")
    plan = map_graph(HybridParallel("t2 nosp"), graph, load_machine("p100", 2))
    moved = plan.on_members((3, 1), 4)
    moved.verify(graph)
    assert any(config.copies > 1 for config in plan.configs.values())
    for name, config in plan.configs.items():
        assert moved[name] == replace(config, processors=tuple((3, 1)[p] for p in config.processors))
