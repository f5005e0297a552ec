"""taskflow train does what the examples do; taskflow profile says where a prediction is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fast_and_slow import fast_among
from measured_quickly import watch
from starting import ROOT, needs_mpi, run_python
from trace_format import verify_events

from taskflow.cli.main import main
from taskflow.runtime.profiler.compare import Row, differences
from taskflow.runtime.profiler.recording import read_trace

SMALL = ("rnnlm", "--size", "small", "--set", "hidden=8", "--warmup", "2", "--steps", "3", "--costs", "analytic")
OWN = '''
"""Train something small."""
from dataclasses import replace
from taskflow.rules import SGD
from taskflow.models.mlp import MLPConfig, mlp
from taskflow.training.program.example import Preset, RunConfig, Training, example
from taskflow.training.program.images import DATA, load_images

@example({"small": Preset(MLPConfig(batch=16, features=64, hidden=(8,)), SGD(lr=0.1), 3)}, **DATA)
def main(run: RunConfig) -> Training:
    images = load_images(run, 8, 1, name="features", flat=True)
    return images.training(mlp(replace(run.model, batch=run.batch, classes=images.classes), run.dtype))

NOTHING = 7
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TASKFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before


def run(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
    return done


def one_line(done: Any, message: str) -> None:
    (line,) = [line for line in done.stderr.splitlines() if line.strip()]
    assert message in line and not done.stdout, line


def ranks(folder: Path, count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    extra = {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "OMP_NUM_THREADS": "1"}
    return run_python("-m", "taskflow", *arguments, ranks=count, folder=folder, extra=extra)


# ---- train -----------------------------------------------------------------------------------------------------------
def test_train_is_the_example(folder: Path) -> None:
    arguments = ("--processors", "2", "--mapper", "expert", "--steps", "4", "--json", "--quiet")
    here = json.loads(run("train", "MLP", *arguments).stdout)
    there = run_python(str(ROOT / "examples" / "mlp.py"), *arguments, folder=folder)
    assert here["losses"] == json.loads(there.stdout)["losses"] and here["mapper"] == "expert" and len(here["losses"]) == 4


def test_train_writes_a_trace_of_the_steps_asked_for(folder: Path) -> None:
    done = run("train", "mlp", "--processors", "2", "--steps", "7", "--trace", "run.json.gz", "--trace-steps", "2-4")
    assert "trace of 3 steps: run.json.gz" in done.stderr
    content = read_trace("run.json.gz")
    verify_events(content)
    about = content["otherData"]
    assert about["steps"] == [2, 3, 4] and about["model"] == "MLP" and about["seed"] == 0 and about["costs"].startswith("analytic")
    run("train", "mlp", "--steps", "7", "--trace", "run.json", "--quiet")
    assert read_trace("run.json")["otherData"]["steps"] == [3, 4, 5]
    run("train", "mlp", "--steps", "1", "--trace", "run.json", "--quiet")
    assert read_trace("run.json")["otherData"]["steps"] == [1]


TRACED = ("--processors", "2", "--steps", "3", "--trace", "run.json")


def predicted(*arguments: str) -> tuple[dict[str, Any], str]:
    """What the trace of a run of two processors says of its prediction, and the line that names the file."""
    (line,) = [line for line in run("train", "mlp", *TRACED, *arguments).stderr.splitlines() if line.startswith("trace of")]
    return read_trace("run.json")["otherData"], line


def test_a_trace_predicts_with_the_costs_that_the_plan_was_found_with(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopwatch = watch(monkeypatch, folder / "cache")
    found = ("--mapper", "search", "--search-budget", "40p", "--costs", "measured")
    done = run("train", "mlp", *TRACED, *found)
    measured, about = stopwatch.count, read_trace("run.json")["otherData"]
    assert about["costs"].startswith("measured ") and measured > 0 and "tasks_not_measured" not in about
    said = float(done.stderr.partition("search: predicted ")[2].split()[0])
    assert about["predicted_step_seconds"] * 1e3 == pytest.approx(said, rel=1e-3)
    again, line = predicted(*found)
    assert stopwatch.count == measured and again["predicted_step_seconds"] == about["predicted_step_seconds"]
    assert line.endswith(f", predicted with {about['costs']} costs")


def test_a_trace_measures_nothing_and_mixes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopwatch = watch(monkeypatch, folder / "cache")
    analytic, _ = predicted("--mapper", "expert")
    assert "tasks_not_measured" not in analytic
    rates, unknown = analytic["costs"], list[int]()
    for kept in (False, True):  # with nothing on disk, then with all but the costs of updates
        if kept:
            predicted("--mapper", "search", "--search-budget", "1p", "--costs", "measured")  # tries the expert's plan too
            (file,) = (folder / "cache").glob("costs-*")
            content = json.loads(file.read_text())
            content["entries"] = {key: entry for key, entry in content["entries"].items() if not key.startswith("update")}
            file.write_text(json.dumps(content))
        before = stopwatch.count
        about, line = predicted("--mapper", "expert", "--costs", "measured")
        unknown.append(about["tasks_not_measured"])
        assert stopwatch.count == before and (before > 0) == kept
        assert (about["costs"], about["costs_asked_for"]) == (rates, "measured") and rates.startswith("analytic ")
        assert about["predicted_step_seconds"] == analytic["predicted_step_seconds"]
        assert f"predicted with {rates} costs: of {unknown[-1]} of its " in line and "no measured costs are kept" in line
        assert f"costs: {rates} ({unknown[-1]} tasks had not been measured)" in run("profile", "--trace", "run.json").stdout
    assert unknown[0] > unknown[1] > 0


def test_costs_of_a_machine_that_is_not_here_are_refused(folder: Path) -> None:
    done = run("train", "mlp", *TRACED, "--machine", "k80", "--costs", "measured", "--quiet", code=2)
    one_line(done, "taskflow train mlp: measured costs: tasks are timed on the CPU at hand, but machine k80 has k80")


def test_a_measured_machine_predicts(folder: Path) -> None:
    run("machine", "measure", "--processors", "2", "--out", "mine.json", "--quiet")
    run("train", "mlp", "-m", "mine.json", "--processors", "2", "--steps", "3", "--trace", "run.json", "--quiet")
    assert read_trace("run.json")["otherData"]["machine"] == "mine"


def test_programs_of_the_users_own(folder: Path) -> None:
    (folder / "own_program.py").write_text(OWN)
    found = json.loads(run("train", "own_program:main", "--json", "--quiet").stdout)
    assert len(found["losses"]) == 3 and found["losses"][-1] < found["losses"][0]
    one_line(run("train", "own_program:NOTHING", code=2), "own_program has no command NOTHING made with @example")
    one_line(run("train", "no_such_program:main", code=2), "cannot import no_such_program")


def test_mistakes_are_one_line(folder: Path) -> None:
    one_line(run("train", "cube", code=2), "taskflow train: no program trains 'cube'; there are AlexNet")
    one_line(run("train", "mlp", "--steps", "many", code=2), "taskflow train mlp: Invalid value for '--steps'")
    one_line(run("train", "mlp", "--trace-steps", "5-3", code=2), "write the first and the last step")
    one_line(run("train", "mlp", "--trace-steps", "2", code=2), "--trace-steps: say with --trace FILE where to write")
    one_line(run("train", "mlp", "--steps", "3", "--trace", "a", "--trace-steps", "5", code=2), "the run has steps 1 to 3")
    one_line(run("train", "mlp", "--trace", "nowhere/a", code=2), "cannot write trace nowhere/a")
    one_line(run("train", "mlp", "-m", "cray", code=2), "no machine 'cray'")
    assert not list(folder.glob("*.json*"))


@pytest.mark.parametrize("watchdog", ["nan", "inf", "-1"])
def test_a_watchdog_waits_a_finite_time(watchdog: str) -> None:
    said = run("train", "mlp", "--steps", "1", f"--watchdog={watchdog}", code=2).stderr
    assert "'--watchdog'" in said and "0 (never) or more" in said


def test_more_virtual_processors_than_anyone_plans_for_are_refused() -> None:
    """A million of them had compiled for minutes, to take turns on the cores there are."""
    begin = process_time()
    one_line(run("train", "mlp", "--steps", "1", "--processors", "999999", code=2), "--processors 999999: must be at most 4096")
    assert process_time() - begin < 20


def test_help_names_every_network() -> None:
    text = run("train", "--help").stdout
    for name in ("alexnet", "inception-v3", "resnet-101", "rnntc", "rnnlm", "nmt", "lenet", "mlp", "transformer"):
        assert f"\n  {name} " in text
    assert "--beams" in run("train", "nmt", "--help").stdout


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize(("arguments", "message"), fast_among(MISTAKES := [
    (("train", "mlp", "--steps", "many"), "Invalid value for '--steps'"),
    (("train", "mlp", "--mapper", "fastest"), "no mapper 'fastest'"),
    (("profile", "cube"), "no model 'cube'"),
], MISTAKES[1:2]))
def test_ranks_say_a_mistake_once(arguments: tuple[str, ...], message: str, folder: Path) -> None:
    done = ranks(folder, 2, *arguments)
    assert done.returncode == 2
    one_line(done, message)


@pytest.mark.mpi
@needs_mpi
def test_rank_0_says_what_predicts(folder: Path) -> None:
    done = ranks(folder, 2, "train", "mlp", "--steps", "3", "--trace", "run.json", "--costs", "measured")
    assert done.returncode == 0, done.stderr
    about = read_trace(folder / "run.json")["otherData"]
    assert about["costs"].startswith("analytic ") and about["tasks_not_measured"] > 0
    assert done.stderr.count(f"of {about['tasks_not_measured']} of its ") == 1 and not list(folder.rglob("costs-*"))


# ---- profile ---------------------------------------------------------------------------------------------------------
def consistent(found: dict[str, Any]) -> None:
    """The rows are the tasks, summed; the ranks' parts are the step."""
    for row in found["operators"]:
        assert row["tasks"] > 0 and row["predicted_seconds"] >= 0 and row["measured_seconds"] >= 0
        if row["ratio"] is not None:
            assert row["ratio"] == pytest.approx(row["measured_seconds"] / row["predicted_seconds"])
    wrong = [abs(row["difference_seconds"]) for row in found["mispredictions"]]
    assert wrong == sorted(wrong, reverse=True)
    assert len(found["ranks_seconds"]) == found["ranks"]
    for spent in found["ranks_seconds"]:
        assert set(spent) == {"compute", "send", "receive", "wait"} and spent["compute"] > 0


