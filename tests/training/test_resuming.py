"""Runs that are stopped and resumed have the losses of runs that were not; and what cannot be resumed is said on one line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from click.testing import CliRunner, Result
from starting import environment, files_up_to, needs_mpi, on_ranks, run_python

from taskflow.checkpoint.checkpoint import read_checkpoint
from taskflow.runtime.job.launch import INTERRUPTED
from taskflow.training.networks import NETWORKS, program
from taskflow.training.networks import rnnlm as rnnlm_program
from taskflow.training.program.example import Preset
from taskflow.training.schedules import StepDecay

pytest.importorskip("safetensors", reason="pip install 'soap-taskflow[weights]'")

LIMIT_SECONDS = 150  # of a program, only so that nothing hangs
STEPS = 9  # of 4 windows an epoch, so that runs are stopped within an epoch and go over its end


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a text, in which everything runs, and a small preset with dropout, a schedule and a state to carry."""
    state, words = 1, []
    for _ in range(1200):
        state = (state * 1103515245 + 12345) % 2**31
        words.append(f"w{(state >> 16) % 40}")
    (tmp_path / "text.txt").write_text(" ".join(words))
    small: Preset = rnnlm_program.PRESETS["small"]
    config = replace(small.model, batch=8, steps=30, hidden=12, dropout=0.3)
    monkeypatch.setitem(
        rnnlm_program.PRESETS, "small", replace(small, model=config, steps=STEPS, schedule=StepDecay(4e-3, every=4, by="step"))
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(*arguments: str, name: str = "rnnlm", data: bool = True) -> Result:
    given = ["--data", "text.txt"] if data else []
    return CliRunner().invoke(program(name), [*given, "--json", "--quiet", *arguments], catch_exceptions=False)


def report(done: Result) -> dict[str, Any]:
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def refused(done: Result, message: str, code: int = 2) -> None:
    assert done.exit_code == code, (done.stdout, done.stderr)
    (line,) = done.stderr.splitlines()
    assert message in line, line
    assert not done.stdout


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_run_goes_on_in_another_precision(dtype: str) -> None:
    """The loss scale and the steps without an update are part of the checkpoint."""
    pytest.importorskip("ml_dtypes")
    narrow = ("--dtype", dtype, "--loss-scale", "1e9") if dtype == "fp16" else ("--dtype", dtype)  # which overflows
    whole = report(start(*narrow))
    report(start(*narrow, "--steps", "3", "--checkpoint", "run.safetensors"))
    rest = report(start(*narrow, "--processors", "1", "--resume", "run.safetensors"))
    assert rest["losses"] == whole["losses"][3:] and rest["skipped_steps"] == whole["skipped_steps"]
    assert rest["dtype"] == {"bf16": "bfloat16", "fp16": "float16"}[dtype]
    assert (rest["skipped_steps"], rest["loss_scale"]) == ((0, None) if dtype == "bf16" else (STEPS, 1e9))
    wide = report(start("--resume", "run.safetensors"))
    assert wide["dtype"] == "float32" and wide["losses"][0] == pytest.approx(rest["losses"][0], abs=0.02)
    refused(start("--dtype", "fp64", "--resume", "run.safetensors"), f"is in {rest['dtype']}, this run in float64")


def test_a_skipped_step_is_said() -> None:
    given = ["--data", "text.txt", "--steps", "3", "--dtype", "fp16", "--loss-scale", "1e9"]
    done = CliRunner().invoke(program("rnnlm"), given, catch_exceptions=False)
    assert "step 2: gradients overflowed, weights stay; the loss scale stays 1e+09, as it is fixed" in done.stderr
    assert done.stderr.rstrip().endswith("loss scale 1e+09, 3 steps skipped")


def test_a_resumed_run_has_the_losses_of_one_that_never_stopped() -> None:
    whole = report(start("--processors", "2"))
    first = report(start("--processors", "2", "--steps", "3", "--checkpoint", "run.safetensors"))
    assert first["losses"] == whole["losses"][:3] and first["checkpoint"] == "run.safetensors"
    rest = report(start("--processors", "2", "--resume", "run.safetensors"))
    assert rest["losses"] == whole["losses"][3:] and rest["resumed_at_step"] == 3  # bit for bit
    assert {k: rest[k] for k in ("loss_valid", "perplexity_valid", "loss_last")} == {
        k: whole[k] for k in ("loss_valid", "perplexity_valid", "loss_last")
    }
    other = report(start("--processors", "3", "--mapper", "random", "--resume", "run.safetensors"))
    assert other["losses"] == pytest.approx(whole["losses"][3:], rel=1e-4)
    assert len(set(whole["losses"])) == STEPS


def test_the_seed_comes_from_the_checkpoint() -> None:
    whole = report(start("--seed", "5"))
    report(start("--seed", "5", "--steps", "4", "--checkpoint", "run.safetensors"))
    rest = report(start("--resume", "run.safetensors"))
    assert rest["losses"] == whole["losses"][4:] and rest["seed"] == 5
    refused(start("--resume", "run.safetensors", "--seed", "4"), "is of a run with seed 5")


def test_checkpoints_are_written_on_the_way(folder: Path) -> None:
    whole = report(start())
    report(start("--checkpoint", "run.safetensors", "--checkpoint-every", "4", "--keep", "3"))
    kept = ["run.safetensors", "run.step4.safetensors", "run.step8.safetensors"]
    assert sorted(p.name for p in folder.glob("run*")) == kept
    positions = [read_checkpoint(name).position for name in (*kept[1:], kept[0])]
    assert [(p["steps"], p["epoch"]) for p in positions] == [(4, 0), (8, 1), (9, 2)]
    for steps in (4, 8):  # at the end of an epoch, and within one
        rest = report(start("--resume", f"run.step{steps}.safetensors"))
        assert rest["losses"] == whole["losses"][steps:]
    report(start("--checkpoint", "run.safetensors", "--checkpoint-every", "2", "--keep", "2", "--steps", "10"))
    assert sorted(p.name for p in folder.glob("run*")) == ["run.safetensors", "run.step8.safetensors"]


def test_a_checkpoint_is_due_after_a_time(folder: Path) -> None:
    """Whatever a step takes: with no time at all after each step, with much time at the end alone."""
    said = start("--checkpoint", "run.safetensors", "--checkpoint-every", "1h", "--keep", "99")
    assert [p.name for p in folder.glob("run*")] == ["run.safetensors"] and said.exit_code == 0
    start("--checkpoint", "run.safetensors", "--checkpoint-every", "0.000001s", "--keep", "99")
    assert len(list(folder.glob("run.step*"))) > 2


def test_auto_resumes_from_the_newest_whole_checkpoint(folder: Path) -> None:
    auto = ["--resume", "auto", "--checkpoint", "run.safetensors", "--checkpoint-every", "4", "--keep", "2"]
    whole = report(start(*auto))  # there is none yet
    assert whole["resumed_at_step"] == 0 and len(whole["losses"]) == STEPS
    shutil.copy("run.step8.safetensors", "run.step4.safetensors")  # as if it was killed when its last file was in place
    os.utime("run.step4.safetensors", (1, 1))
    again = report(start(*auto))  # nothing is left to do but to validate
    assert {p.name for p in folder.glob("run*")} == {"run.safetensors", "run.step8.safetensors"}
    assert again["losses"] == [] and again["resumed_at_step"] == STEPS and again["loss_valid"] == whole["loss_valid"]
    content = bytearray((folder / "run.safetensors").read_bytes())
    content[-5] ^= 1
    (folder / "run.safetensors").write_bytes(content)
    done = CliRunner().invoke(program("rnnlm"), ["--data", "text.txt", "--json", *auto], catch_exceptions=False)
    assert "run.safetensors: damaged: array" in done.stderr and "resumed from run.step8.safetensors after step 8" in done.stderr
    assert report(done)["losses"] == whole["losses"][8:]
    refused(start("--resume", "auto"), "--resume auto: say with --checkpoint FILE which one")
    refused(start("--elastic", "1:2"), "--elastic needs --checkpoint FILE, from which restarted ranks go on")
    refused(start("--elastic", "3:2"), "'3:2': write the fewest and the most ranks, such as 2:4")


def test_an_elastic_job_on_fewer_processors_takes_the_plan_for_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a file made beforehand; without one, a plan is searched for."""
    monkeypatch.setenv("TASKFLOW_START", "1")
    save = ["--steps", "1", "--processors"]
    report(start(*save, "3", "--mapper", "model", "--save-strategy", "plan.json"))
    given = ["--mapper", "plan.json", "--processors", "2", "--checkpoint", "run.safetensors"]
    refused(start(*given), "made for 3 processors")
    more = ["--elastic", "1:3", "--search-budget", "20p"]
    done = CliRunner().invoke(program("rnnlm"), ["--data", "text.txt", *given, *more, "--steps", "4"], catch_exceptions=False)
    assert "start it with -n 3 or search again): searching for one (20p)" in done.stderr, done.stderr
    report(start(*save, "2", "--mapper", "model", "--save-strategy", "plan.2.json"))
    assert report(start(*given, *more))["strategy"] == "model" and report(start(*given, "--resume", "auto"))["losses"] == []


def test_pictures_go_on_where_they_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = report(start("--steps", "6", name="mlp", data=False))
    report(start("--steps", "4", "--checkpoint", "run.safetensors", name="mlp", data=False))
    rest = report(start("--steps", "6", "--resume", "run.safetensors", "--processors", "3", name="mlp", data=False))
    assert rest["losses"] == pytest.approx(whole["losses"][4:], rel=1e-4)
    refused(start("--resume", "run.safetensors"), "is a checkpoint of MLP, but this trains RNNLM")


def test_a_batch_for_each_processor_stays_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    small = rnnlm_program.PRESETS["small"]
    monkeypatch.setitem(
        rnnlm_program.PRESETS, "small", replace(small, model=replace(small.model, batch=4), per_processor=True)
    )
    whole = report(start("--processors", "2"))
    report(start("--processors", "2", "--steps", "5", "--checkpoint", "run.safetensors"))
    rest = report(start("--processors", "4", "--resume", "run.safetensors"))
    assert rest["losses"] == pytest.approx(whole["losses"][5:], rel=1e-4)


def test_what_cannot_be_resumed_is_said(folder: Path) -> None:
    report(start("--steps", "3", "--checkpoint", "run.safetensors"))
    refused(start("--steps", "3", "--resume", "run.safetensors"), "has 3 steps already; to go on, give --steps more than that")
    refused(start("--resume", "nothing.safetensors"), "nothing.safetensors does not exist")
    whole = (folder / "run.safetensors").read_bytes()
    (folder / "half.safetensors").write_bytes(whole[: len(whole) // 2])
    refused(start("--resume", "half.safetensors"), "half.safetensors: not a safetensors file, or a part of one")
    refused(start("--dtype", "float64", "--resume", "run.safetensors"), "is in float32, this run in float64; give --dtype float32")
    refused(start("--checkpoint", "nowhere/run.safetensors"), "cannot write checkpoint nowhere/run.safetensors: there is no folder")
    refused(start("--checkpoint-every", "2"), "--checkpoint-every: say with --checkpoint FILE what to write")
    (folder / "text.txt").write_text((folder / "text.txt").read_text().replace("w1 ", "w2 ", 1))
    refused(start("--resume", "run.safetensors"), "is of a run on other data than this one's")


def test_a_checkpoint_that_cannot_be_written_ends_the_run_in_one_line() -> None:
    start("--steps", "1")  # which keeps the text's tokens
    with files_up_to(1000):
        done = start("--checkpoint", "run.safetensors", "--checkpoint-every", "2")
    refused(done, "checkpoint after step 2: run.safetensors: File too large", code=1)


def under_mpirun(folder: Path, ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    extra = {"TASKFLOW_CACHE": str(folder / "cache"), "TASKFLOW_WATCHDOG_SECONDS": "100"}
    return run_python(*arguments, ranks=ranks, folder=folder, limit=LIMIT_SECONDS, extra=extra)


@pytest.mark.mpi
@needs_mpi
def test_other_ranks_take_over(folder: Path) -> None:
    train = ("-m", "taskflow", "train", "mlp", "--json", "--quiet")
    whole = report(start("--steps", "6", name="mlp", data=False))
    saved = under_mpirun(folder, 2, *train, "--steps", "3", "--checkpoint", "run.safetensors")
    assert saved.returncode == 0, saved.stderr
    assert json.loads(saved.stdout)["losses"] == pytest.approx(whole["losses"][:3], rel=1e-4)
    rest = under_mpirun(folder, 3, *train, "--steps", "6", "--resume", "run.safetensors", "--trace", "run.json")
    assert rest.returncode == 0, rest.stderr
    assert json.loads(rest.stdout)["losses"] == pytest.approx(whole["losses"][3:], rel=1e-4)
    assert json.loads((folder / "run.json").read_text())["otherData"]["steps"] == [6]


OWN_DATA = """
import sys
from taskflow.runtime.job.launch import launcher
sys.argv[1:1] = ["--data", "text.txt" if launcher().rank == 0 else "other.txt"]
from taskflow.training.networks.rnnlm import main
main()
"""


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize("more", ["--steps 6", "--seed 7", "--resume r.safetensors"])
def test_ranks_with_other_options_do_not_wait_for_each_other(folder: Path, more: str) -> None:
    same = '"text.txt" if launcher().rank == 0 else "other.txt"]'
    (folder / "own.py").write_text(OWN_DATA.replace(same, f'"text.txt"] + {more.split()} * launcher().rank'))
    done = under_mpirun(folder, 2, "own.py", "--quiet")
    refused_by_all(done, f"rank 1 of 2 has {more}, and rank 0 none; start all ranks by the same command")


@pytest.mark.mpi
@needs_mpi
def test_ranks_with_other_data_are_found_before_the_first_step(folder: Path) -> None:
    (folder / "own.py").write_text(OWN_DATA)
    text = " ".join([(folder / "text.txt").read_text()] * 6)  # for the batches of the preset as it is
    (folder / "text.txt").write_text(text)
    (folder / "other.txt").write_text(text.replace("w1 w", "w2 w", 1))
    assert (folder / "other.txt").read_text() != text
    done = under_mpirun(folder, 3, "own.py", "--steps", "3", "--quiet", "--json")
    refused_by_all(done, "training data: 2 ranks (the first is 1) of 3 read other data than rank 0")
    (folder / "other.txt").unlink()
    done = under_mpirun(folder, 2, "own.py", "--steps", "3", "--quiet", "--json")
    refused_by_all(done, "corpus: there is no file ")
    assert "other.txt (rank 1 says this, the others do not; every rank must see the same files and options)" in done.stderr


def refused_by_all(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.strip()]
    assert message in line and line.startswith("rnnlm.py: ") and not done.stdout


def test_every_network_has_a_program() -> None:
    for name in NETWORKS:
        options = {option for parameter in program(name).params for option in parameter.opts}
        assert {"--trace", "--trace-steps", "--checkpoint", "--checkpoint-every", "--resume", "--machine", "--json"} <= options
    with pytest.raises(ValueError, match="no program trains 'cube'; there are AlexNet"):
        program("cube")


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=needs_mpi)])
def test_an_interrupted_run_says_how_it_goes_on(folder: Path, ranks: int) -> None:
    """Ctrl-C: one line that names the checkpoint, from which the run can really go on."""
    pytest.importorskip("sklearn", reason="pip install scikit-learn")
    program_line = [sys.executable, "-m", "taskflow", "train", "mlp", "--quiet"]
    command = [*on_ranks(ranks if ranks > 1 else 0), *program_line, "--checkpoint", "run.safetensors"]
    job = subprocess.Popen(
        [*command, "--checkpoint-every", "2", "--steps", "1000000"], cwd=folder, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )
    try:
        until = monotonic() + LIMIT_SECONDS
        while not (folder / "run.safetensors").is_file() and monotonic() < until and job.poll() is None:
            sleep(0.05)
        job.send_signal(signal.SIGINT)
        _, said = job.communicate(timeout=LIMIT_SECONDS)
    finally:
        job.kill()
    assert job.returncode != 0
    assert said.count("interrupted; go on from the last checkpoint with --resume run.safetensors") == 1, said
    assert "Traceback" not in said
    if ranks == 1:
        assert job.returncode == INTERRUPTED and len(said.splitlines()) == 1, said
    at = read_checkpoint("run.safetensors").step
    done = run_python(*program_line[1:], "--resume", "run.safetensors", "--steps", str(at + 1), "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["resumed_at_step"] == at


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=needs_mpi)])
def test_interrupted_while_it_searches(folder: Path, ranks: int) -> None:
    """Ctrl-C before the first step: the run ends on all ranks, also on the one that searches, and no rank waits for another."""
    pytest.importorskip("sklearn", reason="pip install scikit-learn")
    command = [*on_ranks(ranks if ranks > 1 else 0), sys.executable, "-m", "taskflow", "train", "mlp"]
    job = subprocess.Popen(
        [*command, "--processors", "2", "--mapper", "search", "--search-budget", "100s"], cwd=folder, text=True,
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )
    assert job.stderr is not None
    try:
        said = job.stderr.readline()
        while said and "searching" not in said:
            said = job.stderr.readline()
        sleep(1.0)
        job.send_signal(signal.SIGINT)
        _, said = job.communicate(timeout=LIMIT_SECONDS)
    finally:
        job.kill()
    assert job.returncode == INTERRUPTED, said
    assert said.count("interrupted before the first step") == 1 and "Traceback" not in said and "has left" not in said, said
