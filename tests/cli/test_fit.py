"""taskflow fit: what it says fits is what the memory check lets pass."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskflow.cli.main import main
from taskflow.cli.model import build_model
from taskflow.cli.options import RULES
from taskflow.cli.search import more_time
from taskflow.machine import load_machine
from taskflow.mapper import HybridParallel, map_graph, parse_plan
from taskflow.optimizer import Budget, MemoryCheck, SearchResult, make_evaluator, ways_to_shard

SIZES = {
    "steps": 32, "vocabulary": 96, "hidden": 64, "inner": 192, "heads": 8, "key_heads": 8, "layers": 1, "scaling": None,
}  # fmt: skip
WORDS = ("llama", *(word for key, value in SIZES.items() for word in ("--set", f"{key}={value}")))


def run(*words: str) -> str:
    done = CliRunner().invoke(main, [*words])
    assert done.exit_code == 0, (done.stderr, done.exception)
    return done.stdout


def machine(folder: Path, nbytes: int) -> str:
    path = folder / "small.json"
    devices = [{"like": "h100", "kind": "h100", "memory_bytes": nbytes}]
    path.write_text(json.dumps({
        "format": "taskflow-machine", "version": 1, "name": "small", "like": "h100", "devices": devices,
    }))  # fmt: skip
    return str(path)


def lacks(where: str, text: str, devices: int, at_a_time: int = 1, sizes: Mapping[str, object] = SIZES) -> str:
    """What a plan lacks on so many devices, in a step of two micro-batches."""
    plan, machine = parse_plan(text), load_machine(where, devices)
    plan = replace(plan, data=devices // plan.tensor, micro_batch=at_a_time)
    graph = build_model("llama", 2 * plan.samples_a_pass, devices, settings={key: str(value) for key, value in sizes.items()})
    return MemoryCheck(make_evaluator(graph, machine, rule=RULES["adam"]))(map_graph(HybridParallel(plan), graph, machine))


def test_what_is_said_to_fit_does_and_no_more(tmp_path: Path) -> None:
    where = machine(tmp_path, 1_100_000)
    found = json.loads(run("fit", *WORDS, "-m", where, "-n", "2", "--json"))
    ways = {row["plan"]: row for row in found["ways"]}
    assert {row["fits_memory"] for row in ways.values()} == {True, False}, "the memory must make a difference"
    for plan, row in ways.items():
        most, fewest = row["largest_micro_batch"], row["smallest_devices"]
        assert row["fits_memory"] == (most > 0) and (fewest is None or (fewest <= 2) == row["fits_memory"])
        if row["name"] not in ("ZeRO-1", "FSDP (ZeRO-3)", "tensor, recomputed"):
            continue  # they are like these
        assert not most or not lacks(where, plan, 2, most), plan
        assert lacks(where, plan, 2, most + 1 + most // 8), plan
    assert found["rule"] == "adam" and found["tokens_per_sample"] == 32


def test_what_replicas_hold_whole_fits_no_cluster(tmp_path: Path) -> None:
    where = machine(tmp_path, 800_000)
    words = ("fit", *WORDS, "-m", where, "-n", "2")
    rows = {row["plan"]: row for row in json.loads(run(*words, "--json"))["ways"]}
    recomputed = "t1 p1 d2 mb1 zero3 recompute=full"
    fewest = rows[recomputed]["smallest_devices"]
    assert rows["t1 p1 d2 mb1"]["smallest_devices"] is None and fewest > 2
    assert lacks(where, recomputed, fewest // 2), "fewer would do"
    assert not lacks(where, recomputed, fewest)


def test_networks_without_layers_are_not_shared() -> None:
    rows = json.loads(run("fit", "lenet", "-m", "k80", "-n", "4", "--rule", "momentum", "--json"))["ways"]
    assert [row["name"] for row in rows if "tensor" in row["name"]] == []
    assert all(row["fits_memory"] and row["largest_micro_batch"] > 1000 for row in rows)


@pytest.mark.parametrize(("stopped", "budget", "proposals", "said"), [
    ("budget", "10s", 2, "this answer rests on 2 simulated plans; give it --budget 2m"),
    ("budget", "5m", 1, "this answer rests on one simulated plan; give it --budget 20m"),
    ("budget", "10s", 0, "there was no time for more than plans that people write; give it --budget 2m"),
    ("budget", "10s", 500, None), ("budget", "5p", 2, None), ("finished", "10s", 2, None),
])  # fmt: skip
def test_an_answer_that_rests_on_few_plans_says_so(stopped: str, budget: str, proposals: int, said: str | None) -> None:
    found = SearchResult(None, 1.0, {}, (), proposals, 0, 1.0, 0, "guided", stopped)  # type: ignore[arg-type]
    assert more_time(found, Budget.parse(budget)) == said


def test_compare_has_what_people_run_by_default() -> None:
    words = ("llama", "--size", "small", "--batch", "16", "-m", "h100", "-n", "4", "--budget", "2p", "--rule", "adam", "--json")
    found = json.loads(run("compare", *words))
    assert found["rule"] == "adam" and "FSDP: d4 mb4 zero3" in [row["name"] for row in found["strategies"]]


def test_how_many_fit_does_not_follow_from_small_steps_whose_peak_is_elsewhere(tmp_path: Path) -> None:
    """Where a layer is large beside a sample, the peak of small steps is in the update, and says nothing of what samples need."""
    where, sizes = machine(tmp_path, 3_000_000), SIZES | {"vocabulary": 512, "steps": 8, "layers": 2}
    words = ("llama", *(word for key, value in sizes.items() for word in ("--set", f"{key}={value}")))
    ways = json.loads(run("fit", *words, "-m", where, "-n", "2", "--json"))["ways"]
    most = next(row["largest_micro_batch"] for row in ways if row["name"] == "FSDP, recomputed")
    plan = "t1 p1 d2 mb1 zero3 recompute=full"
    assert most > 8 and not lacks(where, plan, 2, most, sizes) and lacks(where, plan, 2, 2 * most, sizes)


def test_a_batch_of_one_sample_a_device_says_nothing_else() -> None:
    """A step of one micro-batch gives gradients up layer by layer, so that none is planned for what is said of more."""
    rows = {}
    for batch in (2, 4):
        ways = json.loads(run("fit", *WORDS, "-m", "h100", "-n", "2", "--batch", str(batch), "--json"))["ways"]
        rows[batch] = {row["name"]: row for row in ways}
    for name in ("DDP", "ZeRO-1"):
        one, more = rows[2][name], rows[4][name]
        closed = more["closed_form_bytes"]
        assert one["peak_memory_is"] == "estimate" and more["peak_memory_is"] == "planned"
        assert one["peak_memory_bytes"] >= closed["weights"] + closed["gradients"] + closed["state"]
        assert one["peak_memory_bytes"] == pytest.approx(more["peak_memory_bytes"], rel=0.06)  # the closed form's own error


def test_experts_are_dealt_to_the_devices_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskflow.cli.fit.PATIENCE_SECONDS", inf)
    sizes = {"steps": 32, "vocabulary": 96, "hidden": 64, "inner": 192, "heads": 8, "key_heads": 8, "layers": 2, "experts": 8}
    words = ("mixtral", *(word for key, value in sizes.items() for word in ("--set", f"{key}={value}")))
    ways = {row["name"]: row for row in json.loads(run("fit", *words, "-m", "h100", "-n", "8", "--batch", "16", "--json"))["ways"]}
    dealt = [ways[name] for name in ("experts, ZeRO-1", "experts, FSDP", "experts, FSDP, recomputed")]
    assert [row["plan"].split("e8")[0] for row in dealt] == ["t1 p1 d8 mb1 "] * 3
    assert all(row["peak_memory_is"] == "planned" for row in dealt)
    assert dealt[0]["closed_form_bytes"]["weights"] < 0.4 * ways["ZeRO-1"]["closed_form_bytes"]["weights"]
    assert not any("experts" in row["name"] for row in json.loads(run("fit", *WORDS, "-m", "h100", "-n", "8", "--json"))["ways"])


def test_a_step_that_takes_long_is_planned_no_further() -> None:
    graph, cluster = build_model("gpt-2", 16, 2, settings={"layers": "12", "hidden": "64", "heads": "2"}), load_machine("h100", 2)
    looks: list[bool] = []

    def over() -> bool:
        looks.append(len(looks) > 20)
        return looks[-1]

    rule = RULES["adam"]
    ways = list(ways_to_shard(graph, cluster, rule, MemoryCheck(make_evaluator(graph, cluster, rule=rule)), over))
    assert len(ways) > 5 and not any(way.planned for way in ways[-3:]) and looks[-1]


def test_networks_that_take_the_whole_batch_together_have_rows_that_hold(tmp_path: Path) -> None:
    """Batch normalisation: no micro-batches, so a replica takes all of its samples at a time, and no more are accumulated."""
    where = machine(tmp_path, 4_000_000)
    words = ("fit", "ResNet-101", "--size", "small", "-m", where, "-n", "2", "--batch", "64")
    ways = json.loads(run(*words, "--json"))["ways"]
    assert [row["name"] for row in ways[:4]] == ["DDP", "ZeRO-1", "ZeRO-2", "FSDP (ZeRO-3)"]
    for row in ways[:2]:
        most, gradients = row["largest_micro_batch"], row["closed_form_bytes"]["gradients"]
        assert most > 0 and not row["accumulates"] and row["peak_memory_is"] == "estimate"
        for samples, fits in ((most, True), (most + 2 + most // 4, False)):
            graph = build_model("ResNet-101", 2 * samples, 2, size="small")
            evaluator = make_evaluator(graph, load_machine(where, 2), rule=RULES["adam"])
            plan = replace(parse_plan(row["plan"]), micro_batch=samples)
            peaks, _ = MemoryCheck(evaluator).peaks(map_graph(HybridParallel(plan), graph, evaluator.machine))
            assert (max(peaks) + gradients <= 4_000_000) == fits, (row["name"], samples)
    assert "none are accumulated" in run(*words) and "none are accumulated" not in run("fit", *WORDS, "-m", where, "-n", "2")


def test_one_sample_says_nothing_of_what_a_sample_needs() -> None:
    done = CliRunner().invoke(main, ["fit", *WORDS, "-m", "h100", "-n", "1", "--batch", "1"])
    assert done.exit_code == 2 and "give --batch 2 or more" in done.stderr
