"""The command line: JSON keys, files that load again, and errors on one line."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import taskflow
from taskflow.cli.main import main
from taskflow.models import build


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def read(*arguments: str) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json"))  # type: ignore[no-any-return]


PROBLEM = ("mlp", "--size", "small", "--machine", "k80", "--devices", "4")


def test_search_writes_a_plan_that_simulate_reads(tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    found = read("search", *PROBLEM, "--budget", "300p", "--seed", "3", "--out", plan)
    for key in ("iteration_seconds", "transfer_bytes", "compute_seconds", "peak_memory_bytes", "search_seconds", "proposals"):
        assert found[key] >= 0
    assert found["model"].lower() == "mlp" and found["machine"] == "k80" and found["devices"] == 4 and found["seed"] == 3
    assert found["iteration_seconds"] <= min(found["starts_iteration_seconds"].values())
    assert found["gap"] == pytest.approx(1 - found["lower_bound_seconds"] / found["iteration_seconds"])
    again = read("simulate", *PROBLEM, "--strategy", plan)
    for key in ("iteration_seconds", "transfer_bytes", "compute_seconds", "peak_memory_bytes"):
        assert again[key] == found[key]
    taskflow.load_strategy(plan, build("mlp", preset="small"), 4)


@pytest.mark.parametrize("strategy", ["data", "model", "expert"])
def test_full_and_delta_simulation_agree_and_the_timeline_says_so(strategy: str, tmp_path: Path) -> None:
    file = tmp_path / "timeline.json"
    full = read("simulate", *PROBLEM, "--strategy", strategy, "--algorithm", "full", "--timeline", str(file))
    delta = read("simulate", *PROBLEM, "--strategy", strategy, "--algorithm", "delta")
    assert full["iteration_seconds"] == delta["iteration_seconds"]
    timeline = json.loads(file.read_text())
    tasks = timeline["tasks"]
    assert len(tasks) == full["tasks"]
    assert max(t["end_seconds"] for t in tasks) == full["iteration_seconds"]
    assert sum(t["bytes"] for t in tasks if t["direction"] in ("copy", "collective")) == full["transfer_bytes"]
    ends = {t["id"]: t["end_seconds"] for t in tasks}
    for task in tasks:
        assert task["start_seconds"] >= task["ready_seconds"] >= max((ends[p] for p in task["predecessors"]), default=0.0)
    # Nothing is used twice at a time.
    busy: dict[str, list[tuple[float, float]]] = {}
    for task in tasks:
        seconds = task["end_seconds"] - task["start_seconds"]
        for resource, start in zip(task["resources"], task["resource_start_seconds"], strict=True):
            busy.setdefault(resource, []).append((start, start + seconds))
    for spans in busy.values():
        spans.sort()
        assert all(a[1] <= b[0] * (1 + 1e-12) for a, b in zip(spans, spans[1:]))


def test_compare_lists_strategies() -> None:
    result = read("compare", *PROBLEM, "--budget", "60p")
    names = [row["name"] for row in result["strategies"]]
    assert names[:3] == ["data", "model", "expert"] and {"mcmc", "guided"} <= set(names)
    seconds = {row["name"]: row["iteration_seconds"] for row in result["strategies"]}
    for name in ("mcmc", "guided"):
        assert seconds[name] <= min(seconds[n] for n in ("data", "model", "expert"))
    for row in result["strategies"]:
        assert {"transfer_bytes", "compute_seconds", "peak_memory_bytes", "search_seconds", "proposals"} <= set(row)


def test_models_and_machines() -> None:
    models = {row["name"]: row for row in read("models")["models"]}
    assert {"AlexNet", "Inception-v3", "ResNet-101", "RNNTC", "RNNLM", "NMT", "LeNet"} <= set(models)
    assert all(row["operators"] > 0 for row in models.values())
    machines = {row["name"]: row for row in read("machines")["machines"]}
    assert machines["k80"]["devices"] == 64 and machines["p100"]["devices"] == 16
    assert [k["kind"] for k in machines["a100-v100"]["kinds"]] == ["a100", "v100"] and "a100, v100" in run("machines")


def test_what_people_see() -> None:
    text = run("search", *PROBLEM, "--budget", "50p")
    assert "ms a step" in text and "at most on a device" in text
    assert "n/" in text or "whole" in text
    assert run("search", *PROBLEM, "--budget", "50p", "--quiet").count("\n") == 3
    compared = run("compare", *PROBLEM, "--budget", "20p")
    assert "against data" in compared and "costs: analytic k80" in compared
    assert "costs: analytic k80" in run("simulate", *PROBLEM)
    assert run("simulate", *PROBLEM, "--strategy", "expert").splitlines()[-2].startswith("expert")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("search", "NoNet"), "taskflow search: no model 'NoNet' (did you mean RNNTC?); there are AlexNet"),
        (("search", "MLP", "--machine", "cray"), "no machine 'cray'; use "),
        (("search", "MLP", "--machine", "p100", "--devices", "99"), "16"),
        (("search", *PROBLEM, "--budget", "later"), "budget: write seconds"),
        (("search", *PROBLEM, "--out", "/nowhere/plan.json"), "cannot write /nowhere/plan.json"),
        (("search", *PROBLEM, "--out", ""), "the name of the file to write is empty"),
        (("simulate", *PROBLEM, "--strategy", "lucky"), "no strategy 'lucky'; use data"),
        (("simulate", *PROBLEM, "--strategy", "missing.json"), "missing.json does not exist"),
        (("simulate", *PROBLEM, "--timeline", "/nowhere/t.json"), "cannot write /nowhere/t.json"),
    ],
)
def test_errors_are_one_line(arguments: tuple[str, ...], message: str) -> None:
    error = run(*arguments, code=2)
    assert message in error and error.count("\n") == 1


def test_stdout_that_the_shell_closed() -> None:
    for arguments in (("models",), ("simulate", *PROBLEM)):
        program = shlex.join([sys.executable, "-m", "taskflow", *arguments])
        done = subprocess.run(["sh", "-c", f"{program} >&-"], stderr=subprocess.PIPE, text=True, timeout=250)
        assert not done.stderr, done.stderr


def test_it_is_a_module_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "taskflow", "simulate", *PROBLEM, "--json"], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0 and json.loads(done.stdout)["name"] == "data"
    done = subprocess.run([sys.executable, "-m", "taskflow", "search", "NoNet"], capture_output=True, text=True, timeout=250)
    assert done.returncode == 2 and "Traceback" not in done.stderr
