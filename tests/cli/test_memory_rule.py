"""Search, simulate, compare, check and pages have one answer to whether a plan fits the memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import taskflow
from taskflow.cli.main import main
from taskflow.cli.problem import Problem, describe, table
from taskflow.mapper import HybridParallel, Strategy, map_graph
from taskflow.models import build
from taskflow.optimizer import memory_check
from taskflow.optimizer.algorithms import known
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.explain.machine_changes import Change, changed
from taskflow.optimizer.memory_check import MOST_TASKS, MemoryCheck
from taskflow.report import report_data
from taskflow.report.plans import baseline_values
from taskflow.report.tables import facts, headline
from taskflow.report.units import nbytes
from taskflow.rules import SGD

RULE = SGD(lr=0.1)


@pytest.fixture(scope="module")
def large() -> tuple[Problem, Strategy, list[int]]:
    """A plan of many tasks, and the bytes that it needs."""
    graph, machine = build("NMT", preset="small", batch=64), taskflow.load_machine("k80", 16)
    evaluator = make_evaluator(graph, machine, rule=RULE)
    plan = known(graph, machine)[0]
    evaluator.set(plan)
    assert MOST_TASKS < evaluator.tasks < 4 * MOST_TASKS
    return Problem(graph, machine, evaluator), plan, MemoryCheck(evaluator).peaks(plan)[0]


def with_memory(problem: Problem, limit: float) -> Problem:
    factor = limit / problem.machine.processors[0].memory_bytes
    machine = changed(problem.machine, [Change("memory", factor)])
    return replace(problem, machine=machine, evaluator=make_evaluator(problem.graph, machine, rule=RULE))


@pytest.mark.parametrize(("share", "estimated", "fits"), [
    (0.999, False, True), (1.001, False, False), (0.85, True, True), (0.95, True, False),
])
def test_one_answer_everywhere(
    share: float, estimated: bool, fits: bool, large: tuple[Problem, Strategy, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is planned may use all memory. An estimate, of a step that is too large to be planned, keeps some spare."""
    problem, plan, peaks = large
    if estimated:
        monkeypatch.setattr(memory_check, "MOST_PLANNED", 100)
        monkeypatch.setattr(MemoryCheck, "_folded", lambda check, strategy: None)
        peaks = MemoryCheck(problem.evaluator).peaks(plan)[0]
    small = with_memory(problem, max(peaks) / share)
    row = describe(small, plan)
    assert row["peak_memory_is"] == ("estimate" if estimated else "planned") and row["peak_memory_bytes"] == max(peaks)
    assert not MemoryCheck(small.evaluator)(plan) == row["fits_memory"] == fits
    assert ("kept spare" in table([row])) == ("kept spare" in row["lacks"]) == (estimated and not fits)
    small.evaluator.set(known(problem.graph, small.machine)[2])
    rows, _ = baseline_values(small.evaluator)
    assert {row["name"]: row["fits_memory"] for row in rows}["data parallel"] == fits
    report = report_data(small.evaluator, plan)
    page = report.value["plan"]
    assert page["fits_memory"] == fits and page["lacks"] == row["lacks"] and page["peak_memory_bytes"] == max(peaks)
    assert ("not fit:" in headline(report.value)) == (not fits) and ("~" in headline(report.value)) == estimated
    said, planned = facts(report.value), max(memory["peak_bytes"] for memory in report.value["memory"])
    assert ("kept spare" in said) == estimated and (nbytes(planned) in said or not estimated)


@pytest.mark.parametrize(("share", "fits"), [(0.95, True), (0.999, True), (1.001, False)])
def test_a_planned_step_may_use_all_memory(share: float, fits: bool) -> None:
    graph, machine = build("MLP", preset="small"), taskflow.load_machine("k80", 4)
    evaluator = make_evaluator(graph, machine, rule=RULE)
    plan = known(graph, machine)[0]
    problem = Problem(graph, machine, evaluator)
    row = describe(problem, plan)
    assert row["peak_memory_is"] == "planned"
    small = with_memory(problem, row["peak_memory_bytes"] / share)
    again = describe(small, plan)
    assert again["peak_memory_bytes"] == row["peak_memory_bytes"]
    assert not MemoryCheck(small.evaluator)(plan) == again["fits_memory"] == fits


def test_zero_bubble_keeps_what_is_computed_again() -> None:
    """Until the pass for weights, most on the last rank: where such a plan does not fit, the message says so."""
    graph, machine = build("GPT-2", 8, preset="small", layers=4, steps=32, hidden=32), taskflow.host(4)
    small = changed(machine, [Change("memory", 1e5 / machine.processors[0].memory_bytes)])
    room, tight = (MemoryCheck(make_evaluator(graph, m, rule=RULE)) for m in (machine, small))
    last, said = {}, {}
    for which in ("1f1b recompute=full", "zbv recompute=full", "zb-h1 recompute=full", "zb-h1"):
        plan = map_graph(HybridParallel(f"p4 mb1 schedule={which}"), graph, machine)
        last[which], said[which] = room.peaks(plan)[0][-1], tight(plan).partition("; under ")[2]
    full, zbv, zero, kept = last.values()
    assert full < zbv < 0.9 * zero and full < 0.7 * zero and zero > 0.9 * kept
    assert [which for which, advice in said.items() if advice] == ["zbv recompute=full", "zb-h1 recompute=full"]
    assert "for up to 3 micro-batches: schedule=1f1b needs less" in said["zbv recompute=full"]


def test_commands_say_what_the_search_would(tmp_path: Path) -> None:
    graph, machine = build("NMT", preset="small", batch=16), taskflow.load_machine("k80", 4)
    peaks = MemoryCheck(make_evaluator(graph, machine, rule=RULE)).peaks(known(graph, machine)[0])[0]
    described = json.loads(Path(taskflow.__file__).with_name("machines").joinpath("k80.json").read_text())
    described["devices"][0]["memory_bytes"] = int(max(peaks) / 1.05)
    file = tmp_path / "small.json"
    file.write_text(json.dumps(described))
    named = ("nmt", "--size", "small", "--batch", "16", "--machine", str(file), "-n", "4", "--rule", "sgd", "--json")
    simulated = run("simulate", *named, "--strategy", "data")
    compared = run("compare", *named, "--budget", "1p")
    by_name: dict[str, Any] = {row["name"]: row for row in compared["strategies"]}
    checked = run("strategy", "check", "data", "--model", *named, code=1)
    assert simulated["fits_memory"] is by_name["data"]["fits_memory"] is checked["fits"] is False
    paged = run("report", "data", "--model", *named, "--out", str(tmp_path / "page.html"))
    assert paged["plan"]["fits_memory"] is False and paged["plan"]["lacks"] == simulated["lacks"]
    assert simulated["lacks"] in checked["problems"][0]
    assert all(row["fits_memory"] for name, row in by_name.items() if name not in ("data", "model", "expert"))


def run(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)
