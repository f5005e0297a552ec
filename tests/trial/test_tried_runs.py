"""What `try.py` has written becomes runs, with the predictions that trust rests on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from test_try_command import NET, ON, run

from taskflow.cli.main import main
from taskflow.optimizer.trust import read_runs
from taskflow.trial import read_tried
from taskflow.trial.script.found import FORMAT, row_of

STEPS = ([0.3, 0.1, 0.2], [0.4, 0.5, 0.6])


def tried(folder: Path) -> dict[str, Any]:
    """What try.py writes after two plans ran, one without a notation, and a third failed."""
    done = run(folder, "data", "d2 zero3", "expert", *ON, "--out", "tries")
    assert done.exit_code == 0, done.output
    plans = json.loads(folder.joinpath("tries", "plans.json").read_text())["plans"]
    memory = {"allocated": 10**6, "reserved": 2 * 10**6, "resident": 10**9}
    visits = [[{"seconds": seconds, "ranks": [memory]}] for seconds in STEPS] + [[{"error": "rank 1: MemoryError"}]]
    about = {"when": "2026-11-29T08:00:00", "ranks": 2, "torch": "2.14"}
    return {"format": FORMAT, "about": about, "plans": [row_of(plan, of) for plan, of in zip(plans, visits)]}


def command(folder: Path, *words: str) -> Any:
    folder.joinpath("net.py").write_text(NET)
    here = os.getcwd()
    os.chdir(folder)
    try:
        return CliRunner().invoke(main, list(words))
    finally:
        os.chdir(here)


def test_plans_that_ran_become_runs(tmp_path: Path) -> None:
    said = tried(tmp_path)
    tmp_path.joinpath("try.json").write_text(json.dumps(said))
    added = command(tmp_path, "runs", "add", "try.json", "--json")
    assert added.exit_code == 0, added.output
    runs = read_runs(tmp_path / "runs")
    assert [run.seconds for run in runs] == [0.2, 0.5] and all(run.file.steps == 3 for run in runs)
    assert {run.file.memory_bytes for run in runs} == {10**6} and f"{runs[0].file.when:%Y-%m-%d}" == "2026-11-29"
    for run_, plan in zip(runs, said["plans"]):  # as `taskflow try` predicted them
        assert run_.predicted == pytest.approx(plan["predicted_seconds"]), plan["name"]
    assert sum("contents" in plan for plan in said["plans"]) == sum(plan["plan"] is None for plan in said["plans"]) > 0
    ranked = json.loads(command(tmp_path, "rank", "--json").stdout)
    assert len(ranked["tasks"]) == 1 and ranked["pairs"] == 1


def test_what_cannot_be_kept_is_said(tmp_path: Path) -> None:
    said = tried(tmp_path)
    for change, message in (
        ({"plans": said["plans"][2:]}, "none of its 1 plans ran"),
        ({"format": "taskflow-try 2"}, "this taskflow reads 'taskflow-try 1'"),
        ({"plans": [{**said["plans"][0], "step_seconds": ["soon"]}]}, "plans[0].step_seconds[0]: must be a number"),
    ):
        tmp_path.joinpath("try.json").write_text(json.dumps({**said, **change}))
        result = command(tmp_path, "runs", "add", "try.json")
        assert result.exit_code == 2 and message in " ".join(result.output.split()), result.output
    tmp_path.joinpath("try.json").write_text(json.dumps(said))
    both = command(tmp_path, "runs", "add", "try.json", "--measured", "1s")
    assert both.exit_code == 2 and "it has measured times" in both.output
    tmp_path.joinpath("other.json").write_text("{}")
    assert read_tried(tmp_path / "other.json") is None