def test_profile_in_one_process(folder: Path) -> None:
    found = json.loads(run("profile", *SMALL, "--devices", "2", "--top", "4", "--json", "--trace", "run.json").stdout)
    consistent(found)
    assert found["steps"] == [3, 4, 5] and found["model"] == "RNNLM" and len(found["mispredictions"]) == 4
    parts = {(row["operator"], row["phase"]) for row in found["operators"]}
    assert {("softmax", "forward"), ("softmax", "backward"), ("softmax", "synchronisation"), ("loss", "transfer")} <= parts
    spans: dict[int, list[float]] = {}
    for event in read_trace("run.json")["traceEvents"]:
        if event["ph"] == "X" and event["cat"] == "compute":
            spans.setdefault(event["args"]["task"], []).append(event["dur"] * 1e-6)
    assert all(len(each) == 3 for each in spans.values())
    computed = sum(row["measured_seconds"] for row in found["operators"])
    assert computed == pytest.approx(sum(median(each) for each in spans.values()))
    assert sum(row["tasks"] for row in found["operators"]) == len(spans)
    again = json.loads(run("profile", "--trace", "run.json", "--top", "4", "--json").stdout)
    assert again == found  # the same from the file
    table = run("profile", "--trace", "run.json").stdout
    for text in ("operator", "synchronisation", "largest mispredictions", "share 1 rank and", "step: predicted", "ratio"):
        assert text in table
    assert len(run("profile", "--trace", "run.json", "--quiet").stdout.splitlines()) == 3


