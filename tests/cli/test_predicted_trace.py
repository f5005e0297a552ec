"""Traces of a predicted step without a run: every task at its time, in the form of a run's traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from trace_format import verify_events

from taskflow.cli.main import main
from taskflow.optimizer.evaluate import ordered
from taskflow.runtime.profiler import read_trace

MODEL = ("llama", "--size", "small", "--batch", "8", "-m", "h100", "-n", "4", "--rule", "adam")


@pytest.mark.parametrize("plan", ["data", "d2 p2 mb1", "d4 mb1 zero3"])
def test_simulate_writes_every_task_at_its_time(plan: str, tmp_path: Path) -> None:
    trace, timeline = tmp_path / "step.json.gz", tmp_path / "times.json"
    done = CliRunner().invoke(
        main, ["simulate", *MODEL, "--strategy", plan, "--trace", str(trace), "--timeline", str(timeline), "--json"]
    )
    assert done.exit_code == 0, (done.stderr, done.exception)
    said, content = json.loads(done.stdout), read_trace(trace)
    verify_events(content)
    assert content["otherData"]["predicted_step_seconds"] == said["iteration_seconds"]
    assert content["otherData"]["plan"] == said["name"] and content["otherData"]["rule"] == "adam"
    spans = [event for event in content["traceEvents"] if event["ph"] == "X"]
    ends: dict[int, float] = {}
    for event in spans:
        number = event["args"]["task"]
        ends[number] = max(ends.get(number, 0.0), (event["ts"] + event["dur"]) / 1e6)
    tasks = {task["id"]: task for task in json.loads(timeline.read_text())["tasks"]}
    shown = {number for number, task in tasks.items() if task["resources"]}
    assert ends.keys() == shown
    for number, end in ends.items():
        assert end == pytest.approx(tasks[number]["end_seconds"], abs=2e-6)
    assert {e["args"].get("micro_batch") for e in spans} >= ({0, 1, 2, 3} if "p2" in plan else {None})


def test_a_trace_of_a_prediction_is_no_profile(tmp_path: Path) -> None:
    page, trace = tmp_path / "page.html", tmp_path / "step.json"
    run = CliRunner()
    assert run.invoke(main, ["report", "data", "--model", *MODEL, "--out", str(page), "--trace", str(trace)]).exit_code == 0
    assert page.is_file() and read_trace(trace)["otherData"]["plan"] == "data"
    done = run.invoke(main, ["profile", "--trace", str(trace)])
    assert done.exit_code == 2 and "only predicted" in done.stderr


@pytest.mark.parametrize("plan,shown", [("d32 mb1 zero1", 1), ("t2 p2 d8 mb1", 4)])
def test_of_a_step_of_too_many_tasks_the_devices_that_stand_for_others(
    plan: str, shown: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, model = tmp_path / "step.json", [*MODEL[:4], "64", *MODEL[5:8], "32", *MODEL[9:]]
    command = ["simulate", *model, "--strategy", plan, "--trace", str(trace), "--json"]
    assert CliRunner().invoke(main, command).exit_code == 0
    whole = read_trace(trace)
    monkeypatch.setattr(ordered, "MOST_SHOWN", 0)
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0 and f"{shown} of 32 devices, which stand for all others" in done.stderr
    content = read_trace(trace)
    verify_events(content)
    seconds = json.loads(done.stdout)["iteration_seconds"]
    assert content["otherData"]["predicted_step_seconds"] == pytest.approx(seconds, abs=1e-9)
    assert content["otherData"]["processors_shown"] == shown
    named = {event["args"]["name"] for event in content["traceEvents"] if event["name"] == "process_name"}
    assert f"predicted processor 0, and {32 // shown - 1} like it" in named
    computed = {event["args"]["operator"] for event in content["traceEvents"] if event["ph"] == "X"}
    assert computed <= {event["args"]["operator"] for event in whole["traceEvents"] if event["ph"] == "X"} and len(computed) > 10
