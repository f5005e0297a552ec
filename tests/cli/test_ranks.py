"""Commands under mpirun: what every rank would say is said once, and the job's exit code is the command's."""

from __future__ import annotations

import subprocess

import click
import pytest
from click.testing import CliRunner
from fast_and_slow import fast_among
from starting import needs_mpi, run_python

from taskflow.cli.main import main
from taskflow.cli.options import works


def on_ranks(*words: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "taskflow", *words, ranks=3, extra={"COLUMNS": "200"})


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize("words,code,once", fast_among(SAID := [
    (["--help"], 0, "Usage: taskflow [OPTIONS] COMMAND"),
    (["search", "--help"], 0, "Usage: taskflow search [OPTIONS] MODEL"),
    (["train", "lenet", "--help"], 0, "Usage: taskflow train lenet"),
    (["nonsense"], 2, "No such command 'nonsense'"),
    (["train", "lenet", "--nonsense"], 2, "No such option"),
    (["search", "lenet", "-m", "nowhere"], 2, "no machine 'nowhere'"),
    (["machine", "measure", "--out", "/nowhere/m.json"], 2, "cannot write /nowhere/m.json"),
    (["simulate", "lenet", "-m", "k80", "-n", "2", "-q"], 0, "  moved  "),
], [SAID[7]]))
def test_ranks_say_it_once(words: list[str], code: int, once: str) -> None:
    done = on_ranks(*words)
    assert done.returncode == code, done.stderr
    assert (done.stdout + done.stderr).count(once) == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    monkeypatch.setenv("PMI_RANK", str(rank))
    monkeypatch.setenv("PMI_SIZE", "3")


@pytest.mark.parametrize("words,code", [
    (["--help"], 0), (["search", "--help"], 0), (["--version"], 0), (["nonsense"], 2), (["search"], 2), ([], 2),
    (["search", "lenet", "--budget"], 2), (["models"], 0), (["train", "lenet", "--help"], 0), (["train", "nonsense"], 2),
])
def test_the_others_are_silent_and_end_with_the_same_code(words: list[str], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    as_rank(monkeypatch, 0)
    first = CliRunner().invoke(main, words)
    as_rank(monkeypatch, 2)
    other = CliRunner().invoke(main, words)
    assert (first.exit_code, other.exit_code) == (code, code)
    assert first.output and not other.output


def test_only_commands_that_need_them_run_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    as_rank(monkeypatch, 1)
    assert works("taskflow profile") and works("taskflow machine measure")
    assert not works("taskflow search") and not works("taskflow machine show")
    as_rank(monkeypatch, 0)
    assert works("taskflow search")
    assert isinstance(main, click.Group)