def test_profile_measures_costs_and_keeps_them(folder: Path) -> None:
    arguments = ("profile", "mlp", "--size", "small", "--steps", "2", "--devices", "2", "--strategy", "expert", "--json")
    found = json.loads(run(*arguments).stdout)
    consistent(found)
    assert found["costs"].startswith("measured ") and found["strategy"] == "expert"
    assert list((folder / "cache").rglob("*"))


@pytest.mark.mpi
@needs_mpi
def test_profile_on_ranks(folder: Path) -> None:
    done = ranks(folder, 2, "profile", *SMALL, "--mapper", "model", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    consistent(found)
    assert found["ranks"] == found["processors"] == 2 and len(found["ranks_seconds"]) == 2
    sent = [row for row in found["operators"] if row["phase"] == "transfer"]
    assert sent and all(row["bytes"] > 0 for row in sent)


def test_profile_mistakes(folder: Path) -> None:
    one_line(run("profile", code=2), "give a MODEL to run, or --trace FILE of a run")
    one_line(run("profile", "--trace", "none.json", code=2), "trace file none.json does not exist")
    one_line(run("profile", *SMALL, "--rule", "none", code=2), "profile trains")
    one_line(run("profile", *SMALL, "--strategy", "fastest", code=2), "no mapper 'fastest'")


def test_what_nobody_waited_for_is_no_misprediction() -> None:
    def event(category: str, name: str, seconds: float, **more: Any) -> dict[str, Any]:
        said = {"step": 1, "operator": "a", "phase": "transfer", "kind": "copy", "bytes": 8, "flops": 0, **more}
        return {"ph": "X", "cat": category, "name": name, "ts": 0.0, "dur": seconds * 1e6, "pid": 1, "tid": 1, "args": said}

    content = {
        "otherData": {"steps": [1], "step_seconds": [1.0], "predicted_step_seconds": 0.5},
        "traceEvents": [
            event("predicted", "late", 0.1, task=0), event("wait", "w", 1e-6, task=0, flight_microseconds=0.7e6),
            event("predicted", "slow", 0.1, task=1), event("wait", "w", 0.3, task=1, flight_microseconds=0.4e6),
            event("predicted", "work", 0.2, task=2, kind="forward", phase="forward"),
            event("compute", "work", 0.25, task=2, kind="forward", phase="forward"),
        ],
    }  # fmt: skip
    found = differences(content)
    assert found.largest(9) == [
        Row("slow", "transfer", 1, pytest.approx(0.1), pytest.approx(0.4), pytest.approx(0.3), 8),
        Row("work", "forward", 1, pytest.approx(0.2), pytest.approx(0.25), 0.0, 8),
    ]
    assert found.predicted_in_turn_seconds == pytest.approx(0.2)
    (moved,) = [row for row in found.rows if row.phase == "transfer"]
    assert moved.unknown and moved.ratio is None and moved.measured_seconds == pytest.approx(1.1)
